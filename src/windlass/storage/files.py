"""Files of this machine: replaced whole, reserved, written at an offset, synced."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Final

from windlass.storage.place import Buffer

SYNC_FILE_RANGE_WRITE: Final = 2
WRITE_BYTES: Final = 32 << 10
"""Written by one call: larger ones took several times the system time on a virtual machine that gives its free memory
back to its host (decision 0082)."""


def version(found: os.stat_result) -> str:
    """What changes when a file is written."""
    return "%x-%x-%x" % (found.st_mtime_ns, found.st_size, found.st_ino)  # noqa: UP031 - half the time of an f-string


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole at any moment, also after a power failure. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def sync(folder: Path) -> None:
    """Have the kernel write all that is pending on the file system of a folder. Raises OSError."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc().syncfs(found) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(found)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def reserve(descriptor: int, size: int) -> None:
    """Take the space of a file at once, so that a full disk is known before anything is fetched. Raises OSError.

    By the system call itself: `posix_fallocate` writes to each block where a file system, such as NFS, has none.
    """
    while _libc().fallocate(descriptor, 0, ctypes.c_longlong(0), ctypes.c_longlong(size)) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            os.truncate(descriptor, size)
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def begin_writing(descriptor: int, start: int, length: int) -> None:
    """Have the kernel send to the disk what was written there, and do not wait for it. Errors are told by `fsync`."""
    _libc().sync_file_range(descriptor, ctypes.c_longlong(start), ctypes.c_longlong(length), SYNC_FILE_RANGE_WRITE)


def name_file(descriptor: int, path: str) -> None:
    """Give an open file without a name this one. Raises OSError, FileExistsError where there is such a file."""
    os.link(str(descriptor), path, src_dir_fd=_descriptors(os.getpid()), follow_symlinks=True)


@cache
def _descriptors(pid: int) -> int:
    """The folder of the open files of this process, whose number is `pid`: a fork needs its own."""
    return os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def write_at(descriptor: int, start: int, data: Buffer) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view[:WRITE_BYTES], start)
        view, start = view[written:], start + written
