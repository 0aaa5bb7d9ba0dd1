"""The report as one HTML page, which needs nothing else: no script, no font, no picture from elsewhere."""

from collections.abc import Iterable, Iterator
from html import escape

from benchmarks.figures import shown
from benchmarks.peers.report.plots import plot
from benchmarks.peers.report.table import NOT_MEASURED, better_text, spread_text
from benchmarks.peers.results import Missing, Row, Run

STYLE = """
:root { color-scheme: light dark; --text: #1c2329; --soft: #5c6872; --line: #d5dbe0; --back: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e9ed; --soft: #9aa7b2; --line: #37424b; --back: #14191d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { margin: 2.5rem 0 0.2rem; font-size: 1.2rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.2rem; font-weight: 600; }
h3 small, .soft { color: var(--soft); font-weight: 400; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--text); }
svg .value { font-variant-numeric: tabular-nums; } svg .spread { stroke: var(--text); stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td, th { text-align: left; vertical-align: top;
  padding: 0.25rem 0.6rem 0.25rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.missing { border-left: 3px solid #c9762b; padding: 0.1rem 0 0.1rem 0.7rem; margin: 0.5rem 0; }
.scroll { overflow-x: auto; } summary { cursor: pointer; color: var(--soft); } code { font-size: 12px; }
nav a { margin-right: 0.8rem; }
"""
LIMITS = "limits"


def page(run: Run) -> str:
    return "\n".join(_parts(run)) + "\n"


def _parts(run: Run) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Penstock beside its peers</title><style>{STYLE}</style></head><body>"
    yield "<h1>Penstock beside its peers</h1>"
    yield f'<p class="soft">{escape(_machine_text(run))}</p>'
    if run.is_quick:
        yield "<p><strong>A short run (--quick): it shows that everything works, and no more.</strong></p>"
    yield (
        "<p>Bars are medians, lines go from the lowest sample to the highest; the scale begins at zero. A"
        " full bar means that an acknowledged record is on disk, a pale one that it is in the page cache."
        " Compare like with like.</p>"
    )
    yield from _missing(each for each in run.missing if not each.question)
    links = (f'<a href="#{escape(name)}">{escape(name)}</a>' for name in run.questions)
    yield f"<nav>{''.join(links)}<a href='#contenders'>contenders</a></nav>"
    shown_as = {each["name"]: (each["peer"], each["acknowledged"] == "on disk") for each in run.contenders}
    for name, asks in run.questions.items():
        yield f'<section><h2 id="{escape(name)}">{escape(name)}</h2><p class="soft">{escape(asks)}</p>'
        rows = [row for row in run.rows if row.question == name]
        for row in rows:
            yield _heading(row)
            yield plot(row, shown_as)
        yield from _missing(each for each in run.missing if each.question == name)
        if rows:
            yield _details(rows)
        yield "</section>"
    yield from _contenders(run)
    yield "</body></html>"


def _machine_text(run: Run) -> str:
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.machine.items())
    return f"{facts}. The run took {run.took_s / 60:.0f} minutes."


def _heading(row: Row) -> str:
    return f"<h3>{escape(row.figure)} <small>{escape(row.unit)}, {better_text(row.better)}</small></h3>"


def _missing(all_missing: Iterable[Missing]) -> Iterator[str]:
    for each in all_missing:
        yield (
            f'<p class="missing"><strong>{escape(each.contender)}</strong> {NOT_MEASURED}:'
            f" {escape(each.reason)}</p>"
        )


def _details(rows: Iterable[Row]) -> str:
    cells = "".join(
        f"<tr><td>{escape(row.figure)}</td><td>{escape(cell.contender)}</td>"
        f'<td class="number">{shown(cell.value)} {escape(row.unit)}</td>'
        f"<td>{escape(spread_text(cell))}</td><td>{escape(cell.limited_by)}</td></tr>"
        for row in rows
        for cell in row.cells
    )
    head = "<tr><th>figure</th><th>contender</th><th>median</th><th>spread</th><th>limited by</th></tr>"
    table = f'<div class="scroll"><table>{head}{cells}</table></div>'
    return f"<details><summary>All figures</summary>{table}</details>"


def _contenders(run: Run) -> Iterator[str]:
    yield '<section><h2 id="contenders">contenders</h2><div class="scroll"><table>'
    heads = ("name", "version", "acknowledged means", "settings", "why", "three replicas")
    yield f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for each in run.contenders:
        settings = (
            "<br>".join(f"<code>{escape(setting)}</code>" for setting in each["settings"]) or "defaults"
        )
        yield (
            f"<tr><td>{escape(each['name'])}</td><td>{escape(each['version'] or 'missing')}</td>"
            f"<td>{escape(each['acknowledged'])}</td><td>{settings}</td><td>{escape(each['why'])}</td>"
            f"<td>{escape(each['three_replicas'])}</td></tr>"
        )
    yield "</table></div></section>"
