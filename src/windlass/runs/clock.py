"""Clock: wall time, monotonic time and interruptible waiting in one object, which tests replace."""

from __future__ import annotations

import contextlib
import os
import select
import time


class Clock:
    """Time of this machine, and a pipe on which node workers, threads and signal handlers wake a waiting process."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None

    def time(self) -> float:
        """Returns the wall time in Unix seconds, for the record."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary moment, for intervals."""
        return time.monotonic()

    def boottime(self) -> float:
        """Returns seconds since boot, including time in suspend."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def process_time(self) -> float:
        """Returns the processor seconds used by this process."""
        return time.process_time()

    def wait(self, seconds: float) -> None:
        """Waits at most `seconds`. `wake` ends the wait early."""
        reader, _ = self._opened()
        with contextlib.suppress(InterruptedError):
            select.select([reader], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 65536)

    def wake(self) -> None:
        """Ends the current wait, or the next one if none is in progress. Callable from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.fileno(), b".")

    def fileno(self) -> int:
        """Returns the descriptor to which other processes write a byte to wake the supervisor."""
        return self._opened()[1]

    def __del__(self) -> None:
        for end in self._pipe or ():
            os.close(end)

    def _opened(self) -> tuple[int, int]:
        """Creates the pipe on first use, because most commands never wait."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
        return self._pipe
