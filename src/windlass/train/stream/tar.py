"""Finds the members of a tar shard with range reads: only the headers if members are large, otherwise whole blocks."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator

from windlass.stores.ranged import RangedFile
from windlass.train.stream.errors import StreamError
from windlass.train.stream.reader import BLOCK_BYTES

WINDOW_BYTES = 64 << 10


class RangeFile(RangedFile):
    """A file that is read by ranges; consecutive blocks are read completely."""

    def __init__(self, size: int, block: Callable[[int], bytes], window: Callable[[int, int], bytes]) -> None:
        """`block(number)` reads a block, and `window(start, length)` reads a range."""
        super().__init__(size)
        self._block, self._window = block, window
        self._start, self._data = 0, b""
        self._last_block = -2

    def read(self, length: int = -1) -> bytes:
        """Reads `length` bytes; fewer only at the end of the file."""
        end = self._end_of(length)
        pieces = []
        while self._at < end:
            if not self._start <= self._at < self._start + len(self._data):
                self._load()
            piece = self._data[self._at - self._start : end - self._start]
            pieces.append(piece)
            self._at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _load(self) -> None:
        number = self._at // BLOCK_BYTES
        # Whole blocks are read only in sequence. At the start and after a jump, most of a block may be skipped.
        if 0 <= number - self._last_block <= 1:
            self._start, self._data = number * BLOCK_BYTES, self._block(number)
        else:
            self._start = self._at
            self._data = self._window(self._at, min(WINDOW_BYTES, self._size - self._at))
        self._last_block = number


def members(file: RangeFile, size: int, what: str) -> Iterator[tuple[str, int, int]]:
    """Yields name, offset and size of each file in a shard of `size` bytes, in order. Raises StreamError."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as shard:
            while (one := shard.next()) is not None:
                shard.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all members
                if one.issparse():
                    raise StreamError(f"{what}: {one.name} is sparse; write the shard without")
                if one.isreg():
                    if one.size < 0 or one.offset_data + one.size > size:
                        raise tarfile.ReadError(f"{one.name} extends beyond the end of the shard")
                    yield one.name, one.offset_data, one.size
            # tarfile mistakes a damaged header, except the first, for the end of the archive.
            file.seek(shard.offset)
            end = file.read(2 * tarfile.BLOCKSIZE)
            if end.strip(b"\0"):
                raise tarfile.ReadError(f"a header is damaged at byte {shard.offset}")
            if len(end) < 2 * tarfile.BLOCKSIZE:  # a complete archive ends with two blocks of zeros
                raise tarfile.ReadError(f"its end is missing after byte {shard.offset}: it is truncated")
    except tarfile.TarError as error:
        hint = "streams need complete and uncompressed tar files"
        raise StreamError(f"{what} cannot be read as a tar file: {error}; {hint}") from error
