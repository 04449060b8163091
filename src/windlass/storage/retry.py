"""Repeats requests to a store that is busy or does not answer, with increasing pauses and lower concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from windlass.storage.place import Repeatable, Throttled
from windlass.storage.window import Window
from windlass.stores.retry import TRIES, pause_seconds

Result = TypeVar("Result")


async def repeated(once: Callable[[], Awaitable[Result]], window: Window | None = None) -> Result:
    """Calls `once` until it does not raise Repeatable, at most as often as the error allows. Raises the last error."""
    for number in range(TRIES):
        try:
            answer = await once()
        except Repeatable as error:
            if window is not None and isinstance(error, Throttled):
                window.throttled()
            if number + 1 >= error.tries:
                raise
            await asyncio.sleep(pause_seconds(number))
        else:
            if window is not None:
                window.answered()
            return answer
    raise AssertionError
