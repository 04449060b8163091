"""Runs the background threads of a run: any error is recorded, and the thread tries again after a pause.

The supervisor depends on the threads that read logs and watch pods. If one of them ended silently, the record would
show a healthy run forever.
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
"""Pauses in seconds between consecutive tries that fail or return at once."""
WELL_SECONDS: Final = 5.0
"""Seconds that a connection must last before its task counts as healthy again."""
MAX_CRASHES: Final = 20
"""Maximum number of recorded internal errors: an error with varying messages must not fill the record."""


class Backoff:
    """Pauses between tries: longer after each failure, short again after a success."""

    def __init__(self) -> None:
        self.num_failed = 0

    def reset(self) -> None:
        """Resets the pause after a successful try."""
        self.num_failed = 0

    def next(self) -> float:
        """Counts one more failure, and returns the seconds until the next try."""
        self.num_failed += 1
        return PAUSES[min(self.num_failed, len(PAUSES)) - 1]


@dataclass(slots=True)
class _Failing:
    """A task that currently fails."""

    error: WindlassError
    since: float
    connected_at: float | None = None
    """Time at which the current connection was made, in Unix seconds; None without a connection."""


class Health:
    """Background tasks of a run that currently fail, and warnings about internal errors. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._failing: dict[str, _Failing] = {}
        self._warnings: deque[NodeWarning] = deque()
        self._known_crashes: set[str] = set()

    def failed(self, what: str, error: WindlassError) -> None:
        """Records that a try of the task `what` (`pods`, `log of node 3`) failed."""
        with self._lock:
            known = self._failing.get(what)
            if known is None or self._is_well(known):
                self._failing[what] = _Failing(error, self._clock.time())
            else:
                known.error, known.connected_at = error, None

    def crashed(self, what: str, error: BaseException) -> None:
        """Records an unexpected exception of a thread, with its place in the code, as an internal error of Windlass."""
        words = f"internal error, tried again: {_described(error)}"
        self.failed(what, WindlassError(words))
        with self._lock:
            message = f"{what}: {words}"
            if message not in self._known_crashes and len(self._known_crashes) < MAX_CRASHES:
                self._known_crashes.add(message)
                self._warnings.append(NodeWarning(self._clock.time(), message))

    def lost(self, what: str) -> None:
        """Records that the last lines of a log are missing since they could not be read, and why."""
        with self._lock:
            known = self._failing.pop(what, None)
            why = f": {known.error.message}" if known is not None else ""
            message = f"{what}: its last lines are missing, they could not be read{why}"
            self._warnings.append(NodeWarning(self._clock.time(), message))

    def connected(self, what: str) -> None:
        """Records that the task `what` made a connection, which may still break."""
        with self._lock:
            if what in self._failing:
                self._failing[what].connected_at = self._clock.time()

    def well(self, what: str) -> None:
        """Records that a try of the task `what` succeeded, or that the task has ended."""
        with self._lock:
            self._failing.pop(what, None)

    def updates(self) -> Iterator[NodeWarning]:
        """Yields and removes the pending warnings for the record, about internal errors and lost logs."""
        with self._lock:
            found = list(self._warnings)
            self._warnings.clear()
        yield from found

    def failing(self) -> tuple[str, WindlassError] | None:
        """Returns the task that has failed for the longest time, and its error; None if no task fails."""
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
    """Calls `turn` repeatedly in a new thread until it returns True or `closed` is set, with a pause after each error.

    The thread also pauses after a call that returns quickly, such as a watch that the server ends at once, unless
    `is_paced`: then `turn` itself waits for work.
    """
    thread = threading.Thread(target=run, args=(what, turn, closed, health, is_paced), name=what, daemon=True)
    thread.start()
    return thread


def run(what: str, turn: Callable[[], bool], closed: threading.Event, health: Health, is_paced: bool = False) -> None:
    """Calls `turn` in this thread, as `start` does in a new one."""
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
        # The server did not respond, refused the request, or the login cannot be renewed now.
        except WindlassError as error:
            health.failed(what, error)
            closed.wait(backoff.next())
        except Exception as error:
            health.crashed(what, error)
            closed.wait(backoff.next())
    health.well(what)


def _described(error: BaseException) -> str:
    """Returns type, message and place of an error, in one line."""
    import traceback  # Only internal errors need this import.

    trace = traceback.extract_tb(error.__traceback__)
    place = f" ({trace[-1].filename.rpartition('/')[2]}:{trace[-1].lineno})" if trace else ""
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}{place}" if words else f"{type(error).__name__}{place}"
