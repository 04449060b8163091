"""Log tail: writes the log of a pod into the files that a local node writes, no line lost and none twice.

The log is read from the API with the time of each line. The position is kept beside the files (the cursor), with the
lengths that they had then: after a crash they are cut back to those lengths and reading continues from that line.

A pod counts its lines (`worker/pod.py`). Where a kubelet has rotated the log before it was read, the counts differ, and
the number of missing lines is written to the log of each rank and as a warning. No file is open between two writes: a
thousand ranks would need more open files than a process may have.
"""

from __future__ import annotations

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
from windlass.runs.logs import INDEX_RECORD
from windlass.worker.protocol import ATTEMPT, NODE_TAG, POD, LinesCounted, NodeStarted, NodeWarning

LINE: Final = re.compile(rb"\[(\d+|n|w|a)\](\+?)(r?) (.*)", re.DOTALL)
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
OVER: Final = b"over "
READ_ALONE: Final = (f'{{"kind": "{LinesCounted.kind}"'.encode(), f'{{"kind": "{NodeStarted.kind}"'.encode())
"""Prefixes of the events that describe the log itself."""
MAX_TIMELESS: Final = 20
ROTATED: Final = "the kubelet rotated the log of the pod before a supervisor read it"
BATCH_LINES: Final = 512
BATCH_SECONDS: Final = 0.05
"""How long lines may gather before they are written, while more come."""


@dataclass(frozen=True, slots=True)
class Known:
    """How far the events of an attempt are known from another source than the log."""

    at: float
    """When the last of them was made, in Unix seconds: later ones are in the log from then on."""
    token: str
    """The mark of the pod's own events."""


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The files of one node, in the folder of one attempt."""

    folder: Path
    node: int
    names: Mapping[str, str]
    """The name of each file, by the tag of the lines in it."""
    indexes: Mapping[str, str]
    """The name of the index of each log, by tag."""
    length_only: frozenset[str]
    """The tags whose files grow and take no space."""

    @classmethod
    def of(cls, folder: Path, node: int, ranks: Iterable[int], *, has_output: bool) -> NodeFiles:
        """The files of a node with these ranks."""
        tags = tuple(map(str, ranks))
        logs = {tag: f"rank-{tag}.log" for tag in tags}
        names = {NODE_TAG: f"node-{node}.events", POD: f"node-{node}.out", **logs}
        return cls(folder, node, names, {tag: f"rank-{tag}.idx" for tag in tags}, frozenset(() if has_output else tags))

    @property
    def cursor(self) -> Path:
        """Where the cursor is kept."""
        return self.folder / f"node-{self.node}.cursor"


@dataclass(slots=True)
class Cursor:
    """How far the log of a pod is read, and how long the files were then."""

    attempt: int
    """The attempt that the next line is of; 0 for none."""
    time: str | None = None
    """The time of the last line that was taken, as the API writes it."""
    lines: int = 0
    """Lines with exactly that time that were taken."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Of the files, by name."""
    told: bool = False
    """Whether all lines of this attempt have been read or are missing, while the pod continues with another."""
    counts: dict[str, int] = field(default_factory=dict)
    """Lines of the pod's own that have come, or are known to be missing, by their tag."""
    token: str | None = None
    """The mark of the pod's own events."""
    counted: bool = True
    """Whether these are the pod's own counts: not where the beginning of the log was not read."""
    missing: dict[str, int] = field(default_factory=dict)
    """Of the lines that are counted, those that are missing from the files, by tag."""

    def write(self, path: Path) -> None:
        """Keep it at this path. Raises OSError."""
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps({one.name: getattr(self, one.name) for one in fields(self)}))
        fresh.replace(path)


def read_cursor(path: Path) -> Cursor | None:
    """The cursor that is kept at this path; None where there is none, or it is damaged."""
    try:
        return Cursor(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class LogTail:
    """The files of one node of one attempt; written by the thread that reads the log, read by the attempt monitor."""

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
        """Cut the files back to the lengths in the cursor. Raises OSError.

        They are of attempt `number`; attempt `first` is the first that the pod has run, and for which it was made, or
        `waited` as a spare. Without `has_output`, rank logs have a length and no content: they grow with
        each line, which shows that the ranks are alive, and take no space.
        With `known` the log is read from there on only. `why_missing` ends the line that is written where lines are
        missing.
        """
        self._files = NodeFiles.of(folder, node, ranks, has_output=has_output)
        self._number = number
        self._first = first
        self._waited = waited
        self._known = known
        self._why_missing = why_missing
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        """Lines that were not written yet."""
        self._taken_at = 0.0
        self._load()

    def _load(self) -> None:
        """Read the cursor, and cut the files back. Raises OSError."""
        files = self._files
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._cursor = cursor = self._first_cursor()
        was_told, cursor.told = cursor.told, cursor.told or cursor.attempt > self._number
        cursor.counts = {**dict.fromkeys((*files.names, ATTEMPT), 0), **cursor.counts}
        every = (*files.names.values(), *files.indexes.values())
        cursor.lengths = {name: cursor.lengths.get(name, 0) for name in every}
        self._seen_again = 0
        """Of the lines with the time of the cursor, how many this stream has shown."""
        self._timeless: set[bytes] = set()
        """Lines without a time that were taken."""
        for name, length in cursor.lengths.items():
            os.close(os.open(files.folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.truncate(files.folder / name, length)
        self._is_broken = False
        """Whether lines could not be written: they must be read again."""
        if cursor.told and not was_told:
            cursor.write(files.cursor)  # all lines of the attempt are missing: the next one begins from here

    def _first_cursor(self) -> Cursor:
        """The cursor that is kept; without one, where the attempt begins."""
        path = self._files.cursor
        if (kept := read_cursor(path)) is not None:
            return kept
        if self._number > self._first:  # where the attempt before ended in this log, this one begins
            before = read_cursor(path.parent.with_name(f"attempt-{self._number - 1}") / path.name)
            if before is not None and before.told:
                return replace(before, told=False, lengths={}, token=None, missing={})
        if self._known is not None:
            stamp = datetime.fromtimestamp(self._known.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return Cursor(self._number, stamp, token=self._known.token, counted=False)
        return Cursor(0 if self._waited else self._first)

    @property
    def is_told(self) -> bool:
        """Whether all lines of this attempt have been read or are missing, while the pod continues with another."""
        return self._cursor.told

    def begin(self) -> str | None:
        """The log is read again from the second that this returns: lines that were read are repeated. Raises
        OSError."""
        with self._lock:
            if self._is_broken:
                self._load()
            self._gathered.clear()
            self._seen_again = 0
            return self._cursor.time

    def put(self, line: bytes) -> bool:
        """One more line; returns whether anything new was written. Raises OSError: then the log must be read again."""
        with self._lock:
            self._gathered.append(line)
            is_due = len(self._gathered) >= BATCH_LINES or time.monotonic() - self._taken_at >= BATCH_SECONDS
            return self._take_gathered() if is_due else False

    def flush(self) -> bool:
        """Write the lines that have come; returns whether any was new. Raises OSError, as `put`."""
        with self._lock:
            return self._take_gathered()

    def _take_gathered(self) -> bool:
        """Write them; an error in the middle of it leaves the files to be cut back."""
        if self._is_broken:
            raise OSError("the log must be read anew, from its cursor")
        lines, self._gathered = self._gathered, []
        self._taken_at = time.monotonic()
        self._is_broken = True
        is_new = self.take(lines)
        self._is_broken = False
        return is_new

    def take(self, lines: Iterable[bytes]) -> bool:
        """Write lines of the log, each with its time in front; returns whether there was a new one. Raises OSError.

        Lines after the end of the attempt are left to the `LogTail` of the next one.
        """
        batch = _Batch(self._files, self._cursor.lengths)
        is_new = False
        for line in lines:
            if self.is_told:
                break
            found = self._fresh(line)
            if found is not None:
                is_new = self._take(batch, *found) or is_new
        self._cursor.lengths = batch.write()
        if is_new:
            self._cursor.write(self._files.cursor)
        return is_new

    # -- one line -----------------------------------------------------------------------------------------------------

    def _fresh(self, line: bytes) -> tuple[int, bytes] | None:
        """When (ns), and the text, of a line that was not taken before."""
        stamp, _, text = line.partition(b" ")
        at = stamp.decode("ascii", "replace")
        moment = nanoseconds(at)
        if moment is None:  # a message of the kubelet in place of a log; reading cannot continue from it
            is_new = line not in self._timeless and len(self._timeless) < MAX_TIMELESS
            self._timeless.add(line)
            return (time.time_ns(), line) if is_new else None
        cursor = self._cursor
        if cursor.time is not None:
            if moment < (nanoseconds(cursor.time) or 0):
                return None
            if at == cursor.time and self._seen_again < cursor.lines:
                self._seen_again += 1
                return None
        if at == cursor.time:
            cursor.lines += 1
            self._seen_again += 1
        else:
            cursor.time, cursor.lines, self._seen_again = at, 1, 1
        return moment, text

    def _take(self, batch: _Batch, moment: int, text: bytes) -> bool:
        """Add a line to its file; returns False for one that is not of this attempt."""
        found = LINE.fullmatch(text)
        if found is None:  # not of a process of Windlass: the image's own entry point, the runtime
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
        """A line between two attempts; any process may have written it, so it counts only in its place, and an end only
        with the token of the pod's events.
        """
        cursor = self._cursor
        if cursor.attempt and cursor.token is not None and word == OVER + cursor.token.encode():
            cursor.told = cursor.attempt == self._number
            cursor.attempt = 0
            return cursor.told
        if word.isdigit() and not cursor.attempt and len(word) < 9:
            cursor.attempt = int(word)
            cursor.token = None
        return False

    # -- missing lines ----------------------------------------------------------------------------------------------

    def _note(self, batch: _Batch, moment: int, data: bytes) -> None:
        """Use an event that contains the mark of the pod's events, or how many lines it has written."""
        found = node_events.parse(data)
        if found is None:
            return
        count = found.event if isinstance(found.event, LinesCounted) else None
        # The lines between two attempts may be missing, with the event by which a mark is known.
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
        if ATTEMPT in missing and 0 < attempt != cursor.attempt:  # the line between the attempts is missing too
            cursor.told = cursor.told or is_here
            cursor.attempt = attempt
        # Lines of several attempts are missing after the first of them.
        if missing and (is_here or cursor.attempt == self._number):
            others = f" and from attempt {attempt}" if cursor.attempt != self._number else ""
            self._write_gap(batch, moment, {tag: num for tag, num in missing.items() if tag != ATTEMPT}, others)

    def _write_gap(self, batch: _Batch, moment: int, missing: Mapping[str, int], others: str) -> None:
        """`others` are further places from which some of the lines are missing."""
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
    """Collects lines for the files of one node, and appends them in one write each."""

    def __init__(self, files: NodeFiles, lengths: Mapping[str, int]) -> None:
        self._files = files
        self._indexes = {tag: name for tag, name in files.indexes.items() if tag not in files.length_only}
        self._length_only = {files.names[tag] for tag in files.length_only}
        self._lengths = dict(lengths)
        self._data: dict[str, bytearray] = {}
        self._stamps: dict[str, list[tuple[int, int]]] = {}
        """By rank, when (ns) the log had which length."""

    def add(self, tag: str, data: bytes, moment: int) -> None:
        """One more piece of the output of `tag`."""
        name = self._files.names[tag]
        self._data.setdefault(name, bytearray()).extend(data)
        if tag not in self._indexes:
            return
        length, stamps = self._lengths[name] + len(self._data[name]), self._stamps.setdefault(tag, [])
        if stamps and stamps[-1][0] == moment:
            stamps.pop()
        stamps.append((moment, length))

    def add_line(self, tag: str, text: bytes, moment: int) -> None:
        """A line of Windlass's own; the line before it is ended. Raises OSError."""
        name = self._files.names[tag]
        last = bytes(self._data.get(name, b"")[-1:])
        if not last and self._lengths[name]:
            with open(self._files.folder / name, "rb") as file:
                file.seek(self._lengths[name] - 1)
                last = file.read(1)
        self.add(tag, (b"" if last in (b"", b"\n") else b"\n") + text + b"\n", moment)

    def write(self) -> dict[str, int]:
        """Append everything; returns the lengths of the files after it. Raises OSError."""
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
    """Write all of it, or raise OSError: a partial write is cut off when the cursor is loaded again."""
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(data)


def missing_lines(folder: Path) -> dict[int, int]:
    """By rank, how many lines are missing from the logs in the folder of an attempt."""
    cursors = filter(None, map(read_cursor, folder.glob("node-*.cursor")))
    found = [(rank_of(tag), num) for one in cursors for tag, num in one.missing.items()]
    return {rank: num for rank, num in found if rank is not None}


def last_line_at(cursor: Path) -> float:
    """When the last line was written that was taken, in Unix seconds; 0 where that is not known."""
    found = read_cursor(cursor)
    moment = nanoseconds(found.time) if found is not None and found.time is not None else None
    return moment / 1e9 if moment is not None else 0.0


def nanoseconds(stamp: str) -> int | None:
    """Unix time of `2026-11-21T14:53:52.123456789Z`, or with an offset for `Z`; None for what is no time."""
    found = STAMP.fullmatch(stamp)
    if found is None:
        return None
    try:
        seconds = int(datetime.fromisoformat(f"{found[1]}{found[3]}").timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    return seconds * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))
