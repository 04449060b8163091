"""Makes the log of a pod into the files that a node writes on its own machine, no line lost and none twice.

The log is read from the API with the time of each line. How far it was read is kept beside the files, with the lengths
that they had then: whoever goes on after a crash cuts them back to it, and reads on from that line.

A pod counts its lines (`worker/pod.py`). Where a node of the cluster has rotated the log before it was read, the counts
differ, and what is missing is noted in the log of each rank and as a warning. No file is open between two writes: a
thousand ranks would need more open files than a process may have.
"""

from __future__ import annotations

import functools
import json
import os
import re
import struct
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping import nodeevents
from windlass.worker.node import NODE_TAG
from windlass.worker.pod import ATTEMPT, COUNT, POD

LINE: Final = re.compile(rb"\[(\d+|n|w|a)\](\+?)(r?) (.*)", re.DOTALL)
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
OVER: Final = b"over"
READ_ALONE: Final = (f'{{"kind": "{COUNT}"'.encode(), b'{"kind": "node"')
"""How the events begin that say something of the log itself."""
MAX_TIMELESS: Final = 20
HELD_LINES: Final = 20_000
"""Lines that are kept while it is not known yet whether they are of another attempt."""
_RECORD: Final = struct.Struct("<QQ")
"""Of a rank's index: when (ns), and how long its log was then; see `runs/logs.py`."""


class Mirror:
    """The files of one node of one attempt, as far as its pod has told."""

    def __init__(self, folder: Path, node: int, ranks: Iterable[int], number: int = 1, first: int = 1) -> None:
        """Cut the files back to what the cursor knows. Raises OSError.

        They are of attempt `number`; attempt `first` is the one for which the pod was made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._node = node
        self._number = number
        self._cursor_path = folder / f"node-{node}.cursor"
        known = _cursor(self._cursor_path)
        lengths = known.get("lengths", {})
        if not known and number > first:  # where the attempt before ended in this log, this one begins
            known = _end_of(folder.with_name(f"attempt-{number - 1}") / self._cursor_path.name)
        self.since: str | None = known.get("time")
        """The time of the last line that was taken, as the API writes it."""
        self._num_at_since: int = known.get("lines", 0)
        """Lines with exactly that time that were taken."""
        self._seen_again = 0
        """Of these, how many this stream has shown."""
        self._now: int = known.get("attempt", first)
        """The attempt of which the line to come is."""
        self.is_told: bool = known.get("told", False)
        """Whether all has come that the pod says of this attempt, while it says more of another."""
        self.held: list[bytes] = []
        """Lines that came after that."""
        self._timeless: set[bytes] = set()
        """Lines without a time that were taken."""
        self._token: str | None = known.get("token")
        """How the pod marks its own events."""
        self._names = {NODE_TAG: f"node-{node}.events", POD: f"node-{node}.out"}
        self._names |= {str(rank): f"rank-{rank}.log" for rank in ranks}
        self._indexes = {str(rank): f"rank-{rank}.idx" for rank in ranks}
        self._counts: dict[str, int] = dict.fromkeys((*self._names, ATTEMPT), 0)
        """Lines of the pod's own that have come, or are known to be missing, by who has written them."""
        self._is_counted = not known or "counts" in known
        """Whether they were counted from the beginning: not by an earlier version."""
        self._counts |= known.get("counts", {})
        self._lengths = {name: lengths.get(name, 0) for name in (*self._names.values(), *self._indexes.values())}
        for name, length in self._lengths.items():
            os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.truncate(folder / name, length)

    def take(self, lines: Iterable[bytes]) -> bool:
        """Write lines of the log, each with its time in front; gives whether there was a new one. Raises OSError.

        Once the pod has said that the attempt is over, lines are `held`, until `retract` takes them in after all.
        """
        batch = _Batch(self._names, self._indexes, self._lengths)
        coming = iter(lines)
        is_new = False
        while not self.is_told:
            line = next(coming, None)
            if line is None:
                break
            found = self._fresh(line)
            if found is not None:
                is_new = self._take(batch, *found) or is_new
        self._lengths = batch.write(self._folder)
        if is_new:
            self._write_cursor()
        self.held += coming
        if len(self.held) > HELD_LINES:
            raise OSError("too many lines after the end of an attempt")
        return is_new

    def retract(self) -> None:
        """What said that the attempt is over was not the pod's own process: it goes on. Raises OSError."""
        lines, self.held = self.held, []
        self.is_told, self._now = False, self._number
        self._write_cursor()
        self.take(lines)

    def begin(self) -> str | None:
        """The stream is read anew, from the second of the last line on: what was taken of it comes again."""
        self._seen_again = 0
        self.held.clear()
        return self.since

    # -- one line -----------------------------------------------------------------------------------------------------

    def _fresh(self, line: bytes) -> tuple[int, bytes] | None:
        """When (ns), and the text, of a line that was not taken before."""
        stamp, _, text = line.partition(b" ")
        at = stamp.decode("ascii", "replace")
        moment = _nanoseconds(at)
        if moment is None:  # what a kubelet says in place of a log; no reader could go on from it
            is_new = line not in self._timeless and len(self._timeless) < MAX_TIMELESS
            self._timeless.add(line)
            return (time.time_ns(), line) if is_new else None
        if self.since is not None:
            if moment < (_nanoseconds(self.since) or 0):
                return None
            if at == self.since and self._seen_again < self._num_at_since:
                self._seen_again += 1
                return None
        if at == self.since:
            self._num_at_since += 1
            self._seen_again += 1
        else:
            self.since, self._num_at_since, self._seen_again = at, 1, 1
        return moment, text

    def _take(self, batch: _Batch, moment: int, text: bytes) -> bool:
        """Put a line where it belongs; gives False for one that is not of this attempt."""
        found = LINE.fullmatch(text)
        if found is None:  # of no process of ours: the image's own entry point, the runtime
            if self._now == self._number:
                batch.add(POD, text + b"\n", moment)
            return self._now == self._number
        tag, is_piece = found[1].decode(), bool(found[2])
        data = found[4][:-1] if found[3] else found[4]
        if tag == NODE_TAG and not is_piece and data.startswith(READ_ALONE):
            self._note(batch, moment, data)
        if tag in self._counts and not is_piece:
            self._counts[tag] += 1
        if tag == ATTEMPT:
            return self._part(data.strip())
        if self._now != self._number:
            return False
        batch.add(tag if tag in self._names else POD, data if is_piece else data + b"\n", moment)
        return True

    def _part(self, word: bytes) -> bool:
        """A line that parts one attempt from the next; anything may have written it, so it has to be in its place."""
        if word == OVER and self._now:
            self.is_told = self._now == self._number
            self._now = 0
            return self.is_told
        if word.isdigit() and not self._now and len(word) < 9:
            self._now = int(word)
            self._token = None
        return False

    # -- what is missing ----------------------------------------------------------------------------------------------

    def _note(self, batch: _Batch, moment: int, data: bytes) -> None:
        """Take note of an event in which the pod says how it marks its events, or how many lines it has written."""
        event = nodeevents.parse(data)
        if event is None or self._token not in (None, event.get(nodeevents.TOKEN)):
            return
        if event["kind"] == "node":
            self._token = self._token or event.get(nodeevents.TOKEN)
        elif all(isinstance(count, int) for count in event["lines"].values()):
            self._compare(batch, moment, event["lines"], event["attempt"])

    def _compare(self, batch: _Batch, moment: int, lines: Mapping[str, int], attempt: int) -> None:
        written = {tag: lines.get(tag, 0) for tag in self._counts}
        missing = {tag: count - self._counts[tag] for tag, count in written.items() if count > self._counts[tag]}
        self._counts, is_counted, self._is_counted = written, self._is_counted, True
        if not missing or not is_counted:
            return
        if ATTEMPT in missing and 0 < attempt != self._now:  # what parts the attempts is missing too
            self.is_told = self.is_told or self._now == self._number
            self._now = attempt
        if self._now == self._number:
            self._write_gap(batch, moment, {tag: num for tag, num in missing.items() if tag != ATTEMPT})

    def _write_gap(self, batch: _Batch, moment: int, missing: Mapping[str, int]) -> None:
        for tag, num in missing.items():
            if tag in self._indexes:
                text = f"[windlass] {num:,} lines of rank {tag} are missing here: {_WHY_MISSING}"
                batch.add_line(tag, text.encode(), moment, self._folder)
        who = {NODE_TAG: "events", POD: "the pod's process"}
        parts = ", ".join(f"{who.get(tag) or f'rank {tag}'}: {num:,}" for tag, num in missing.items())
        total = sum(missing.values())
        message = f"{total:,} lines are missing from the log of node {self._node} ({parts}): {_WHY_MISSING}"
        event = {"kind": "warning", "at": moment / 1e9, "message": message, "missing": missing, "node": self._node,
                 **({nodeevents.TOKEN: self._token} if self._token else {})}  # fmt: skip
        batch.add_line(NODE_TAG, json.dumps(event).encode(), moment, self._folder)

    # -- the cursor ---------------------------------------------------------------------------------------------------

    def _write_cursor(self) -> None:
        known = {
            "time": self.since, "lines": self._num_at_since, "lengths": self._lengths, "attempt": self._now,
            "told": self.is_told, "counts": self._counts, "token": self._token,
        }  # fmt: skip
        if not self._is_counted:
            del known["counts"]
        fresh = self._cursor_path.with_suffix(".fresh")
        fresh.write_text(json.dumps(known))
        fresh.replace(self._cursor_path)


_WHY_MISSING: Final = "the kubelet rotated the log of the pod before a supervisor read it"


class _Batch:
    """Collects lines for the files of one node, and appends them in one write each."""

    def __init__(self, names: Mapping[str, str], indexes: Mapping[str, str], lengths: Mapping[str, int]) -> None:
        self._names = names
        self._indexes = indexes
        self._lengths = dict(lengths)
        self._data: dict[str, bytearray] = {}
        self._stamps: dict[str, list[tuple[int, int]]] = {}
        """By rank, when (ns) the log had which length."""

    def add(self, tag: str, data: bytes, moment: int) -> None:
        """One more piece of what `tag` has written."""
        name = self._names[tag]
        self._data.setdefault(name, bytearray()).extend(data)
        if tag not in self._indexes:
            return
        length, stamps = self._lengths[name] + len(self._data[name]), self._stamps.setdefault(tag, [])
        if stamps and stamps[-1][0] == moment:
            stamps.pop()
        stamps.append((moment, length))

    def add_line(self, tag: str, text: bytes, moment: int, folder: Path) -> None:
        """A line of our own; the one before it ends where it is. Raises OSError."""
        name = self._names[tag]
        last = bytes(self._data.get(name, b"")[-1:])
        if not last and self._lengths[name]:
            with open(folder / name, "rb") as file:
                file.seek(self._lengths[name] - 1)
                last = file.read(1)
        self.add(tag, (b"" if last in (b"", b"\n") else b"\n") + text + b"\n", moment)

    def write(self, folder: Path) -> dict[str, int]:
        """Append everything; gives the lengths of the files after it. Raises OSError."""
        for tag, stamps in self._stamps.items():
            self._data[self._indexes[tag]] = bytearray(b"".join(_RECORD.pack(*stamp) for stamp in stamps))
        for name, data in self._data.items():
            _append(folder / name, data)
            self._lengths[name] += len(data)
        return self._lengths


def _append(path: Path, data: bytes | bytearray) -> None:
    """Write all of it, or raise OSError: what is torn then is cut off by the next `Mirror`."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)


def _cursor(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _end_of(path: Path) -> dict[str, Any]:
    """The cursor of an attempt that has ended, as where another begins; empty where it was not read to its end."""
    known = _cursor(path)
    if not known.get("told"):
        return {}
    return {**known, "told": False, "lengths": {}, "token": None}


def last_line_at(cursor: Path) -> float:
    """When the last line was written that a mirror has taken, in Unix seconds; 0 where that is not known."""
    stamp = _cursor(cursor).get("time")
    moment = _nanoseconds(stamp) if isinstance(stamp, str) else None
    return moment / 1e9 if moment is not None else 0.0


def _nanoseconds(stamp: str) -> int | None:
    """Unix time of `2026-11-21T14:53:52.123456789Z`, or with an offset for `Z`; None for what is no time."""
    found = STAMP.fullmatch(stamp)
    seconds = _seconds(found[1], found[3]) if found is not None else None
    if found is None or seconds is None:
        return None
    return seconds * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))


@functools.lru_cache(maxsize=4)
def _seconds(moment: str, zone: str) -> int | None:
    try:
        return int(datetime.fromisoformat(f"{moment}{zone}").timestamp())
    except (ValueError, OverflowError, OSError):
        return None
