"""Event feed of one node: the events that its pod sends, completed from the pod's log after a lost connection.

It is used by a supervisor in the cluster, which follows no logs. It writes the same files as for a local node. Each
event is written once, whether it arrives through the feed, the log, or both: the events of a node differ by their
times.
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
"""Most logs that are read at once."""
UNFED_SECONDS: Final = 30.0
"""Seconds for which a running pod may have no connection before its log is read; less if the run detects hangs
sooner."""
POLL_SECONDS: Final = 5.0
"""Least seconds between two reads of the log of a pod without a connection."""
PRINTED_SECONDS: Final = 5.0
"""Seconds between two reports on how much ranks have printed."""
MARGIN_SECONDS: Final = 2.0
"""Seconds of the log that are read again although they are known: requests specify times in whole seconds."""
_END: Final = f'{{"kind": "{NodeEnded.kind}"'.encode()


class Feeds(Protocol):
    """Interface of the connections of pods, see `OrderServer`."""

    def subscribe(self, pod: str, sink: EventSink) -> None:
        """Requests the events of a pod for the sink."""

    def unsubscribe(self, pod: str, sink: EventSink) -> None:
        """Stops passing events to the sink."""


class Readers:
    """Threads that read the logs of the pods of an attempt, a few logs at once."""

    def __init__(self, num_nodes: int, hang_seconds: float | None = None) -> None:
        """`hang_seconds` is the time without output after which ranks count as hung."""
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="logs")
        share = math.inf if hang_seconds is None else hang_seconds / 4
        self.unfed_seconds = min(UNFED_SECONDS, share)
        """Seconds for which a running pod may have no connection before its log is read."""
        self.pause_seconds = max(min(POLL_SECONDS, share), num_nodes / POLLS_A_SECOND)
        """Seconds between two reads of the log of a pod without a connection."""
        self.printed_seconds = min(PRINTED_SECONDS, share)
        """Seconds between two reports on how much ranks have printed."""

    def submit(self, work: Callable[[], None]) -> None:
        """Calls the function in one of the threads."""
        self._pool.submit(work)

    def close(self) -> None:
        """Cancels all calls that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class NodeFeed:
    """Events of one node of one attempt. Used by the threads of the order server, the attempt monitor and `Readers`."""

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
        """`what` is the name of the log in the record; `wake` is called after something new was written.

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
        """Time since when the pod has sent no events; None while it is connected."""
        self._next_read_at = 0.0
        self._is_reading = False
        self._is_closed = False
        self._reader = PodLogReader(what, client, pods, place, self._tail, lambda: None)
        self.attempt = files.number
        self.is_finished = False
        """Whether the attempt is over and the pod is kept alive for the next one."""
        self.is_done = False
        """Whether all events of the node are in its file, as far as the cluster still has them."""

    def close(self) -> None:
        """Stops receiving events."""
        if self._is_closed:
            return
        self._is_closed = True
        self._reader.closed.set()
        self._client.health.well(self._what)  # Errors of reading the log no longer matter after the end of the attempt.
        if self._pod:
            self._feeds.unsubscribe(self._pod, self)

    # -- the feed -----------------------------------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Bytes of events received so far."""
        return self._files.offset

    @property
    def printed_seconds(self) -> float:
        """Seconds between two reports of the bytes that ranks have printed."""
        return self._readers.printed_seconds

    def take(self, token: str, events: bytes) -> None:
        """Receives events of the pod, as `EventSink` requires. Events of a restarted container are ignored: its attempt
        has ended.
        """
        with self._lock:
            if self._is_closed or not self._files.is_of(token):
                return
            self._unfed_since = None
            try:
                self.is_finished = self._files.feed(events) or self.is_finished
            except (OSError, ProtocolError):
                raise
            except Exception as error:  # The thread also serves the other pods.
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

    # -- the pod ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Subscribes to the pod's events once the pod exists; called when the pods have changed."""
        pod = None if self._pod or self._is_closed else self._pods.pod(self._place)
        if pod is not None and not has_ended(pod) and not is_restarted(pod):
            self._pod = str(pod["metadata"]["name"])
            self._feeds.subscribe(self._pod, self)

    def catch_up(self) -> None:
        """Checks whether all events have arrived, and has the log read if some are missing and will not be sent."""
        if self.is_done or self._is_closed:
            return
        if self.is_finished:
            self._finish()
            return
        self.look()  # The pod may have existed before this feed.
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

    # -- the log ------------------------------------------------------------------------------------------------------

    def _tail(self) -> LogTail:
        with self._lock:
            return self._files.tail()

    def _read(self) -> None:
        """Reads the log once."""
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
        if self._is_closed:  # A read that started before `close` may fail long after it.
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
        """`number` is the attempt of the files; `LogTail` describes the other arguments. Raises OSError."""
        self._folder = folder
        self._of = (node, ranks, number, first, waited)
        self.number = number
        self._ranks = frozenset(ranks)
        self._events = folder / f"node-{node}.events"
        self._out = f"node-{node}.out"
        self._beside = folder / f"node-{node}.log"
        """Folder in which the pod's log is written, separate from the files of the feed."""
        self.offset = 0
        """Bytes of events received through the feed."""
        self._partial = b""
        """Incomplete last line of the feed."""
        self._token = ""
        self._last_at = 0.0
        """Time of the last event received through the feed, in Unix seconds; 0 for none."""
        self._end: NodeEnded | None = None
        self._merged = 0
        """Bytes of the log's events that are already in the node's file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unfed = self._cut()
        """Hashes of lines in the node's file that have not arrived through the feed yet."""

    def _cut(self) -> set[int]:
        """Removes an incomplete last line, left by a killed supervisor; returns hashes of the complete lines. Raises
        OSError.
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
        """Whether a feed with this token belongs to the node; the first token that arrives does."""
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
        """Whether the feed contained the end of the node, and its container has ended with the same result."""
        return self._end is not None and (exit_code is None or (exit_code == 0) is not bool(self._end.failures))

    def grow(self, sizes: Mapping[int, int]) -> None:
        """Extends the logs of ranks with empty data to the length of what they have printed. Raises OSError."""
        for rank in self._ranks & sizes.keys():
            path = self._folder / f"rank-{rank}.log"
            with open(path, "ab") as file:
                if sizes[rank] > file.tell():
                    file.truncate(sizes[rank])

    def tail(self) -> LogTail:
        """Returns a writer for the pod's log, from the last event of the feed on."""
        known = Known(self._last_at - MARGIN_SECONDS, self._token) if self._last_at else None
        return LogTail(self._beside, *self._of, has_output=False, known=known)

    def merge(self) -> None:
        """Adds the events in the pod's log that the feed does not have. Raises OSError."""
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
        """Appends all of these lines, or none of them. Raises OSError."""
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
