"""Files that are read by ranges."""

from __future__ import annotations

import io


class RangedFile(io.RawIOBase):
    """A file of `_size` bytes that is read by ranges. A subclass reads from position `_at` on, and advances it."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set where the next read begins."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def _end_of(self, length: int) -> int:
        """Where a read of `length` bytes ends; a negative `length` reads to the end of the file."""
        return self._size if length < 0 else min(self._size, self._at + length)
