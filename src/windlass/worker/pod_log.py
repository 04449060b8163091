r"""The log of a pod: all that a node on its own machine writes to files, as lines of the pod's own output.

A pod shares no folder with the supervisor; what it has is its log, which every cluster carries. One line of it:

    [3] epoch 2 loss 0.41          a line of rank 3
    [3]+ 45%|####5                 a part of one: the line continues in the next part of rank 3
    [3]r 45%|####5\r.              a line, or a part, with a carriage return at its end, and a full stop to keep it
    [n] {"kind": "end", …}         an event of the node, see `protocol.py`
    [w] waiting for digits-0 …     output of the pod's own processes, and of its launcher
    [a] 2                          attempt 2 begins; `[a] over TOKEN`: it has ended, and the pod waits for the next

so `kubectl logs` is readable, and the supervisor makes of it the same files that a node on its own machine writes.

Any process of the container may write to this output too. So each event of the node carries a token (`k`) that the pod
makes up before any rank starts, and so does the line that ends an attempt. And as a node of the cluster may rotate a
log away before it is read, an event `count` reports at intervals how many lines were written so far, by tag.
"""

from __future__ import annotations

import io
import json
import os
import time

from windlass.worker import event_feed
from windlass.worker.protocol import NODE_TAG, POD, LinesCounted

PIECE_BYTES = 8 << 10
"""Container runtimes cut lines at 16 KiB, and the API puts a time into the middle of a line that was cut."""
COUNT_BYTES = 64 << 10
"""How much is written between two of them: a thousandth of what is written, and 160 in a file of a usual log."""
FLOOD_BYTES = 4 << 20
"""What may come at once."""
FLOOD_BYTES_A_SECOND = 1 << 20
MAX_TOKENS = 50
"""Attempts whose marks a count has."""
STAMP_BYTES = 45
"""What a container runtime puts before each line in its file."""


class PodLog:
    """Writes tagged lines to the output of the pod, and no faster than a reader can follow.

    A node of the cluster rotates the log of a container (by default at 10 MiB, checked each 10 seconds), and a reader
    that is two rotations behind loses what is between. So a flood waits: ranks that print more than some 12,000 lines
    a second are held up by their pipes.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.attempt = 0
        self.token = ""
        """What marks the events of this attempt's node; empty before there is one."""
        self._before: tuple[str, ...] = ()
        """The same of earlier attempts."""
        self.lines: dict[str, int] = {}
        """How many ends of lines were written, by tag: since the container began, whichever program it runs by now."""
        self.feed: event_feed.FeedWriter | None = None
        """Where a supervisor in the cluster takes the events from."""
        self._num_uncounted = 0
        """Bytes since that was last reported."""
        self._room = float(FLOOD_BYTES)
        self._looked_at = time.monotonic()

    def begin(self, attempt: int, token: str) -> None:
        """What follows is of this attempt."""
        if self.token:
            self._before = (*self._before, self.token)[-MAX_TOKENS:]
        self.attempt, self.token = attempt, token

    def put(self, tag: str, data: bytes) -> None:
        """Write the output of `tag`: whole lines, and a part where the last one has no end yet."""
        if tag == NODE_TAG and self.token and data.endswith(b"}\n"):  # an event: the last field of it is ours
            data = data[:-2] + b', "k": "%s"}\n' % self.token.encode()
        out = bytearray()
        num_lines = 0
        for line in io.BytesIO(data):  # by newlines alone: a carriage return ends no line
            for at in range(0, len(line), PIECE_BYTES):
                piece = line[at : at + PIECE_BYTES]
                is_end = piece.endswith(b"\n")
                piece = piece[:-1] if is_end else piece
                # Container runtimes drop a carriage return at the end of a line.
                marks, guard = (b"r", b".") if piece.endswith(b"\r") else (b"", b"")
                out += b"[%s]%s%s %s%s\n" % (tag.encode(), b"" if is_end else b"+", marks, piece, guard)
                num_lines += is_end
        self._write(out)
        if self.feed is not None and tag == NODE_TAG:
            self.feed.add(data)
        elif self.feed is not None and tag.isdigit():
            self.feed.count(tag, len(data))
        self.lines[tag] = self.lines.get(tag, 0) + num_lines
        self._num_uncounted += len(out)
        if self._num_uncounted >= COUNT_BYTES:
            self.count()

    def count(self) -> None:
        """Write how many lines were written before this one."""
        self._num_uncounted = 0  # first: this is written by `put` too
        event = LinesCounted(time.time(), self.lines, self.attempt, self._before)
        self.put(NODE_TAG, json.dumps(event.to_json()).encode() + b"\n")

    def line(self, text: str) -> None:
        """Write a line of this process's own."""
        self.put(POD, text.encode(errors="replace") + b"\n")

    def _write(self, data: bytes | bytearray) -> None:
        now = time.monotonic()
        self._room = min(FLOOD_BYTES, self._room + (now - self._looked_at) * FLOOD_BYTES_A_SECOND)
        self._looked_at = now
        self._room -= len(data) + data.count(b"\n") * STAMP_BYTES
        if self._room < 0:
            time.sleep(-self._room / FLOOD_BYTES_A_SECOND)
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]
