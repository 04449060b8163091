"""Ranks of a node: whether each rank is alive, how it ended, and how the node ends its ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from windlass.worker import process
from windlass.worker.protocol import TRACEBACK, RankFailure
from windlass.worker.tracebacks import since_handled, with_error_file

if TYPE_CHECKING:
    from windlass.worker.capture import Capture

TAIL_CHARS = 16384
"""Maximum characters of a rank's last output in the report of its failure."""


class Rank:
    """A started rank process."""

    def __init__(self, number: int, pid: int, capture: Capture, done: str) -> None:
        self.number = number
        self.pid = pid
        self.capture = capture
        self.done = done
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.ended_by_us = False

    @property
    def base(self) -> str:
        """Common prefix of the paths of the rank's files."""
        return os.path.splitext(self.done)[0]

    @property
    def is_live(self) -> bool:
        """Whether the rank's process has not been reaped yet."""
        return self.exit_code is None

    def reap(self) -> bool:
        """Reaps the rank's process if it has ended. Returns whether it has."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.exit_code = os.waitstatus_to_exitcode(status)
            self.ended_at = time.time()
        return pid != 0

    def failed_at(self) -> float | None:
        """Returns when the script failed, in Unix seconds; None if the rank has not marked a failure."""
        mark = read_mark(self.done)
        return mark.at if mark.code else None

    def outcome(self) -> int:
        """Returns the exit code in the rank's done mark, or else that of the process."""
        assert self.exit_code is not None
        marked = read_mark(self.done).code if self.exit_code != 0 else None
        return self.exit_code if marked is None else marked

    def failure(self) -> RankFailure:
        """Returns exit code, time and last output of the failed rank."""
        failed_at, by_exit = self.failed_at(), read_mark(self.done).by_exit
        tail = since_handled(self.capture.tail) if by_exit else self._with_error_file()
        tail, trace = tail[-TAIL_CHARS:], self.capture.traceback
        if failed_at is not None and not by_exit and TRACEBACK not in tail and trace:
            tail = f"{trace}\n{tail[-TAIL_CHARS + len(trace) :]}"  # the traceback of the marked failure goes first
        return RankFailure(
            self.number,
            self.outcome(),
            self.ended_at,
            tail,
            failed_at or self.capture.traceback_at,
            self.ended_by_us,
            marked=failed_at is not None,
            by_exit=by_exit,
        )

    def _with_error_file(self) -> str:
        """Returns the last output of the rank, with the traceback from torchelastic's error file."""
        tail = self.capture.tail
        text = with_error_file(tail)
        return tail if text == tail else self.capture.masked(text)


class Ranks(list[Rank]):
    """All ranks that a node has started."""

    def __init__(self, grace_seconds: float) -> None:
        super().__init__()
        self.grace_seconds = grace_seconds
        """Seconds from SIGTERM to SIGKILL."""
        self.ended_at: float | None = None
        """Monotonic time at which SIGTERM was sent to the ranks; None before SIGTERM."""
        self.ended_by = "itself"
        """What ended the ranks: `itself`, `failure` or `stop`."""
        self.kill_at: float | None = None
        """Monotonic time at which SIGKILL is due; None before `end` and after `kill`."""

    @property
    def live(self) -> list[Rank]:
        """Ranks whose processes have not ended."""
        return [rank for rank in self if rank.is_live]

    @property
    def are_ending(self) -> bool:
        """Whether the ranks are being ended after a failure or a stop request."""
        return self.ended_by != "itself"

    def end(self, by: str) -> None:
        """Sends SIGTERM to all live ranks, once. `kill_at` is then the end of the grace period."""
        if not self.are_ending:
            self.ended_by = by
        if self.kill_at is None:
            self._send(process.send, signal.SIGTERM)
            self.ended_at = time.monotonic()
            self.kill_at = time.monotonic() + self.grace_seconds

    def kill(self) -> None:
        """Sends SIGKILL to all live ranks and their process groups."""
        self.kill_at = None
        self._send(process.send_group, signal.SIGKILL)

    def kill_others(self, spared: Sequence[Rank]) -> None:
        """Sends SIGKILL to the live ranks except `spared`, and to their process groups."""
        self._send(process.send_group, signal.SIGKILL, spared)

    def _send(self, send: Callable[[int, int], object], number: int, spared: Sequence[Rank] = ()) -> None:
        for rank in self.live:
            if rank in spared:
                continue
            rank.ended_by_us |= rank.failed_at() is None  # a rank that has marked a failure exits by itself
            send(rank.pid, number)


class Mark(NamedTuple):
    """Contents of a done mark, which a rank writes when its script fails or finishes."""

    code: int | None = None
    """Exit code; None if there is no mark."""
    at: float = 0.0
    """Unix seconds at which the script failed or finished."""
    by_exit: bool = False
    """Whether the script failed by calling `sys.exit`, and not by an exception."""


def read_mark(path: str) -> Mark:
    """Reads a done mark; empty if the file is missing or invalid."""
    try:
        with open(path) as file:
            code, at, *by = file.read().split()
        return Mark(int(code), float(at), "exit" in by)
    except (OSError, ValueError):
        return Mark()
