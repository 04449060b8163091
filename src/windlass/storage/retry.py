"""Repeats requests to a store that is busy or does not answer, with longer pauses and fewer at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from windlass.storage.place import Repeatable, Throttled
from windlass.storage.window import Window

TRIES: Final = Throttled.tries
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 10.0
Answer = TypeVar("Answer")


async def repeated(once: Callable[[], Awaitable[Answer]], window: Window | None = None) -> Answer:
    """Call `once` while it raises Repeatable, as often as that says. Raises what the last call raises."""
    for number in range(TRIES):
        try:
            answer = await once()
        except Repeatable as error:
            if window is not None and isinstance(error, Throttled):
                window.throttled()
            if number + 1 >= error.tries:
                raise
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number) * (0.5 + random.random()))
        else:
            if window is not None:
                window.answered()
            return answer
    raise AssertionError
