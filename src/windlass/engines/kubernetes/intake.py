"""Takes the lines of a pod's log into its files, many at once where they come fast, and none of them late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from windlass.engines.kubernetes.mirror import Mirror

T = TypeVar("T")
BATCH_LINES: Final = 512
BATCH_SECONDS: Final = 0.05
"""How long lines may gather before they are written, while more come."""


class Intake:
    """The files of one node, between the thread that reads its log and the one that looks at what it said."""

    def __init__(self, folder: Path, node: int, ranks: Iterable[int], number: int = 1, first: int = 1) -> None:
        """As `Mirror`. Raises OSError."""
        self._of = (folder, node, tuple(ranks), number, first)
        self._lock = threading.Lock()
        self._mirror = Mirror(*self._of)
        self._lines: list[bytes] = []
        self._taken_at = 0.0
        self._is_broken = False
        """Whether lines could not be written: they have to be read anew."""

    def begin(self) -> str | None:
        """The log is read anew, from the time that this gives. Raises OSError."""
        with self._lock:
            if self._is_broken:
                self._mirror = Mirror(*self._of)
                self._is_broken = False
            self._lines.clear()  # what was not taken comes again
            return self._mirror.begin()

    def put(self, line: bytes) -> bool:
        """One more line; gives whether anything new was written. Raises OSError: then the log is to be read anew."""
        with self._lock:
            self._lines.append(line)
            is_due = len(self._lines) >= BATCH_LINES or time.monotonic() - self._taken_at >= BATCH_SECONDS
            return self._take() if is_due else False

    def flush(self) -> bool:
        """Write what has come; gives whether there was anything new. Raises OSError, as `put`."""
        with self._lock:
            return self._take()

    @property
    def is_told(self) -> bool:
        """Whether all has come that the pod says of this attempt, while it says more of another."""
        return self._mirror.is_told

    def retract(self) -> None:
        """What said so was not the pod's own process: the attempt goes on. Raises OSError, as `put`."""
        with self._lock:
            if self._is_broken:
                raise OSError("the log must be read again from its cursor")
            self._guarded(self._mirror.retract)

    def _take(self) -> bool:
        if self._is_broken:
            raise OSError("the log is to be read anew")
        lines, self._lines = self._lines, []
        self._taken_at = time.monotonic()
        return self._guarded(lambda: self._mirror.take(lines)) if lines else False

    def _guarded(self, change: Callable[[], T]) -> T:
        """Have the files changed; what fails in the middle of it leaves them to be cut back. Raises what it raises."""
        try:
            return change()
        except BaseException:
            self._is_broken = True
            raise
