"""Opens files below a folder for a download. Links are not followed, and no path leads out of the folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_below(folder: Path, path: str, *, is_folder: bool = False) -> int:
    """Returns a descriptor of the regular file, or folder, with this relative path below `folder`.

    Each part of the path is opened relative to its parent folder, so that a link created during the call is not
    followed. Raises OSError; FileNotFoundError also for links, `..`, devices, and absolute paths.
    """
    parts = [part for part in path.split("/") if part] if is_folder else path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    opened = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in parts if is_folder else parts[:-1]:
            inner = _open_in(opened, part, _FOLDER)
            os.close(opened)
            opened = inner
        if is_folder:
            return os.dup(opened)
        found = _open_in(opened, parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(opened)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return found


def state_of(path: Path) -> tuple[int, int, int] | None:
    """Returns inode, size and time of change of a file, which differ after each change; None without the file."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _open_in(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, "a link or no folder", name) from error
        raise
