"""Starts the writer process of a rank, shares memory with it, sends it orders and reads its answers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from windlass.train.checkpoint.storage import is_address

_WRITER = str(Path(__file__).with_name("writer.py"))
_PAGE_BYTES = mmap.PAGESIZE
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; an older kernel answers with an error."""


class SharedMemory:
    """Memory without a name: it is freed when the processes that map it end."""

    def __init__(self) -> None:
        self.descriptor = _descriptor()
        self.size = 0
        self.mapped = memoryview(b"")

    def grow(self, num_bytes: int) -> bool:
        """Have at least so many bytes; returns whether `mapped` is a new one. Raises OSError."""
        if num_bytes <= self.size:
            return False
        size = -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
        os.ftruncate(self.descriptor, size)
        self.mapped = memoryview(mmap.mmap(self.descriptor, size))  # the old one is freed with the last tensor in it
        self.size = size
        return True

    def populate(self) -> None:
        """Have the kernel find the pages now, on a thread, so that the first save need not."""
        if self.size and sys.platform == "linux":
            threading.Thread(target=self._populate, args=(self.mapped, self.size), daemon=True).start()

    def _populate(self, mapped: memoryview, size: int) -> None:
        try:
            os.posix_fallocate(self.descriptor, 0, size)
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


_finishing: list[subprocess.Popen[bytes]] = []
"""Writers left to finish a save after their rank: kept, since Python warns of a process object freed while it runs."""


class WriterProcess:
    """The writer of this rank: started at once, and again before a save when it has died."""

    def __init__(self, folder: str, rank: int, world_size: int, memory: SharedMemory, *, for_windlass: bool) -> None:
        self._memory = memory
        self._settings = {
            "folder": folder, "rank": rank, "world_size": world_size, "memory": memory.descriptor,
            "for_windlass": for_windlass,
        }  # fmt: skip
        self._options = ["-I", "-S"]
        if is_address(folder):  # a store may need an installed package; to find them takes time
            self._options, self._settings["path"] = ["-I"], sys.path
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self.start()

    def start(self) -> None:
        """Have a writer. Raises OSError if none can be started."""
        if self._process is not None and self._process.poll() is None:
            return
        self._hang_up()
        settings = json.dumps({**self._settings, "parent": os.getpid()})
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *self._options, _WRITER, settings],
                    stdin=theirs.fileno(),
                    pass_fds=[self._memory.descriptor],
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours

    @property
    def pid(self) -> int:
        """The process; 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    def send(self, order: dict[str, Any]) -> None:
        """Send an order. Raises OSError where there is no writer."""
        if self._socket is None:
            raise OSError("there is no writer process")
        self._socket.sendall(json.dumps(order).encode() + b"\n")

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """The answers that have come, after at most `timeout` seconds if there are none yet.

        A writer that died answers `{"did": "died"}` once.
        """
        if self._socket is None or not select.select([self._socket], [], [], timeout)[0]:
            return []
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionError:  # it died before it had read an order
            data = b""
        if not data:
            if self._process is not None:  # it has closed its end, and so is about to end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
            self._hang_up()
            return [{"did": "died"}]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, *, busy: bool) -> None:
        """Let it end. One that is `busy` with a save finishes it and then ends without its rank."""
        process = self._process
        self._hang_up()
        if process is not None and busy:
            _finishing.append(process)
        elif process is not None:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._process = None
        self._unread = b""
