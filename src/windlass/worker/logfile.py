"""Writes the output of a rank into its log and the log's index, and keeps what root cause and progress need.

The log holds the bytes as they were written. The index holds 16 bytes a record: unix time in nanoseconds and the length
that the log had then, both little-endian. Readers of the index need no look at the log to merge ranks by time.
"""

from __future__ import annotations

import os
import re
import struct

from windlass.worker.progress import Recogniser
from windlass.worker.reserve import Reserve

TAIL_BYTES = 64 << 10
TRACEBACK_BYTES = 8 << 10
"""How much is kept of the newest traceback, from its first line on: its message may be longer than the tail."""
USAGE_BYTES = 8 << 10
_RECORD = struct.Struct("<QQ")
_TRACEBACK = b"Traceback (most recent call last)"
_STRUCTURED = re.compile(rb"^::windlass \{[^\n]*\n?", re.MULTILINE)
_OF_BAR = ("step", "total", "rate", "samples_per_second", "percent")


def is_usage(text: bytes | bytearray) -> bool:
    """Whether a program has written a usage message and nothing else, as argparse and click do."""
    return len(text) < USAGE_BYTES and b"usage: ".startswith(text[:USAGE_BYTES].lstrip().lower()[:7])


class LogFile:
    """The log of one rank: `keep` what it wrote, then `stamp` it with the time."""

    def __init__(self, folder: str, rank: int, pattern: str | None, reserve: Reserve | None = None) -> None:
        """`pattern` finds progress; on a full disk nothing is written until `reserve` has room.

        Raises OSError if the files cannot be made.
        """
        base = os.path.join(folder, f"rank-{rank}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(base + ".log", flags, 0o600)
        self._index = os.open(base + ".idx", flags, 0o600)
        self.length = os.fstat(self._log).st_size
        """Bytes that were kept, of all attempts of this file."""
        self._recogniser = Recogniser(pattern)
        self._tail = bytearray()
        self.progress: dict[str, object] = {}
        self._total: object = None
        """How many steps the rank has reported there will be, in another way than by its output."""
        self.has_output = False
        """Whether the rank has written anything but a usage message."""
        self.dropped_bytes = 0
        """What could not be written since the disk was full."""
        self.dropped_lines = 0
        """The newlines in it."""
        self._reserve = reserve
        self.traceback_at: float | None = None
        """Unix seconds at which the newest traceback began to arrive."""
        self._traceback = bytearray()

    @property
    def traceback(self) -> str:
        """How the newest traceback begins; empty where there was none."""
        return self._traceback.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The last 64 KiB of text, without the lines that are for us alone."""
        return _STRUCTURED.sub(b"", self._tail).decode("utf-8", "replace")

    def take_checkpoints(self) -> list[dict[str, object]]:
        """What the rank has reported of checkpoints since this was last called, in order."""
        found, self._recogniser.checkpoints = self._recogniser.checkpoints, []
        return found

    def take_first_steps(self, *, at_end: bool = False) -> dict[str, object] | None:
        """The first steps that the rank has reported, again when better known; see `TrainingStart.take`."""
        return self._recogniser.beginning.take(at_end=at_end)

    def take_losses(self) -> list[dict[str, object]]:
        """Where the rank's loss was no longer finite since this was last called, in order; see `Losses.changes`."""
        changes, self._recogniser.losses.changes = self._recogniser.losses.changes, []
        return changes

    def last(self, num_bytes: int) -> bytes:
        """The last of what was kept, at most 64 KiB."""
        return bytes(self._tail[-min(num_bytes, TAIL_BYTES) :])

    def keep(self, data: bytes, now_ns: int) -> None:
        """Append what the rank wrote and look for progress in it."""
        self._write(data)
        at = data.rfind(_TRACEBACK)
        if at >= 0:
            self.traceback_at = now_ns / 1e9
            self._traceback = bytearray(data[at : at + TRACEBACK_BYTES])
        elif self._traceback:
            self._traceback += data[: max(0, TRACEBACK_BYTES - len(self._traceback))]
        self._tail += data[-TAIL_BYTES:]
        self.has_output = self.has_output or not is_usage(self._tail)
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        found = self._recogniser.feed(data)
        if found:
            self.progress.update(self._of_training(found))

    def report(self, progress: dict[str, object]) -> None:
        """Take progress that the rank has reported in another way than by its output."""
        self._total = progress.get("total", self._total)
        self._recogniser.beginning.report("posted", progress.get("step"))
        self._recogniser.losses.take(progress)
        self.progress.update(progress)

    def _of_training(self, found: dict[str, object]) -> dict[str, object]:
        """What was found in the output, less the steps of a bar that is not the training's.

        transformers' Trainer draws the same bar for training and evaluation; they differ in how many steps there are.
        """
        if self._total is None or "step" not in found:
            return found
        if found.get("total", self._total) != self._total:
            return {**{name: found[name] for name in found if name not in _OF_BAR}, "phase": "evaluating"}
        return {"phase": "training", **found} if self.progress.get("phase") == "evaluating" else found

    def stamp(self, now_ns: int) -> None:
        """Say that all that was kept since the last stamp arrived at `now_ns` (unix time, ns)."""
        try:
            written = os.write(self._index, _RECORD.pack(now_ns, self.length))
            if written < _RECORD.size:  # the disk filled in the middle of it: a torn record would shift all that follow
                os.ftruncate(self._index, os.fstat(self._index).st_size - written)
        except OSError:
            pass  # bytes without a record count as arrived when the log was last written

    def close(self) -> None:
        """Close the files."""
        os.close(self._log)
        os.close(self._index)

    def _write(self, data: bytes) -> None:
        if self._reserve is not None and not self._reserve.has_ample_room():
            self._drop(data)  # what is left is for the record and for the node's last events
            return
        left = memoryview(data)
        while left:
            try:
                written = os.write(self._log, left)
            except OSError:
                if self._reserve is not None:
                    self._reserve.met_full()
                self._drop(bytes(left))
                return
            self.length += written
            left = left[written:]

    def _drop(self, data: bytes) -> None:
        self.dropped_bytes += len(data)
        self.dropped_lines += data.count(b"\n")
