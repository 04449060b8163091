"""Distinguishes a removed object from one that the API server reports absent for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

ABSENT_SECONDS: Final = 3.0
"""Between the first and the last report that an object does not exist, before it counts as removed."""


class Absence:
    """Whether an object was removed: the API server has reported it absent twice, `ABSENT_SECONDS` apart or more.

    A server that is being restored from a backup, or reads from a stale cache, reports an object absent for a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        """When the object was first reported absent; None after an answer that contains it."""

    def is_confirmed(self, *, is_absent: bool) -> bool:
        """Whether it is removed by now, given one more answer of the server: `is_absent`, or there."""
        if not is_absent:
            self._since = None
            return False
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since >= ABSENT_SECONDS
