"""Detects network file systems, on which SQLite's WAL must not be used.

Processes that use a WAL share memory through a mapped file, which does not work across machines:
https://sqlite.org/wal.html#overview
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "fhgfs", "afs", "ceph", "9p", "panfs", "wekafs",
    "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2", "gfs", "coda", "dvs", "virtiofs", "vboxsf", "prl_fs", "juicefs",
})  # fmt: skip
"""File systems that several machines may use concurrently, by name in the kernel's mount table."""
LOCAL_FUSE: Final = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.lxcfs"})
"""FUSE file systems that only one machine uses. All other FUSE file systems may be remote, such as sshfs or s3fs."""
MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def is_network(kind: str) -> bool:
    """Whether other machines may also use a file system of this kind."""
    return kind in NETWORK or (kind.partition(".")[0] in ("fuse", "fuseblk") and kind not in LOCAL_FUSE)


def is_on_network(folder: Path) -> bool:
    """Whether `folder` is on a network file system; False if the mount table cannot be read."""
    try:
        return is_network(kind_of(folder, MOUNTS.read_text(errors="surrogateescape")))
    except OSError:
        return False


def kind_of(folder: Path, mounts: str) -> str:
    """Returns the kind of file system that contains `folder`, from a mount table in the format of
    proc_pid_mountinfo(5).

    The nearest mount point above the folder decides, and of several mounts at one point the last. Empty if there is
    none.
    """
    path = os.path.realpath(folder)
    found, longest = "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split(" ")
        if len(words) < 6 or not after:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4])
        is_above = point == "/" or path == point or path.startswith(f"{point}/")
        if is_above and len(point) >= longest:
            found, longest = after.split(" ")[0], len(point)
    return found
