"""Keeps the background threads of a run alive: an error of any kind is recorded and waited out, and ends none of them.

A thread that reads a log or watches pods is the only source of what the run's supervisor knows. One that ended silently
would leave a record in which all is well for good.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from windlass.errors import WindlassError

PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries of what fails, or gives nothing new."""
WELL_SECONDS: Final = 5.0
"""How long a connection must have held until what it is for counts as well again."""
MAX_CRASHES: Final = 20
"""Internal errors that are recorded; a defect that comes back with other words each time must not fill the record."""


class Backoff:
    """The pauses between tries: longer with each that fails, short again after one that does not."""

    def __init__(self) -> None:
        self.num_failed = 0

    def reset(self) -> None:
        """A try gave something."""
        self.num_failed = 0

    def next(self) -> float:
        """Seconds until the next try, after one more that failed."""
        self.num_failed += 1
        return PAUSES[min(self.num_failed, len(PAUSES)) - 1]


@dataclass(slots=True)
class _Failing:
    """Something that fails."""

    error: WindlassError
    since: float
    connected_at: float | None = None
    """When a connection was made that has not failed yet."""


class Health:
    """What of a run's background work fails at present, and its defects as warnings. Used by several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: dict[str, _Failing] = {}
        self._warnings: deque[dict[str, Any]] = deque()
        self._known_crashes: set[str] = set()

    def failed(self, what: str, error: WindlassError) -> None:
        """A try of something (`pods`, `log of node 3`) failed."""
        with self._lock:
            known = self._failing.get(what)
            if known is None or self._is_well(known):
                self._failing[what] = _Failing(error, self._clock())
            else:
                known.error, known.connected_at = error, None

    def crashed(self, what: str, error: BaseException) -> None:
        """Record an unexpected error of a thread, with the place in the code: it is a defect of Windlass."""
        words = f"internal error, tried again: {_words_of(error)}"
        self.failed(what, WindlassError(words))
        with self._lock:
            message = f"{what}: {words}"
            if message not in self._known_crashes and len(self._known_crashes) < MAX_CRASHES:
                self._known_crashes.add(message)
                self._warnings.append({"kind": "warning", "message": message, "at": self._clock()})

    def lost(self, what: str) -> None:
        """A log is given up: the record is to say that its last lines are missing, and why."""
        with self._lock:
            known = self._failing.pop(what, None)
            why = f": {known.error.message}" if known is not None else ""
            message = f"{what}: its last lines are missing, they could not be read{why}"
            self._warnings.append({"kind": "warning", "message": message, "at": self._clock()})

    def connected(self, what: str) -> None:
        """A connection was made; whether it holds is not known yet."""
        with self._lock:
            if what in self._failing:
                self._failing[what].connected_at = self._clock()

    def well(self, what: str) -> None:
        """A try of something succeeded, or it is no longer tried."""
        with self._lock:
            self._failing.pop(what, None)

    def news(self) -> Iterator[dict[str, Any]]:
        """Warnings for the record: of defects, and of logs that were given up; each once."""
        with self._lock:
            found = list(self._warnings)
            self._warnings.clear()
        yield from found

    def failing(self) -> tuple[str, WindlassError] | None:
        """What has failed for longest, and why; None while nothing fails."""
        with self._lock:
            for what in [what for what, one in self._failing.items() if self._is_well(one)]:
                del self._failing[what]
            oldest = min(self._failing, key=lambda what: self._failing[what].since, default=None)
            return None if oldest is None else (oldest, self._failing[oldest].error)

    def _is_well(self, one: _Failing) -> bool:
        return one.connected_at is not None and self._clock() - one.connected_at >= WELL_SECONDS


def start(what: str, turn: Callable[[], bool], closed: threading.Event, health: Health) -> threading.Thread:
    """Call `turn` in a thread until it gives True or `closed` is set; after an error, again after a pause."""
    thread = threading.Thread(target=run, args=(what, turn, closed, health), name=what, daemon=True)
    thread.start()
    return thread


def run(what: str, turn: Callable[[], bool], closed: threading.Event, health: Health) -> None:
    """The same in this thread."""
    backoff = Backoff()
    while not closed.is_set():
        began = time.monotonic()
        try:
            if turn():
                break
            health.well(what)
            if time.monotonic() - began >= PAUSES[0]:
                backoff.reset()
            else:  # a server that ends each watch at once is not asked without end
                closed.wait(backoff.next())
        except WindlassError as error:  # no answer, a refusal, a login that cannot be renewed now
            health.failed(what, error)
            closed.wait(backoff.next())
        except Exception as error:
            health.crashed(what, error)
            closed.wait(backoff.next())
    health.well(what)


def _words_of(error: BaseException) -> str:
    """Kind, words and place of an error, in a line."""
    trace = traceback.extract_tb(error.__traceback__)
    place = f" ({trace[-1].filename.rpartition('/')[2]}:{trace[-1].lineno})" if trace else ""
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}{place}" if words else f"{type(error).__name__}{place}"
