"""Event feed of one node: the events that its pod sends, completed from the pod's log after a lost connection.

Only a supervisor in the cluster uses feeds; it follows no logs. A feed writes the same files as a local node. Each
event is written once, whether it arrives through the feed, the log, or both, since no two events of a node are equal.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.order_server import EventSink
from windlass.engines.kubernetes.objects.pod_status import (
    container_state,
    exit_code,
    has_ended,
    is_forced,
    is_restarted,
)
from windlass.engines.kubernetes.reading.logs.follower import POLLS_A_SECOND, PodLogReader, Pods
from windlass.runs import node_events
from windlass.runs.clock import Clock
from windlass.supervise.log_tail import Known, LogTail
from windlass.worker import event_feed
from windlass.worker.order_protocol import ProtocolError
from windlass.worker.protocol import NodeEnded

READERS: Final = 4
"""Maximum number of logs that are read at once."""
UNFED_SECONDS: Final = 30.0
"""Seconds for which a running pod may be disconnected before its log is read; shorter if the run detects hangs
sooner."""
POLL_SECONDS: Final = 5.0
"""Minimum seconds between two reads of a disconnected pod's log."""
PRINTED_SECONDS: Final = 5.0
"""Seconds between two reports on how much ranks have printed."""
MARGIN_SECONDS: Final = 2.0
"""Seconds of the log that are read again, since requests specify times in whole seconds."""
_END: Final = f'{{"kind": "{NodeEnded.kind}"'.encode()


class Feeds(Protocol):
    """Subscriptions to the events of connected pods; `OrderServer` implements this."""

    def subscribe(self, pod: str, sink: EventSink) -> None:
        """Starts to pass the events of a pod to the sink."""

    def unsubscribe(self, pod: str, sink: EventSink) -> None:
        """Stops passing the events of a pod to the sink."""


class Readers:
    """Threads that read the logs of an attempt's pods, a few at once."""

    def __init__(self, num_nodes: int, hang_seconds: float | None = None) -> None:
        """`hang_seconds` is the time without output after which ranks count as hung."""
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="logs")
        share = math.inf if hang_seconds is None else hang_seconds / 4
        self.unfed_seconds = min(UNFED_SECONDS, share)
        """Seconds for which a running pod may be disconnected before its log is read."""
        self.pause_seconds = max(min(POLL_SECONDS, share), num_nodes / POLLS_A_SECOND)
        """Seconds between two reads of a disconnected pod's log."""
        self.printed_seconds = min(PRINTED_SECONDS, share)
        """Seconds between two reports on how much ranks have printed."""

    def submit(self, work: Callable[[], None]) -> None:
        """Calls the function in one of the threads."""
        self._pool.submit(work)

    def close(self) -> None:
        """Cancels all calls that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class NodeFeed:
    """Events of one node of one attempt. Called by the threads of the order server, of the attempt monitor and of
    `Readers`.
    """

    def __init__(
        self,
        what: str,
        client: Client,
        pods: Pods,
        place: int,
        files: NodeFiles,
        feeds: Feeds,
        readers: Readers,
        wake: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        """`what` names the log in the record; `wake` is called after new data was written.

        Raises OSError.
        """
        self._what = what
        self._client = client
        self._pods = pods
        self._place = place
        self._files = files
        self._feeds = feeds
        self._readers = readers
        self._wake = wake
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        """Guards the attributes below."""
        self._pod = ""
        """Name of the pod whose events are received."""
        self._unfed_since: float | None = self._clock.monotonic()
        """Time at which the pod was disconnected, in monotonic seconds; None while it is connected."""
        self._next_read_at = 0.0
        self._is_reading = False
        self._is_closed = False
        self._reader = PodLogReader(what, client, pods, place, self._tail, lambda: None)
        self.attempt = files.number
        self.is_finished = False
        """Whether the attempt is over and the pod is kept alive for the next one."""
        self.is_done = False
        """Whether the node's file has all events that the cluster still has."""

    def close(self) -> None:
        """Stops receiving events."""
        if self._is_closed:
            return
        self._is_closed = True
        self._reader.closed.set()
        self._client.health.well(self._what)  # at the end of the attempt, errors of reading the log no longer matter
        if self._pod:
            self._feeds.unsubscribe(self._pod, self)

    # -- events from the feed -----------------------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Bytes of events received so far."""
        return self._files.offset

    @property
    def printed_seconds(self) -> float:
        """Seconds between two reports of the bytes that ranks have printed."""
        return self._readers.printed_seconds

    def take(self, token: str, events: bytes) -> None:
        """Receives events of the pod (`EventSink`). Events of a restarted container are ignored, since its attempt has
        ended.
        """
        with self._lock:
            if self._is_closed or not self._files.is_of(token):
                return
            self._unfed_since = None
            try:
                self.is_finished = self._files.feed(events) or self.is_finished
            except (OSError, ProtocolError):
                raise
            except Exception as error:  # an error must not end the thread, which also serves other pods
                self._client.health.crashed(self._what, error)
                raise ProtocolError("events: cannot be taken") from error
        if events:
            self._wake()

    def take_printed(self, sizes: Mapping[int, int]) -> None:
        """Records the bytes that each rank has printed. Raises OSError."""
        with self._lock:
            if not self._is_closed:
                self._files.grow(sizes)

    def disconnected(self) -> None:
        """Records that the connection to the pod was lost."""
        with self._lock:
            self._unfed_since = self._clock.monotonic() if self._unfed_since is None else self._unfed_since

    # -- changes of the pod -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Subscribes to the pod's events once the pod exists; called after each change of the pods."""
        pod = None if self._pod or self._is_closed else self._pods.pod(self._place)
        if pod is not None and not has_ended(pod) and not is_restarted(pod):
            self._pod = str(pod["metadata"]["name"])
            self._feeds.subscribe(self._pod, self)

    def catch_up(self) -> None:
        """Checks whether all events have arrived; starts a read of the log if events are missing and will not be
        sent.
        """
        if self.is_done or self._is_closed:
            return
        if self.is_finished:
            self._finish()
            return
        self.look()  # the pod may have existed before this feed
        pod, now = self._pods.pod(self._place), self._clock.monotonic()
        if pod is None:
            if self._pods.is_gone(self._place):
                self._finish()
            return
        ended = self._reader.has_ended
        with self._lock:
            is_complete = (ended or is_forced(pod)) and self._files.has_end_of(exit_code(pod))
            if not is_complete:
                is_unfed = self._unfed_since is not None and now - self._unfed_since >= self._readers.unfed_seconds
                runs = container_state(pod)[0] != "waiting"
                if self._is_reading or now < self._next_read_at or not (ended or (is_unfed and runs)):
                    return
                self._is_reading = True
        if is_complete:
            self._finish()
        else:
            self._readers.submit(self._read)

    def _finish(self) -> None:
        self._client.health.well(self._what)
        self.is_done = True
        self.close()
        self._wake()

    # -- reading the pod's log ----------------------------------------------------------------------------------------

    def _tail(self) -> LogTail:
        with self._lock:
            return self._files.tail()

    def _read(self) -> None:
        """Reads new lines of the pod's log once, and adds their events."""
        pod, ended = self._pods.pod(self._place), self._reader.has_ended
        is_last, pause = False, self._readers.pause_seconds
        try:
            if pod is not None and not self._is_closed:
                try:
                    self._reader.read(pod, follow=False)
                finally:
                    self._merge()
                is_last = ended
                self._client.health.well(self._what)
        except Exception as error:
            is_last, pause = self._reader.is_final(error), self._reader.backoff.next()
        if self._is_closed:  # a read that started before `close` may fail later
            self._client.health.well(self._what)
        with self._lock:
            self._is_reading = False
            self._next_read_at = self._clock.monotonic() + (0.0 if self._reader.has_ended and not ended else pause)
        if is_last:
            self._finish()
        self._wake()

    def _merge(self) -> None:
        with self._lock:
            if (tail := self._reader.intake) is not None and not self._is_closed:
                self._files.merge()
                self.is_finished = tail.is_finished or self.is_finished


class NodeFiles:
    """Files of one node of an attempt, written from its feed and from its pod's log."""

    def __init__(
        self, folder: Path, node: int, ranks: tuple[int, ...], number: int, first: int, waited: bool = False
    ) -> None:
        """`number` is the attempt of the files; for the other arguments, see `LogTail`. Raises OSError."""
        self._folder = folder
        self._of = (node, ranks, number, first, waited)
        self.number = number
        self._ranks = frozenset(ranks)
        self._events = folder / f"node-{node}.events"
        self._out = f"node-{node}.out"
        self._beside = folder / f"node-{node}.log"
        """Folder for files from the pod's log, separate from the files of the feed."""
        self.offset = 0
        """Bytes of events received through the feed."""
        self._partial = b""
        """Incomplete last line of the feed."""
        self._token = ""
        self._last_at = 0.0
        """Time of the last event received through the feed, in Unix seconds; 0 for none."""
        self._end: NodeEnded | None = None
        self._merged = 0
        """Bytes of the log's events that were merged into the node's file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unfed = self._cut()
        """Hashes of lines in the node's file that have not arrived through the feed yet."""

    def _cut(self) -> set[int]:
        """Removes an incomplete last line, which a killed supervisor has left; returns hashes of the complete lines.
        Raises OSError.
        """
        with open(self._events, "a+b") as file:
            file.seek(0)
            found, length = set(), 0
            for line in file:
                if not line.endswith(b"\n"):
                    break
                length += len(line)
                found.add(hash(line))
            file.truncate(length)
        return found

    def is_of(self, token: str) -> bool:
        """Whether a feed with this token belongs to the node. The token that arrives first does."""
        self._token = self._token or token
        return token == self._token

    def feed(self, data: bytes) -> bool:
        """Writes events from the feed; returns whether they include the end of the attempt. Raises OSError,
        ProtocolError.
        """
        *lines, partial = (self._partial + data).split(b"\n")
        if len(partial) > node_events.MAX_BYTES:
            raise ProtocolError("events: a line is too long")
        whole = [line + b"\n" for line in lines]
        fresh = [line for line in whole if line not in (event_feed.OVER, event_feed.END)]
        self._append([line for line in fresh if hash(line) not in self._unfed])
        self._unfed.difference_update(map(hash, fresh))
        self._partial = partial
        self.offset += len(data)
        for line in fresh[-1:]:
            if (found := node_events.parse(line)) is not None:
                self._last_at = found.event.at
        for line in fresh:
            self._take_end(line)
        return event_feed.OVER in whole

    def _take_end(self, line: bytes) -> None:
        found = node_events.parse(line) if line.startswith(_END) else None
        if found is not None and isinstance(found.event, NodeEnded) and found.token == self._token:
            self._end = found.event

    def has_end_of(self, exit_code: int | None) -> bool:
        """Whether the end of the node has arrived through the feed, and agrees with the exit code of the node's
        container.
        """
        return self._end is not None and (exit_code is None or (exit_code == 0) is not bool(self._end.failures))

    def grow(self, sizes: Mapping[int, int]) -> None:
        """Extends the logs of ranks with empty data to these sizes, the bytes that the ranks have printed. Raises
        OSError.
        """
        for rank in self._ranks & sizes.keys():
            path = self._folder / f"rank-{rank}.log"
            with open(path, "ab") as file:
                if sizes[rank] > file.tell():
                    file.truncate(sizes[rank])

    def tail(self) -> LogTail:
        """Returns a writer for the pod's log that starts at the last event of the feed."""
        known = Known(self._last_at - MARGIN_SECONDS, self._token) if self._last_at else None
        return LogTail(self._beside, *self._of, has_output=False, known=known)

    def merge(self) -> None:
        """Adds events from the pod's log that have not arrived through the feed. Raises OSError."""
        with open(self._beside / self._events.name, "rb") as file:
            file.seek(self._merged)
            lines = [line for line in file if line.endswith(b"\n")]
        with open(self._events, "rb") as file:
            known = set(map(hash, file)) if lines else set()
        fresh = [line for line in lines if hash(line) not in known]
        self._append(fresh)
        self._unfed.update(map(hash, fresh))
        self._merged += sum(map(len, lines))
        self.grow({rank: (self._beside / f"rank-{rank}.log").stat().st_size for rank in self._ranks})
        if (self._beside / self._out).stat().st_size:
            shutil.copyfile(self._beside / self._out, self._folder / self._out)

    def _append(self, lines: list[bytes]) -> None:
        """Appends either all of these lines or none. Raises OSError."""
        if not lines:
            return
        with open(self._events, "ab", buffering=0) as file:
            before, data = file.tell(), b"".join(lines)
            try:
                if file.write(data) != len(data):
                    raise OSError("the disk is full")
            except OSError:
                os.truncate(self._events, before)
                raise
