"""Reads the log streams of one host into the files of its node."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from windlass.engines.sagemaker.service import Service
from windlass.runs.node_events import EventDeduplicator
from windlass.storage.files import write_whole
from windlass.supervise.log_tail import LogTail, nanoseconds
from windlass.worker.protocol import MetricsReported, NodeEnded, WorkerFailed

STREAM: Final = re.compile(r".+/algo-(\d{1,6})-[^/]+")
MISSING: Final = "CloudWatch has not kept them"
START_SEQ: Final = 1 << 32
"""Difference between the numbers of metric events of two starts of a host, each of which counts from 1."""
LAST: Final = tuple(f'"kind": "{event.kind}"'.encode() for event in (NodeEnded, WorkerFailed))
"""Byte strings that identify the last event of a host."""


def place_of(stream: str) -> int:
    """Returns the index of the host that a log stream belongs to; −1 for other streams."""
    found = STREAM.fullmatch(stream)
    return int(found[1]) - 1 if found is not None else -1


def numbered(event: MetricsReported, start: int) -> MetricsReported:
    """Returns an event of start `start` (from 0 on) of a host, with a number that is unique in the attempt."""
    return event.replace(seq=event.seq + start * START_SEQ)


class HostLog:
    """The log of one host of an attempt: one stream for each start of the host. Other threads may use `starts` only."""

    def __init__(
        self, service: Service, folder: Path, node: int, ranks: tuple[int, ...], attempt: int, closed: threading.Event
    ) -> None:
        """Creates a reader that stops once the event `closed` is set."""
        self._service = service
        self._folder = folder
        self.node = node
        self._of = (node, ranks, attempt, attempt)
        self._closed = closed
        self._events = folder / f"node-{node}.events"
        self._starts_file = folder / f"node-{node}.starts"
        self._starts: list[tuple[str, int]] = []
        """Names of the streams that were read, each with the offset of its first event."""
        with contextlib.suppress(OSError, ValueError):
            self._starts = [(stream, begin) for stream, begin in json.loads(self._starts_file.read_bytes())]
        self._tokens: dict[str, str] = {}
        """Token of the next page, by stream."""

    @functools.cached_property
    def _tail(self) -> LogTail:
        return LogTail(self._folder, *self._of, why_missing=MISSING)

    @property
    def starts(self) -> list[int]:
        """Offsets in the events file at which the events of the second and later starts begin."""
        return [begin for _, begin in self._starts[1:]]

    def has_end(self, num_starts: int) -> bool:
        """Whether the log contains the last event of start `num_starts` of the host."""
        if len(self._starts) < num_starts:
            return False
        with contextlib.suppress(OSError):
            written = self._events.read_bytes()[self._starts[-1][1] :]
            return any(kind in written for kind in LAST)
        return False

    def metrics(self) -> Iterator[MetricsReported]:
        """Yields the metric events of all starts that were read. Raises OSError."""
        data = self._events.read_bytes() if self._starts else b""
        bounds = [*(begin for _, begin in self._starts), len(data)]
        for start, (begin, end) in enumerate(itertools.pairwise(bounds)):
            deduplicator = EventDeduplicator()
            for event in map(deduplicator.take, data[begin:end].split(b"\n")):
                if isinstance(event, MetricsReported):
                    yield numbered(event, start)

    def read(self, stream: str) -> bool:
        """Writes new lines of a stream to the files; returns whether there were any. Raises OSError, Refused,
        Unavailable.
        """
        self._begin(stream)
        is_new = False
        while not self._closed.is_set():
            token = self._tokens.get(stream)
            since = 0 if token is not None else (nanoseconds(self._tail.begin() or "") or 0) // 1_000_000
            page = self._service.read_log(stream, since=since, token=token)
            # without a token, a read after a write error starts at the last written line
            tokens, self._tokens = self._tokens, {}
            for at, text in page.lines:
                self._tail.put(_stamped(at, text))
            is_new = self._tail.flush() or is_new or bool(page.lines and token is not None)
            self._tokens = {**tokens, stream: page.token}
            if page.token == token:  # an unchanged token means the end of the stream
                return is_new
        return is_new

    def _begin(self, stream: str) -> None:
        """Stores the offset at which the events of a stream begin, before any of them is written. Raises OSError."""
        if all(stream != name for name, _ in self._starts):
            starts = [*self._starts, (stream, self._events.stat().st_size if self._events.exists() else 0)]
            write_whole(self._starts_file, json.dumps(starts).encode())
            self._starts = starts


def _stamped(at: int, text: str) -> bytes:
    """Returns a line with its RFC 3339 time stamp, the format that `LogTail` reads."""
    stamp = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{at % 1000:03d}Z {text}".encode()
