"""A folder of which every read fails, by a file system of its own mounted over it: the kernel itself gives the errors.

The file system is a FUSE server in a thread of this process. It answers every request with one errno, as a network file
system does whose server fails over: to all processes alike, those that are forked from a warm one included.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_INIT, _FORGET, _INTERRUPT, _BATCH_FORGET = 26, 2, 36, 42
_IN_HEADER = struct.Struct("<IIQQIIIHH")
"""len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding: struct fuse_in_header of linux/fuse.h."""
_OUT_HEADER = struct.Struct("<IiQ")
_VERSION = (7, 31)
_REQUEST_BYTES = 1 << 17


class FailingDisk:
    """Requests are answered with `number`; with `once`, one of them, and then the file system is gone."""

    def __init__(self, folder: Path, number: int, *, once: bool) -> None:
        if os.geteuid() != 0 or not Path("/dev/fuse").exists():
            pytest.skip("only root may mount the file system whose reads fail, and it takes /dev/fuse")
        self.folder = folder
        self.num_failed = 0
        """How many requests have failed so far."""
        self._number = number
        self._once = once
        self._unmounting = threading.Lock()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"failing", os.fsencode(folder), b"fuse", 0, options.encode()):
            reason = os.strerror(ctypes.get_errno())
            os.close(self._device)
            pytest.skip(f"no FUSE file system can be mounted here: {reason}")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Give the folder back. May be called twice."""
        self._unmount()
        self._thread.join(100)

    def _unmount(self) -> None:
        """Once: what is mounted below it, or nothing, must stay."""
        if self._unmounting.acquire(blocking=False):
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def _serve(self) -> None:
        unmounting: threading.Thread | None = None
        with contextlib.suppress(OSError):  # ENODEV: it is unmounted
            while True:
                request = os.read(self._device, _REQUEST_BYTES)
                _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
                if opcode == _INIT:
                    body = struct.pack("<4I2H2I2HI7I", *_VERSION, 0, 0, 1, 1, 4096, 1, 1, 0, 0, *[0] * 7)
                    os.write(self._device, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), 0, unique) + body)
                elif opcode not in (_FORGET, _INTERRUPT, _BATCH_FORGET):
                    self.num_failed += 1
                    if self._once and unmounting is None:  # not by this thread: umount may ask the file system
                        unmounting = threading.Thread(target=self._unmount, daemon=True)
                        unmounting.start()
                    os.write(self._device, _OUT_HEADER.pack(_OUT_HEADER.size, -self._number, unique))
        os.close(self._device)


@contextlib.contextmanager
def failing_reads(folder: Path, number: int, *, once: bool = False) -> Iterator[FailingDisk]:
    """Everything that is asked of `folder` fails with this errno. Skips the test where nothing can be mounted."""
    disk = FailingDisk(folder, number, once=once)
    try:
        yield disk
    finally:
        disk.end()
