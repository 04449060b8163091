"""Writes the output of a rank to its log and the log's index, and extracts tracebacks and progress from it.

The log contains the bytes exactly as the rank wrote them. The index has records of 16 bytes: Unix time in nanoseconds
and the length of the log at that time, both little-endian. With the index, readers can merge the logs of all ranks by
time without parsing them.
"""

from __future__ import annotations

import os
import re
import time

from windlass.worker.progress import Point, Recogniser
from windlass.worker.protocol import INDEX_RECORD, TRACEBACK
from windlass.worker.reserve import Reserve

TAIL_BYTES = 64 << 10
TRACEBACK_BYTES = 8 << 10
"""Bytes kept of the beginning of the newest traceback. Its exception message may be longer than the kept tail of
output."""
USAGE_BYTES = 8 << 10
_TRACEBACK = TRACEBACK.encode()
_CHAINED = re.compile(rb"During handling of|was the direct cause of")
_ASIDE = re.compile(rb"Exception in thread |Exception ignored |--- Logging error ---")
"""Matches the line before a traceback that did not end the process."""
_LINE_BYTES = 512
_STRUCTURED = re.compile(rb"^::windlass \{[^\n]*\n?", re.MULTILINE)
_OF_BAR = ("step", "total", "rate", "samples_per_second", "percent")


def is_usage(text: bytes | bytearray) -> bool:
    """Whether a text is only a usage message, as argparse and click print it."""
    return len(text) < USAGE_BYTES and b"usage: ".startswith(text[:USAGE_BYTES].lstrip().lower()[:7])


class LogFile:
    """Log of one rank. `keep` appends output, and `stamp` then records its time."""

    def __init__(self, folder: str, rank: int, pattern: str | None, reserve: Reserve | None = None) -> None:
        """Opens the log and its index. Raises OSError if they cannot be created.

        `pattern` is a regular expression for progress lines. On a full disk, output is dropped until `reserve` reports
        free space.
        """
        base = os.path.join(folder, f"rank-{rank}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(base + ".log", flags, 0o600)
        self._index = os.open(base + ".idx", flags, 0o600)
        self.length = os.fstat(self._log).st_size
        """Length of the log file in bytes, with the output of earlier attempts."""
        self._recogniser = Recogniser(pattern)
        self._tail = bytearray()
        self.progress: dict[str, object] = {}
        self._total: object = None
        """Number of training steps, if the rank has posted it to the status server."""
        self.has_output = False
        """Whether the rank has printed anything besides a usage message."""
        self.dropped_bytes = 0
        """Bytes of output that the log lacks because the disk was full."""
        self.dropped_lines = 0
        """Newlines in the dropped bytes."""
        self._reserve = reserve
        self.traceback_at: float | None = None
        """Unix seconds at which the traceback in `traceback` began to arrive."""
        self._traceback = bytearray()
        self._is_aside = self._has_aside = True
        """Whether the newest traceback, and the one in `traceback`, did not end the process."""

    @property
    def traceback(self) -> str:
        """Beginning of the newest traceback; empty if there was none.

        A traceback that did not end the process, such as one of a thread, counts only if the tail has no other.
        """
        return self._traceback.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """Last 64 KiB of output, without structured `::windlass` lines."""
        return _STRUCTURED.sub(b"", self._tail).decode("utf-8", "replace")

    def take_checkpoints(self) -> list[dict[str, object]]:
        """Returns the rank's new checkpoint reports since the last call, in order."""
        found, self._recogniser.checkpoints = self._recogniser.checkpoints, []
        return found

    def take_first_steps(self, *, at_end: bool = False) -> dict[str, object] | None:
        """Returns the number of the rank's first training step and the number of steps between reports, once the log
        shows them, and again if a more reliable kind of progress shows them. Otherwise returns None.
        """
        return self._recogniser.beginning.take(at_end=at_end)

    def take_points(self) -> list[Point]:
        """Returns the values of the rank's metrics since the last call, in order."""
        found, self._recogniser.points = self._recogniser.points, []
        return found

    def take_losses(self) -> list[dict[str, object]]:
        """Returns the changes of the loss to NaN or infinity since the last call, in order; see `Losses.changes`."""
        changes, self._recogniser.losses.changes = self._recogniser.losses.changes, []
        return changes

    def last(self, num_bytes: int) -> bytes:
        """Returns the last `num_bytes` of the output, at most 64 KiB."""
        return bytes(self._tail[-min(num_bytes, TAIL_BYTES) :])

    def keep(self, data: bytes, now_ns: int) -> None:
        """Appends output of the rank to the log, and searches it for progress."""
        self._write(data)
        at = self._newest_traceback(data) if _TRACEBACK in data else -1
        if at >= 0:
            self.traceback_at = now_ns / 1e9
            self._traceback = bytearray(data[at : at + TRACEBACK_BYTES])
        elif self._traceback:
            self._traceback += data[: max(0, TRACEBACK_BYTES - len(self._traceback))]
        self._tail += data[-TAIL_BYTES:]
        self.has_output = self.has_output or not is_usage(self._tail)
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        found = self._recogniser.feed(data, now_ns / 1e9)
        if found:
            self.progress.update(self._of_training(found))

    def _newest_traceback(self, data: bytes) -> int:
        """Returns where the newest traceback begins that replaces the one in `traceback`; -1 if none does."""
        self._has_aside = self._has_aside or _TRACEBACK not in self._tail
        newest, at = -1, data.find(_TRACEBACK)
        while at >= 0:
            before = bytes(self._tail[-_LINE_BYTES:]) + data[:at] if at < _LINE_BYTES else data[at - _LINE_BYTES : at]
            line = before.rpartition(b"\n")[0].rstrip().rpartition(b"\n")[2]
            if not _CHAINED.search(line):  # the exceptions of a chain are printed one after the other
                self._is_aside = _ASIDE.search(line) is not None
            if self._has_aside or not self._is_aside:
                newest, self._has_aside = at, self._is_aside
            at = data.find(_TRACEBACK, at + 1)
        return newest

    def report(self, progress: dict[str, object]) -> None:
        """Adds progress that the rank has posted to the status server."""
        self._total = progress.get("total", self._total)
        self._recogniser.beginning.report("posted", progress.get("step"))
        self._recogniser.losses.take(progress)
        self._recogniser.add_posted(progress, time.time())
        self.progress.update(progress)

    def _of_training(self, found: dict[str, object]) -> dict[str, object]:
        """Returns the progress found in output, without the steps of evaluation bars.

        The Trainer of transformers draws the same bar for training and evaluation; only the number of steps differs.
        """
        if self._total is None or "step" not in found:
            return found
        if found.get("total", self._total) != self._total:
            return {**{name: found[name] for name in found if name not in _OF_BAR}, "phase": "evaluating"}
        return {"phase": "training", **found} if self.progress.get("phase") == "evaluating" else found

    def stamp(self, now_ns: int) -> None:
        """Records that the output since the last stamp arrived at `now_ns`, a Unix time in nanoseconds."""
        try:
            written = os.write(self._index, INDEX_RECORD.pack(now_ns, self.length))
            # the disk became full; the partial record would shift all later records
            if written < INDEX_RECORD.size:
                os.ftruncate(self._index, os.fstat(self._index).st_size - written)
        except OSError:
            pass  # readers use the modification time of the log for output without a record

    def close(self) -> None:
        """Closes the log and the index."""
        os.close(self._log)
        os.close(self._index)

    def _write(self, data: bytes) -> None:
        if self._reserve is not None and not self._reserve.has_ample_space():
            self._drop(data)  # the remaining disk space is reserved for the index and the node's last events
            return
        left = memoryview(data)
        while left:
            try:
                written = os.write(self._log, left)
            except OSError:
                if self._reserve is not None:
                    self._reserve.record_full()
                self._drop(bytes(left))
                return
            self.length += written
            left = left[written:]

    def _drop(self, data: bytes) -> None:
        self.dropped_bytes += len(data)
        self.dropped_lines += data.count(b"\n")
