"""The ranks of a node: whether each lives, how it ended, and how the node ends all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from windlass.worker import process
from windlass.worker.protocol import RankFailure
from windlass.worker.tracebacks import TRACEBACK, since_handled, with_error_file

if TYPE_CHECKING:
    from windlass.worker.capture import Capture

TAIL_CHARS = 16384
"""How much of its last output a failure of a rank carries."""
FAILURE_GRACE_SECONDS = 3.0
"""Grace of ranks that wait for one that has failed; those that save alone have the job's grace period."""


class Rank:
    """One started process of the script."""

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
        """How the paths of its files begin."""
        return os.path.splitext(self.done)[0]

    @property
    def is_live(self) -> bool:
        """Whether its process has not been reaped."""
        return self.exit_code is None

    def reap(self) -> bool:
        """Reap its process; gives whether it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.exit_code = os.waitstatus_to_exitcode(status)
            self.ended_at = time.time()
        return pid != 0

    def failed_at(self) -> float | None:
        """When its script failed, in unix seconds, as the rank marked it after it printed its error."""
        mark = read_mark(self.done)
        return mark.at if mark.code else None

    def outcome(self) -> int:
        """The exit code that counts: a rank that marked itself done has done so, however its process ended."""
        assert self.exit_code is not None
        marked = read_mark(self.done).code if self.exit_code != 0 else None
        return self.exit_code if marked is None else marked

    def failure(self) -> RankFailure:
        """How it failed."""
        failed_at, by_exit = self.failed_at(), read_mark(self.done).by_exit
        tail = since_handled(self.capture.tail) if by_exit else self._with_error_file()
        tail, trace = tail[-TAIL_CHARS:], self.capture.traceback
        if failed_at is not None and not by_exit and TRACEBACK not in tail and trace:
            tail = f"{trace}\n{tail[-TAIL_CHARS + len(trace) :]}"  # the exception that it marked
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
        """Its last output, with the traceback of an error file, in which no secret is masked yet."""
        tail = self.capture.tail
        text = with_error_file(tail)
        return tail if text == tail else self.capture.masked(text)


class Ranks(list[Rank]):
    """All ranks that a node has started."""

    def __init__(self, grace_seconds: float) -> None:
        super().__init__()
        self.grace_seconds = grace_seconds
        """From SIGTERM to SIGKILL."""
        self.ended_at: float | None = None
        """When they were sent SIGTERM, by the monotonic clock; None before."""
        self.ended_by = "itself"
        """`itself`, `failure` or `stop`."""
        self.kill_at: float | None = None
        """When SIGKILL is due, by the monotonic clock; None before `end` and after `kill`."""

    @property
    def live(self) -> list[Rank]:
        """Those that have not ended."""
        return [rank for rank in self if rank.is_live]

    @property
    def are_ending(self) -> bool:
        """Whether a failure or a stop ends them."""
        return self.ended_by != "itself"

    def end(self, by: str) -> None:
        """Send SIGTERM to all live ranks, once; after the grace period `kill` is due."""
        if not self.are_ending:
            self.ended_by = by
        if self.kill_at is None:
            self._send(process.send, signal.SIGTERM)
            self.ended_at = time.monotonic()
            self.kill_at = time.monotonic() + self.grace_seconds

    def kill(self) -> None:
        """Send SIGKILL to all live ranks and their process groups."""
        self.kill_at = None
        self._send(process.send_group, signal.SIGKILL)

    def kill_others(self, spared: Sequence[Rank]) -> None:
        """Send SIGKILL to the live ranks that are not `spared`, and their process groups."""
        self._send(process.send_group, signal.SIGKILL, spared)

    def _send(self, send: Callable[[int, int], object], number: int, spared: Sequence[Rank] = ()) -> None:
        for rank in self.live:
            if rank in spared:
                continue
            rank.ended_by_us |= rank.failed_at() is None  # else it is on its way out for a failure of its own
            send(rank.pid, number)


class Mark(NamedTuple):
    """What a rank has written down of its end."""

    code: int | None = None
    """None where it has written nothing."""
    at: float = 0.0
    """Unix seconds."""
    by_exit: bool = False
    """Whether its script has failed by `sys.exit`, not by an exception."""


def read_mark(path: str) -> Mark:
    """The mark that a rank has left."""
    try:
        with open(path) as file:
            code, at, *by = file.read().split()
        return Mark(int(code), float(at), "exit" in by)
    except (OSError, ValueError):
        return Mark()
