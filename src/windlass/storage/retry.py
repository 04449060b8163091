"""Repeats requests to a store that is busy or does not answer, with longer pauses and fewer at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from windlass.storage.place import Throttled, Unreachable
from windlass.storage.window import Window

TRIES: Final = 8
FEW_TRIES: Final = 5
"""Of a store that has never answered, in some 1.5 seconds: a pod may start before its network."""
FIRST_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 10.0
Answer = TypeVar("Answer")


async def repeated(once: Callable[[], Awaitable[Answer]], window: Window | None = None) -> Answer:
    """Call `once` up to `TRIES` times while it raises Throttled, `FEW_TRIES` times if that is Unreachable. Raises what
    the last call raises."""
    for number in range(TRIES):
        try:
            answer = await once()
        except Throttled as error:
            if window is not None:
                window.throttled()
            if number + 1 >= (FEW_TRIES if isinstance(error, Unreachable) else TRIES):
                raise
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number) * (0.5 + random.random()))
        else:
            if window is not None:
                window.answered()
            return answer
    raise AssertionError
