"""File objects that read byte ranges, such as objects of a store."""

from __future__ import annotations

import collections
import errno
import io
import os
from typing import TYPE_CHECKING, Any

from windlass.compat import override
from windlass.stores.retry import repeated

if TYPE_CHECKING:
    import concurrent.futures

    from windlass.stores.store import Object, Store

BLOCK_BYTES = 8 << 20
"""Size of the blocks that are prefetched while a file is read in order."""
AT_ONCE = 4
"""Blocks that are prefetched concurrently."""


class RangedFile(io.RawIOBase):
    """File of `_size` bytes that is read by ranges. A subclass reads from position `_at` and advances it."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the position of the next read. Raises OSError if it is before the start of the file."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:  # `zipfile` recognizes a file that is too short by this error
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = at
        return at

    def _end_of(self, length: int) -> int:
        """Returns the end position of a read of `length` bytes; a negative `length` reads to the end of the file."""
        return self._size if length < 0 else min(self._size, self._at + length)


class ObjectFile(RangedFile):
    """Object as an unbuffered file. Sequential reads prefetch the next blocks. Methods raise StoreError."""

    def __init__(self, store: Store, one: Object) -> None:
        super().__init__(one.size)
        self.name = f"{store.address}/{one.key}"
        self._store, self._one = store, one
        self._block, self._block_at = memoryview(b""), 0
        self._ahead: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
        self._ahead_at = 0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    @override
    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        if not self._block_at <= self._at < self._block_at + len(self._block):
            if self._at >= self._size or not len(target):
                return 0
            self._block, self._block_at = memoryview(self._next()), self._at
        begin = self._at - self._block_at
        count = min(len(target), len(self._block) - begin)
        target[:count] = self._block[begin : begin + count]
        self._at += count
        return count

    @override
    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _next(self) -> bytes:
        """Returns the block at the current position and prefetches the blocks after it."""
        if self._pool is None and self._size - self._at > BLOCK_BYTES:
            import concurrent.futures  # imports logging: processes that read no object start faster without it

            self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        if self._pool is None:
            return self._block_from(self._at)
        if not self._ahead or self._ahead_at - len(self._ahead) * BLOCK_BYTES != self._at:
            self._ahead.clear()  # after a seek, the prefetched blocks are useless
            self._ahead_at = self._at
        while len(self._ahead) < AT_ONCE and self._ahead_at < self._size:
            self._ahead.append(self._pool.submit(self._block_from, self._ahead_at))
            self._ahead_at += BLOCK_BYTES
        return self._ahead.popleft().result()

    def _block_from(self, start: int) -> bytes:
        return repeated(lambda: self._store.read_once(self._one, start, min(BLOCK_BYTES, self._size - start)))
