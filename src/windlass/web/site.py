"""State that all requests of the web page share: records, sessions, target states, and caches."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from windlass.actions.metrics import MAX_RUNS
from windlass.errors import WindlassError
from windlass.runs.context import Context
from windlass.runs.time_accounting import Tally
from windlass.services.browser_access import Sessions

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.runs.store import RunAbout, Store
    from windlass.views.pages import DiskPart
    from windlass.web.targets import TargetPoller

T = TypeVar("T")
MAX_IDLE_STORES: Final = 8
CACHED: Final = 16
"""Maximum number of cached values of one kind, such as the curves of a run."""


class Records:
    """Pool of connections to the record, each used by one thread at a time. They are reused because opening one takes
    milliseconds.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._idle: list[Store] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[Store]:
        """Yields a connection to the record for this thread. Raises StoreError."""
        try:
            store = self._idle.pop()
        except IndexError:
            store = self._context.store()
        try:
            yield store
        except BaseException:
            store.close()
            raise
        if len(self._idle) < MAX_IDLE_STORES:
            self._idle.append(store)
        else:
            store.close()

    def close(self) -> None:
        """Closes the unused connections."""
        while self._idle:
            self._idle.pop().close()


class Cache:
    """Values that are slow to compute, each valid for one state of its source. Concurrent requests for the same value
    compute it once.
    """

    def __init__(self, size: int = CACHED) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._busy: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, state: Hashable, compute: Callable[[], T]) -> T:
        """Returns the value of `key`, computed anew if `state` has changed since. Raises as `compute`."""
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        with busy:
            known = self._found.get(key)
            if known is not None and known[0] == state:
                value: T = known[1]
            else:
                value = compute()
        with self._lock:
            self._found[key] = (state, value)
            self._found.move_to_end(key)
            while len(self._found) > self._size:
                self._busy.pop(self._found.popitem(last=False)[0], None)
        return value


class Tallies:
    """Time accounts of the runs that were viewed last. Each is updated by reading only the new events."""

    def __init__(self) -> None:
        self._found = Cache()

    def read(self, run_id: str, store: Store, use: Callable[[Tally], T]) -> T:
        """Returns `use` of the time account of a run after its newest event. Raises UnsupportedVersion, StoreError."""
        lock, tally = self._found.get(run_id, None, lambda: (threading.Lock(), Tally(store.events(run_id))))
        with lock:
            tally.take(store.events(run_id, tally.last_seq))
            return use(tally)


class Measurement(Generic[T]):
    """A value that takes long to measure. Requests get the last value, while a thread measures the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: T | None = None
        self._begun_at = -math.inf
        self._done = threading.Event()
        self._done.set()

    def get(self, measure: Callable[[], T], age_seconds: float, wait_seconds: float) -> T | None:
        """Returns the last value, and measures anew in a thread if the last measurement began `age_seconds` ago.

        Waits `wait_seconds` for the first value; None if it is not known by then.
        """
        with self._lock:
            if self._done.is_set() and time.monotonic() - self._begun_at >= age_seconds:
                self._begun_at = time.monotonic()
                self._done.clear()
                threading.Thread(target=self._measure, args=(measure,), name="windlass-disk", daemon=True).start()
        if self._value is None:
            self.wait(wait_seconds)
        return self._value

    def wait(self, seconds: float) -> None:
        """Blocks until no measurement is in progress, at most this long."""
        self._done.wait(seconds)

    def _measure(self, measure: Callable[[], T]) -> None:
        try:
            with contextlib.suppress(WindlassError, OSError):
                self._value = measure()
        finally:
            self._done.set()


@dataclass(frozen=True, slots=True)
class Site:
    """The state of one server."""

    context: Context
    records: Records
    sessions: Sessions
    targets: TargetPoller
    may_act: bool = False
    """Whether the page offers actions (`--allow-actions`)."""
    secret: str = ""
    """Secret with which `windlass open` requests one-time links; empty if the server gives it none."""
    is_ending: Callable[[], bool] = lambda: False
    """Whether the server shuts down, so that streams must end."""
    metrics: Cache = field(default_factory=Cache)
    metric_names: Cache = field(default_factory=lambda: Cache(MAX_RUNS))
    """Names of the metrics of each compared run."""
    verdicts: Cache = field(default_factory=Cache)
    tallies: Tallies = field(default_factory=Tallies)
    disk: Measurement[DiskPart] = field(default_factory=Measurement)
    abouts: dict[str, RunAbout] = field(default_factory=dict)
    """Facts of each run in the list that never change, by run id."""

    def now(self) -> float:
        """Returns the wall time in Unix seconds."""
        return self.context.now()


def reading_engine(run_id: str, store: Store) -> Engine:
    """Returns an engine that reads the record of a run and never contacts its target. Raises NoSuchRun, UsageError.

    A target that does not respond must not delay a page; `targets.TargetPoller` contacts the targets.
    """
    from windlass.engines import engine_class
    from windlass.engines.recorded import RecordedEngine

    found = engine_class(store.engine_of(run_id), run_id)
    return RecordedEngine(store) if found.is_remote else found.connect(store)
