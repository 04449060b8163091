"""An object store as a place, by obstore; what obstore has not of S3 is in `boto.py`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import MissingPart, StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.listing import pages
from windlass.storage.multipart import S3Upload
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

    def __init__(self, address: Address, state: Path, environ: dict[str, str] | None = None) -> None:
        """`state` is a folder of this machine for what is known of uploads that are not done.

        Raises StorageError, and MissingPart without the extra `data`.
        """
        self.address = address
        self._state = state
        self._client: Any = None
        try:
            self._store = self._open(dict(os.environ) if environ is None else environ)
        except ImportError as error:
            hint = "pip install 'windlass[data]'"
            raise MissingPart(f"{address}: {address.kind}:// needs the extra `data`", hint) from error

    async def entries(self) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        prefix = f"{self.address.path}/" if self.address.path else ""
        async for batch in self._listed(prefix):
            yield [one for one in batch if not is_own(one.name)]

    async def _listed(self, prefix: str) -> AsyncIterator[list[Entry]]:
        if self._client is not None:
            from windlass.storage.boto import page_of

            async for page in pages(partial(page_of, self._client, self.address.bucket, prefix)):
                yield page
            return
        import obstore

        with _said(str(self.address)):
            async for batch in obstore.list(self._store, self.address.path or None, chunk_size=LIST_BATCH):
                found = (one for one in batch if one["path"].startswith(prefix))
                yield [
                    Entry(one["path"][len(prefix) :], one["size"], one["e_tag"] or str(one["last_modified"]))
                    for one in found
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
        if self.address.kind != "s3":
            raise StorageError(f"{entry.name}: {self.address}: uploads in parts are made to S3 alone")
        from windlass.storage.boto import BotoUploads

        uploads = BotoUploads(self._client, self.address.bucket, self.address.key(entry.name))
        return await asyncio.to_thread(S3Upload, uploads, parts, source, self._state)

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

    async def expected(self, entry: Entry) -> str:
        """See `Place`: a SHA-256 that S3 keeps, if its parts are ours."""
        if self._client is None:
            return ""
        from windlass.storage.boto import BotoUploads

        uploads = BotoUploads(self._client, self.address.bucket, self.address.key(entry.name))
        return (await asyncio.to_thread(uploads.stored)).digest

    def _open(self, environ: dict[str, str]) -> Any:
        from obstore.store import AzureStore, GCSStore

        options: Any = {"client_options": CLIENT, "retry_config": RETRIES}
        if self.address.kind == "gs":
            return GCSStore(self.address.bucket, **options)
        if self.address.kind == "az":
            return AzureStore(self.address.bucket, **options)
        from windlass.storage.boto import open_s3

        self._client, store = open_s3(self.address, options)
        return store


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
