"""Repeats a request to a store that is busy or does not answer, with longer pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from windlass.stores.errors import Busy

TRIES = Busy.tries
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 10.0
Answer = TypeVar("Answer")


def repeated(once: Callable[[], Answer], *, busy: type[Exception] = Busy) -> Answer:
    """Call `once` up to `TRIES` times, or as often as the error says, while it raises `busy`. Raises what the last call
    raises."""
    for number in range(TRIES - 1):
        try:
            return once()
        except busy as error:
            if number + 1 >= getattr(error, "tries", TRIES):
                raise
            time.sleep(pause_seconds(number))
    return once()


def pause_seconds(number: int) -> float:
    """The pause after a request has failed `number + 1` times: twice as long each time, and a random part."""
    return min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**number) * (0.5 + random.random())
