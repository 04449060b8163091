"""Limits the rate of bytes that a process writes, as a token bucket that never blocks."""

from __future__ import annotations

import time
from typing import Callable  # noqa: UP035 - the worker runs on Python 3.9 too

RESUME_BYTES = 64 << 10
"""Bytes that are left at the end of a pause, so that there are at most some 16 pauses a second."""


class ByteBudget:
    """Bytes that may be written now: a burst, and then a number of bytes a second."""

    def __init__(self, burst_bytes: int, bytes_a_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds that never go back."""
        self._burst_bytes = burst_bytes
        self._bytes_a_second = bytes_a_second
        self._clock = clock
        self._left = float(burst_bytes)
        """Bytes left; negative if more were written."""
        self._refilled_at = self._resumes_at = clock()

    def spend(self, num_bytes: int) -> None:
        """Counts bytes that are written, also during a pause. A pause begins when none are left."""
        now = self._refill()
        self._left -= num_bytes
        if self._left <= 0:
            self._resumes_at = now + (RESUME_BYTES - self._left) / self._bytes_a_second

    def left(self) -> int:
        """Returns how many bytes may be written now."""
        self._refill()
        return max(0, int(self._left))

    def pause(self) -> float:
        """Returns the seconds until the end of the pause; 0 if there is none."""
        return max(0.0, self._resumes_at - self._clock())

    def _refill(self) -> float:
        now = self._clock()
        self._left = min(self._burst_bytes, self._left + (now - self._refilled_at) * self._bytes_a_second)
        self._refilled_at = now
        return now
