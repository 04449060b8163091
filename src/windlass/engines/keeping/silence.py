"""Notices that no rank of an attempt has written anything for long, asks once each time, and sees when it ends."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ANSWER_SECONDS: Final = 3.0
"""How long the ranks may take to write their stacks; what is written meanwhile is no sign of life."""
LOOKS: Final = 20
"""Looks at the logs within the time that counts as a silence."""
MIN_LOOK_SECONDS: Final = 0.2
_RECORD: Final = struct.Struct("<QQ")
"""Of a rank's index: when (ns), and how long its log was then; see `runs/logs.py`."""
_RECORDS: Final = 4096
"""How many of them are looked at, from the end."""


@dataclass(frozen=True, slots=True)
class Over:
    """A silence that ended by itself, in Unix seconds."""

    since: float
    at: float


class Silence:
    """How long the ranks of one attempt have been silent. All nodes count: often only rank 0 prints."""

    def __init__(
        self, folder: Path, ranks: Sequence[int], hang_seconds: float | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._paths = {rank: folder / f"rank-{rank}.log" for rank in ranks}
        self._hang_seconds = hang_seconds
        self._clock = clock
        self._bytes = dict.fromkeys(ranks, 0)
        self._looked_at = 0.0
        self._asked_at: float | None = None
        self._waits_until = 0.0
        """Until then, what is written may be the stacks."""
        self._awaited: set[int] = set()
        """Ranks whose stacks are not there yet: those of several nodes come one after the other."""
        self._over: Over | None = None
        self.since = clock()
        """Unix seconds of the last sign of life."""

    @property
    def seconds(self) -> float:
        """How long nothing has been written."""
        self._look()
        return self._clock() - self.since

    @property
    def is_long(self) -> bool:
        """Whether it goes on, and is so long that the job takes it for a hang."""
        return self._hang_seconds is not None and self.seconds >= self._hang_seconds

    def is_hang(self) -> bool:
        """Whether stacks are to be taken now: the silence has just become too long."""
        if not self._is_due() or not self.is_long or self._asked_at is not None:
            return False
        self.asked()
        return True

    def asked(self) -> None:
        """Stacks are taken now."""
        self._asked_at = self._clock()
        self._waits_until = self._asked_at + ANSWER_SECONDS
        self._awaited = set(self._paths)

    def answered(self, ranks: Iterable[int]) -> None:
        """The stacks of these ranks are there: what they write from now on is a sign of life."""
        for rank in ranks:
            if rank in self._paths:
                self._bytes[rank] = _size(self._paths[rank])
                self._awaited.discard(rank)
        if not self._awaited:
            self._waits_until = 0.0

    def over(self) -> Over | None:
        """The silence that has just ended by itself, if it was long enough for a hang; told once."""
        if self._asked_at is not None and self._clock() - self._looked_at >= MIN_LOOK_SECONDS:
            self._look()
        found, self._over = self._over, None
        return found

    def _is_due(self) -> bool:
        """Whether it is time to look: not so often that it costs anything."""
        if self._hang_seconds is None:
            return False
        now = self._clock()
        pause = max(MIN_LOOK_SECONDS, self._hang_seconds / LOOKS)
        return now - self.since >= self._hang_seconds and now - self._looked_at >= pause

    def _look(self) -> None:
        self._looked_at = now = self._clock()
        before = dict(self._bytes)
        for rank, path in self._paths.items():
            self._bytes[rank] = _size(path)
        grown = [rank for rank, size in self._bytes.items() if size > before[rank]]
        if not grown or now < self._waits_until:
            return
        if self._asked_at is not None and self._hang_seconds is not None:
            at = min(_first_after(self._paths[rank], before[rank], now) for rank in grown)
            if at - self.since >= self._hang_seconds:
                self._over = Over(self.since, at)
        self._asked_at = None
        self.since = min(now, max(_written_at(self._paths[rank], now) for rank in grown))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _written_at(path: Path, otherwise: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return otherwise


def _first_after(log: Path, length: int, otherwise: float) -> float:
    """When a log first became longer than `length` bytes, in Unix seconds."""
    try:
        with open(log.with_suffix(".idx"), "rb") as file:
            end = file.seek(0, os.SEEK_END) // _RECORD.size
            file.seek(max(0, end - _RECORDS) * _RECORD.size)
            data = file.read(_RECORDS * _RECORD.size)
    except OSError:
        return otherwise
    whole = len(data) // _RECORD.size * _RECORD.size
    return next((time_ns / 1e9 for time_ns, end in _RECORD.iter_unpack(data[:whole]) if end > length), otherwise)
