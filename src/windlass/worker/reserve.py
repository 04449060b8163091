"""Keeps disk space back in a file, for what must still be written once the disk is full.

Writers that can wait ask `has_room` first: the space that `release` gives back is then left for those that cannot.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
MARGIN_BYTES = 1 << 20
"""Free space beyond the reserve from which on a disk that was full has room again; more than any reserve gives back."""
LOOK_SECONDS = 1.0
MEASURE_SECONDS = 0.05


class Reserve:
    """A file of `size_bytes` at `path`. Where it is shared, another process may release it: missing then means full."""

    def __init__(self, path: str, size_bytes: int, *, is_shared: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.is_shared = is_shared
        self._is_full = False
        self._look_at = 0.0
        self._measure_at = 0.0

    def has_room(self) -> bool:
        """Whether no write has met a full disk since there was last room besides the reserve.

        Makes the reserve where it is missing and there is room. Raises nothing.
        """
        if not self._is_full and (not self.is_shared or os.path.exists(self.path)):
            return True
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._is_full = not self.make()
        return not self._is_full

    def has_ample_room(self) -> bool:
        """As `has_room`, for those who write much: what is free, less than the margin, is left to all others."""
        if self.has_room() and time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + MEASURE_SECONDS
            with contextlib.suppress(OSError):
                self._is_full = _free_bytes(self.path) < MARGIN_BYTES
        return not self._is_full

    def met_full(self) -> None:
        """A write failed for want of space."""
        self._is_full = True

    def release(self) -> bool:
        """Give the space back. Gives False where it was released before."""
        self._is_full = True
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    def make(self, margin_bytes: int = MARGIN_BYTES) -> bool:
        """Keep the space back, if so much is free besides. Gives False only where the disk, or a quota, is full."""
        missing = margin_bytes + (0 if os.path.exists(self.path) else self.size_bytes)
        partial = f"{self.path}.new"  # one name: what a killed process leaves here, the next one uses
        try:
            if _free_bytes(self.path) < missing:
                return False
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # A quota shows itself only here. On NFS this writes: the margin is tried only where the disk was full.
                os.posix_fallocate(file, 0, max(self.size_bytes, missing if self._is_full else 0))
                os.ftruncate(file, self.size_bytes)
            finally:
                os.close(file)
            if os.path.exists(self.path):
                os.unlink(partial)
            else:
                os.rename(partial, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            return error.errno not in FULL_ERRORS  # a file system that cannot keep space back: as without a reserve
        return True


def _free_bytes(path: str) -> int:
    found = os.statvfs(os.path.dirname(path))
    return found.f_bavail * found.f_frsize
