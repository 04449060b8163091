"""Prefixes of object stores as places: S3, with resumable uploads, and other stores, whose writes are read back."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.errors import MissingExtra, UsageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts, StreamDigest, combined
from windlass.storage.listing import listed
from windlass.storage.multipart import S3Upload, end_uploads, stored_digest
from windlass.storage.names import is_own
from windlass.storage.place import Buffer, Damaged, Entry, PartialFile, Place, SourceChanged, store_errors
from windlass.stores.errors import Missing, MissingBucket
from windlass.stores.gs_az import INSTALL
from windlass.stores.gs_az.store import ObstoreStore
from windlass.stores.s3.store import S3Store
from windlass.stores.store import Object, Page, Store

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DIRECTORY: Final = "--x-s3"
"""Suffix of the names of directory buckets."""


class ObjectPlace(Place):
    """Objects below a prefix of a bucket. Each request is sent once; the copy repeats it and lowers its concurrency."""

    _store: Store

    def __init__(self, address: Address) -> None:
        self.address = address
        self._prefix = f"{address.path}/" if address.path else ""

    @override
    def check(self) -> None:
        self._next(self._store.pages(self._prefix))

    @override
    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:

        def pages(after: str) -> Callable[[], list[Entry] | None]:
            found = self._store.pages(self._prefix, after=f"{self._prefix}{after}" if after else "")
            return lambda: self._next(found)

        async for page in listed(pages, cuts if self._has_order else ()):
            yield [one for one in page if not is_own(one.name)]

    @property
    def _has_order(self) -> bool:
        """Whether the store lists objects in the order of their names, starting after any name."""
        return False

    def _next(self, pages: Iterator[Page]) -> list[Entry] | None:
        with store_errors(str(self.address)):
            page = next(pages, None)
        return None if page is None else list(entries_of(page, self._prefix))

    @override
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        one, came = Object(self.address.key(entry.name), entry.size, entry.version), 0
        with store_errors(entry.name):
            try:
                for piece in self._store.stream(one, start, length):
                    came += len(piece)
                    if came <= length:
                        yield piece
            except MissingBucket:
                raise
            except Missing as error:
                raise SourceChanged(f"{entry.name} was removed while it was copied") from error
        if came != length:
            raise SourceChanged(f"{entry.name}: {length:,} bytes were asked for, {came:,} came")

    @override
    def put(self, name: str, data: Buffer) -> str:
        with store_errors(name):
            return self._store.put_once(self.address.key(name), data)

    @override
    async def read_own(self, name: str) -> bytes | None:
        with store_errors(str(self.address)):
            try:
                return await asyncio.to_thread(self._store.get_once, self.address.key(name))
            except MissingBucket:
                raise
            except Missing:
                return None


class S3Place(ObjectPlace):
    """Objects of S3, accessed by the standard library alone, because pods may have nothing else."""

    def __init__(self, address: Address, state: Path, environ: Mapping[str, str] | None = None) -> None:
        """`state` is a folder for the state of incomplete uploads. Raises StorageError, UsageError."""
        if not _BUCKET.fullmatch(address.bucket):
            raise UsageError(f"{address}: a bucket cannot have the name {address.bucket!r}")
        super().__init__(address)
        self._state = state
        self.is_sent = environ is None
        with store_errors(str(address)):
            self._store: S3Store = S3Store(address.bucket, environ)

    @property
    def _has_order(self) -> bool:
        return not self.address.bucket.endswith(DIRECTORY)

    @override
    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        uploads = self._store.uploads(self.address.key(entry.name))
        return await asyncio.to_thread(S3Upload, uploads, parts, source, self._state)

    @override
    async def discard_partial(self, source: str) -> None:
        await asyncio.to_thread(end_uploads, self._store.uploads, source, self._state)

    @override
    async def expected(self, entry: Entry) -> str:
        """Returns the SHA-256 that S3 stores, if it was computed over the same part sizes."""
        uploads = self._store.uploads(self.address.key(entry.name))
        with store_errors(uploads.key):
            return stored_digest(await asyncio.to_thread(uploads.stored))


class ObstorePlace(ObjectPlace):
    """Objects of Google Cloud Storage or Azure, by obstore. These stores confirm no checksums, so writes are read
    back."""

    takes_parts = False

    def __init__(self, address: Address) -> None:
        """Opens the store. Raises StorageError, and MissingExtra without the extra `data`."""
        super().__init__(address)
        try:
            with store_errors(str(address)):
                self._store: ObstoreStore = ObstoreStore(address.kind, address.bucket)
        except ImportError as error:
            raise MissingExtra(f"{address}: {address.kind}:// needs the extra `data`", INSTALL) from error

    @override
    def put(self, name: str, data: Buffer) -> str:
        version = super().put(name, data)
        self._require_stored(name, len(data), version, combined([hashlib.sha256(data).digest()]))
        return version

    @override
    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int, digest: Callable[[], str]) -> str:
        num_bytes = 0

        def counted() -> Iterator[Buffer]:
            nonlocal num_bytes
            for piece in pieces:
                num_bytes += len(piece)
                yield piece

        with store_errors(name):
            version = self._store.write_parts(self.address.key(name), counted(), part_bytes)
        self._require_stored(name, num_bytes, version, digest())
        return version

    def _require_stored(self, name: str, size: int, version: str, digest: str) -> None:
        """Reads an object back and compares it. Removes a damaged object and raises Damaged."""
        found = StreamDigest(Parts.of(size).part_bytes)
        for piece in self.pieces(Entry(name, size, version), 0, size) if size else ():
            found.update(piece)
        if found.digest() != digest:
            with store_errors(name):
                self._store.remove_once(self.address.key(name))
            raise Damaged(f"{name} was stored with {found.digest()}, and was sent with {digest}")

    @override
    def problem_of(self, name: str) -> str:
        return "Azure would take its \\ for /" if self.address.kind == "az" and "\\" in name else ""


def entries_of(page: Iterable[Object | str], prefix: str) -> Iterator[Entry]:
    """Yields the files of a listing page, named relative to the prefix."""
    for one in page:
        # Consoles of stores represent a folder by an empty object whose key ends with a slash.
        if isinstance(one, Object) and one.key.startswith(prefix) and not (one.key.endswith("/") and not one.size):
            yield Entry(one.key[len(prefix) :], one.size, one.version)
