"""The rank's side of the writer: memory that both share, orders down a pipe, answers up another."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

_WRITER = str(Path(__file__).with_name("writer.py"))
_PAGE_BYTES = mmap.PAGESIZE
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; an older kernel answers with an error."""


class SharedMemory:
    """Memory without a name: it ends with the processes that have it."""

    def __init__(self) -> None:
        self.descriptor = _descriptor()
        self.size = 0
        self.mapped: mmap.mmap | None = None

    def populate(self) -> None:
        """Have the kernel find the pages now, on a thread: the first save would wait for it, a later one does not."""
        if self.mapped is not None and sys.platform == "linux":
            threading.Thread(target=_populate, args=(self.descriptor, self.mapped, self.size), daemon=True).start()

    def grow(self, num_bytes: int) -> bool:
        """Have at least so many bytes; gives whether `mapped` is a new one. Raises OSError."""
        if num_bytes <= self.size:
            return False
        size = -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
        os.ftruncate(self.descriptor, size)
        self.mapped = mmap.mmap(self.descriptor, size)  # the old one ends with the last tensor in it
        self.size = size
        return True


_still_at_work: list[subprocess.Popen[bytes]] = []
"""Writers that were left to finish: nobody waits for them, and Python is not to complain that nobody did."""


def _reap(process: subprocess.Popen[bytes] | None) -> None:
    """Collect a process that has closed its pipe, and so is about to end."""
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


def _populate(descriptor: int, mapped: mmap.mmap, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError):
        pass  # no memory for it now, or none of these calls here: pages come when they are touched


def _descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("windlass-checkpoint", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class WriterProcess:
    """The writer of this rank: started at once, and again when it has died and something is to be written."""

    def __init__(self, folder: str, rank: int, world_size: int, memory: SharedMemory, *, for_windlass: bool) -> None:
        self._settings = {
            "folder": folder, "rank": rank, "world_size": world_size, "memory": memory.descriptor,
            "for_windlass": for_windlass,
        }  # fmt: skip
        self._memory = memory
        self._rank = rank
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._unread = b""
        self._awaited: set[str] = set()
        self._sending = threading.Lock()
        self.current: dict[str, Any] | None = None
        """The order that is being carried out."""
        self.start()

    def start(self) -> None:
        """Have a writer. Raises OSError if none can be started."""
        if self._process is not None and self._process.poll() is None:
            return
        self._drop()
        read, write = os.pipe()
        settings = json.dumps({**self._settings, "answers": write, "parent": os.getpid()})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _WRITER, settings], stdin=subprocess.PIPE,
                pass_fds=[write, self._memory.descriptor],
            )  # fmt: skip
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        os.set_blocking(read, False)
        self._answers = read

    @property
    def pid(self) -> int:
        """The process; 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def busy(self) -> bool:
        """Whether a save is under way, as far as is known without asking."""
        return self.current is not None

    @property
    def part_is_written(self) -> bool:
        """Whether this rank's own part of the save under way, if there is one, is on the disk."""
        return "part" not in self._awaited

    def expect(self, order: dict[str, Any]) -> None:
        """Count a save as under way that is sent, or is going to be. It must not follow one that is under way."""
        self.current = order
        self._awaited = {"part", "commit"} if self._rank == 0 else {"part"}

    def send(self, order: dict[str, Any]) -> None:
        """Send an order, from any thread. Raises OSError."""
        with self._sending:
            if self._process is None or self._process.stdin is None:
                raise OSError("there is no writer process")
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def forget(self) -> None:
        """Expect no more of a save that is not going to be sent."""
        self.current, self._awaited = None, set()

    def abandon(self, reason: str) -> None:
        """Give up the save under way, if there is one."""
        if self.busy:
            with contextlib.suppress(OSError):
                self.send({"do": "abandon", "reason": reason})

    def poll(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """What the writer has answered, after waiting for at most `timeout` seconds if nothing has come.

        A writer that died answers `{"did": "died"}` once; then it is not busy any more.
        """
        if self._answers < 0:
            return []
        if timeout > 0:
            select.select([self._answers], [], [], timeout)
        try:
            data = os.read(self._answers, 1 << 16)
        except BlockingIOError:
            return []
        except InterruptedError:
            return []
        if not data:
            _reap(self._process)
            self._drop()
            order, self.current, self._awaited = self.current, None, set()
            return [{"did": "died", "order": order}]
        *lines, self._unread = (self._unread + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            self._take(answer)
        return answers

    def _take(self, answer: dict[str, Any]) -> None:
        if self.current is None or answer.get("name") != self.current["name"]:
            return
        self._awaited.discard(answer["did"])
        if not self._awaited:
            self.current = None

    def close(self) -> None:
        """Let it end. One that is in the middle of a save finishes what it has begun, and ends by itself."""
        process, busy = self._process, self.busy
        self._drop()
        if process is not None and busy:
            _still_at_work.append(process)
        elif process is not None:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def _drop(self) -> None:
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        self._unread = b""
        with self._sending:
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
