"""Measures the outputs of a node, which are fetched only if they are not too large."""

from __future__ import annotations

import contextlib
import os

MAX_FILES = 20_000
"""Maximum number of output files that are fetched, because each file takes a disk block and several system calls."""


class Size:
    """Number and total bytes of the regular files and links in a folder."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0

    def is_within(self, max_bytes: int) -> bool:
        """Whether there are files, and neither their number nor their total bytes exceed the limits."""
        return 0 < self.files <= MAX_FILES and self.bytes <= max_bytes


def measure(folder: str) -> Size:
    """Measures the files in a folder; unreadable files are not counted."""
    found = Size()
    for path in entries(folder):
        with contextlib.suppress(OSError):
            found.bytes += os.lstat(os.path.join(folder, path)).st_size
            found.files += 1
    return found


def entries(folder: str) -> list[str]:
    """Returns the sorted paths of regular files and links below a folder, relative to it."""
    found = []
    for base, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            full = os.path.join(base, name)
            if os.path.islink(full) or os.path.isfile(full):
                found.append(os.path.relpath(full, folder))
    return sorted(found)
