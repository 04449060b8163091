r"""Writes the log of a pod: tagged lines that contain everything that a node on this machine would write to files.

A pod shares no folder with the supervisor, but every cluster delivers the logs of pods. Lines of the log:

    [3] epoch 2 loss 0.41          a line of rank 3
    [3]+ 45%|####5                 part of a line: the line continues in the next part of rank 3
    [3]r 45%|####5\r.              a line or part with a carriage return at its end; the full stop protects it
    [n] {"kind": "end", …}         an event of the node, see `protocol.py`
    [w] waiting for digits-0 …     output of the pod's own processes, and of its launcher
    [a] 2                          attempt 2 starts; `[a] over TOKEN`: it has ended, and the pod waits for the next one

This keeps `kubectl logs` readable, and the supervisor reconstructs the files of a local node from the lines.

Any process of the container may write to this output. Therefore each event of the node carries a token (`k`), which the
pod generates before any rank starts; so does the line that ends an attempt. The kubelet may rotate a log before it is
read, so the event `count` reports at intervals how many lines were written so far, by tag.
"""

from __future__ import annotations

import io
import json
import os
import time

from windlass.worker import event_feed
from windlass.worker.byte_budget import ByteBudget
from windlass.worker.protocol import NODE_TAG, POD, LinesCounted

PIECE_BYTES = 8 << 10
"""Maximum bytes of a line. Container runtimes split longer lines at 16 KiB, where the Kubernetes API inserts a
timestamp."""
COUNT_BYTES = 64 << 10
"""Bytes between two `count` events, which then take a thousandth of the log: 160 events in a log of the usual size."""
FLOOD_BYTES = 4 << 20
"""Maximum bytes of a burst; beyond a burst, the rate is limited."""
FLOOD_BYTES_A_SECOND = 1 << 20
MAX_TOKENS = 50
"""Maximum number of earlier attempts whose tokens a `count` event contains."""
STAMP_BYTES = 45
"""Bytes that a container runtime adds before each line in its log file."""


class PodLog:
    """Writes tagged lines to the output of the pod, and counts their bytes.

    The kubelet rotates container logs (by default at 10 MiB, checked every 10 seconds), and a reader that is two
    rotations behind loses lines. Therefore the rate is limited: the node reads no output of ranks during a pause of
    `budget`, so that ranks that print more than about 12,000 lines a second block on their pipes. All other lines, such
    as events, are written at once.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.attempt = 0
        self.token = ""
        """Token that events of the current attempt carry; empty before the first attempt."""
        self._before: tuple[str, ...] = ()
        """Tokens of earlier attempts."""
        self.lines: dict[str, int] = {}
        """Number of complete lines by tag, counted from the start of this program."""
        self.feed: event_feed.FeedWriter | None = None
        """Event feed for a supervisor in the cluster; None if the supervisor is elsewhere."""
        self._num_uncounted = 0
        """Bytes written since the last `count` event."""
        self.budget = ByteBudget(FLOOD_BYTES, FLOOD_BYTES_A_SECOND)

    def begin(self, attempt: int, token: str) -> None:
        """Starts an attempt, to which all later lines belong."""
        if self.token:
            self._before = (*self._before, self.token)[-MAX_TOKENS:]
        self.attempt, self.token = attempt, token

    def put(self, tag: str, data: bytes) -> None:
        """Writes output under `tag`: whole lines, and a part if the last line is incomplete."""
        if tag == NODE_TAG and self.token and data.endswith(b"}\n"):  # appends the token to an event as its last field
            data = data[:-2] + b', "k": "%s"}\n' % self.token.encode()
        out = bytearray()
        num_lines = 0
        for line in io.BytesIO(data):  # only newlines end a line, not carriage returns
            for at in range(0, len(line), PIECE_BYTES):
                piece = line[at : at + PIECE_BYTES]
                is_end = piece.endswith(b"\n")
                piece = piece[:-1] if is_end else piece
                # The guard keeps a carriage return, which container runtimes drop at the end of a line.
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
        """Writes a `count` event with the number of lines written before it."""
        self._num_uncounted = 0  # reset first, because `put` adds the bytes of the event
        event = LinesCounted(time.time(), self.lines, self.attempt, self._before)
        self.put(NODE_TAG, json.dumps(event.to_json()).encode() + b"\n")

    def line(self, text: str) -> None:
        """Writes a line with the tag of the pod's own processes."""
        self.put(POD, text.encode(errors="replace") + b"\n")

    def _write(self, data: bytes | bytearray) -> None:
        self.budget.spend(len(data) + data.count(b"\n") * STAMP_BYTES)
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]
