"""Makes the log of a pod into the files that a node writes on its own machine, no line lost and none twice.

The log is read from the API with the time of each line. How far it was read is kept beside the files, with the lengths
that they had then: whoever goes on after a crash cuts them back to it, and reads on from that line.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

from windlass.worker.logfile import LogFile
from windlass.worker.node import NODE_TAG
from windlass.worker.pod import ATTEMPT, POD

LINE: Final = re.compile(rb"\[(\d+|n|w|a)\](\+?)(r?) (.*)", re.DOTALL)
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Mirror:
    """The files of one node of one attempt, as far as its pod has told."""

    def __init__(self, folder: Path, node: int, ranks: Iterable[int], number: int = 1, first: int = 1) -> None:
        """Open the files, cut back to what the cursor knows. Raises OSError.

        They are of attempt `number`; attempt `first` is the one for which the pod was made.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._cursor_path = folder / f"node-{node}.cursor"
        known = self._read_cursor()
        self.since: str | None = known.get("time")
        """The time of the last line that was taken, as the API writes it."""
        self._num_at_since: int = known.get("lines", 0)
        """Lines with exactly that time that were taken."""
        self._seen_again = 0
        """Of these, how many this stream has shown."""
        self._number = number
        self._now: int = known.get("attempt", first)
        """The attempt of which the line to come is."""
        self.is_told: bool = known.get("told", False)
        """Whether all has come that the pod says of this attempt, while it says more of another."""
        self._names = {NODE_TAG: f"node-{node}.events", POD: f"node-{node}.out"}
        self._ranks = tuple(ranks)
        for name in self._all_names():
            self._cut(name, known.get("lengths", {}).get(name, 0))
        self._files: dict[str, BinaryIO] = {
            tag: open(folder / name, "ab", buffering=0) for tag, name in self._names.items()  # noqa: SIM115 - see close
        }  # fmt: skip
        self._logs = {str(rank): LogFile(str(folder), rank, None) for rank in self._ranks}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        for log in self._logs.values():
            log.close()

    def take(self, lines: Iterable[bytes]) -> bool:
        """Write lines of the log, each with its time in front; gives whether there was a new one. Raises OSError."""
        fresh = [found for line in lines if (found := self._fresh(line)) is not None and self._is_ours(found)]
        stamped: dict[str, int] = {}
        for moment, tag, data in fresh:
            if tag in self._logs:
                if stamped.get(tag, moment) != moment:
                    self._logs[tag].stamp(stamped[tag])
                self._logs[tag].keep(data, moment)
                stamped[tag] = moment
            else:
                self._files[tag if tag in self._files else POD].write(data)
        for tag, moment in stamped.items():
            self._logs[tag].stamp(moment)
        if fresh:
            self._write_cursor()
        return bool(fresh)

    def _fresh(self, line: bytes) -> tuple[int, str, bytes] | None:
        """When (ns), who and what, of a line that was not taken before."""
        stamp, _, text = line.partition(b" ")
        at = stamp.decode("ascii", "replace")
        if self.since is not None:
            if _nanoseconds(at) < _nanoseconds(self.since):
                return None
            if at == self.since and self._seen_again < self._num_at_since:
                self._seen_again += 1
                return None
        if at == self.since:
            self._num_at_since += 1
            self._seen_again += 1
        else:
            self.since, self._num_at_since, self._seen_again = at, 1, 1
        found = LINE.fullmatch(text)
        if found is None:  # of no process of ours: the image's own entry point, the runtime
            return _nanoseconds(at), POD, text + b"\n"
        data = found[4][:-1] if found[3] else found[4]
        return _nanoseconds(at), found[1].decode(), data if found[2] else data + b"\n"

    def _is_ours(self, line: tuple[int, str, bytes]) -> bool:
        """Whether a line is of this attempt; what parts one from another is of none."""
        if line[1] != ATTEMPT:
            return self._now == self._number
        self.is_told = self.is_told or self._now == self._number
        word = line[2].strip()
        self._now = int(word) if word.isdigit() else 0
        return False

    def begin(self) -> str | None:
        """The stream is read anew, from the second of the last line on: what was taken of it comes again."""
        self._seen_again = 0
        return self.since

    # -- the cursor ---------------------------------------------------------------------------------------------------

    def _all_names(self) -> list[str]:
        return [*self._names.values(), *(f"rank-{rank}.{kind}" for rank in self._ranks for kind in ("log", "idx"))]

    def _read_cursor(self) -> dict[str, Any]:
        try:
            known = json.loads(self._cursor_path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write_cursor(self) -> None:
        lengths = {name: (self._folder / name).stat().st_size for name in self._all_names()}
        known = {
            "time": self.since, "lines": self._num_at_since, "lengths": lengths,
            "attempt": self._now, "told": self.is_told,
        }  # fmt: skip
        fresh = self._cursor_path.with_suffix(".fresh")
        fresh.write_text(json.dumps(known))
        fresh.replace(self._cursor_path)

    def _cut(self, name: str, length: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._folder / name, length)


def last_line_at(cursor: Path) -> float:
    """When the last line was written that a mirror has taken, in unix seconds; 0 where that is not known."""
    try:
        stamp = json.loads(cursor.read_text()).get("time")
    except (OSError, ValueError, AttributeError):
        return 0.0
    return _nanoseconds(stamp) / 1e9 if isinstance(stamp, str) and STAMP.fullmatch(stamp) else 0.0


def _nanoseconds(stamp: str) -> int:
    """Unix time of `2026-11-21T14:53:52.123456789Z`, or with an offset for `Z`; now, for what is no time."""
    found = STAMP.fullmatch(stamp)
    if found is None:
        return time.time_ns()
    return _seconds(found[1], found[3]) * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))


@functools.lru_cache(maxsize=4)
def _seconds(moment: str, zone: str) -> int:
    return int(datetime.fromisoformat(f"{moment}{zone}").timestamp())
