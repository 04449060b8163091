"""The state of one process of the script, as its node sees it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.worker.capture import Capture


class Rank:
    """One started process of the script."""

    def __init__(self, number: int, pid: int, capture: Capture, done: str) -> None:
        self.number = number
        self.pid = pid
        self.capture = capture
        self.done = done
        self.open = True
        """Whether its output may still come."""
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.ended_by_us = False

    @property
    def base(self) -> str:
        """How the paths of its files begin."""
        return os.path.splitext(self.done)[0]

    def is_ended_by_us(self) -> None:
        """A signal of ours ends it; unless it is on its way out already, for a failure of its own."""
        if self.failed_at() is None:
            self.ended_by_us = True

    def failed_at(self) -> float | None:
        """When its script failed, in unix seconds, as the rank marked it after it printed its error."""
        code, at = read_mark(self.done)
        return at if code else None

    def outcome(self) -> int:
        """The exit code that counts: a rank that marked itself done has done so, however its process ended."""
        assert self.exit_code is not None
        marked = read_mark(self.done)[0] if self.exit_code != 0 else None
        return self.exit_code if marked is None else marked


def read_mark(path: str) -> tuple[int | None, float]:
    """The exit code that a rank has written down, and when; None where it has written none."""
    try:
        with open(path) as file:
            code, at = file.read().split()
        return int(code), float(at)
    except (OSError, ValueError):
        return None, 0.0
