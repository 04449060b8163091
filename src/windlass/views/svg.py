"""Draws a plot as SVG: one file without scripts and without references to other files. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from windlass.views.plot import Plot

WIDTH: Final = 800
HEIGHT: Final = 420
LEFT: Final = 76
RIGHT: Final = 16
TOP: Final = 28
BOTTOM: Final = 46
COLOURS: Final = ("#3b82c4", "#e07b00", "#2e9e6b", "#d1495b", "#8a63d2", "#b0892e", "#1f9fb5", "#c9569c")
"""Colours of curves, used in turn; each has a contrast of at least 3 to white and to dark grey."""
DASHES: Final = ("", "7 4", "2 3", "9 3 2 3")
"""Dash patterns of curves; the next one is used when all colours have been used."""
LISTED: Final = 40
"""Maximum number of curves in the legend."""
STYLE: Final = """
  svg { background: #ffffff; color: #24292f; font: 12px system-ui, sans-serif }
  .grid { stroke: currentColor; stroke-opacity: .15 }
  .restart { stroke: currentColor; stroke-opacity: .6; stroke-dasharray: 3 3 }
  .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round }
  text { fill: currentColor }
  @media (prefers-color-scheme: dark) { svg { background: #16191d; color: #e6e9ed } }
"""


def to_svg(plot: Plot) -> str:
    """Returns the plot as the text of an SVG file, with a legend below the axes. It supports the viewer's dark mode."""
    listed = plot.curves[:LISTED]
    height = HEIGHT + 20 * (len(listed) + (len(plot.curves) > LISTED))
    title = escape(_printable(plot.y.title))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<text x="{LEFT}" y="18" font-weight="600">{title}{" (logarithmic)" if plot.y.is_log else ""}</text>',
        *_axes(plot),
        *_curves(plot),
        *_legend(plot),
        "</svg>\n",
    ])  # fmt: skip


def _axes(plot: Plot) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value, label in plot.y.ticks(6).items():
        y = _y(plot, value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for value, label in plot.x.ticks(8).items():
        x = _x(plot, value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    for value in plot.restarts:
        x = _x(plot, value)
        yield f'<line class="restart" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"><title>restart</title></line>'
    restarts = "  ┊ restart" if plot.restarts else ""
    middle = (LEFT + WIDTH - RIGHT) // 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x.title)}{restarts}</text>'


def _curves(plot: Plot) -> Iterator[str]:
    for index, curve in enumerate(plot.curves):
        yield f'<g class="curve" {_stroke(index)}><title>{escape(_printable(curve.label))}</title>'
        for line in curve.lines:
            points = " ".join(f"{_x(plot, x)},{_y(plot, y)}" for x, y in (line if len(line) > 1 else line * 2))
            yield f'<polyline points="{points}"/>'
        yield "</g>"


def _legend(plot: Plot) -> Iterator[str]:
    for index, curve in enumerate(plot.curves[:LISTED]):
        y = HEIGHT + 20 * index
        yield f'<line class="curve" x1="{LEFT}" x2="{LEFT + 28}" y1="{y}" y2="{y}" {_stroke(index)}/>'
        yield f'<text x="{LEFT + 36}" y="{y + 4}">{escape(_printable(curve.label))}</text>'
    if (more := len(plot.curves) - LISTED) > 0:
        yield f'<text x="{LEFT + 36}" y="{HEIGHT + 20 * LISTED + 4}">and {more} more</text>'


def _stroke(index: int) -> str:
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return f'stroke="{COLOURS[index % len(COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _x(plot: Plot, value: float) -> float:
    return round(LEFT + plot.x.position(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(plot: Plot, value: float) -> float:
    return round(HEIGHT - BOTTOM - plot.y.position(value) * (HEIGHT - BOTTOM - TOP), 1)


def _printable(text: str) -> str:
    """Replaces characters that XML does not allow, such as control characters."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
