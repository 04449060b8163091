"""A bucket of Google Cloud Storage or a container of Azure as a place, by obstore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import MissingPart, StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.names import is_own
from windlass.storage.place import (
    Buffer,
    Entry,
    Fatal,
    PartialFile,
    Place,
    SourceChanged,
    Throttled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST_BATCH: Final = 1000
PIECE_BYTES: Final = 1 << 20
"""The least that is handed on by itself."""
CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "300s", "allow_http": True}
RETRIES: Final = {"max_retries": 1, "retry_timeout": timedelta(seconds=30)}
"""Of one request inside obstore; the copy repeats them too, and then sends fewer at once."""
BUSY: Final = ("503", "SlowDown", "429", "500", "502", "504", "timed out", "timeout", "connection", "error sending")
"""In the words of errors that pass."""


class ObjectStore(Place):
    """Objects below a prefix of a bucket."""

    def __init__(self, address: Address) -> None:
        """Raises StorageError, and MissingPart without the extra `data`."""
        self.address = address
        try:
            self._store = self._open()
        except ImportError as error:
            hint = "pip install 'obstore<0.13'"
            raise MissingPart(f"{address}: {address.kind}:// needs the extra `data`", hint) from error

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        import obstore

        prefix = f"{self.address.path}/" if self.address.path else ""
        with _said(str(self.address)):
            async for batch in obstore.list(self._store, self.address.path or None, chunk_size=LIST_BATCH):
                found = ((one["path"][len(prefix) :], one) for one in batch if one["path"].startswith(prefix))
                yield [
                    Entry(name, one["size"], one["e_tag"] or str(one["last_modified"]))
                    for name, one in found
                    if not is_own(name)
                ]

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """See `Place`."""
        import obstore

        options: Any = {"if_match": entry.version} if entry.version.startswith('"') else {}
        if length < entry.size:
            options["range"] = (start, start + length)
        came = 0
        with _said(entry.name):
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

        with _said(name):
            made = obstore.put(self._store, self.address.key(name), data, use_multipart=False)
        return str(made["e_tag"] or "")

    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        """See `Place`."""
        raise StorageError(f"{entry.name}: {self.address}: uploads in parts are made to S3 alone")

    async def read_own(self, name: str) -> bytes | None:
        """See `Place`."""
        import obstore

        try:
            with _said(f"{self.address}{name}"):
                answer = await asyncio.to_thread(obstore.get, self._store, self.address.key(name))
                return bytes(await asyncio.to_thread(answer.bytes))
        except FileNotFoundError:
            return None

    async def write_own(self, name: str, data: bytes) -> None:
        """See `Place`."""
        await asyncio.to_thread(self.put, name, data)

    def _open(self) -> Any:
        from obstore.store import AzureStore, GCSStore

        options: Any = {"client_options": CLIENT, "retry_config": RETRIES}
        kind = GCSStore if self.address.kind == "gs" else AzureStore
        return kind(self.address.bucket, **options)


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Errors of obstore as ours."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise
    except exceptions.PreconditionError as error:
        raise SourceChanged(f"{what} was changed while it was copied", "copy it again once it is written") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError) as error:
        raise Fatal(f"{what}: the store does not allow it", "check the credentials, and what they may do") from error
    except (exceptions.BaseError, OSError) as error:
        words = " ".join(str(error).split())[:400]
        kind = Throttled if any(mark in words for mark in BUSY) else StorageError
        raise kind(f"{what}: {words}") from error
