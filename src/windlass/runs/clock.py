"""Clock: wall time, monotonic time and interruptible waiting as one value, which tests replace."""

from __future__ import annotations

import contextlib
import os
import select
import time


class Clock:
    """The time of this machine, and a pipe on which node workers, threads and signal handlers wake who waits."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None

    def time(self) -> float:
        """Wall time in unix seconds: for the record."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment: for intervals."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds since the machine booted, including the time during which it was suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def process_time(self) -> float:
        """Processor seconds that this process has used."""
        return time.process_time()

    def wait(self, seconds: float) -> None:
        """Wait at most so long; `wake` ends the wait."""
        reader, _ = self._opened()
        with contextlib.suppress(InterruptedError):
            select.select([reader], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 65536)

    def wake(self) -> None:
        """End the wait that is under way, or the next one. May be called from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.fileno(), b".")

    def fileno(self) -> int:
        """A descriptor to which other processes write a byte to wake the supervisor."""
        return self._opened()[1]

    def __del__(self) -> None:
        for end in self._pipe or ():
            os.close(end)

    def _opened(self) -> tuple[int, int]:
        """The pipe, made once it is needed: a command that only settles a record never waits."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
        return self._pipe
