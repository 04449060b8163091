"""A background thread survives every error, and the record contains what fails and since when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.background import PAUSES, WELL_SECONDS, Backoff, Health
from windlass.errors import EngineError


def told(health: Health) -> list[str]:
    return [event.message for event in health.updates()]


def test_background_thread_continues_after_any_error_and_records_it() -> None:
    def turns() -> Iterator[bool]:
        for error in (EngineError("the login cannot be renewed"), KeyError("items"), RuntimeError("a plugin broke")):
            errors.append(error)
            yield False
        yield True

    errors: list[Exception] = []
    turn = turns()

    def once() -> bool:
        is_last = next(turn)
        if not is_last:
            raise errors[-1]
        return True

    health = Health()
    thread = background.start("log of node 3", once, threading.Event(), health)
    thread.join(100)
    assert not thread.is_alive()
    first, second = told(health)
    assert first.startswith("log of node 3: internal error, tried again: KeyError: 'items' (test_background.py:")
    assert "RuntimeError: a plugin broke" in second


def test_turns_without_result_are_slowed_down() -> None:
    closed, turns = threading.Event(), [0]

    def nothing() -> bool:
        turns[0] += 1
        return False

    thread = background.start("pods", nothing, closed, Health())
    closed.wait(0.6)
    closed.set()
    thread.join(100)
    assert turns[0] <= 3


def test_paced_turns_run_without_pauses() -> None:
    left, pauses = list(range(1000)), []

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return super().wait(timeout)

    def one() -> bool:
        left.pop()
        return not left

    background.run("record", one, Closed(), Health(), is_paced=True)
    assert (left, pauses) == ([], [])


def test_task_that_failed_for_longest_is_reported_until_it_succeeds() -> None:
    clock = FakeClock()
    health = Health(clock)
    health.failed("pods", EngineError("no answer"))
    clock.now += 9
    health.failed("log of node 0", EngineError("cut"))
    health.failed("pods", EngineError("still none"))
    what, error = health.failing() or ("", None)
    assert (what, str(error)) == ("pods", "still none")
    health.well("pods")
    assert (health.failing() or ("",))[0] == "log of node 0"
    health.well("log of node 0")
    assert health.failing() is None


def test_task_is_healthy_only_after_a_lasting_connection() -> None:
    clock = FakeClock()
    health = Health(clock)
    for _ in range(12):
        health.failed("log of node 0", EngineError("cut"))
        clock.now += 1
        health.connected("log of node 0")
        assert health.failing() is not None
    clock.now += WELL_SECONDS
    assert health.failing() is None


def test_the_same_internal_error_is_recorded_once() -> None:
    health = Health()
    for _ in range(3):
        health.crashed("pods", ValueError("x"))
    assert told(health) == ["pods: internal error, tried again: ValueError: x"]


def test_pauses_grow_with_failures_and_reset_after_success() -> None:
    backoff = Backoff()
    assert [backoff.next() for _ in range(7)] == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    backoff.reset()
    assert backoff.next() == PAUSES[0]
