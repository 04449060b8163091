"""Log tail: splits the log of a pod into the files that a local node would write, without losing or repeating lines.

The log is read from the API with the time of each line. The position (cursor) is stored next to the files, with the
lengths of the files at that position. After a crash the files are truncated to those lengths, and reading continues
from that line.

A pod counts its lines (`worker/pod.py`). If a kubelet rotates the log before it was read, the counts differ, and the
number of missing lines is written to the log of each rank and as a warning. Files are not kept open between two writes,
because a thousand ranks would exceed the limit of open files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from windlass.runs import node_events
from windlass.runs.events import rank_of
from windlass.worker.protocol import ATTEMPT, INDEX_RECORD, NODE_TAG, POD, LinesCounted, NodeStarted, NodeWarning

LINE: Final = re.compile(rb"\[(\d+|n|w|a)\](\+?)(r?) (.*)", re.DOTALL)
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
OVER: Final = b"over "
READ_ALONE: Final = (f'{{"kind": "{LinesCounted.kind}"'.encode(), f'{{"kind": "{NodeStarted.kind}"'.encode())
"""Prefixes of the events that describe the log itself."""
MAX_TIMELESS: Final = 20
ROTATED: Final = "the kubelet rotated the log of the pod before a supervisor read it"
BATCH_LINES: Final = 512
BATCH_SECONDS: Final = 0.05
"""Seconds for which arriving lines are gathered before they are written together."""


@dataclass(frozen=True, slots=True)
class Known:
    """Position up to which the events of an attempt are known from a source other than the log."""

    at: float
    """Time of the last known event in Unix seconds. Later events are in the log after this time."""
    token: str
    """Token by which the pod marks its own events."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Files of one node, in the folder of one attempt."""

    folder: Path
    node: int
    names: Mapping[str, str]
    """File names by the tag of their lines."""
    indexes: Mapping[str, str]
    """File names of log indexes by tag."""
    length_only: frozenset[str]
    """Tags of files that grow in length but take no space."""

    @classmethod
    def of(cls, folder: Path, node: int, ranks: Iterable[int], *, has_output: bool) -> NodeFiles:
        """Returns the files of a node that has these ranks."""
        tags = tuple(map(str, ranks))
        logs = {tag: f"rank-{tag}.log" for tag in tags}
        names = {NODE_TAG: f"node-{node}.events", POD: f"node-{node}.out", **logs}
        return cls(folder, node, names, {tag: f"rank-{tag}.idx" for tag in tags}, frozenset(() if has_output else tags))

    @property
    def cursor(self) -> Path:
        """Path of the cursor."""
        return self.folder / f"node-{self.node}.cursor"


@dataclass(slots=True)
class Cursor:
    """Position in the log of a pod, and the lengths of the files at that position."""

    attempt: int
    """Attempt to which the next line belongs; 0 if none has begun."""
    time: str | None = None
    """Latest time of a written line, in the format of the API. Lines after it may have earlier times, because the
    pod's clock was set back."""
    lines: int = 0
    """Number of written lines with exactly this `time`."""
    lengths: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    """Whether all lines of this attempt were read or are missing, because the pod has begun another attempt."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of the pod's own lines that were read or are known to be missing, by tag."""
    token: str | None = None
    """Token in the pod's own events."""
    counted: bool = True
    """Whether `counts` can be compared with the pod's counts; False if the beginning of the log was not read."""
    missing: dict[str, int] = field(default_factory=dict)
    """Number of counted lines that are missing in the files, by tag."""

    def write(self, path: Path) -> None:
        """Writes the cursor to a file. Raises OSError."""
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps({one.name: getattr(self, one.name) for one in fields(self)}))
        fresh.replace(path)


def read_cursor(path: Path) -> Cursor | None:
    """Reads a cursor from a file; None if the file is missing or damaged."""
    try:
        return Cursor(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class LogTail:
    """Writer of the files of one node of one attempt. The thread that reads the log calls it; the attempt monitor reads
    the files.
    """

    def __init__(
        self,
        folder: Path,
        node: int,
        ranks: Iterable[int],
        number: int = 1,
        first: int = 1,
        waited: bool = False,
        *,
        has_output: bool = True,
        known: Known | None = None,
        why_missing: str = ROTATED,
    ) -> None:
        """Truncates the files to the lengths in the cursor. Raises OSError.

        The files belong to attempt `number`. `first` is the first attempt of the pod, for which it was created or, if
        `waited`, for which it waited as a spare. Without `has_output`, rank logs grow with each line but have no
        content: they take no space, and their growth shows that ranks are alive. With `known`, the log is read only
        from that position. `why_missing` ends the message that is written in place of missing lines.
        """
        self._files = NodeFiles.of(folder, node, ranks, has_output=has_output)
        self._number = number
        self._first = first
        self._waited = waited
        self._known = known
        self._why_missing = why_missing
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        self._taken_at = 0.0
        self._load()

    def _load(self) -> None:
        files = self._files
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cursor = cursor = self._first_cursor()
        was_finished, cursor.finished = cursor.finished, cursor.finished or cursor.attempt > self._number
        cursor.counts = {**dict.fromkeys((*files.names, ATTEMPT), 0), **cursor.counts}
        every = (*files.names.values(), *files.indexes.values())
        cursor.lengths = {name: cursor.lengths.get(name, 0) for name in every}
        self._seen_again = 0
        """Number of lines at the cursor's time that the current log stream has repeated."""
        self._is_past = False
        """Whether the current log stream has passed the cursor, so that its lines are new at any time."""
        self._timeless: set[bytes] = set()
        """Lines without a time that were read already."""
        for name, length in cursor.lengths.items():
            os.close(os.open(files.folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.truncate(files.folder / name, length)
        self._is_broken = False
        """Whether writing lines failed, so that they must be read again."""
        if cursor.finished and not was_finished:
            # All lines of this attempt are missing, so the next attempt starts from this cursor.
            cursor.write(files.cursor)

    def _first_cursor(self) -> Cursor:
        """Returns the stored cursor; without one, the position where the attempt starts."""
        path = self._files.cursor
        if (kept := read_cursor(path)) is not None and self._is_written(kept):
            return kept
        if self._number > self._first:  # this attempt's lines follow those of the previous attempt
            before = read_cursor(path.parent.with_name(f"attempt-{self._number - 1}") / path.name)
            if before is not None and before.finished:
                return replace(before, finished=False, lengths={}, token=None, missing={})
        if self._known is not None:
            stamp = datetime.fromtimestamp(self._known.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return Cursor(self._number, stamp, token=self._known.token, counted=False)
        return Cursor(0 if self._waited else self._first)

    def _is_written(self, cursor: Cursor) -> bool:
        """Whether the files have all data before a cursor. After a power cut, a cursor may be newer than the data."""
        unwritten = {self._files.names[tag] for tag in self._files.length_only}
        lengths = {name: length for name, length in cursor.lengths.items() if length and name not in unwritten}
        with contextlib.suppress(FileNotFoundError):
            return all((self._files.folder / name).stat().st_size >= length for name, length in lengths.items())
        return False

    @property
    def is_finished(self) -> bool:
        """Whether all lines of this attempt were read or are missing, because the pod has begun another attempt."""
        return self._cursor.finished

    def begin(self) -> str | None:
        """Prepares for reading the log again from the returned time in whole seconds; known lines are skipped. Raises
        OSError.
        """
        with self._lock:
            if self._is_broken:
                self._load()
            self._gathered.clear()
            self._seen_again, self._is_past = 0, False
            return self._cursor.time

    def put(self, line: bytes) -> bool:
        """Adds one line. Returns whether anything new was written. Raises OSError, after which the log must be read
        again.
        """
        with self._lock:
            self._gathered.append(line)
            is_due = len(self._gathered) >= BATCH_LINES or time.monotonic() - self._taken_at >= BATCH_SECONDS
            return self._take_gathered() if is_due else False

    def flush(self) -> bool:
        """Writes the gathered lines. Returns whether any line was new. After an OSError the log must be read again."""
        with self._lock:
            return self._take_gathered()

    def _take_gathered(self) -> bool:
        """Writes the gathered lines. Returns whether any was new. Raises OSError; the log must then be read again."""
        if self._is_broken:
            raise OSError("the log must be read anew, from its cursor")
        lines, self._gathered = self._gathered, []
        self._taken_at = time.monotonic()
        self._is_broken = True
        is_new = self.take(lines)
        self._is_broken = False
        return is_new

    def take(self, lines: Iterable[bytes]) -> bool:
        """Writes lines of the log, each with its time as a prefix. Returns whether any was new. Raises OSError.

        Lines after the end of the attempt are left to the `LogTail` of the next attempt.
        """
        batch = _Batch(self._files, self._cursor.lengths)
        is_new = False
        for line in lines:
            if self.is_finished:
                break
            found = self._fresh(line)
            if found is not None:
                is_new = self._take(batch, *found) or is_new
        self._cursor.lengths = batch.write()
        if is_new:
            self._cursor.write(self._files.cursor)
        return is_new

    # -- a single line ---------------------------------------------------------------------------------------

    def _fresh(self, line: bytes) -> tuple[int, bytes] | None:
        """Returns time in ns and text of a line that was not written before; otherwise None."""
        stamp, _, text = line.partition(b" ")
        at = stamp.decode("ascii", "replace")
        moment = nanoseconds(at)
        if moment is None:  # the kubelet reports an error in place of the log
            is_new = line not in self._timeless and len(self._timeless) < MAX_TIMELESS
            self._timeless.add(line)
            return (time.time_ns(), line) if is_new else None
        cursor = self._cursor
        latest = -1 if cursor.time is None else nanoseconds(cursor.time) or 0
        if not self._is_past:
            if moment < latest:
                return None
            if at == cursor.time and self._seen_again < cursor.lines:
                self._seen_again += 1
                return None
            self._is_past = True
        if at == cursor.time:
            cursor.lines += 1
            self._seen_again += 1
        elif moment >= latest:
            cursor.time, cursor.lines, self._seen_again = at, 1, 1
        return moment, text

    def _take(self, batch: _Batch, moment: int, text: bytes) -> bool:
        """Adds a line to its file. Returns False if the line does not belong to this attempt."""
        found = LINE.fullmatch(text)
        if found is None:  # another program, such as the image's entry point, wrote this line
            if self._cursor.attempt == self._number:
                batch.add(POD, text + b"\n", moment)
            return self._cursor.attempt == self._number
        tag, is_piece = found[1].decode(), bool(found[2])
        data = found[4][:-1] if found[3] else found[4]
        if tag == NODE_TAG and not is_piece and data.startswith(READ_ALONE):
            self._note(batch, moment, data)
        if tag in self._cursor.counts and not is_piece:
            self._cursor.counts[tag] += 1
        if tag == ATTEMPT:
            return self._switch(data.strip())
        if self._cursor.attempt != self._number:
            return False
        batch.add(tag if tag in self._files.names else POD, data if is_piece else data + b"\n", moment)
        return True

    def _switch(self, word: bytes) -> bool:
        """Handles a line between two attempts. Any process may have written the line. It must fit the current attempt,
        and an end must contain the pod's token.
        """
        cursor = self._cursor
        if cursor.attempt and cursor.token is not None and word == OVER + cursor.token.encode():
            cursor.finished = cursor.attempt == self._number
            cursor.attempt = 0
            return cursor.finished
        if word.isdigit() and not cursor.attempt and len(word) < 9:
            cursor.attempt = int(word)
            cursor.token = None
        return False

    # -- missing lines ----------------------------------------------------------------------------------------------

    def _note(self, batch: _Batch, moment: int, data: bytes) -> None:
        """Reads the token or the line counts of the pod from an event."""
        found = node_events.parse(data)
        if found is None:
            return
        count = found.event if isinstance(found.event, LinesCounted) else None
        # A missing line may have introduced a new token. Such tokens are accepted if the pod lists the known token as
        # an earlier one.
        if self._cursor.token not in (None, found.token, *(count.before if count is not None else ())):
            return
        if count is not None:
            self._compare(batch, moment, count.lines, count.attempt)
        self._cursor.token = self._cursor.token or found.token

    def _compare(self, batch: _Batch, moment: int, lines: Mapping[str, int], attempt: int) -> None:
        cursor = self._cursor
        written = {tag: lines.get(tag, 0) for tag in cursor.counts}
        missing = {tag: count - cursor.counts[tag] for tag, count in written.items() if count > cursor.counts[tag]}
        cursor.counts = written
        if not cursor.counted:
            cursor.counted, missing = True, {}
        is_here = cursor.attempt == self._number
        if ATTEMPT in missing and 0 < attempt != cursor.attempt:  # the line that begins the new attempt is missing
            cursor.finished = cursor.finished or is_here
            cursor.attempt = attempt
        # The message about lines of several attempts is written to the first of these attempts.
        if missing and (is_here or cursor.attempt == self._number):
            others = f" and from attempt {attempt}" if cursor.attempt != self._number else ""
            self._write_gap(batch, moment, {tag: num for tag, num in missing.items() if tag != ATTEMPT}, others)

    def _write_gap(self, batch: _Batch, moment: int, missing: Mapping[str, int], others: str) -> None:
        """Writes a message about missing lines. `others` names further logs that lack some of the lines."""
        before = self._cursor.missing
        self._cursor.missing = {tag: before.get(tag, 0) + missing.get(tag, 0) for tag in {**before, **missing}}
        for tag, num in missing.items():
            if tag in self._files.indexes:
                text = f"[windlass] {num:,} lines of rank {tag} are missing here{others}: {self._why_missing}"
                batch.add_line(tag, text.encode(), moment)
        names = {NODE_TAG: "events", POD: "the pod's process"}
        parts = ", ".join(f"{names.get(tag) or f'rank {tag}'}: {num:,}" for tag, num in missing.items())
        total = sum(missing.values())
        node, token = self._files.node, self._cursor.token
        message = f"{total:,} lines are missing from the log of node {node}{others} ({parts}): {self._why_missing}"
        event = NodeWarning(moment / 1e9, message, {"node": node}, missing=missing).to_json()
        if token:
            event[node_events.TOKEN] = token
        batch.add_line(NODE_TAG, json.dumps(event).encode(), moment)


class _Batch:
    """Collects lines of one node, and appends them to each file in one write."""

    def __init__(self, files: NodeFiles, lengths: Mapping[str, int]) -> None:
        self._files = files
        self._indexes = {tag: name for tag, name in files.indexes.items() if tag not in files.length_only}
        self._length_only = {files.names[tag] for tag in files.length_only}
        self._lengths = dict(lengths)
        self._data: dict[str, bytearray] = {}
        self._stamps: dict[str, list[tuple[int, int]]] = {}
        """Times (ns) and log lengths for the index files, by rank."""

    def add(self, tag: str, data: bytes, moment: int) -> None:
        """Adds a piece of output of the rank or source named by `tag`."""
        name = self._files.names[tag]
        self._data.setdefault(name, bytearray()).extend(data)
        if tag not in self._indexes:
            return
        length, stamps = self._lengths[name] + len(self._data[name]), self._stamps.setdefault(tag, [])
        if stamps and stamps[-1][0] == moment:
            stamps.pop()
        stamps.append((moment, length))

    def add_line(self, tag: str, text: bytes, moment: int) -> None:
        """Adds a line written by Windlass, on a line of its own. Raises OSError."""
        name = self._files.names[tag]
        last = bytes(self._data.get(name, b"")[-1:])
        if not last and self._lengths[name]:
            with open(self._files.folder / name, "rb") as file:
                file.seek(self._lengths[name] - 1)
                last = file.read(1)
        self.add(tag, (b"" if last in (b"", b"\n") else b"\n") + text + b"\n", moment)

    def write(self) -> dict[str, int]:
        """Appends all collected lines. Returns the new lengths of the files. Raises OSError."""
        for tag, stamps in self._stamps.items():
            self._data[self._indexes[tag]] = bytearray(b"".join(INDEX_RECORD.pack(*stamp) for stamp in stamps))
        for name, data in self._data.items():
            self._lengths[name] += len(data)
            if name in self._length_only:
                os.truncate(self._files.folder / name, self._lengths[name])
            else:
                _append(self._files.folder / name, data)
        return self._lengths


def _append(path: Path, data: bytes | bytearray) -> None:
    """Appends all of `data` or raises OSError. A partial write is truncated when the cursor is loaded again."""
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(data)


def missing_lines(folder: Path) -> dict[int, int]:
    """Returns the number of lines missing in the logs of an attempt's folder, by rank."""
    cursors = filter(None, map(read_cursor, folder.glob("node-*.cursor")))
    found = [(rank_of(tag), num) for one in cursors for tag, num in one.missing.items()]
    return {rank: num for rank, num in found if rank is not None}


def last_line_at(cursor: Path) -> float:
    """Returns the time of the last line that was written, in Unix seconds; 0 if unknown."""
    found = read_cursor(cursor)
    moment = nanoseconds(found.time) if found is not None and found.time is not None else None
    return moment / 1e9 if moment is not None else 0.0


def nanoseconds(stamp: str) -> int | None:
    """Parses a time such as `2026-11-21T14:53:52.123456789Z`, or with an offset for `Z`, as Unix nanoseconds; None if
    invalid.
    """
    found = STAMP.fullmatch(stamp)
    if found is None:
        return None
    try:
        seconds = int(datetime.fromisoformat(f"{found[1]}{found[3]}").timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    return seconds * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))
