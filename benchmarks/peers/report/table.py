"""The report for a terminal: one block for each figure, one line for each contender."""

from collections.abc import Iterator

from benchmarks.figures import Better, shown
from benchmarks.peers.results import Cell, Missing, Row, Run

NOT_MEASURED = "NOT MEASURED"


def table(run: Run) -> str:
    return "\n".join(_lines(run))


def _lines(run: Run) -> Iterator[str]:
    acknowledged = {each["name"]: each["acknowledged"] for each in run.contenders}
    for question, asks in run.questions.items():
        yield f"\n{question}: {asks}"
        for row in run.rows:
            if row.question == question:
                yield from _block(row, acknowledged)
        yield from (_missing_line(each) for each in run.missing if each.question == question)
    everywhere = [each for each in run.missing if not each.question]
    if everywhere:
        yield "\nmissing peers"
        yield from (_missing_line(each) for each in everywhere)


def _missing_line(missing: Missing) -> str:
    return f"    {missing.contender:<20} {NOT_MEASURED}: {missing.reason}"


def _block(row: Row, acknowledged: dict[str, str]) -> Iterator[str]:
    yield f"  {row.figure} ({row.unit}, {better_text(row.better)})"
    for cell in row.cells:
        line = f"    {cell.contender:<20} {acknowledged.get(cell.contender, ''):<18} {shown(cell.value):>9}"
        yield f"{line}  {spread_text(cell):<24} {cell.limited_by}".rstrip()


def better_text(better: Better) -> str:
    return "less is better" if better is Better.LOWER else "more is better"


def spread_text(cell: Cell) -> str:
    if len(cell.samples) < 2:
        return "one sample"
    return f"{shown(cell.lowest)} to {shown(cell.highest)} ({len(cell.samples)})"
