"""A bucket of Google Cloud Storage or a container of Azure as a place, by obstore."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import MissingPart, StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts, StreamDigest, combined
from windlass.storage.names import is_own
from windlass.storage.place import (
    Buffer,
    Damaged,
    Entry,
    Fatal,
    Forbidden,
    Place,
    SourceChanged,
    Throttled,
    Unreachable,
)
from windlass.stores.gs_az import INSTALL
from windlass.stores.gs_az.failure import Failure, Kind, failure_of
from windlass.stores.gs_az.opening import ONCE, PATIENT, open_store, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST_BATCH: Final = 1000
PIECE_BYTES: Final = 1 << 20
"""The least that is handed on by itself."""
STREAMS: Final = 4
"""Parts of one file that are sent at once."""
FATAL: Final = (Kind.MISSING_BUCKET, Kind.DENIED, Kind.FORBIDDEN)


class ObjectStore(Place):
    """Objects below a prefix of a bucket."""

    takes_parts = False

    def __init__(self, address: Address) -> None:
        """Raises StorageError, and MissingPart without the extra `data`."""
        self.address = address
        self._has_answered = False
        try:
            with self._said(str(address)):
                self._store, self._lists = self._open(ONCE), self._open(PATIENT)
            self._has_answered = False
        except ImportError as error:
            raise MissingPart(f"{address}: {address.kind}:// needs the extra `data`", INSTALL) from error

    def check(self) -> None:
        """See `Place`."""
        import obstore

        with self._said(str(self.address)):
            next(iter(obstore.list(self._store, self.address.path or None, chunk_size=1)), None)

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        import obstore

        prefix = f"{self.address.path}/" if self.address.path else ""
        with self._said(str(self.address)):
            # Not as an asynchronous stream: its threads abort a process that ends after an error.
            batches = iter(obstore.list(self._lists, self.address.path or None, chunk_size=LIST_BATCH))
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                found = ((one["path"][len(prefix) :], one) for one in batch if one["path"].startswith(prefix))
                yield [Entry(name, one["size"], version_of(one)) for name, one in found if not is_own(name)]

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """See `Place`."""
        import obstore

        options: Any = {"if_match": entry.version} if entry.version.startswith('"') else {}
        if length < entry.size:
            options["range"] = (start, start + length)
        came = 0
        with self._said(entry.name):
            try:
                answer = obstore.get(self._store, self.address.key(entry.name), options=options)
            except FileNotFoundError as error:
                raise SourceChanged(f"{entry.name} was removed while it was copied") from error
            for piece in answer.stream(min_chunk_size=PIECE_BYTES) if length > PIECE_BYTES else (answer.bytes(),):
                came += len(piece)
                if came <= length:
                    yield memoryview(piece)
        if came != length:
            raise SourceChanged(f"{entry.name}: {length:,} bytes were asked for, {came:,} came")

    def put(self, name: str, data: Buffer) -> str:
        """See `Place`."""
        import obstore

        with self._said(name):
            version = version_of(obstore.put(self._store, self.address.key(name), data, use_multipart=False))
        self._require_stored(name, len(data), version, combined([hashlib.sha256(data).digest()]))
        return version

    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int, digest: Callable[[], str]) -> str:
        """See `Place`."""
        import obstore

        key = self.address.key(name)
        with self._said(name):
            writer = obstore.open_writer(self._store, key, buffer_size=part_bytes, max_concurrency=STREAMS)
        num_bytes = 0
        for piece in pieces:
            num_bytes += len(piece)
            with self._said(name):
                writer.write(piece)
        with self._said(name):
            writer.close()
            version = version_of(obstore.head(self._store, key))
        self._require_stored(name, num_bytes, version, digest())
        return version

    def _require_stored(self, name: str, size: int, version: str, digest: str) -> None:
        """Read an object again, and compare: obstore sends no checksum, and gives none of what was stored. Raises
        Damaged, and removes the object.
        """
        import obstore

        found = StreamDigest(Parts.of(size).part_bytes)
        for piece in self.pieces(Entry(name, size, version), 0, size) if size else ():
            found.update(piece)
        if found.digest() != digest:
            with self._said(name):
                obstore.delete(self._store, self.address.key(name))
            raise Damaged(f"{name} was stored with {found.digest()}, and was sent with {digest}")

    async def read_own(self, name: str) -> bytes | None:
        """See `Place`."""
        import obstore

        try:
            with self._said(f"{self.address}{name}"):
                answer = await asyncio.to_thread(obstore.get, self._store, self.address.key(name))
                return bytes(await asyncio.to_thread(answer.bytes))
        except FileNotFoundError:
            return None

    def problem_of(self, name: str) -> str:
        """See `Place`."""
        return "Azure would take its \\ for /" if self.address.kind == "az" and "\\" in name else ""

    def _open(self, retries: dict[str, Any]) -> Any:
        return open_store(self.address.kind, self.address.bucket, retries)

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Errors of obstore as ours; that there is no such object stays its own."""
        from obstore import exceptions

        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            found = failure_of(error, self.address.kind, self.address.bucket)
            if found.kind is Kind.CHANGED:
                self._has_answered = True
                hint = "copy it again once it is written"
                raise SourceChanged(f"{what} was changed while it was copied", hint) from error
            known = self._error(what, found)
            self._has_answered = self._has_answered or not isinstance(known, Unreachable)
            if found.kind is Kind.MISSING:
                raise
            raise known from error
        self._has_answered = True

    def _error(self, what: str, found: Failure) -> StorageError:
        words = f"{what}: {found.words}"
        if found.kind in FATAL:
            is_one = found.kind is Kind.FORBIDDEN and what != str(self.address)
            return (Forbidden if is_one else Fatal)(words, found.hint)
        if found.kind is Kind.NO_ANSWER:
            return (Throttled if self._has_answered else Unreachable)(words, found.hint)
        return (Throttled if found.kind is Kind.BUSY else StorageError)(words, found.hint)
