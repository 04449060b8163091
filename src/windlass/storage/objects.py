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
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST_BATCH: Final = 1000
PIECE_BYTES: Final = 1 << 20
"""The least that is handed on by itself."""
CLIENT: Final = {"connect_timeout": "10s", "read_timeout": "20s", "timeout": "300s", "allow_http": True}
RETRIES: Final = {"max_retries": 1, "retry_timeout": timedelta(seconds=30)}
"""Of one request inside obstore; the copy repeats them too, and then sends fewer at once."""
LISTING_RETRIES: Final = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
"""Of a list, which is not gone on with where it broke off."""
BUSY: Final = (
    "503", "SlowDown", "429", "500", "502", "504", "timed out", "timeout", "connection", "body error",
    # What is repeated, since its answer was lost, may have been done: then the upload begins anew.
    "NoSuchUpload", "InvalidBlockList",
)  # fmt: skip
"""In the words of errors that pass."""
STREAMS: Final = 4
"""Parts of one file that are sent at once."""
TOKEN: Final = "token request"
NO_LOGIN: Final = (TOKEN, "must be specified", "access key", "service account", "credential", "pem file")
"""In the words of errors about credentials, before anything is asked of the store."""
DENIED: Final = ("401", "403", "AuthenticationFailed", "AuthorizationFailure")
NO_BUCKET: Final = ("ContainerNotFound", "NoSuchBucket")
NO_ANSWER: Final = "error sending request"
NO_CLIENT: Final = "builder error"
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
        self._has_answered = False
        try:
            with self._said(str(address)):
                self._store, self._lists = self._open(RETRIES), self._open(LISTING_RETRIES)
            self._has_answered = False
        except ImportError as error:
            hint = "pip install 'obstore<0.13'"
            raise MissingPart(f"{address}: {address.kind}:// needs the extra `data`", hint) from error

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        import obstore

        prefix = f"{self.address.path}/" if self.address.path else ""
        with self._said(str(self.address)):
            # Not as an asynchronous stream: its threads abort a process that ends after an error.
            batches = iter(obstore.list(self._lists, self.address.path or None, chunk_size=LIST_BATCH))
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

    def problem_of(self, name: str) -> str:
        """See `Place`."""
        return "Azure would take its \\ for /" if self.address.kind == "az" and "\\" in name else ""

    def _open(self, retries: Any) -> Any:
        from obstore.store import AzureStore, GCSStore

        options: Any = {"client_options": CLIENT, "retry_config": retries}
        kind = GCSStore if self.address.kind == "gs" else AzureStore
        return kind(self.address.bucket, **options)

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Errors of obstore as ours."""
        from obstore import exceptions

        try:
            yield
        except exceptions.PreconditionError as error:
            self._has_answered = True
            hint = "copy it again once it is written"
            raise SourceChanged(f"{what} was changed while it was copied", hint) from error
        except (exceptions.BaseError, OSError) as error:
            found = self._error(what, error)
            self._has_answered = self._has_answered or not isinstance(found, Unreachable)
            if isinstance(error, FileNotFoundError) and not isinstance(found, Fatal | Throttled):
                raise
            raise found from error
        self._has_answered = True

    def _error(self, what: str, error: Exception) -> StorageError:
        """What an error of obstore means, by its words, in which the address of the request is too."""
        words = " ".join(str(error).partition("Debug source")[0].split())
        status, code = ((found[1] if found else "") for found in (_STATUS.search(words), _CODE.search(words)))
        answer = f"{status} {code}".strip()
        if code in NO_BUCKET:
            return Fatal(f"{what}: there is no {BUCKETS[self.address.kind]} {self.address.bucket}", "check its name")
        if NO_CLIENT in words:
            hint = "install ca-certificates, or set SSL_CERT_FILE"
            return Fatal(f"{what}: no certificates of authorities were found, by which a store is known", hint)
        if TOKEN in words or (not status and any(mark in words.lower() for mark in NO_LOGIN)):
            why = words.partition(": Error performing GET")[0]
            return Fatal(f"{what}: no credentials were found: {why[:400]}", CHECK[self.address.kind])
        if isinstance(error, PermissionError) or status in DENIED or code in DENIED:
            hint = "check the credentials, and what they may do"
            return Fatal(f"{what}: the store does not allow it ({answer})", hint)
        if not status and NO_ANSWER in words:
            kind = Throttled if self._has_answered else Unreachable
            return kind(f"{what}: the store does not answer", "check its address, and the network")
        passes = any(mark in (answer or words) for mark in BUSY)
        return (Throttled if passes else StorageError)(f"{what}: {answer or words[:400]}")


def _version(about: Any) -> str:
    """The ETag of an object, as in requests: lists of Azure leave out its quotes."""
    tag = about["e_tag"]
    if not tag:
        return str(about.get("last_modified", ""))
    return str(tag) if tag.endswith('"') else f'"{tag}"'
