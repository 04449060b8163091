"""The number of concurrent requests of a copy adapts to the store."""

from __future__ import annotations

import asyncio

from tests.helpers.clock import FakeClock

from windlass.storage.window import LARGE_BYTES, MIN_REQUESTS, PERIOD_SECONDS, Window


def answers(clock: FakeClock, window: Window, number: int, cpu: float = 0.0) -> None:
    """Simulates responses, each in a new period in which the process has used a share of a processor."""
    for _ in range(number):
        clock.now += PERIOD_SECONDS
        clock.cpu += cpu * PERIOD_SECONDS
        window.answered()


def test_window_doubles_until_store_is_busy_then_halves_and_grows_by_one_per_window() -> None:
    clock = FakeClock(0.0)
    window = Window(most=20, clock=clock)
    window.answered()
    assert window.size == 4, "the period is not over"
    answers(clock, window, 2)
    assert window.size == 16
    answers(clock, window, 9)
    assert window.size == 20
    window.throttled()
    assert window.size == 10
    answers(clock, window, 10)
    assert 10.9 < window.size <= 11
    for _ in range(10):
        window.throttled()
    assert window.size == MIN_REQUESTS


def test_window_does_not_grow_while_interpreter_is_busy() -> None:
    clock = FakeClock(0.0)
    window = Window(most=64, clock=clock)
    asyncio.run(window.run(LARGE_BYTES - 1, int))
    answers(clock, window, 9, cpu=1.1)
    assert window.size == 4
    window.throttled()
    answers(clock, window, 9, cpu=1.1)
    assert window.size == 2
    asyncio.run(window.run(LARGE_BYTES, int))
    answers(clock, window, 9, cpu=1.9)
    assert window.size > 4, "large ones leave it to others most of the time"
    window.close()


def test_window_limits_concurrent_requests_and_bytes() -> None:
    window, most, now = Window(most=3, max_bytes=100), [0, 0], [0, 0]

    async def request(num_bytes: int) -> None:
        async with window.slot(num_bytes):
            now[0], now[1] = now[0] + 1, now[1] + num_bytes
            most[0], most[1] = max(most[0], now[0]), max(most[1], now[1])
            await asyncio.sleep(0)
            now[0], now[1] = now[0] - 1, now[1] - num_bytes

    async def all_() -> None:
        await asyncio.gather(*(request(30 + number) for number in range(20)))

    asyncio.run(all_())
    assert most[0] <= 3
    assert most[1] <= 100


def test_request_larger_than_memory_limit_runs_alone() -> None:
    async def all_() -> None:
        window = Window(max_bytes=10)
        async with window.slot(50):
            waiting = asyncio.create_task(window.slot(1).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(all_())
