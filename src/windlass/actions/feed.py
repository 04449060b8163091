"""Iterates over the output of a run: with `for` in this thread, or with `async for` without blocking the event loop."""

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
"""Maximum number of items that the thread reads in advance."""
LOOK_SECONDS: Final = 0.1
"""Seconds after which a waiting reader checks whether it should end."""


class Feed(Generic[Item]):
    """Iterator over items as they arrive. Supports one `for` loop and one `async for` loop."""

    def __init__(self, read: Callable[[threading.Event], Iterator[Item]]) -> None:
        """`read(ended)` returns an iterator, for this or another thread, that ends when the event `ended` is set."""
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
        """Ends the reader thread, if there is one, even while the feed is still referenced."""
        if self._ahead is not None:
            self._ahead.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._ahead is None:
            self._ahead = _Ahead(self._read)
        return await self._ahead.take()


class _Ahead(Generic[Item]):
    """Items that a thread reads for the tasks of an event loop; the thread ends when this object is deleted."""

    def __init__(self, read: Callable[[threading.Event], Iterator[Item]]) -> None:
        """Starts the reader thread. Must be called in a task of the event loop."""
        self._arrived: deque[tuple[str, Any]] = deque()
        self._has_arrived, self._unwanted = asyncio.Event(), threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._num_taken = 0
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, self._has_arrived.set)
        arguments = (read, self._arrived, wake, self._unwanted, self._room)
        threading.Thread(target=_read_ahead, args=arguments, name="windlass-feed", daemon=True).start()

    def close(self) -> None:
        """Ends the reader thread."""
        self._unwanted.set()

    def __del__(self) -> None:
        self.close()

    async def take(self) -> Item:
        """Returns the next item. A cancelled task consumes no item. Raises StopAsyncIteration at the end."""
        self._num_taken += 1
        if self._num_taken % AHEAD == 0:
            await asyncio.sleep(0)  # lets other tasks run even if items arrive faster than they are consumed
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
    """Body of the reader thread, which holds no reference to the `_Ahead` object."""

    def put(kind: str, value: Any = None) -> None:
        arrived.append((kind, value))
        # Only the first item wakes the event loop: waking is expensive, and the loop is awake while items are left.
        if len(arrived) == 1:
            with contextlib.suppress(RuntimeError):  # call_soon_threadsafe fails if the event loop was closed
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
