"""Live view of a run on a terminal: the ranks' lines scroll above a panel with the state of the run.

Rich renders the panel; this module moves the cursor, so that a thousand lines of log cost one write.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import click
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text

from windlass.cli.eventtext import colour_of, is_notable, notable_text, sentence
from windlass.cli.formatting import duration, size_of_attempt, styled, tilde, visible
from windlass.cli.logs import terminal_lines
from windlass.cli.statustext import (
    advance_lines,
    attempt_words,
    checkpoint_words,
    has_failed_ranks,
    importing_words,
    labelled,
    ranks_line,
    time_line,
)
from windlass.cli.style import PHASE_COLOURS
from windlass.runs import events
from windlass.runs.events import Event
from windlass.runs.logs import LogBlock
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.views.run import Run

REDRAW_SECONDS: Final = 0.25
MIN_HEIGHT: Final = 12
"""Minimum rows of a terminal for the whole panel; smaller terminals show only its first line."""
BORDER_COLUMNS: Final = 4


def panel(
    run: Run,
    now: float,
    *,
    rate: float | None = None,
    question: str = "",
    hint: str = "",
    stale: str = "",
    width: int = 80,
) -> RenderableType:
    """Renders the live view of a run, for a terminal of `width` columns."""
    colour = PHASE_COLOURS[run.phase]
    lines = advance_lines(run, now, rate, width=width - BORDER_COLUMNS, colour=colour)
    lines += [importing] if not lines and (importing := importing_words(run)) else []
    lines += [click.style(visible(stale), fg="yellow")] if stale else []
    lines.append(_where(run))
    facts = {"time": time_line(run.ledger), "output": tilde(run.output_dir), "checkpoint": checkpoint_words(run, now)}
    lines += [line for label in ("time", "checkpoint", "output") for line in labelled(label, facts[label], styled)]
    title = Text.assemble((run.id, "bold"), "  ", (run.phase.value, colour), f"  {duration(run.elapsed(now))}")
    under = Text(question, style="bold yellow") if question else Text(hint, style="dim")
    inside = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
    return Panel(inside, title=title, title_align="left", subtitle=under, subtitle_align="left", border_style=colour)


def _where(run: Run) -> str:
    world_size = run.attempts[-1].world_size if run.attempts else run.num_nodes * run.procs_per_node
    words = [f"{size_of_attempt(world_size, run.procs_per_node)} on {run.target}"]
    words += [f"attempt {attempt}"] if (attempt := attempt_words(run)) else []
    if run.ranks:
        ranks = f"ranks {ranks_line(run.ranks, run.phase)}"
        words.append(click.style(ranks, fg="red") if has_failed_ranks(run.ranks) else ranks)
    return "  ".join(words)


class LiveView:
    """Draws logs above and the panel below, on one terminal."""

    def __init__(self, out: TextIO, make_run: Callable[[Status], Run], hint: str = "") -> None:
        self._out = out
        self._make_run = make_run
        self._hint = hint
        self._console = Console(file=out, highlight=False)
        self._height = 0
        """Number of panel lines above the cursor."""
        self._width = 0
        """Columns of the terminal when the panel was drawn."""
        self._status: Status | None = None
        self._rate: float | None = None
        self._question = ""
        self._stale = ""
        self._drawn_at = 0.0
        self._drawn: tuple[Any, ...] = ()

    def logs(self, blocks: list[LogBlock]) -> None:
        """Writes the lines of the ranks above the panel."""
        self._draw("".join(terminal_lines(block) for block in blocks))

    def state(self, status: Status, rate: float | None) -> None:
        """Redraws the panel if the state has changed, else at most four times a second."""
        self._status, self._rate = status, rate
        now = (status.phase, status.progress.step, status.ranks, self._question)
        if status.phase.is_terminal:
            self._draw("", panel=False)
        elif now != self._drawn or time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._drawn = now
            self._draw("")

    def event(self, event: Event) -> None:
        """Prints failures that do not end the run, and other important events, between the logs."""
        match event.entry:
            case events.AttemptEnded(phase) if phase is not Phase.STOPPED:
                self.note(sentence(event))
            case events.AttemptStarted(number) if number > 1:
                self.note(sentence(event))
            case _ if is_notable(event):
                self.note(click.style(notable_text(event), fg=colour_of(event)))

    def note(self, text: str) -> None:
        """Prints a line above the panel."""
        self._draw(f"{click.style('windlass', bold=True)} {text}\n")

    def stale(self, why: str) -> None:
        """Shows in the panel that the state may be outdated."""
        self._stale = why
        self._draw("")

    def ask(self, question: str) -> None:
        """Shows the question in the bottom border of the panel."""
        self._question = question
        self._draw("")

    def close(self) -> None:
        """Removes the panel."""
        self._draw("", panel=False)

    def _draw(self, above: str, *, panel: bool = True) -> None:
        width = shutil.get_terminal_size().columns
        # A narrower terminal wraps each line drawn before, so that more rows must be erased.
        rows = self._height * max(1, math.ceil(self._width / max(1, width)))
        erase = f"\x1b[{rows}A\r\x1b[J" if rows else "\r\x1b[J" if self._drawn_at else ""
        lines = self._panel_lines() if panel and self._status is not None else []
        self._height, self._width = len(lines), width
        self._out.write(erase + above + "".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._drawn_at = time.monotonic()

    def _panel_lines(self) -> list[str]:
        assert self._status is not None
        run = self._make_run(self._status)
        with self._console.capture() as captured:
            self._console.print(
                panel(
                    run,
                    time.time(),
                    rate=self._rate,
                    question=self._question,
                    hint=self._hint,
                    stale=self._stale,
                    width=self._console.width,
                )
            )
        lines = captured.get().splitlines()
        return lines if shutil.get_terminal_size().lines >= MIN_HEIGHT else lines[:1]
