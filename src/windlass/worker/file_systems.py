"""Finds the file system that has no space left, from the path in a rank's error or else by checking all mounts.

Standard library only. Needs Linux: without /proc, no file system is found.
"""

from __future__ import annotations

import os
import re

from windlass.worker.process import read_text
from windlass.worker.protocol import FileSystem

_NO_SPACE = r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded"
_WRITE_FAILED = r"file write failed|PytorchStreamWriter failed|(?s:inline_container.*unexpected pos)"
"""Matches errors of torch.save that do not include the reason."""
_LEFT_OUT = ("autofs", "squashfs", "iso9660", "nfs", "cifs", "smb", "fuse", "lustre", "ceph", "9p", "gluster", "proc",
             "sysfs", "cgroup", "devpts", "devtmpfs", "mqueue")  # fmt: skip
"""Prefixes of file system types that are not checked: always full, or on a server that may not respond."""
FULL_BYTES = 32 << 20
"""A file system counts as full if fewer bytes than this and less than a tenth of its size are free."""


def without_space(tail: str, folder: str) -> list[FileSystem]:
    """Returns the file system of the file that could not be written, or all full ones if the file is unknown; empty for
    other failures.

    `tail` is the last output of the failed rank, and `folder` its working folder, to which relative paths refer.
    """
    if not is_of_space(tail):
        return []
    if path := path_without_space(tail):
        found = _read(_mount_of(os.path.join(folder, path)))
        return [found] if found else []
    mounts = [line.split(" ") for line in read_text("/proc/self/mounts").splitlines()]
    points = [
        os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), os.fsencode(mount[1])))
        for mount in mounts
        if len(mount) > 3 and not mount[2].startswith(_LEFT_OUT) and "ro" not in mount[3].split(",")
    ]
    full: dict[int, FileSystem] = {}
    # the shortest mount point of a file system counts
    for point in sorted(filter(os.path.isdir, points), key=len):
        if (one := _read(point)) and _is_full(one):
            full.setdefault(os.stat(point).st_dev, one)
    return list(full.values())[:8]


def is_of_space(tail: str) -> bool:
    """Whether the last output of a rank shows that a file could not be written because the disk was full."""
    return re.search(f"{_NO_SPACE}|{_WRITE_FAILED}", tail) is not None


def path_without_space(tail: str) -> str:
    """Returns the path that the last error about space names; empty if it names none.

    The last path of the line is used, because errors of a copy or a rename name the source before the destination.
    """
    named = re.findall(rf"(?:{_NO_SPACE})[^\n]*'([^'\n]+)'", tail)
    return named[-1] if named else ""


def _mount_of(path: str) -> str:
    """Returns the mount point of a path. The path itself need not exist."""
    path = os.path.realpath(path)
    while path != "/" and not (os.path.isdir(path) and os.path.ismount(path)):
        path = os.path.dirname(path)
    return path


def _read(mount: str) -> FileSystem | None:
    try:
        line = os.statvfs(mount)
    except OSError:
        return None
    size = line.f_frsize
    return FileSystem(mount, line.f_blocks * size, line.f_bavail * size, line.f_files, line.f_favail)


def _is_full(one: FileSystem) -> bool:
    by_bytes = one.bytes > 0 and one.free_bytes < min(FULL_BYTES, one.bytes // 10)
    return by_bytes or (one.files > 0 and one.free_files == 0)
