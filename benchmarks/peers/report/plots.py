"""A plot of one figure: a bar to each contender's median, and a line from its lowest to its highest sample.

The scale begins at zero. A full bar means that an acknowledged record is on disk, a pale one that it is not.
"""

from html import escape

from benchmarks.figures import shown
from benchmarks.peers.report.table import better_text, spread_text
from benchmarks.peers.results import Cell, Row

WIDTH = 720
NAME_WIDTH = 150
VALUE_WIDTH = 90
LINE_HEIGHT = 22
BAR_HEIGHT = 14
HUES = {"penstock": 205, "kafka": 25, "nats": 140, "rabbitmq": 280, "redis": 350}
OTHER_HUE = 205


def plot(row: Row, contenders: dict[str, tuple[str, bool]]) -> str:
    """An SVG element. `contenders` has each name's peer, and whether an acknowledged record is on disk."""
    height = LINE_HEIGHT * len(row.cells) + 4
    most = max(cell.highest for cell in row.cells) or 1.0
    scale = (WIDTH - NAME_WIDTH - VALUE_WIDTH) / most
    label = escape(f"{row.figure}, {row.unit}, {better_text(row.better)}", quote=True)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">']
    for number, cell in enumerate(row.cells):
        peer, is_durable = contenders.get(cell.contender, ("", True))
        parts.append(_line(cell, number, scale, HUES.get(peer, OTHER_HUE), is_durable=is_durable))
    parts.append("</svg>")
    return "".join(parts)


def _line(cell: Cell, number: int, scale: float, hue: int, *, is_durable: bool) -> str:
    top = number * LINE_HEIGHT + 4
    middle = top + BAR_HEIGHT / 2
    length, low, high = (max(0.0, value) * scale for value in (cell.value, cell.lowest, cell.highest))
    opacity = "1" if is_durable else "0.35"
    hint = escape(" · ".join(part for part in (cell.contender, spread_text(cell), cell.limited_by) if part))
    text_at = NAME_WIDTH + max(length, high) + 6
    return (
        f"<g><title>{hint}</title>"
        f'<text x="{NAME_WIDTH - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(cell.contender)}</text>'
        f'<rect x="{NAME_WIDTH}" y="{top}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2"'
        f' fill="hsl({hue} 60% 48%)" fill-opacity="{opacity}"/>'
        f'<line class="spread" x1="{NAME_WIDTH + low:.1f}" x2="{NAME_WIDTH + high:.1f}"'
        f' y1="{middle:.1f}" y2="{middle:.1f}"/>'
        f'<text class="value" x="{text_at:.1f}" y="{middle + 4:.1f}">{shown(cell.value)}</text></g>'
    )
