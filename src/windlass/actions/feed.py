"""Iterates over what a run writes: by `for` in this thread, by `async for` beside the other tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
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

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._iterator is None:
            self._iterator = self._read(threading.Event())
        return next(self._iterator)

    async def __aiter__(self) -> AsyncIterator[Item]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        unwanted, room = threading.Event(), threading.Semaphore(AHEAD)

        def put(kind: str, value: Any = None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(queue.put_nowait, (kind, value))

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
                kind, value = await queue.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                room.release()
                yield value
        finally:
            unwanted.set()
