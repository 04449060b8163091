"""Window of a copy: how many requests may be under way at once, by how the store answers, and how many bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from windlass.runs.clock import Clock

FIRST, MOST, LEAST = 4, 64, 1
MAX_BYTES: Final = 48 << 20
"""Held in memory at once."""
PERIOD_SECONDS: Final = 0.05
"""After which the first requests are doubled: 0.2 seconds to all of them."""
BUSY: Final = 0.9
"""Processors that a process may take before more threads only wait for each other, to run in the interpreter."""
LARGE_BYTES: Final = 1 << 20
"""Requests from this size on leave the interpreter to the other threads most of the time."""


Result = TypeVar("Result")


class Window:
    """Doubles until the store asks for fewer requests, which halves it; from then on it grows by one for each window of
    answers. It does not grow while small requests keep the interpreter busy.
    """

    def __init__(
        self,
        most: int = MOST,
        max_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.size = float(min(FIRST, most))
        self.processes = 1
        """Of the copy, this one among them, that may run at once."""
        self._spent = 0.0
        self._most = most
        self._max_bytes = max_bytes
        self._clock = clock or Clock()
        self._was_throttled = self._is_busy = False
        self._since, self._cpu_since = self._clock.monotonic(), self._clock.process_time()
        """When a period began, and the processor time that had been taken."""
        self._latest_bytes = 0
        """Of the last request that was let in."""
        self._requests = 0
        self._bytes = 0
        self._threads = ThreadPoolExecutor(most, "transfer")
        self._is_abandoned = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def slot(self, num_bytes: int) -> AsyncIterator[None]:
        """Wait for room for one request of so many bytes, in turn; one larger than all memory goes alone."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, turn))
        self._let_in()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._requests -= 1
                self._bytes -= num_bytes
                self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            num_bytes, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._requests += 1
                self._bytes += num_bytes
                self._latest_bytes = num_bytes
                turn.set_result(None)

    async def run(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """Do work that needs so many bytes, in a thread, once there is room for it."""
        async with self.slot(num_bytes):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Wait for what was begun, unless it was abandoned."""
        self._threads.shutdown(wait=not self._is_abandoned)

    def abandon(self) -> None:
        """The copy is ended by its user: what was begun is lost."""
        self._is_abandoned = True

    def answered(self) -> None:
        """A request was answered."""
        now, since = self._clock.monotonic(), self._since
        is_over = now - since >= PERIOD_SECONDS
        if is_over:
            self._since = now  # at once: other threads are answered too
            cpu = self._clock.process_time() + self._spent
            taken, self._cpu_since = cpu - self._cpu_since, cpu
            self._is_busy = self._latest_bytes < LARGE_BYTES and taken > BUSY * self.processes * (now - since)
        if not self._is_busy:
            more = 1 / self.size if self._was_throttled else self.size if is_over else 0.0
            self.size = min(float(self._most), self.size + more)

    def spent(self, cpu_seconds: float) -> None:
        """Another process of the copy has taken so much processor time."""
        self._spent += cpu_seconds

    def throttled(self) -> None:
        """The store asked for fewer requests, or did not answer."""
        self._was_throttled = True
        self.size = max(float(LEAST), self.size / 2)

    def _fits(self, num_bytes: int) -> bool:
        return self._requests == 0 or (self._requests < int(self.size) and self._bytes + num_bytes <= self._max_bytes)
