"""Measures the outputs of a node, which come home where they are not too large."""

from __future__ import annotations

import contextlib
import os

MAX_FILES = 20_000
"""More files do not come home: each takes a block of a disk, and several system calls to move."""


class Size:
    """How much is in a folder: regular files and links."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0

    def is_within(self, max_bytes: int) -> bool:
        """Whether there is anything, and not too much."""
        return 0 < self.files <= MAX_FILES and self.bytes <= max_bytes


def measure(folder: str) -> Size:
    """The size of what is in a folder; what cannot be read counts as nothing."""
    found = Size()
    for path in entries(folder):
        with contextlib.suppress(OSError):
            found.bytes += os.lstat(os.path.join(folder, path)).st_size
            found.files += 1
    return found


def entries(folder: str) -> list[str]:
    """The paths in a folder, relative to it, of its regular files and links, in order."""
    found = []
    for base, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            full = os.path.join(base, name)
            if os.path.islink(full) or os.path.isfile(full):
                found.append(os.path.relpath(full, folder))
    return sorted(found)
