"""A feed yields its items in this thread, and in parallel with the tasks of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from windlass.actions.feed import AHEAD, Feed

NUM_ITEMS = 20 * AHEAD


def numbers(_unwanted: threading.Event) -> Iterator[int]:
    yield from range(NUM_ITEMS)


def test_items_are_complete_and_ordered_and_other_tasks_run() -> None:
    async def both() -> tuple[list[int], int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(other())
        found = [item async for item in Feed(numbers)]
        task.cancel()
        return found, turns

    found, turns = asyncio.run(both())
    assert found == list(range(NUM_ITEMS))
    assert turns >= NUM_ITEMS // AHEAD


def test_feed_continues_as_iterator_and_async_iterator() -> None:
    feed = Feed(numbers)
    assert (next(feed), next(feed)) == (0, 1)

    async def some() -> list[int]:
        feed = Feed(numbers)
        found = [await anext(feed)]
        async for item in feed:
            found.append(item)
            if item == 2:
                break
        return [*found, await anext(feed)]

    assert asyncio.run(some()) == [0, 1, 2, 3]


def test_single_items_are_delivered_immediately() -> None:
    taken = threading.Semaphore()

    def singly(_unwanted: threading.Event) -> Iterator[int]:
        for number in range(200):
            taken.acquire()
            yield number

    async def all_of_them() -> list[int]:
        found = []
        async for item in Feed(singly):
            found.append(item)
            taken.release()
        return found

    assert asyncio.run(all_of_them()) == list(range(200))


def test_wait_that_times_out_consumes_no_item() -> None:
    go_on = threading.Event()

    def late(_unwanted: threading.Event) -> Iterator[int]:
        go_on.wait()
        yield 1

    async def taken() -> int:
        feed = Feed(late)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(feed), 0.01)
        go_on.set()
        return await anext(feed)

    assert asyncio.run(taken()) == 1


def test_the_end_and_an_error_come_after_the_items() -> None:
    def fails(_unwanted: threading.Event) -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    async def all_of_them() -> list[int]:
        feed = Feed(fails)
        found = [await anext(feed)]
        with pytest.raises(ValueError, match="no more"):
            await anext(feed)
        return [*found, *[item async for item in feed]]

    assert asyncio.run(all_of_them()) == [1]
