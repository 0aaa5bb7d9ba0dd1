"""What a run has found: samples, what they come to, and what could not be had.

Every repetition gives one sample of each figure. A figure's value is the median of its samples; lowest and
highest stand beside it. A question that a contender cannot be asked, or that failed, is a result too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.figures import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    question: str
    figure: str
    unit: str
    contender: str
    value: float
    better: Better = Better.LOWER
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """A contender, or its reply to one question, that is not in the results."""

    contender: str
    question: str
    """Empty: every question."""
    reason: str


@dataclass(frozen=True, slots=True)
class Cell:
    """All samples of one figure of one contender."""

    contender: str
    samples: tuple[float, ...]
    limited_by: str
    """What limited the sample nearest to the median."""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def lowest(self) -> float:
        return min(self.samples)

    @property
    def highest(self) -> float:
        return max(self.samples)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, for all contenders that have it."""

    question: str
    figure: str
    unit: str
    better: Better
    cells: tuple[Cell, ...]

    @property
    def best(self) -> Cell:
        choose = min if self.better is Better.LOWER else max
        return choose(self.cells, key=lambda cell: cell.value)

    def cell(self, contender: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.contender == contender), None)


def rows_of(samples: Iterable[Sample], order: Sequence[str]) -> list[Row]:
    """Rows in the order in which their first sample came, contenders in the order given."""
    grouped: dict[tuple[str, str, str], dict[str, list[Sample]]] = {}
    for sample in samples:
        key = sample.question, sample.figure, sample.unit
        grouped.setdefault(key, {}).setdefault(sample.contender, []).append(sample)
    return [_row(key, found, order) for key, found in grouped.items()]


def _row(key: tuple[str, str, str], found: dict[str, list[Sample]], order: Sequence[str]) -> Row:
    cells = tuple(_cell(name, found[name]) for name in sorted(found, key=order.index))
    better = next(iter(found.values()))[0].better
    return Row(*key, better, cells)


def _cell(contender: str, samples: Sequence[Sample]) -> Cell:
    values = tuple(sample.value for sample in samples)
    middle = median(values)
    nearest = min(samples, key=lambda sample: abs(sample.value - middle))
    return Cell(contender, values, nearest.limited_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that a report shows."""

    machine: dict[str, object]
    contenders: tuple[dict[str, Any], ...]
    """What each contender is: name, peer, version, settings with reasons, what its acknowledgement means."""
    questions: dict[str, str]
    """What each question of this run asks, by name."""
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]
    took_s: float
    is_quick: bool = False

    def as_json(self) -> dict[str, object]:
        return {
            "machine": self.machine,
            "quick": self.is_quick,
            "took_s": round(self.took_s, 1),
            "contenders": list(self.contenders),
            "questions": self.questions,
            "figures": [_row_json(row) for row in self.rows],
            "missing": [
                {"contender": each.contender, "question": each.question, "reason": each.reason}
                for each in self.missing
            ],
        }


def _row_json(row: Row) -> dict[str, object]:
    return {
        "question": row.question,
        "figure": row.figure,
        "unit": row.unit,
        "better": row.better.name.lower(),
        "contenders": {
            cell.contender: {
                "median": cell.value,
                "lowest": cell.lowest,
                "highest": cell.highest,
                "samples": list(cell.samples),
                "limited_by": cell.limited_by,
            }
            for cell in row.cells
        },
    }
