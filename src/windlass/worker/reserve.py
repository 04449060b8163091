"""Reserves disk space in a file, for data that must still be written when the disk is full.

Writers of data that can wait must call `has_space` first, so that the space freed by `release` remains for urgent
writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
MARGIN_BYTES = 1 << 20
"""Free bytes beyond the reserve at which a full disk counts as having space again; larger than any reserve."""
CHECK_SECONDS = 1.0
MEASURE_SECONDS = 0.05


class Reserve:
    """A file of `size_bytes` at `path` that reserves disk space. If it `is_shared`, another process may release it, so
    a missing file means a full disk.
    """

    def __init__(self, path: str, size_bytes: int, *, is_shared: bool) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.is_shared = is_shared
        self._is_full = False
        self._check_at = 0.0
        self._measure_at = 0.0

    def has_space(self) -> bool:
        """Whether the disk has space beyond the reserve, as far as failed writes have shown.

        Creates the reserve if it is missing and the disk has space. Raises nothing.
        """
        if not self._is_full and (not self.is_shared or os.path.exists(self.path)):
            return True
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            self._is_full = not self.make()
        return not self._is_full

    def has_ample_space(self) -> bool:
        """Like `has_space`, for writers of large data. Such writers must leave `MARGIN_BYTES` to all other writers."""
        if self.has_space() and time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + MEASURE_SECONDS
            with contextlib.suppress(OSError):
                self._is_full = _free_bytes(self.path) < MARGIN_BYTES
        return not self._is_full

    def record_full(self) -> None:
        """Records that a write failed because the disk was full."""
        self._is_full = True

    def release(self) -> bool:
        """Frees the reserved space. Returns False if it was released before."""
        self._is_full = True
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    def make(self, margin_bytes: int = MARGIN_BYTES) -> bool:
        """Reserves the space if `margin_bytes` are free beyond it. Returns False only if the disk or a quota
        is full.
        """
        missing = margin_bytes + (0 if os.path.exists(self.path) else self.size_bytes)
        partial = f"{self.path}.new"  # fixed name: a process reuses the partial file of a killed process
        try:
            if _free_bytes(self.path) < missing:
                return False
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Quotas are checked only by this call. On NFS the call writes data, so the margin is only tried after
                # the disk was full.
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
            return error.errno not in FULL_ERRORS  # a file system that cannot reserve space is treated as having space
        return True


def _free_bytes(path: str) -> int:
    found = os.statvfs(os.path.dirname(path))
    return found.f_bavail * found.f_frsize
