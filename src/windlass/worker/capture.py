"""Copies the output of a rank from its pipe to its log, in rounds of limited size, so that all ranks are read
in turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker.logfile import LogFile
from windlass.worker.masking import Mask, masked
from windlass.worker.reserve import Reserve

Echo = Callable[[str, bytes], None]
"""Callback for copied output, with the tag of the writer and the data."""
READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 20
"""Capacity of a rank's pipe in bytes. With the default of 64 KiB, a rank with much output would block between two
rounds."""
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
ROUND_BYTES = 8 << 20
"""Maximum bytes read from one rank per round."""
LINE_BYTES = 50
"""Bytes that each line of output has in addition in the log of a pod: its tag and the time."""
MIN_READ_BYTES = 4 << 10
"""Minimum bytes of a read whose output is limited."""


class Capture(LogFile):
    """Reads the output of one rank. Call `drain` whenever the rank's pipe is readable."""

    def __init__(
        self,
        source: int,
        folder: str,
        rank: int,
        pattern: str | None,
        echo: Echo | None = None,
        reserve: Reserve | None = None,
        secrets: tuple[bytes, ...] = (),
    ) -> None:
        """Opens the log files of a rank. Raises OSError if they cannot be created.

        `source` is the read end of the rank's pipe, which is made non-blocking. `echo` receives all output that is
        read. `secrets` are values to mask in the output.
        """
        super().__init__(folder, rank, pattern, reserve)
        self._tag = str(rank)
        self._echo = echo
        self._secrets = secrets
        self._mask = Mask(secrets) if secrets else None
        os.set_blocking(source, False)
        self.source = source
        with contextlib.suppress(OSError):  # fails if the user's pipe memory is used up, or outside Linux
            fcntl.fcntl(source, _F_SETPIPE_SZ, PIPE_BYTES)

    def drain(self, now_ns: int, most: int | None = None) -> bool:
        """Reads the available output from the pipe. Returns False once the rank and its children have closed
        the pipe.

        With `most`, reads once, and then until the output has this number of bytes in the log of a pod.
        """
        taken = written = 0
        try:
            while taken < ROUND_BYTES and (most is None or not taken or written < most):
                # each byte may be a line
                size = READ_BYTES if most is None else (most - written) // LINE_BYTES
                data = os.read(self.source, max(MIN_READ_BYTES, min(READ_BYTES, size)))
                if not data:
                    taken += self._end(now_ns)
                    return False
                taken += len(data)
                written += len(data) + data.count(b"\n") * LINE_BYTES
                self._take(data if self._mask is None else self._mask.feed(data), now_ns)
        except BlockingIOError:
            pass
        finally:
            if taken:
                self.stamp(now_ns)
        return True

    def add(self, data: bytes, now_ns: int) -> None:
        """Adds whole lines printed by a process that is not a child of the rank."""
        self._take(masked(data, self._secrets), now_ns)
        self.stamp(now_ns)

    def _take(self, data: bytes, now_ns: int) -> None:
        if data:
            self.keep(data, now_ns)
            if self._echo is not None:
                self._echo(self._tag, data)

    def _end(self, now_ns: int) -> int:
        """Writes the bytes that the mask has held back, and returns their number."""
        held = b"" if self._mask is None else self._mask.end()
        self._take(held, now_ns)
        return len(held)

    def masked(self, text: str) -> str:
        """Masks the secrets in a text that the rank has written elsewhere than to its output."""
        return masked(text.encode("utf-8", "replace"), self._secrets).decode("utf-8", "replace") if self._mask else text

    def close(self) -> None:
        """Closes the pipe and the log files."""
        if self._end(now_ns := time.time_ns()):
            self.stamp(now_ns)
        os.close(self.source)
        super().close()
