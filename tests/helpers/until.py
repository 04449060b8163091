"""Waits for a condition; the only place where a test sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

BOUND_SECONDS = 100.0
"""Thirty times what any of these waits takes on two idle cores."""

T = TypeVar("T")


def passed(seconds: float) -> None:
    """Returns after so long: where a test is that nothing happens meanwhile, or that time itself counts."""
    time.sleep(seconds)


def until(
    found: Callable[[], T],
    otherwise: str | Callable[[], object] = "the condition did not become true",
    seconds: float = BOUND_SECONDS,
) -> T:
    """The first true value of `found()`; AssertionError with `otherwise` after `seconds`."""
    give_up = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < give_up, otherwise if isinstance(otherwise, str) else otherwise()
        time.sleep(0.02)
    return value
