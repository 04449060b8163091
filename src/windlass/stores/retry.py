"""Repeats requests to a store that is busy or does not answer, with increasing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from windlass.stores.errors import Busy

TRIES = Busy.tries
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 10.0
Result = TypeVar("Result")


def repeated(once: Callable[[], Result], *, busy: type[Exception] = Busy) -> Result:
    """Calls `once` until it does not raise `busy`, at most `TRIES` times or as often as the error allows. Raises the
    error of the last call.
    """
    for number in range(TRIES - 1):
        try:
            return once()
        except busy as error:
            if number + 1 >= getattr(error, "tries", TRIES):
                raise
            time.sleep(pause_seconds(number))
    return once()


def pause_seconds(number: int) -> float:
    """Returns the pause after `number + 1` failures: doubled each time, with a random part."""
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**number) * (0.5 + random.random())
