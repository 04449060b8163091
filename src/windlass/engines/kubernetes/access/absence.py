"""Distinguishes a removed object from one that the API server temporarily reports as missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

ABSENT_SECONDS: Final = 3.0
"""Least seconds between the first and the last report that an object does not exist, before it counts as removed."""


class Absence:
    """Confirms the removal of an object: the API server must report it missing twice, at least `ABSENT_SECONDS` apart.

    A server that is being restored from a backup, or that reads from a stale cache, may report an existing object as
    missing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        """Time at which the object was first reported missing; None after a response that contains it."""

    def is_confirmed(self, *, is_absent: bool) -> bool:
        """Records one more response of the server (`is_absent`: the object was missing), and returns whether the
        removal is confirmed.
        """
        if not is_absent:
            self._since = None
            return False
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since >= ABSENT_SECONDS
