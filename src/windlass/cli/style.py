"""Defines colours, and decides by `NO_COLOR`, `FORCE_COLOR` and the terminal whether to use colours."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from windlass.runs.phase import Phase

PHASE_COLOURS: Final = {
    "queued": "bright_black",
    "provisioning": "cyan",
    "pulling": "cyan",
    "staging": "cyan",
    "starting": "cyan",
    "training": "blue",
    "checkpointing": "magenta",
    "restarting": "yellow",
    "stopping": "yellow",
    "uploading": "cyan",
    "idle": "yellow",
    "preempted": "yellow",
    "succeeded": "green",
    "failed": "red",
    "stopped": "yellow",
    "lost": "red",
}
SPENT_COLOURS: Final = {**PHASE_COLOURS, "redone": "yellow", "hung": "red", "unobserved": "bright_black"}
RANK_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
"""Colours of ranks, used in turn."""


def phase_word(phase: Phase, paint: Callable[..., str]) -> str:
    """Returns the phase in its colour."""
    return paint(phase, PHASE_COLOURS[phase], bold=phase.is_terminal)


def coloured(stream: IO[Any]) -> bool:
    """Whether to colour output to `stream`: decided by `NO_COLOR` (https://no-color.org), then `FORCE_COLOR`, then by
    whether the stream is a terminal.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return interactive(stream)


def interactive(stream: IO[Any]) -> bool:
    """Whether `stream` is a terminal that can move its cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:  # a closed stream is no terminal
        return False


def can_draw(*streams: IO[Any]) -> bool:
    """Whether an animated view may be drawn on `streams`: all are terminals, and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and all(interactive(stream) for stream in streams)
