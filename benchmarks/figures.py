"""Results of benchmarks: figures, their targets, and the table that prints them.

A figure keeps all its samples. Its value is the best sample, because other load on the machine can only make
a broker look worse. Exceptions: waiting times of users are medians, because users do not get the best one;
a value that depends on the moment of measuring is the worst sample, because it must hold at any moment.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median


class Better(Enum):
    LOWER = "at most"
    HIGHER = "at least"


class Choice(Enum):
    BEST = "best"
    MEDIAN = "median"
    WORST = "worst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    unit: str
    samples: tuple[float, ...]
    better: Better = Better.LOWER
    choice: Choice = Choice.BEST
    target: float | None = None
    limited_by: str = ""

    @property
    def value(self) -> float:
        if self.choice is Choice.MEDIAN:
            return median(self.samples)
        takes_least = (self.better is Better.LOWER) == (self.choice is Choice.BEST)
        return min(self.samples) if takes_least else max(self.samples)

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of its target."""
        return None if self.target is None else self.value / self.target

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.better is Better.LOWER else self.value >= self.target

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "choice": self.choice.value,
            "better": self.better.name.lower(),
            "samples": list(self.samples),
            "target": self.target,
            "ratio": self.ratio,
            "met": self.is_met,
            "limited_by": self.limited_by,
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all samples do not exceed. `ordered` ascends."""
    assert ordered, "no samples"
    assert 0 < share <= 1
    return ordered[math.ceil(share * len(ordered)) - 1]


def shown(value: float) -> str:
    """The number with three significant digits and thousands separators."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


HEAD = ("figure", "value", "samples", "target", "ratio", "met", "limited by")


def table(figures: Iterable[Figure]) -> str:
    """A table for a terminal: one row for each figure, columns as wide as their widest cell."""
    rows = [HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _row(figure: Figure) -> tuple[str, ...]:
    target = ratio = met = ""
    if figure.target is not None and figure.ratio is not None:
        target = f"{figure.better.value} {shown(figure.target)}"
        ratio = f"{figure.ratio:.2f}"
        met = "yes" if figure.is_met else "NO"
    lowest, highest, count = min(figure.samples), max(figure.samples), len(figure.samples)
    spread = f"{shown(lowest)} to {shown(highest)} ({count})" if count > 1 else ""
    return (
        figure.name,
        f"{shown(figure.value)} {figure.unit}",
        spread,
        target,
        ratio,
        met,
        figure.limited_by,
    )
