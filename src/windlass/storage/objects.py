"""A bucket of Google Cloud Storage or a container of Azure as a place, by obstore."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import MissingPart, StorageError
from windlass.storage.address import Address
from windlass.storage.names import is_own
from windlass.storage.place import (
    Buffer,
    Entry,
    Fatal,
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
STREAMS: Final = 4
"""Parts of one file that are sent at once."""
NO_LOGIN: Final = ("token request", "must be specified", "access key", "service account", "credential")
"""In the words of errors about credentials, before anything is asked for."""
DENIED: Final = ("401", "403", "AuthenticationFailed", "AuthorizationFailure")
NO_BUCKET: Final = ("ContainerNotFound", "NoSuchBucket")
NO_ANSWER: Final = "error sending request"
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
CHECK: Final = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an identity",
}
"""What to try where there are no credentials."""
BUCKETS: Final = {"gs": "bucket", "az": "container"}


class ObjectStore(Place):
    """Objects below a prefix of a bucket."""

    takes_parts = False

    def __init__(self, address: Address) -> None:
        """Raises StorageError, and MissingPart without the extra `data`."""
        self.address = address
        try:
            with self._said(str(address)):
                self._store = self._open()
        except ImportError as error:
            hint = "pip install 'obstore<0.13'"
            raise MissingPart(f"{address}: {address.kind}:// needs the extra `data`", hint) from error

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        import obstore

        prefix = f"{self.address.path}/" if self.address.path else ""
        with self._said(str(self.address)):
            # Not as an asynchronous stream: its threads abort a process that ends after an error.
            batches = iter(obstore.list(self._store, self.address.path or None, chunk_size=LIST_BATCH))
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                found = ((one["path"][len(prefix) :], one) for one in batch if one["path"].startswith(prefix))
                yield [Entry(name, one["size"], _version(one)) for name, one in found if not is_own(name)]

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
            return _version(obstore.put(self._store, self.address.key(name), data, use_multipart=False))

    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int) -> str:
        """See `Place`."""
        import obstore

        key = self.address.key(name)
        with self._said(name):
            writer = obstore.open_writer(self._store, key, buffer_size=part_bytes, max_concurrency=STREAMS)
        for piece in pieces:
            with self._said(name):
                writer.write(piece)
        with self._said(name):
            writer.close()
            return _version(obstore.head(self._store, key))

    async def read_own(self, name: str) -> bytes | None:
        """See `Place`."""
        import obstore

        try:
            with self._said(f"{self.address}{name}"):
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
    def _said(self, what: str) -> Iterator[None]:
        """Errors of obstore as ours."""
        from obstore import exceptions

        try:
            yield
        except exceptions.PreconditionError as error:
            hint = "copy it again once it is written"
            raise SourceChanged(f"{what} was changed while it was copied", hint) from error
        except (exceptions.BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and not any(one in str(error) for one in NO_BUCKET):
                raise
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> StorageError:
        """What an error of obstore means, by its words."""
        words = " ".join(str(error).partition("Debug source")[0].split())
        status, code, check = _STATUS.search(words), _CODE.search(words), CHECK[self.address.kind]
        if any(mark in words for mark in NO_BUCKET):
            return Fatal(f"{what}: there is no {BUCKETS[self.address.kind]} {self.address.bucket}", "check its name")
        if any(mark in words.lower() for mark in NO_LOGIN):
            return Fatal(f"{what}: no credentials were found: {words[:400]}", check)
        answer = " ".join(found[1] for found in (status, code) if found)
        if isinstance(error, PermissionError) or any(mark in answer for mark in DENIED):
            return Fatal(f"{what}: the store does not allow it ({answer})", "check the credentials, and what they may do")
        if NO_ANSWER in words:
            return Throttled(f"{what}: the store does not answer", "check its address, and the network")
        kind = Throttled if any(mark in (answer or words) for mark in BUSY) else StorageError
        return kind(f"{what}: {answer or words[:400]}")


def _version(about: Any) -> str:
    """The ETag of an object, as in requests: lists of Azure leave out its quotes."""
    tag = about["e_tag"]
    if not tag:
        return str(about.get("last_modified", ""))
    return str(tag) if tag.endswith('"') else f'"{tag}"'
