"""Iterates over what a run writes: by `for` in this thread, by `async for` beside the other tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

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
        self._ahead: _Ahead[Item] | None = None

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._iterator is None:
            self._iterator = self._read(threading.Event())
        return next(self._iterator)

    def close(self) -> None:
        """End the reader thread, if there is one, even while the feed is still referenced."""
        if self._ahead is not None:
            self._ahead.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._ahead is None:
            self._ahead = _Ahead(self._read)
        return await self._ahead.take()


class _Ahead(Generic[Item]):
    """Items that a thread reads for the tasks of an event loop; the thread ends with this object."""

    def __init__(self, read: Callable[[threading.Event], Iterator[Item]]) -> None:
        """In a task of the loop."""
        self._arrived: deque[tuple[str, Any]] = deque()
        self._has_arrived, self._unwanted = asyncio.Event(), threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._num_taken = 0
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, self._has_arrived.set)
        arguments = (read, self._arrived, wake, self._unwanted, self._room)
        threading.Thread(target=_read_ahead, args=arguments, name="windlass-feed", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._unwanted.set()

    def __del__(self) -> None:
        self.close()

    async def take(self) -> Item:
        """The next item. A task that is cancelled meanwhile takes none. Raises StopAsyncIteration at the end."""
        self._num_taken += 1
        if self._num_taken % AHEAD == 0:
            await asyncio.sleep(0)  # items that come faster than they are taken must not stop other tasks
        while not self._arrived:
            self._has_arrived.clear()
            if not self._arrived:
                await self._has_arrived.wait()
        kind, value = self._arrived[0]
        if kind == "end":
            raise StopAsyncIteration
        self._arrived.popleft()
        if kind == "error":
            self._arrived.append(("end", None))
            raise value
        self._room.release()
        return cast("Item", value)


def _read_ahead(
    read: Callable[[threading.Event], Iterator[Any]],
    arrived: deque[tuple[str, Any]],
    wake: Callable[[], object],
    unwanted: threading.Event,
    room: threading.Semaphore,
) -> None:
    """Runs in the thread, which keeps no reference to the object that it reads for."""

    def put(kind: str, value: Any = None) -> None:
        arrived.append((kind, value))
        if len(arrived) == 1:  # else the loop has been woken: that takes most of the time of an item
            with contextlib.suppress(RuntimeError):  # the loop was closed
                wake()

    try:
        for item in read(unwanted):
            while not room.acquire(timeout=LOOK_SECONDS):
                if unwanted.is_set():
                    return
            put("item", item)
        put("end")
    except Exception as error:
        put("error", error)
