"""A budget of bytes allows a burst, and then a rate, with pauses that end after a known time."""

from __future__ import annotations

import pytest

from windlass.worker.byte_budget import RESUME_BYTES, ByteBudget

BURST, RATE = 4 << 20, 1 << 20


class Clock:
    """Clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_followed_by_a_pause_until_some_bytes_are_left(clock: Clock) -> None:
    budget = ByteBudget(BURST, RATE, clock)
    budget.spend(BURST - 1)
    assert (budget.left(), budget.pause()) == (1, 0)
    budget.spend(1 + RATE)
    assert (budget.left(), budget.pause()) == (0, 1 + RESUME_BYTES / RATE)
    clock.now += 1
    assert (budget.left(), budget.pause()) == (0, RESUME_BYTES / RATE)
    clock.now += RESUME_BYTES / RATE
    assert (budget.left(), budget.pause()) == (RESUME_BYTES, 0)


def test_bytes_written_in_a_pause_make_it_longer(clock: Clock) -> None:
    budget = ByteBudget(BURST, RATE, clock)
    budget.spend(BURST)
    before = budget.pause()
    budget.spend(RATE)
    assert budget.pause() == before + 1


def test_unused_bytes_are_kept_only_up_to_a_burst(clock: Clock) -> None:
    budget = ByteBudget(BURST, RATE, clock)
    budget.spend(BURST // 2)
    clock.now += 1000
    assert budget.left() == BURST


def test_output_is_written_at_the_rate_however_much_there_is(clock: Clock) -> None:
    budget, written = ByteBudget(BURST, RATE, clock), 0
    while clock.now < 200:
        if not budget.pause():
            written += budget.left()
            budget.spend(budget.left())
        clock.now += max(budget.pause(), 0.001)
    assert 100 * RATE <= written <= BURST + 100 * RATE
