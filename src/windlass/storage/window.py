"""Window of a copy: limits concurrent requests by how the store responds, and the bytes in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from windlass.runs.clock import Clock

INITIAL_REQUESTS, MAX_REQUESTS, MIN_REQUESTS = 4, 64, 1
MAX_BYTES: Final = 48 << 20
"""Maximum bytes of file content in memory."""
PERIOD_SECONDS: Final = 0.05
"""Seconds after which the initial concurrency is doubled; the maximum is reached after 0.2 seconds."""
BUSY: Final = 0.9
"""Processor load of the process above which more threads would only wait for the interpreter lock."""
LARGE_BYTES: Final = 1 << 20
"""Size in bytes from which a request mostly runs without Python's interpreter lock."""


Result = TypeVar("Result")


class Window:
    """Concurrency limit. The limit doubles until the store asks for fewer requests. It is then halved, and grows by one
    per window of responses. The limit does not grow while small requests keep the interpreter busy.
    """

    def __init__(
        self,
        most: int = MAX_REQUESTS,
        max_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.size = float(min(INITIAL_REQUESTS, most))
        self.processes = 1
        """Number of processes of the copy that may run at the same time, including this one."""
        self._spent = 0.0
        self._most = most
        self._max_bytes = max_bytes
        self._clock = clock or Clock()
        self._was_throttled = self._is_busy = False
        self._since, self._cpu_since = self._clock.monotonic(), self._clock.process_time()
        """Start of the current period, and the processor time used before it."""
        self._latest_bytes = 0
        """Size of the last request that was admitted."""
        self._requests = 0
        self._bytes = 0
        self._threads = ThreadPoolExecutor(most, "transfer")
        self._is_abandoned = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def slot(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits, in order, until a request of `num_bytes` may start. A request larger than the memory limit
        runs alone.
        """
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
        """Runs `work`, which needs `num_bytes` of memory, in a thread once the limits allow it."""
        async with self.slot(num_bytes):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Waits for running requests, unless they were abandoned."""
        self._threads.shutdown(wait=not self._is_abandoned)

    def abandon(self) -> None:
        """Ends the copy at the user's request without waiting for running requests."""
        self._is_abandoned = True

    def answered(self) -> None:
        """Records a successful response."""
        now, since = self._clock.monotonic(), self._since
        is_over = now - since >= PERIOD_SECONDS
        if is_over:
            self._since = now  # the period is restarted before other threads can enter this block
            cpu = self._clock.process_time() + self._spent
            taken, self._cpu_since = cpu - self._cpu_since, cpu
            self._is_busy = self._latest_bytes < LARGE_BYTES and taken > BUSY * self.processes * (now - since)
        if not self._is_busy:
            more = 1 / self.size if self._was_throttled else self.size if is_over else 0.0
            self.size = min(float(self._most), self.size + more)

    def spent(self, cpu_seconds: float) -> None:
        """Adds processor time used by another process of the copy."""
        self._spent += cpu_seconds

    def throttled(self) -> None:
        """Records that the store asked for fewer requests or did not answer."""
        self._was_throttled = True
        self.size = max(float(MIN_REQUESTS), self.size / 2)

    def _fits(self, num_bytes: int) -> bool:
        return self._requests == 0 or (self._requests < int(self.size) and self._bytes + num_bytes <= self._max_bytes)
