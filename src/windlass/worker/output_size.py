"""Measures the outputs of a node, which come home where they are not too large."""

from __future__ import annotations

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
    for base, folders, names in os.walk(folder):
        for name in [*names, *(one for one in folders if os.path.islink(os.path.join(base, one)))]:
            path = os.path.join(base, name)
            try:
                size = os.lstat(path).st_size if os.path.isfile(path) or os.path.islink(path) else None
            except OSError:
                continue
            if size is not None:
                found.files += 1
                found.bytes += size
    return found
