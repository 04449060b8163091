"""How many requests a copy makes at once."""

from __future__ import annotations

import asyncio

from windlass.storage.window import LARGE_BYTES, LEAST, PERIOD_SECONDS, Window


class Clocks:
    """Clocks that a test sets: of the wall, and of the processor time of this process."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def window(self, first: int, most: int) -> Window:
        return Window(first, most, clock=lambda: self.wall, cpu_clock=lambda: self.cpu)

    def answers(self, window: Window, number: int, cpu: float = 0.0) -> None:
        """So many answers, each in a new period in which the process has taken a share of a processor."""
        for _ in range(number):
            self.wall += PERIOD_SECONDS
            self.cpu += cpu * PERIOD_SECONDS
            window.answered()


def test_it_doubles_until_the_store_is_busy_which_halves_it_and_then_grows_by_one_for_each_window_of_answers() -> None:
    clocks = Clocks()
    window = clocks.window(first=4, most=20)
    window.answered()
    assert window.size == 4, "the period is not over"
    clocks.answers(window, 2)
    assert window.size == 16
    clocks.answers(window, 9)
    assert window.size == 20
    window.throttled()
    assert window.size == 10
    clocks.answers(window, 10)
    assert 10.9 < window.size <= 11
    for _ in range(10):
        window.throttled()
    assert window.size == LEAST


def test_it_does_not_grow_while_small_requests_keep_the_interpreter_busy() -> None:
    clocks = Clocks()
    window = clocks.window(first=4, most=64)
    asyncio.run(window.run(LARGE_BYTES - 1, int))
    clocks.answers(window, 9, cpu=1.1)
    assert window.size == 4
    window.throttled()
    clocks.answers(window, 9, cpu=1.1)
    assert window.size == 2
    asyncio.run(window.run(LARGE_BYTES, int))
    clocks.answers(window, 9, cpu=1.9)
    assert window.size > 4, "large ones leave it to others most of the time"
    window.close()


def test_no_more_requests_and_bytes_are_under_way_than_it_allows() -> None:
    window, most, now = Window(first=3, most=3, max_bytes=100), [0, 0], [0, 0]

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


def test_a_request_that_is_larger_than_all_memory_goes_alone() -> None:
    async def all_() -> None:
        window = Window(max_bytes=10)
        async with window.slot(50):
            waiting = asyncio.create_task(window.slot(1).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(all_())
