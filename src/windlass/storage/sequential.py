"""Copies a large file sequentially, one part after the other, and verifies its expected SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.errors import StorageError
from windlass.storage.digest import Parts, combined
from windlass.storage.place import Buffer, Damaged, Entry, PartialFile, Place, SourceChanged
from windlass.storage.retry import repeated
from windlass.storage.window import Window

if TYPE_CHECKING:
    from windlass.storage.progress import Counter

CHANGES: Final = 3
"""Attempts to copy a file that changes during the copy."""


@dataclass(frozen=True)
class InOrder:
    """Result of a sequential copy."""

    entry: Entry
    """The file as the source listed it."""
    digest: str
    version: str
    partial: PartialFile


@dataclass(frozen=True)
class Sequential:
    """Copies large files between two places."""

    source: Place
    destination: Place
    window: Window

    async def copy(self, entry: Entry, counter: Counter) -> InOrder:
        """Copies one file. Starts over if the file changed or its SHA-256 differs from the expected one. Raises
        StorageError.
        """
        found: list[str] = []
        num_changes = 0
        while True:
            try:
                done = await self._once(entry, counter, found)
            except SourceChanged:
                num_changes += 1
                if num_changes == CHANGES or (now := await self.source.again(entry)) is None:
                    raise
                entry, done = now, None
            if done is not None:
                return done
            if len(found) > 1 and (found[-1] == found[-2] or len(found) == Damaged.tries):
                raise _other(entry, self.source.sha256(entry), found)
            counter.set(0)

    async def _once(self, entry: Entry, counter: Counter, found: list[str]) -> InOrder | None:
        """Makes one attempt. Returns None, after appending the SHA-256 to `found`, if the file must be copied again."""
        parts, stated = Parts.of(entry.size), self.source.sha256(entry)
        partial = await self.destination.begin(entry, parts, f"{self.source.address} {self.source.identity(entry)}")
        work = _File(partial, parts, Stream(self.source, entry), counter, bool(stated))
        try:
            digests = [await self._part(work, number, parts.span(number)[1]) for number in range(len(parts))]
        except _OtherPart:
            await partial.discard()
            return None
        if stated and work.whole.hexdigest() != stated:
            await partial.discard()
            found.append(work.whole.hexdigest())
            return None
        version = await repeated(lambda: partial.finish(digests), self.window)
        return InOrder(entry, combined(digests), version, partial)

    async def _part(self, work: _File, number: int, length: int) -> bytes:
        return await repeated(lambda: self.window.run(length, lambda: work.part(number)), self.window)


class _OtherPart(Exception):
    """A part written by an earlier copy differs from the source."""


class _File:
    """Writer of one file, one part after the other."""

    def __init__(self, partial: PartialFile, parts: Parts, stream: Stream, counter: Counter, is_hashed: bool) -> None:
        self._partial, self._parts, self._stream, self._counter = partial, parts, stream, counter
        self._is_hashed = is_hashed
        self.whole = hashlib.sha256()
        """Hash of all parts so far, if a SHA-256 is expected."""

    def part(self, number: int) -> bytes:
        """Writes one part unless an earlier copy did. Returns its SHA-256. Runs in a thread. Raises StorageError."""
        start, length = self._parts.span(number)
        if (digest := self._partial.done.get(number)) is not None:
            if self._is_hashed:
                data = self._partial.kept(number) or b"".join(self._stream.read(start, length))
                if hashlib.sha256(data).digest() != digest:
                    raise _OtherPart
                self.whole.update(data)
            self._counter.set(start + length)
            return digest
        begun = self._partial.begun(number)
        whole = self.whole.copy()  # a part that fails is read again
        if self._is_hashed and begun:
            whole.update(self._partial.kept(number))
        self._counter.set(start + begun)

        def pieces() -> Iterator[Buffer]:
            for piece in self._stream.read(start + begun, length - begun):
                if self._is_hashed:
                    whole.update(piece)
                yield piece

        digest = self._partial.write(number, pieces(), self._counter.moved)
        self.whole = whole
        return digest


class Stream:
    """Reader of a file in order: by one request if the place is sequential, else by one request per read."""

    def __init__(self, source: Place, entry: Entry) -> None:
        self._source, self._entry = source, entry
        self._pieces: Iterator[Buffer] = iter(())
        self._rest = memoryview(b"")
        """Rest of the last piece, returned by the next read."""
        self._at = -1
        """Offset of the next byte of the current request; -1 if a new request is needed."""

    def read(self, start: int, length: int) -> Iterator[Buffer]:
        """Yields `length` bytes from offset `start`. Raises StorageError."""
        if not self._source.is_sequential:
            yield from self._source.pieces(self._entry, start, length)
            return
        if start != self._at:
            self._pieces = self._source.pieces(self._entry, start, self._entry.size - start)
            self._rest, self._at = memoryview(b""), start
        try:
            while length:
                piece = self._rest or memoryview(next(self._pieces))
                piece, self._rest = piece[:length], piece[length:]
                self._at, length = self._at + len(piece), length - len(piece)
                yield piece
            if self._at == self._entry.size:
                next(self._pieces, None)  # the next read ends the response, so that its connection can be reused
        except BaseException:
            self._pieces, self._at = iter(()), -1
            raise


def _other(entry: Entry, stated: str, found: list[str]) -> StorageError:
    words = f"its SHA-256 is {found[-1]} in {len(found)} downloads, expected {stated}"
    return StorageError(f"{entry.name}: {words}", "compare the digest with that of the publisher")
