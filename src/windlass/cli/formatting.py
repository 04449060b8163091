"""Formats numbers, durations, lists and tables for a terminal."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Final

import click

from windlass.cli.style import coloured, interactive

Paint = Callable[..., str]
"""`paint(text, "red", bold=True)` returns the text in that colour, or unchanged if colours are off."""


_MOVING: Final = re.compile("\x1b(?!\\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


GAP: Final = 2
"""Spaces between the columns of a table."""
_WORDS: Final = re.compile("( *)([^ ]+)")
LONG_LINE: Final = 400
"""Maximum characters of a line from the script or another program in a summary."""
_LEAD: Final = re.compile(r" *(?:(?:ok|warn|fail) +)?(?:\S+(?: \S+)? {2,})?(?:[·→│] )?")
"""Matches the start of a line: the level of a check, a label, and the spaces after both."""


def painter(stream: IO[Any]) -> Paint:
    """Returns the function that colours text for `stream`."""
    return styled if coloured(stream) else lambda text, *_colour, **_style: text


def styled(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Colours a text with escape sequences."""
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None) if text else text


def duration(seconds: float) -> str:
    """Formats a duration briefly: `0.4s`, `12s`, `3m05s`, `2h14m`, `3d04h`."""
    if not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def number(value: Any) -> str:
    """Formats a number with its significant digits: `1,234`, `0.0312`, `3.2e-05`; other values as `visible` text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def metric_value(value: float | str) -> str:
    """Formats the value of a metric with four significant digits: `0.03124`, `1,234`; `nan` and `inf` unchanged."""
    return number(value) if isinstance(value, str) or not abs(value) < 1000 or value == int(value) else f"{value:.4g}"


def money(amount: float, currency: str, of: float | None = None) -> str:
    """Formats an amount of money: `12.30 USD`; below 1 USD, with enough digits to differ from zero: `0.00042 USD`.

    Parts of the sum `of` get as many decimals as the sum.
    """
    whole = amount if of is None else of
    digits = 2 if whole >= 1 or whole <= 0 else min(9, 1 - math.floor(math.log10(whole)))
    return f"{amount:,.{max(2, digits)}f} {currency}"


def price(amount: float, currency: str) -> str:
    """Formats a price without rounding: `0.526 USD`."""
    return f"{amount:,.10g} {currency}"


def brief(seconds: float) -> str:
    """Formats a duration that may be very short: `14ms`, `2.1s`."""
    return f"{1000 * max(0.0, seconds):.0f}ms" if seconds < 1 else duration(seconds)


def size(num_bytes: int) -> str:
    """Formats bytes: `512 B`, `1.5 MiB`, `20 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    power = min(4, int(math.log(num_bytes, 1024)))
    value, unit = num_bytes / 1024**power, ("", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def size_of_run(num_nodes: int, procs_per_node: int) -> str:
    """Formats the size of a run: `2 nodes × 4 ranks`."""
    return f"{count(num_nodes, 'node')} × {count(procs_per_node, 'rank')}"


def size_of_attempt(world_size: int, procs_per_node: int) -> str:
    """Formats the size of an attempt from its number of ranks: `2 nodes × 4 ranks`."""
    return size_of_run(world_size // procs_per_node, procs_per_node)


def count(many: int, noun: str, plural: str = "") -> str:
    """Formats a number with its noun: `1 rank`, `3 ranks`, `2 entries`."""
    return f"{many:,} {noun if many == 1 else plural or f'{noun}s'}"


def spans(numbers: Iterable[int], limit: int = 8) -> str:
    """Formats whole numbers as ranges: `0–3, 7`; ranges after the first `limit` are only counted."""
    found: list[list[int]] = []
    for value in sorted(set(numbers)):
        if found and value == found[-1][1] + 1:
            found[-1][1] = value
        else:
            found.append([value, value])
    shown = [str(low) if low == high else f"{low}–{high}" for low, high in found]
    rest = sum(high - low + 1 for low, high in found[limit:])
    return ", ".join(shown[:limit]) + (f" and {rest} more" if rest else "")


def ranks_named(ranks: Sequence[int]) -> str:
    """Formats ranks: `rank 3`, `ranks 0–2, 7`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}"


def bar(share: float, width: int = 24) -> str:
    """Draws a bar that is `share` (0 to 1) full, in steps of an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(width, "░")


def width_of(text: str) -> int:
    """Returns the number of terminal columns of a text: none for escape sequences, two for wide characters."""
    plain = click.unstyle(text) if "\x1b" in text else text
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in plain
    )


def fitted(text: str) -> str:
    """Wraps lines between words to the width of the terminal."""
    columns = shutil.get_terminal_size().columns
    return "\n".join(row for line in text.split("\n") for row in wrapped(line, columns))


def columns_of(stream: IO[Any]) -> int | None:
    """Returns the width of the terminal; None if `stream` is not a terminal."""
    return shutil.get_terminal_size().columns if interactive(stream) else None


def wrapped(line: str, columns: int) -> list[str]:
    """Wraps a line to `columns` between words; further lines are indented to the text of the first.

    A word longer than a line, such as a path, is not broken.
    """
    if width_of(line) <= columns:
        return [line]
    found = _LEAD.match(click.unstyle(line))
    lead = len(found[0]) if found is not None else 0
    indent = " " * (lead if 0 < lead <= columns // 2 else 2)
    rows, width = [""], 0
    for gap, word in _WORDS.findall(line):
        wide = width_of(word)
        if width + len(gap) + wide > columns and rows[-1].strip():
            rows.append(indent + word)
            width = len(indent) + wide
        else:
            rows[-1] += gap + word
            width += len(gap) + wide
    return rows


def table(rows: Sequence[Sequence[str]], *, gap: int = GAP) -> list[str]:
    """Returns lines with aligned columns; the last column is not padded. Rows may be short."""
    taken = [[width_of(cell) for cell in row[:-1]] for row in rows]
    widths = [max(column) for column in itertools.zip_longest(*taken, fillvalue=0)]
    lines = []
    for row, own in zip(rows, taken, strict=True):
        cells = [cell + " " * (width - wide + gap) for cell, wide, width in zip(row, own, widths, strict=False)]
        lines.append("".join([*cells, *row[-1:]]).rstrip())
    return lines


def titled(titles: Iterable[str], rows: Iterable[Sequence[str]], paint: Paint) -> list[str]:
    """Formats a table with a header row."""
    return table([[paint(title, dim=True) for title in titles], *rows])


def fitting(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    cuts: Iterable[tuple[str, int]],
    paint: Paint,
    columns: int | None,
) -> list[str]:
    """Formats a table with a header row, narrowed to `columns` terminal columns; None leaves it unchanged.

    The `cuts` are pairs of a column title and a minimum width. They are applied in turn until the lines fit. A minimum
    of 0 removes the column, and a last line lists the removed columns.
    """
    shown = {cells[0]: cells for cells in zip(titles, *rows, strict=True)}
    widths = {title: max(map(width_of, cells)) for title, cells in shown.items()}
    for title, least in cuts if columns is not None else ():
        over = sum(widths.values()) + GAP * (len(widths) - 1) - (columns or 0)
        if over <= 0 or title not in shown:
            continue
        if least == 0:
            del shown[title], widths[title]
        else:
            width = max(least, widths[title] - over)
            shown[title] = tuple(cut(cell, width) for cell in shown[title])
            widths[title] = max(map(width_of, shown[title]))
    head, *rest = zip(*shown.values(), strict=True)
    lines = titled(head, rest, paint)
    if missing := [title for title in titles if title not in shown]:
        lines.append(paint(f"not in {columns} columns: {', '.join(missing)}; -o yaml has all", dim=True))
    return lines


def cut(text: str, width: int) -> str:
    """Truncates a text without colours to `width` terminal columns, ending in `…`."""
    if width_of(text) <= width:
        return text
    while width_of(text) >= width:
        text = text[:-1]
    return f"{text}…"


def tilde(path: str) -> str:
    """Abbreviates the home folder in a path to `~`, which a shell expands."""
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def in_place(output_dir: str) -> str:
    """Formats the location of results with its preposition: `in ~/out`, `in the pods of d-1, while they are there`."""
    return output_dir if output_dir.startswith("in ") else f"in {tilde(output_dir)}"


def harmless(text: str) -> str:
    """Removes escape sequences that move the cursor or reorder characters; keeps Windlass's colours."""
    return _MOVING.sub("�", text)


def shortened(line: str) -> str:
    """Truncates a line of a script to `LONG_LINE` characters, because an exception may print a whole batch."""
    return line if len(line) <= LONG_LINE else f"{line[:LONG_LINE]} …"


def visible(text: str) -> str:
    """Replaces control characters, except tab, in untrusted text, which could otherwise move the cursor."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "�" for letter in text)
