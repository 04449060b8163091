"""Live updates: detects changes of the record, and sends them to open pages as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response, StreamingResponse

from windlass.actions.feed import Feed
from windlass.errors import WindlassError
from windlass.runs.logs import RunLogs
from windlass.views.serialise import to_json
from windlass.web.logs import number_of, row_of

if TYPE_CHECKING:
    from windlass.views.pages import LogRow
    from windlass.web.site import Records, Site

MAX_STREAMS: Final = 64
"""Maximum number of open streams; further pages are not live."""
POLL_SECONDS: Final = 0.1
"""Seconds between two checks of the record while streams are open."""
BEAT_SECONDS: Final = 15.0
"""Seconds without an event after which a stream sends a comment, which reveals a closed connection."""
WAIT_SECONDS: Final = 0.5
"""Maximum seconds between two checks of a stream whether the server is shutting down."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two checks whether the run of a log has ended."""
SECONDS_PER_LOG: Final = 0.002
"""Pause between two reads in seconds per followed log: 1,000 logs are read every two seconds."""
BATCH: Final = 500
"""Maximum number of log lines in one event. If more lines arrive at once, only the last ones are sent."""
STREAM: Final = "text/event-stream"


class Subscriber:
    """One open page, with the changed runs that were not sent to it yet."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_changed = asyncio.Event()
        self._runs: set[str] = set()
        self._lock = threading.Lock()

    def add(self, runs: set[str]) -> None:
        """Adds changed runs. Called by the thread of the feed."""
        with self._lock:
            self._runs |= runs
        with contextlib.suppress(RuntimeError):  # the event loop was closed
            self._loop.call_soon_threadsafe(self._has_changed.set)

    async def take(self, seconds: float) -> set[str] | None:
        """Returns the changed runs, after at most `seconds`; None if there was no change."""
        try:
            await asyncio.wait_for(self._has_changed.wait(), seconds)
        except TimeoutError:
            return None
        self._has_changed.clear()
        with self._lock:
            found, self._runs = self._runs, set()
        return found


class ChangeFeed:
    """Detects changed runs in one thread, which reads the record only while pages are open."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._subscribers: set[Subscriber] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._num_streams = 0

    def notify(self, runs: set[str]) -> None:
        """Notifies every open page that these runs may have changed; an empty set means the list of runs."""
        with self._lock:
            for one in self._subscribers:
                one.add(runs)

    @property
    def is_full(self) -> bool:
        """Whether no more streams may be opened."""
        return self._num_streams >= MAX_STREAMS

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts one open stream until the end of the block. Must be used in the event loop."""
        self._num_streams += 1
        try:
            yield
        finally:
            self._num_streams -= 1

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[Subscriber]:
        """Yields a subscriber that receives changes until the end of the block. Must be used in an event loop.

        Its first change is an empty set: what changed between the rendering of its page and now is not known.
        """
        one = Subscriber()
        with self._lock:
            self._subscribers.add(one)
            if self._thread is not None:
                one.add(set())
            else:
                self._thread = threading.Thread(target=self._watch, name="windlass-changes", daemon=True)
                self._thread.start()
        try:
            yield one
        finally:
            with self._lock:
                self._subscribers.discard(one)

    def _watch(self) -> None:
        """Body of the thread, which ends with the last subscriber."""
        while not self._ends():
            # an OSError, as of too many open files, must not end the only thread that notices changes
            with contextlib.suppress(WindlassError, OSError), self._records.open() as store:
                version, marks, count = store.changes(), store.marks(), store.count_all()
                self.notify(set())  # of changes before these marks
                while self._subscribers:
                    time.sleep(POLL_SECONDS)
                    if (newer := store.changes()) == version:
                        continue
                    version, before, marks = newer, marks, store.marks()
                    changed = {run for run in before.keys() | marks.keys() if before.get(run) != marks.get(run)}
                    count, number = store.count_all(), count
                    if changed or count != number:
                        self.notify(changed)
            time.sleep(POLL_SECONDS)

    def _ends(self) -> bool:
        with self._lock:
            if not self._subscribers:
                self._thread = None
            return not self._subscribers


def change_stream(site: Site, changes: ChangeFeed) -> Response:
    """Returns the stream of events `changed`, whose data are the ids of changed runs: `{"runs": ["digits-7f3k2"]}`.

    Targets are asked as long as it is open: a page makes no request until something changes.
    """
    if changes.is_full:
        return _too_many()
    return _stream(_changed(site, changes), changes)


async def _changed(site: Site, changes: ChangeFeed) -> AsyncIterator[str]:
    with changes.subscribed() as subscriber:
        yield "retry: 2000\n\n"
        idle = 0.0
        while not site.is_ending():
            site.targets.stay()
            found = await subscriber.take(WAIT_SECONDS)
            idle = idle + WAIT_SECONDS if found is None else 0.0
            if found is not None:
                yield event_text("changed", {"runs": sorted(found)})
            elif idle >= BEAT_SECONDS:
                idle = 0.0
                yield ": still open\n\n"


def log_stream(site: Site, run_id: str, given: Mapping[str, str], changes: ChangeFeed) -> Response:
    """Returns the stream of new log lines as events `lines`, from the time `since` (Unix seconds) on.

    The data are `{"lines": […], "skipped": N}`: if ranks write faster than a page can show, lines are skipped. The
    event `end` follows when the run has ended. `rank` and `attempt` choose the log. Raises NoSuchRun, UsageError.
    """
    rank, attempt = number_of(given, "rank"), number_of(given, "attempt")
    since = float(number_of(given, "since") or site.now())
    with site.records.open() as store:
        store.status(run_id)  # raises NoSuchRun
        logs = RunLogs(store.run_dir(run_id))
    if changes.is_full:
        return _too_many()

    looked_at, is_over = -math.inf, False

    def has_ended() -> bool:
        nonlocal looked_at, is_over
        if time.monotonic() - looked_at >= LOOK_SECONDS:
            with site.records.open() as store:
                looked_at, is_over = time.monotonic(), store.status(run_id).phase.is_terminal
        return is_over

    def read(unwanted: threading.Event) -> Iterator[tuple[list[LogRow], int]]:
        def ends() -> bool:
            return unwanted.is_set() or site.is_ending() or has_ended()

        ranks = None if rank is None else [rank]
        num_logs = (
            1 if rank is not None else max((len(logs.ranks(number)) for number in logs.attempts()[-1:]), default=1)
        )
        pause = max(POLL_SECONDS, num_logs * SECONDS_PER_LOG)
        for block in logs.read_batches(
            ranks=ranks, attempt=attempt, since_ns=int(since * 1e9), is_over=ends, poll_seconds=pause
        ):
            lines = list(block.lines())
            yield [row_of(line) for line in lines[-BATCH:]], max(0, len(lines) - BATCH)

    return _stream(_lines(Feed(read), site.is_ending), changes)


async def _lines(feed: Feed[tuple[list[LogRow], int]], is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    try:
        yield "retry: 2000\n\n"
        async for rows, skipped in feed:
            yield event_text("lines", {"lines": to_json(rows), "skipped": skipped})
            if is_ending():
                return
        yield event_text("end", {})
    except WindlassError as error:
        yield event_text("failed", {"message": error.message})
    finally:
        feed.close()


def event_text(name: str, data: Any) -> str:
    """Returns a server-sent event. `json.dumps` writes no line breaks, so that the data fit on one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _stream(events: AsyncIterator[str], changes: ChangeFeed) -> Response:
    async def counted() -> AsyncIterator[str]:
        with changes.counted():
            async for text in events:
                yield text

    return StreamingResponse(counted(), media_type=STREAM)


def _too_many() -> Response:
    return Response("too many open pages", 503, media_type="text/plain")
