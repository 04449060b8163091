"""Iterates over what a run writes: by `for` in this thread, by `async for` beside the other tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Generic, TypeVar

Item = TypeVar("Item")

AHEAD: Final = 1000
"""So many items are read before the first of them is taken."""
LOOK_SECONDS: Final = 0.1
"""How often a reader that waits looks whether it is still wanted."""


class Feed(Generic[Item]):
    """Items as they arrive: an iterator, and an asynchronous iterator. Each can be used once."""

    def __init__(self, read: Callable[[threading.Event], Iterator[Item]]) -> None:
        """`read` makes an iterator, for this or another thread, which ends when the event is set."""
        self._read = read
        self._iterator: Iterator[Item] | None = None
        self._ahead: AsyncIterator[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._iterator is None:
            self._iterator = self._read(threading.Event())
        return next(self._iterator)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._ahead is None:
            self._ahead = self._read_ahead()
        return await anext(self._ahead)

    async def _read_ahead(self) -> AsyncIterator[Item]:
        loop = asyncio.get_running_loop()
        arrived: deque[tuple[str, Any]] = deque()
        has_arrived = asyncio.Event()
        unwanted, room = threading.Event(), threading.Semaphore(AHEAD)

        def put(kind: str, value: Any = None) -> None:
            arrived.append((kind, value))
            if len(arrived) == 1:  # else the loop has been woken: that takes most of the time of an item
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(has_arrived.set)

        def read() -> None:
            try:
                for item in self._read(unwanted):
                    while not room.acquire(timeout=LOOK_SECONDS):
                        if unwanted.is_set():
                            return
                    put("item", item)
                put("end")
            except Exception as error:
                put("error", error)

        threading.Thread(target=read, name="windlass-feed", daemon=True).start()
        try:
            while True:
                await has_arrived.wait()
                has_arrived.clear()
                for _ in range(len(arrived)):
                    kind, value = arrived.popleft()
                    if kind == "end":
                        return
                    if kind == "error":
                        raise value
                    room.release()
                    yield value
                if arrived:
                    has_arrived.set()
                    await asyncio.sleep(0)  # items that come faster than they are taken must not stop other tasks
        finally:
            unwanted.set()
