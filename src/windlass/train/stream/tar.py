"""Members of a tar shard by range reads: of shards of large members the headers alone are read, else whole blocks."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator

from windlass.stores.ranged import RangedFile
from windlass.train.stream.errors import StreamError
from windlass.train.stream.reader import BLOCK_BYTES

WINDOW_BYTES = 64 << 10


class RangeFile(RangedFile):
    """A file of which ranges are read; blocks that follow each other are read whole."""

    def __init__(self, size: int, block: Callable[[int], bytes], window: Callable[[int, int], bytes]) -> None:
        """`block(number)` reads a block, and `window(start, length)` a range."""
        super().__init__(size)
        self._block, self._window = block, window
        self._start, self._data = 0, b""
        self._last_block = -2

    def read(self, length: int = -1) -> bytes:
        """At most `length` bytes: fewer at the end alone."""
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
        if 0 <= number - self._last_block <= 1:  # the first of a shard is not: its members may be large
            self._start, self._data = number * BLOCK_BYTES, self._block(number)
        else:
            self._start = self._at
            self._data = self._window(self._at, min(WINDOW_BYTES, self._size - self._at))
        self._last_block = number


def members(file: RangeFile, size: int, what: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each file in a shard of `size` bytes, in its order. Raises StreamError."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as shard:
            while (one := shard.next()) is not None:
                shard.members = []  # type: ignore[attr-defined]  # all would be kept
                if one.issparse():
                    raise StreamError(f"{what}: {one.name} is sparse; write the shard without")
                if one.isreg():
                    if one.size < 0 or one.offset_data + one.size > size:
                        raise tarfile.ReadError(f"{one.name} ends behind its end")
                    yield one.name, one.offset_data, one.size
            # tarfile takes a damaged header that is not the first for the end.
            file.seek(shard.offset)
            end = file.read(2 * tarfile.BLOCKSIZE)
            if end.strip(b"\0"):
                raise tarfile.ReadError(f"a header is damaged at byte {shard.offset}")
            if len(end) < 2 * tarfile.BLOCKSIZE:  # two blocks of zeros are the end of an archive
                raise tarfile.ReadError(f"it has no end behind byte {shard.offset}: it was cut off")
    except tarfile.TarError as error:
        hint = "streams read tar files that are whole and not compressed"
        raise StreamError(f"{what} cannot be read as a tar file: {error}; {hint}") from error
