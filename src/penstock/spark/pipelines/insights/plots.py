"""Plots as SVG, which any browser displays without scripts, fonts or other files. Pure.

Colours are CSS classes of the page, so a plot suits light and dark mode.

Rule: every text from outside is escaped, since record keys can hold any bytes.
"""

import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 760
HEIGHT: Final = 240
LEFT: Final = 78
RIGHT: Final = 12
TOP: Final = 14
BOTTOM: Final = 30
BAR_HEIGHT: Final = 22
NAME_WIDTH: Final = 210
TICKS: Final = 4
POINTS_WITH_DOTS_MAX: Final = 80

NumberFormat = Callable[[float], str]


class AxisLabel(NamedTuple):
    """Label on the x axis: short text for the axis, full text for the tooltip."""

    short: str
    full: str


class PlotSeries(NamedTuple):
    name: str
    values: Sequence[float | None]
    """None: nothing was measured at this position, and the line has a gap."""


class Bar(NamedTuple):
    name: str
    value: float
    note: str
    is_marked: bool = False


def line_plot(
    title: str, places: Sequence[AxisLabel], series: Sequence[PlotSeries], form: NumberFormat
) -> str:
    """Draw lines with one x position for each value."""
    found = [value for each in series for value in each.values if value is not None]
    top = nice_ceiling(max(found, default=0.0))
    body = [_grid(top, form), _bottom(places)]
    for number, each in enumerate(series):
        points = [(_x(index, len(places)), value) for index, value in enumerate(each.values)]
        body += [f'<polyline class="line s{number}" points="{run}"/>' for run in _runs(points, top)]
        if len(places) <= POINTS_WITH_DOTS_MAX:
            body += [
                f'<circle class="dot s{number}" cx="{x:.1f}" cy="{_y(value, top):.1f}" r="3">'
                f"<title>{escape(f'{place.full}: {each.name} {form(value)}')}</title></circle>"
                for (x, value), place in zip(points, places, strict=True)
                if value is not None
            ]
    return _svg(title, "".join(body), HEIGHT) + _legend(series)


def bar_plot(title: str, bars: Sequence[Bar], form: NumberFormat, *, mean: float | None = None) -> str:
    """Draw horizontal bars, one below the other, with a line at the mean."""
    top = max([bar.value for bar in bars] + ([mean] if mean else []), default=0.0) or 1.0
    room = WIDTH - NAME_WIDTH - 110
    body = []
    for number, bar in enumerate(bars):
        y = TOP + number * BAR_HEIGHT
        width = max(bar.value / top * room, 0.5)
        kind = "bar marked" if bar.is_marked else "bar"
        body.append(
            f'<text class="name" x="{NAME_WIDTH - 8}" y="{y + 13}">{escape(shorten(bar.name))}</text>'
            f'<rect class="{kind}" x="{NAME_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT - 5}">'
            f"<title>{escape(f'{bar.name}: {bar.note}')}</title></rect>"
            f'<text class="value" x="{NAME_WIDTH + width + 6:.1f}" y="{y + 13}">'
            f"{escape(form(bar.value))}</text>"
        )
    height = TOP + len(bars) * BAR_HEIGHT + 22
    if mean is not None:
        x = NAME_WIDTH + mean / top * room
        body.append(
            f'<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 20}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height - 6}">mean {escape(form(mean))}</text>'
        )
    return _svg(title, "".join(body), height)


def nice_ceiling(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5 and 10 times a power of ten."""
    if value < sys.float_info.min or not math.isfinite(value):  # a subnormal divisor can overflow
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power), 10 * power)


def shorten(text: str, characters: int = 28) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _svg(title: str, body: str, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{body}</svg>'
    )


def _grid(top: float, form: NumberFormat) -> str:
    lines = []
    for number in range(TICKS + 1):
        value = top * number / TICKS
        y = _y(value, top)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(form(value))}</text>'
        )
    return "".join(lines)


def _bottom(places: Sequence[AxisLabel]) -> str:
    """Draw as many labels as fit, including the first and the last."""
    if not places:
        return ""
    count = min(len(places), 5)
    chosen = sorted({round(number * (len(places) - 1) / max(count - 1, 1)) for number in range(count)})
    texts = []
    for index in chosen:
        anchor = "start" if index == 0 else "end" if index == len(places) - 1 else "middle"
        texts.append(
            f'<text class="tick" style="text-anchor:{anchor}" x="{_x(index, len(places)):.1f}" '
            f'y="{HEIGHT - 8}">{escape(places[index].short)}</text>'
        )
    return "".join(texts)


def _runs(points: Sequence[tuple[float, float | None]], top: float) -> list[str]:
    """Return the line as polylines, with a gap where a value is missing."""
    runs: list[list[str]] = [[]]
    for x, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{x:.1f},{_y(value, top):.1f}")
    return [" ".join(run) for run in runs if run]


def _legend(series: Sequence[PlotSeries]) -> str:
    if len(series) < 2:
        return ""
    entries = "".join(
        f'<span><i class="s{number}"></i>{escape(each.name)}</span>' for number, each in enumerate(series)
    )
    return f'<p class="legend">{entries}</p>'


def _x(index: int, count: int) -> float:
    return LEFT + index * (WIDTH - LEFT - RIGHT) / max(count - 1, 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
