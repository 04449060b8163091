"""Requests are repeated with increasing pauses while a store is busy, and finally fail."""

from __future__ import annotations

import asyncio

import pytest

from windlass.errors import StorageError
from windlass.storage.place import Throttled, Unreachable
from windlass.storage.retry import repeated
from windlass.storage.window import Window
from windlass.stores.retry import TRIES


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("windlass.storage.retry.asyncio.sleep", sleep)
    return found


class Store:
    """Store that fails some times, and then answers."""

    def __init__(self, num_failures: int, error: StorageError) -> None:
        self.num_failures, self.error, self.num_calls = num_failures, error, 0

    async def ask(self) -> str:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise self.error
        return "answer"


def test_requests_to_busy_store_are_repeated_with_lower_concurrency(pauses: list[float]) -> None:
    store, window = Store(3, Throttled("busy")), Window()
    assert asyncio.run(repeated(store.ask, window)) == "answer"
    assert len(pauses) == 3
    assert all(0.05 * 2**number <= pause <= 0.15 * 2**number for number, pause in enumerate(pauses))
    assert window.size < 4


def test_request_fails_after_maximum_of_tries(pauses: list[float]) -> None:
    store = Store(100, Throttled("busy"))
    with pytest.raises(Throttled, match="busy"):
        asyncio.run(repeated(store.ask))
    assert (store.num_calls, len(pauses), max(pauses) <= 15) == (TRIES, TRIES - 1, True)


def test_request_to_unreachable_store_fails_soon(pauses: list[float]) -> None:
    store = Store(100, Unreachable("refused"))
    with pytest.raises(Unreachable, match="refused"):
        asyncio.run(repeated(store.ask))
    assert store.num_calls == Unreachable.tries
    assert sum(pauses) <= 2.5


def test_permanent_error_is_not_repeated(pauses: list[float]) -> None:
    store = Store(1, StorageError("no such bucket"))
    with pytest.raises(StorageError, match="no such bucket"):
        asyncio.run(repeated(store.ask))
    assert (store.num_calls, pauses) == (1, [])
