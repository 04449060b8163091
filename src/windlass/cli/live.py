"""Draws a followed run on a terminal: the ranks' lines scroll above a panel that says where the run is.

The panel's letters come from rich; moving the cursor is done here, so that a thousand lines of log cost one write.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from windlass.cli.eventtext import is_news, sentence
from windlass.cli.logs import terminal_lines
from windlass.cli.statustext import (
    advance_of,
    attempt_words,
    cause_headline,
    elapsed,
    rank_word,
    ranks_line,
    saved_words,
    time_line,
)  # fmt: skip
from windlass.cli.style import PHASE_COLOURS
from windlass.cli.words import count, duration, tilde, visible
from windlass.runs.ledger import Ledger
from windlass.runs.logs import LogBlock
from windlass.runs.record import Event, Status

REDRAW_SECONDS: Final = 0.25
LEDGER_SECONDS: Final = 1.0
"""How old the line that says where the time went may be: it is added up from all that has happened."""
MIN_HEIGHT: Final = 12
"""A terminal of fewer rows shows the panel's first line alone."""


def panel(
    status: Status,
    plan: Mapping[str, Any],
    ledger: Ledger,
    now: float,
    *,
    rate: float | None = None,
    question: str = "",
    hint: str = "",
    stale: str = "",
) -> RenderableType:
    """The live view of a run."""
    colour = PHASE_COLOURS[status.phase.value]
    rows: list[RenderableType] = []
    if (advance := advance_of(status, now, rate)) is not None:
        head = Table.grid(padding=(0, 2), expand=True)
        cells: list[RenderableType] = []
        if advance.share is not None:
            head.add_column(ratio=1)
            head.add_column(justify="right")
            bar = ProgressBar(total=1.0, completed=advance.share, complete_style=colour, finished_style="green")
            cells += [bar, Text(f"{advance.share:.0%}", style="bold")]
        for words in (
            advance.steps,
            f"{duration(advance.left_seconds)} left" if advance.left_seconds is not None else "",
        ):
            if words:
                head.add_column(no_wrap=True)
                cells.append(Text(words))
        if cells:
            head.add_row(*cells)
            rows.append(head)
        if advance.facts:
            rows.append(Text("  ".join(advance.facts), no_wrap=True, overflow="ellipsis"))
    if stale:
        rows.append(Text(visible(stale), style="yellow"))
    rows.append(_where(status, plan))
    rows.append(Text.assemble(("time    ", "dim"), time_line(ledger), no_wrap=True, overflow="ellipsis"))
    if status.checkpoint is not None:
        saved = saved_words(status, now)
        rows.append(Text.assemble(("saved   ", "dim"), saved, no_wrap=True, overflow="ellipsis"))
    rows.append(Text.assemble(("output  ", "dim"), tilde(status.output_dir), no_wrap=True, overflow="ellipsis"))
    title = Text.assemble(
        (status.id, "bold"), "  ", (status.phase.value, colour), f"  {duration(elapsed(status, now))}"
    )
    under = Text(question, style="bold yellow") if question else Text(hint, style="dim")
    return Panel(
        Group(*rows), title=title, title_align="left", subtitle=under, subtitle_align="left", border_style=colour
    )


def _where(status: Status, plan: Mapping[str, Any]) -> Text:
    size = f"{count(plan['num_nodes'], 'node')} × {count(plan['procs_per_node'], 'rank')}"
    words = [f"{size} on {status.target}"]
    if attempt := attempt_words(status, plan):
        words.append(f"attempt {attempt}")
    text = Text("  ".join(words) + "  ", no_wrap=True, overflow="ellipsis")
    if status.ranks:
        bad = any(rank_word(state) not in ("alive", "starting", "done") for state in status.ranks)
        text.append(f"ranks {ranks_line(status.ranks)}", style="red" if bad else "")
    return text


class LiveView:
    """Logs above, panel below, on one terminal."""

    def __init__(self, out: TextIO, plan: Mapping[str, Any], ledger: Callable[[], Ledger], hint: str = "") -> None:
        self._out = out
        self._plan = plan
        self._make_ledger = ledger
        """Gives where the time went until now."""
        self._ledger: Ledger | None = None
        self._ledger_at = 0.0
        self._hint = hint
        self._console = Console(file=out, highlight=False)
        self._height = 0
        """Lines of the panel that stand above the cursor now."""
        self._width = 0
        """Columns of the terminal when they were drawn."""
        self._status: Status | None = None
        self._rate: float | None = None
        self._question = ""
        self._stale = ""
        self._drawn_at = 0.0
        self._drawn: tuple[Any, ...] = ()

    def logs(self, blocks: list[LogBlock]) -> None:
        """Let the ranks' lines scroll by above the panel."""
        self._draw("".join(terminal_lines(block) for block in blocks))

    def state(self, status: Status, rate: float | None) -> None:
        """Draw the panel anew where something has changed, else four times a second."""
        self._status, self._rate = status, rate
        now = (status.phase, status.progress.get("step"), status.ranks, self._question)
        if status.phase.is_terminal:
            self._draw("", panel=False)
        elif now != self._drawn or time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn = now
            self._draw("")

    def event(self, event: Event) -> None:
        """What went wrong and is not the end stands among the logs."""
        if event.kind == "cause":
            self.note(f"\x1b[31m{cause_headline(event.data)}\x1b[0m")
        elif (
            (event.kind == "attempt-end" and event.data["phase"] != "stopped")
            or (event.kind == "attempt" and event.data["number"] > 1)
            or is_news(event)
        ):
            self.note(sentence(event))
        elif event.kind == "warning":
            self.note(f"\x1b[33mwarning: {visible(str(event.data['message']))}\x1b[0m")

    def note(self, text: str) -> None:
        """A line above the panel."""
        self._draw(f"\x1b[1mwindlass\x1b[0m {text}\n")

    def stale(self, why: str) -> None:
        """A line of the panel, for as long as it is so."""
        self._stale = why
        self._draw("")

    def ask(self, question: str) -> None:
        """The question is the lower edge of the panel."""
        self._question = question
        self._draw("")

    def close(self) -> None:
        """Take the panel away."""
        self._draw("", panel=False)

    def _draw(self, above: str, *, panel: bool = True) -> None:
        width = shutil.get_terminal_size().columns
        # A terminal that has become narrower shows each of the old lines on several.
        rows = self._height * max(1, math.ceil(self._width / max(1, width)))
        erase = f"\x1b[{rows}A\r\x1b[J" if rows else "\r\x1b[J" if self._drawn_at else ""
        lines = self._panel_lines() if panel and self._status is not None else []
        self._height, self._width = len(lines), width
        self._out.write(erase + above + "".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._drawn_at = time.monotonic()

    def _panel_lines(self) -> list[str]:
        assert self._status is not None
        if self._ledger is None or time.monotonic() - self._ledger_at >= LEDGER_SECONDS:
            self._ledger, self._ledger_at = self._make_ledger(), time.monotonic()
        with self._console.capture() as captured:
            drawn = panel(
                self._status, self._plan, self._ledger, time.time(), rate=self._rate, question=self._question,
                hint=self._hint, stale=self._stale,
            )  # fmt: skip
            self._console.print(drawn)
        lines = captured.get().splitlines()
        return lines if shutil.get_terminal_size().lines >= MIN_HEIGHT else lines[:1]
