"""Carries what a rank writes from its pipe into its log, a fair share at a time."""

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
"""Takes the tag of the writer, and the data."""
READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 20
"""Room for what a rank writes between two rounds; the usual 64 KiB would make a talkative rank wait."""
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
ROUND_BYTES = 8 << 20
"""How much one rank may write before the others get their turn."""


class Capture(LogFile):
    """The output of one rank: `drain` it whenever its pipe is readable."""

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
        """`source` is the read end of the rank's pipe; made non-blocking. `echo` gets all that is read from it.

        `secrets` are values that are masked in it.

        Raises OSError if the logs cannot be made.
        """
        super().__init__(folder, rank, pattern, reserve)
        self._tag = str(rank)
        self._echo = echo
        self._secrets = secrets
        self._mask = Mask(secrets) if secrets else None
        os.set_blocking(source, False)
        self.source = source
        with contextlib.suppress(OSError):  # the user's share of pipe memory is used up, or this is no pipe of Linux
            fcntl.fcntl(source, _F_SETPIPE_SZ, PIPE_BYTES)

    def drain(self, now_ns: int) -> bool:
        """Take what the pipe holds. Gives False once the rank and its children have closed it."""
        taken = 0
        try:
            while taken < ROUND_BYTES:
                data = os.read(self.source, READ_BYTES)
                if not data:
                    taken += self._end(now_ns)
                    return False
                taken += len(data)
                self._take(data if self._mask is None else self._mask.feed(data), now_ns)
        except BlockingIOError:
            pass
        finally:
            if taken:
                self.stamp(now_ns)
        return True

    def add(self, data: bytes, now_ns: int) -> None:
        """Take whole lines of a process that is no child of the rank."""
        self._take(masked(data, self._secrets), now_ns)
        self.stamp(now_ns)

    def _take(self, data: bytes, now_ns: int) -> None:
        if data:
            self.keep(data, now_ns)
            if self._echo is not None:
                self._echo(self._tag, data)

    def _end(self, now_ns: int) -> int:
        """Take what the mask holds back; gives how much that was."""
        held = b"" if self._mask is None else self._mask.end()
        self._take(held, now_ns)
        return len(held)

    def masked(self, text: str) -> str:
        """A text of the rank that has not come by its output, with the same mask."""
        return masked(text.encode("utf-8", "replace"), self._secrets).decode("utf-8", "replace") if self._mask else text

    def close(self) -> None:
        """Close the pipe and the files."""
        if self._end(now_ns := time.time_ns()):
            self.stamp(now_ns)
        os.close(self.source)
        super().close()
