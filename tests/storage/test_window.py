"""How many requests a copy makes at once."""

from __future__ import annotations

import asyncio

from windlass.storage.window import LEAST, Window


def test_it_grows_while_the_store_answers_and_halves_where_it_is_busy() -> None:
    window = Window(first=4, most=8)
    for _ in range(4):
        window.answered()
    assert 4 < window.size <= 5.1
    for _ in range(100):
        window.answered()
    assert window.size == 8
    window.throttled()
    assert window.size == 4
    for _ in range(10):
        window.throttled()
    assert window.size == LEAST


def test_no_more_requests_and_bytes_are_under_way_than_it_allows() -> None:
    window, most, now = Window(first=3, most=3, max_bytes=100), [0, 0], [0, 0]

    async def request(num_bytes: int) -> None:
        async with window.room(num_bytes):
            now[0], now[1] = now[0] + 1, now[1] + num_bytes
            most[0], most[1] = max(most[0], now[0]), max(most[1], now[1])
            await asyncio.sleep(0)
            now[0], now[1] = now[0] - 1, now[1] - num_bytes

    async def all_() -> None:
        await asyncio.gather(*(request(30 + number) for number in range(20)))

    asyncio.run(all_())
    assert most[0] <= 3
    assert most[1] <= 100


def test_a_request_that_is_larger_than_all_memory_goes_alone() -> None:
    async def all_() -> None:
        window = Window(max_bytes=10)
        async with window.room(50):
            waiting = asyncio.create_task(window.room(1).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(all_())
