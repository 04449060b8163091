"""Starts the writer process of a rank, shares memory with it, sends orders and reads answers."""

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
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from windlass.train.checkpoint.storage import is_address

_WRITER = str(Path(__file__).with_name("writer.py"))
_PAGE_BYTES = mmap.PAGESIZE
_MADV_POPULATE_WRITE = 23
"""Available since Linux 5.14; older kernels return an error."""
_FOR_ALL_CONTEXTS = 1
"""Flag `cudaHostRegisterPortable`: the memory is pinned for all GPUs that a rank uses."""


class SharedMemory:
    """Anonymous shared memory, freed when all processes that map it have exited."""

    def __init__(self) -> None:
        self.descriptor = _descriptor()
        self.size = 0
        self.mapped = memoryview(b"")
        self._pinned_address = 0
        self._unpin: Callable[[], object] = lambda: None
        self._preparing: threading.Thread | None = None

    def grow(self, num_bytes: int) -> bool:
        """Ensures at least `num_bytes`; returns whether `mapped` was replaced. Raises OSError."""
        if num_bytes <= self.size:
            return False
        size = -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
        os.ftruncate(self.descriptor, size)
        # Tensors in the old mapping keep it alive until they are freed.
        self.mapped = memoryview(mmap.mmap(self.descriptor, size))
        self.size = size
        return True

    def prepare(self, device: torch.device | None) -> None:
        """Faults in the pages in a thread, so that the first save does not have to.

        For a GPU `device` the pages are also pinned, so that the GPU writes to them directly. Pinning is awaited,
        because in another thread it would break a CUDA graph that the script captures meanwhile.
        """
        self.await_prepared()
        arguments = (self.mapped, self.size, device)
        self._preparing = threading.Thread(target=self._prepare, args=arguments, daemon=True)
        self._preparing.start()
        if device is not None:
            self.await_prepared()

    def await_prepared(self) -> None:
        """Waits for the thread of `prepare`."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def close(self) -> None:
        """Unpins the memory: CUDA must not treat later allocations at the same address as pinned."""
        self.await_prepared()
        self._unpin()

    def _prepare(self, mapped: memoryview, size: int, device: torch.device | None) -> None:
        address = _address(mapped)
        # Errors are ignored: without free memory or this system call, pages are allocated on first use.
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fallocate(self.descriptor, 0, size)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
        if device is not None and self._pinned_address != address:
            self._unpin()
            self._pinned_address = 0
            self._pin(address, size, device)

    def _pin(self, address: int, size: int, device: torch.device) -> None:
        """Tries to pin memory. Without pinned memory, a copy only takes longer.

        CUDA keeps the error of a call per thread, and this thread makes no other calls.
        """
        # Without this context, the thread would use the first GPU, which may belong to another rank.
        with torch.cuda.device(device):
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(address, size, _FOR_ALL_CONTEXTS)) == 0:
                self._pinned_address = address
                self._unpin = weakref.finalize(self, runtime.cudaHostUnregister, address)
                self._unpin.atexit = False  # nothing is unpinned at exit, because the driver may have shut down


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("windlass-checkpoint", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_finishing: list[subprocess.Popen[bytes]] = []
"""Writers that finish a save after `close`. The list keeps references, because Python warns when a process object is
freed while its process runs."""


class WriterProcess:
    """The writer of this rank: started at once, and restarted before a save if it has died."""

    def __init__(self, folder: str, rank: int, world_size: int, memory: SharedMemory, *, for_windlass: bool) -> None:
        self._memory = memory
        self._settings = {
            "folder": folder,
            "rank": rank,
            "world_size": world_size,
            "memory": memory.descriptor,
            "for_windlass": for_windlass,
        }
        self._options = ["-I", "-S"]
        if is_address(folder):  # a store client may need installed packages, whose lookup slows the start
            self._options, self._settings["path"] = ["-I"], sys.path
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self.start()

    def start(self) -> None:
        """Starts the writer if it is not running. Raises OSError."""
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
        """Process id of the writer; 0 if no writer runs."""
        return self._process.pid if self._process is not None else 0

    def send(self, order: dict[str, Any]) -> None:
        """Sends an order to the writer. Raises OSError if no writer runs."""
        if self._socket is None:
            raise OSError("there is no writer process")
        self._socket.sendall(json.dumps(order).encode() + b"\n")

    def receive(self, timeout: float) -> list[dict[str, Any]]:
        """Returns the answers that have arrived, after waiting for at most `timeout` seconds if there are none.

        A writer that has died answers `{"did": "died"}` once.
        """
        if self._socket is None or not select.select([self._socket], [], [], timeout)[0]:
            return []
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionError:  # the writer died before it read an order
            data = b""
        if not data:
            if self._process is not None:  # the writer has closed its socket and is exiting
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
            self._hang_up()
            return [{"did": "died"}]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, *, busy: bool) -> None:
        """Ends the writer. A writer that is `busy` with a save finishes it first, without its rank."""
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
