r"""Event feed: files in the pod's work folder from which the pod's order client sends events to the supervisor.

| file | content |
|---|---|
| `events-N` | attempt N: a line with the token of its events, its events as in the pod's log, and `over` or `end` |
| `printed` | for each rank a record of 40 bytes: its number, and how many bytes it has printed in the attempt |
| `wake` | a FIFO; a byte in it means new events or new output of a rank |

`over` means that the attempt has ended and the pod waits for the next attempt; `end` means that the pod ends. A feed
file that cannot be written is removed; the supervisor then reads the same events from the pod's log.
"""

from __future__ import annotations

import os
import stat
import time

EVENTS, PRINTED, WAKE = "events-", "printed", "wake"
OVER, END = b"over\n", b"end\n"
CHUNK_BYTES = 16 << 10
"""Maximum bytes of events in one message."""
TOKEN_BYTES = 64
"""Maximum length of the first line in bytes."""
PRINTED_PAUSE_SECONDS = 1.0
"""Minimum seconds between two wake-ups for output of ranks."""
_RECORD_BYTES = 40
_MAX_RANKS = 1024


class FeedWriter:
    """Writes the feed of one attempt. After a file system error, removes the feed instead of raising the error."""

    def __init__(self, folder: str, attempt: int, token: str) -> None:
        """Removes the feeds of earlier attempts and creates the feed of this attempt."""
        self._folder = folder
        self._path = os.path.join(folder, f"{EVENTS}{attempt}")
        self._events = self._printed = -1
        self._sizes: dict[str, int] = {}
        self._woken_at = float("-inf")
        try:
            for name in os.listdir(folder):
                if name.startswith(EVENTS):
                    os.unlink(os.path.join(folder, name))
            self._printed = _made(os.path.join(folder, PRINTED), os.O_TRUNC)
            self._events = _made(f"{self._path}.part", os.O_TRUNC | os.O_APPEND)
            self.add(token.encode() + b"\n")
            os.rename(f"{self._path}.part", self._path)
        except OSError:
            self._give_up()

    def add(self, lines: bytes) -> None:
        """Appends events as whole lines."""
        if self._events < 0:
            return
        try:
            if os.write(self._events, lines) == len(lines):
                self._wake()
            else:
                self._give_up()
        except OSError:
            self._give_up()

    def count(self, rank: str, num_bytes: int) -> None:
        """Adds to the number of bytes that a rank has printed."""
        if self._printed < 0 or (rank not in self._sizes and len(self._sizes) >= _MAX_RANKS):
            return
        self._sizes[rank] = self._sizes.get(rank, 0) + num_bytes
        at = list(self._sizes).index(rank) * _RECORD_BYTES
        try:  # overwriting in place also succeeds on a full disk
            os.pwrite(self._printed, b"%-19s%20d\n" % (rank.encode(), self._sizes[rank]), at)
        except OSError:
            pass
        now = time.monotonic()
        if now - self._woken_at >= PRINTED_PAUSE_SECONDS:
            self._woken_at = now
            self._wake()

    def close(self, last: bytes) -> None:
        """Ends the feed with the line `last`, which is OVER or END."""
        self.add(last)
        for one in (self._events, self._printed):
            if one >= 0:
                os.close(one)
        self._events = self._printed = -1

    def _wake(self) -> None:
        try:
            wake = os.open(os.path.join(self._folder, WAKE), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # no process reads the FIFO
        try:
            os.write(wake, b".")
        except OSError:
            pass  # the FIFO is full, so its reader will wake up anyway
        finally:
            os.close(wake)

    def _give_up(self) -> None:
        for path in (self._path, f"{self._path}.part"):
            try:
                os.unlink(path)
            except OSError:
                pass
        if self._events >= 0:
            os.close(self._events)
        self._events = -1


class FeedReader:
    """Reads the feed of one attempt from an offset. Methods raise OSError if the feed was removed."""

    def __init__(self, folder: str, attempt: int, offset: int) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{EVENTS}{attempt}")
        self.attempt = attempt
        self.offset = offset
        """Number of event bytes read so far, without the first line."""
        self.token = ""
        """Token of the events; empty until the feed file exists."""
        self._file = -1
        self._begin = 0
        self._printed: dict[str, int] = {}
        self._last = b"\n"
        """Last bytes that were read."""

    def close(self) -> None:
        """Closes the file of the events."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def exists(self) -> bool:
        """Whether the feed file exists."""
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            first = os.pread(self._file, TOKEN_BYTES, 0).partition(b"\n")[0]
            self.token, self._begin = first.decode("latin-1"), len(first) + 1
        elif os.fstat(self._file).st_nlink == 0 and not self._last.endswith(b"\n" + OVER):
            raise FileNotFoundError(f"{self._path} was removed")
        return True

    def read(self) -> bytes:
        """Returns the next events, at most CHUNK_BYTES; empty if there are no new events."""
        data = os.pread(self._file, CHUNK_BYTES, self._begin + self.offset)
        self.offset += len(data)
        self._last = (self._last + data)[-len(OVER) - 1 :]
        return data

    @property
    def has_end(self) -> bool:
        """Whether the line END was read, which means that the pod ends."""
        return self._last.endswith(b"\n" + END)

    def printed(self) -> dict[str, int]:
        """Returns the bytes printed by each rank; empty if nothing has changed since the last call."""
        try:
            with open(os.path.join(self._folder, PRINTED), "rb") as file:
                data = file.read(_MAX_RANKS * _RECORD_BYTES)
        except OSError:
            return {}
        words = [line.split() for line in data.decode("latin-1").splitlines()]
        found = {one[0]: int(one[1]) for one in words if len(one) == 2 and one[1].isascii() and one[1].isdigit()}
        if found == self._printed:
            return {}
        self._printed = found
        return found


def open_wake(folder: str) -> int | None:
    """Creates and opens the FIFO `wake`, which is readable when there are new events. Returns None if this fails."""
    path = os.path.join(folder, WAKE)
    try:
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        if stat.S_ISFIFO(os.stat(path).st_mode):
            # opened for writing too, so that reads never reach end-of-file
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        pass
    return None


def _made(path: str, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
