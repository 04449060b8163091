"""Draws a plot in a terminal with braille characters, or with letters where these or colours cannot be shown."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Sequence
from typing import Final

from windlass.cli.formatting import Paint, cut, visible
from windlass.cli.style import RANK_COLOURS
from windlass.views.plot import Line, Plot

DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a braille character, by row and column."""
LISTED: Final = 12
"""Maximum number of curves in the legend."""
ASCII: Final = str.maketrans("│└─┊┤┬…–", "|+-:|+.-")

Cells = dict[tuple[int, int], tuple[int, int]]
"""Dots in each cell, and the number of the last curve there, by row and column."""


def draw(plot: Plot, columns: int, rows: int, paint: Paint, *, letters: bool, ascii_only: bool = False) -> list[str]:
    """Returns the lines of a plot that is `columns` wide and has `rows` lines between its title and its x axis.

    With `letters`, each curve is drawn with a letter of its own instead of dots.
    """
    labels = {_row(plot, value, rows): label for value, label in plot.y.ticks(max(2, rows // 3)).items()}
    margin = max(map(len, labels.values()), default=0) + 1
    width = max(columns - margin - 1, 10)
    cells = _cells(plot, width, rows)
    marks = {min(width - 1, int(plot.x.position(value) * width)) for value in plot.restarts}
    scale = " (logarithmic)" if plot.y.is_log else ""
    lines = [paint(cut(visible(plot.y.title) + scale, columns), bold=True)]
    for row in range(rows):
        label = labels.get(row, "")
        shown = [_cell(cells.get((row, column)), column in marks, paint, letters=letters) for column in range(width)]
        lines.append(f"{label:>{margin - 1}} {'┤' if label else '│'}{''.join(shown)}".rstrip())
    lines += _x_axis(plot, margin, width)
    lines += _legend(plot, columns, paint, letters=letters)
    return [line.translate(ASCII) for line in lines] if ascii_only else lines


def _x_axis(plot: Plot, margin: int, width: int) -> Iterator[str]:
    axis, text = ["─"] * width, [" "] * (margin + 1 + width)
    free = 0
    for value, label in plot.x.ticks(max(2, width // 10)).items():
        column = min(width - 1, int(plot.x.position(value) * width))
        axis[column] = "┬"
        begin = min(max(margin + 1 + column - len(label) // 2, free), len(text) - len(label))
        if begin >= free:
            text[begin : begin + len(label)] = label
            free = begin + len(label) + 1
    yield f"{' ' * margin}└{''.join(axis)}"
    yield "".join(text).rstrip()
    restarts = "   ┊ restart" if plot.restarts else ""
    yield f"{' ' * (margin + 1)}{plot.x.title}{restarts}"


def _legend(plot: Plot, columns: int, paint: Paint, *, letters: bool) -> Iterator[str]:
    for index, curve in enumerate(plot.curves[:LISTED]):
        mark = _letter(index) if letters else "──"
        yield f"{paint(mark, _colour(index))} {cut(visible(curve.label), columns - 3)}"
    if (more := len(plot.curves) - LISTED) > 0:
        yield f"and {more} more"


def _cell(found: tuple[int, int] | None, is_restart: bool, paint: Paint, *, letters: bool) -> str:
    if found is None:
        return paint("┊", dim=True) if is_restart else " "
    dots, curve = found
    return paint(_letter(curve) if letters else chr(0x2800 + dots), _colour(curve))


def _letter(curve: int) -> str:
    return string.ascii_letters[curve % len(string.ascii_letters)]


def _colour(curve: int) -> str:
    return RANK_COLOURS[curve % len(RANK_COLOURS)]


def _row(plot: Plot, value: float, rows: int) -> int:
    return (rows * 4 - 1 - round(plot.y.position(value) * (rows * 4 - 1))) // 4


def _cells(plot: Plot, width: int, rows: int) -> Cells:
    cells: Cells = {}
    for number, curve in enumerate(plot.curves):
        for line in curve.lines:
            for x, y in _dots(plot, line, width * 2 - 1, rows * 4 - 1):
                at = (y // 4, x // 2)
                before, _ = cells.get(at, (0, number))
                cells[at] = (before | DOTS[y % 4][x % 2], number)
    return cells


def _dots(plot: Plot, line: Line, right: int, bottom: int) -> Iterator[tuple[int, int]]:
    """Yields the dots of a line, from point to point."""
    places: Sequence[tuple[int, int]] = [
        (round(plot.x.position(x) * right), bottom - round(plot.y.position(y) * bottom)) for x, y in line
    ]
    yield places[0]
    for (x, y), (to_x, to_y) in itertools.pairwise(places):
        count = max(abs(to_x - x), abs(to_y - y))
        for step in range(1, count + 1):
            yield x + round((to_x - x) * step / count), y + round((to_y - y) * step / count)
