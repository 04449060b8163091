"""Keeps the background threads of a run alive: any error is recorded, and the thread tries again after a pause.

The supervisor depends on the threads that read logs and watch pods. If one ended silently, the record would show a
healthy run for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from windlass.errors import WindlassError
from windlass.runs.clock import Clock
from windlass.worker.protocol import NodeWarning

PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two tries that fail, or bring nothing new."""
WELL_SECONDS: Final = 5.0
"""How long a connection must last until its purpose counts as healthy again."""
MAX_CRASHES: Final = 20
"""Internal errors that are recorded; a defect whose message varies must not fill the record."""


class Backoff:
    """The pauses between tries: longer with each failure, short again after a success."""

    def __init__(self) -> None:
        self.num_failed = 0

    def reset(self) -> None:
        """A try succeeded."""
        self.num_failed = 0

    def next(self) -> float:
        """Seconds until the next try, after one more that failed."""
        self.num_failed += 1
        return PAUSES[min(self.num_failed, len(PAUSES)) - 1]


@dataclass(slots=True)
class _Failing:
    """A task that fails."""

    error: WindlassError
    since: float
    connected_at: float | None = None
    """When a connection was made that has not failed yet."""


class Health:
    """Which background tasks of a run fail at present, and defects as warnings. Used by several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._failing: dict[str, _Failing] = {}
        self._warnings: deque[NodeWarning] = deque()
        self._known_crashes: set[str] = set()

    def failed(self, what: str, error: WindlassError) -> None:
        """A try of a task (`pods`, `log of node 3`) failed."""
        with self._lock:
            known = self._failing.get(what)
            if known is None or self._is_well(known):
                self._failing[what] = _Failing(error, self._clock.time())
            else:
                known.error, known.connected_at = error, None

    def crashed(self, what: str, error: BaseException) -> None:
        """Record an unexpected error of a thread, with the place in the code: it is a defect of Windlass."""
        words = f"internal error, tried again: {_described(error)}"
        self.failed(what, WindlassError(words))
        with self._lock:
            message = f"{what}: {words}"
            if message not in self._known_crashes and len(self._known_crashes) < MAX_CRASHES:
                self._known_crashes.add(message)
                self._warnings.append(NodeWarning(self._clock.time(), message))

    def lost(self, what: str) -> None:
        """A log is given up: record that its last lines are missing, and why."""
        with self._lock:
            known = self._failing.pop(what, None)
            why = f": {known.error.message}" if known is not None else ""
            message = f"{what}: its last lines are missing, they could not be read{why}"
            self._warnings.append(NodeWarning(self._clock.time(), message))

    def connected(self, what: str) -> None:
        """A connection was made; it may still break."""
        with self._lock:
            if what in self._failing:
                self._failing[what].connected_at = self._clock.time()

    def well(self, what: str) -> None:
        """A try of a task succeeded, or the task has ended."""
        with self._lock:
            self._failing.pop(what, None)

    def updates(self) -> Iterator[NodeWarning]:
        """Warnings for the record: of defects, and of logs that were given up; each once."""
        with self._lock:
            found = list(self._warnings)
            self._warnings.clear()
        yield from found

    def failing(self) -> tuple[str, WindlassError] | None:
        """The task that has failed for longest, and why; None while none fails."""
        with self._lock:
            for what in [what for what, one in self._failing.items() if self._is_well(one)]:
                del self._failing[what]
            oldest = min(self._failing, key=lambda what: self._failing[what].since, default=None)
            return None if oldest is None else (oldest, self._failing[oldest].error)

    def _is_well(self, one: _Failing) -> bool:
        return one.connected_at is not None and self._clock.time() - one.connected_at >= WELL_SECONDS


def start(
    what: str, turn: Callable[[], bool], closed: threading.Event, health: Health, *, is_paced: bool = False
) -> threading.Thread:
    """Call `turn` in a thread until it gives True or `closed` is set; after an error, again after a pause.

    Also after one that lasts a moment only, such as a watch that the server ends at once; not where it `is_paced`, and
    waits by itself until there is something to do.
    """
    thread = threading.Thread(target=run, args=(what, turn, closed, health, is_paced), name=what, daemon=True)
    thread.start()
    return thread


def run(what: str, turn: Callable[[], bool], closed: threading.Event, health: Health, is_paced: bool = False) -> None:
    """The same in this thread."""
    backoff = Backoff()
    while not closed.is_set():
        began = time.monotonic()
        try:
            if turn():
                break
            health.well(what)
            if is_paced or time.monotonic() - began >= PAUSES[0]:
                backoff.reset()
            else:
                closed.wait(backoff.next())
        except WindlassError as error:  # no answer, a refusal, a login that cannot be renewed now
            health.failed(what, error)
            closed.wait(backoff.next())
        except Exception as error:
            health.crashed(what, error)
            closed.wait(backoff.next())
    health.well(what)


def _described(error: BaseException) -> str:
    """Type, message and place of an error, in a line."""
    import traceback  # which only an internal error needs

    trace = traceback.extract_tb(error.__traceback__)
    place = f" ({trace[-1].filename.rpartition('/')[2]}:{trace[-1].lineno})" if trace else ""
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}{place}" if words else f"{type(error).__name__}{place}"
