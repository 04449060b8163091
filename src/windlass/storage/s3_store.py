"""S3 as a place, by the standard library alone: on this machine, and in pods that have nothing else."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from windlass.errors import StorageError, UsageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.listing import Page, pages, parse
from windlass.storage.multipart import NoUpload, S3Upload, Stored, StoredPart, end_uploads
from windlass.storage.names import is_own
from windlass.storage.place import (
    Buffer,
    Damaged,
    Entry,
    Fatal,
    Forbidden,
    PartialFile,
    Place,
    SourceChanged,
    Throttled,
    Unreachable,
)
from windlass.stores import errors
from windlass.stores.errors import (
    CHECK_CREDENTIALS,
    Altered,
    Busy,
    Changed,
    Denied,
    Missing,
    MissingBucket,
    NoAnswer,
    StoreError,
)
from windlass.stores.s3.answer import Sent
from windlass.stores.s3.bucket import CHECKSUM_HEADER, PAYLOAD_HEADER, Answer, Bucket
from windlass.stores.s3.objects import CHECKSUM_ALGORITHM, CHECKSUM_MODE, complete_once, parsed

PIECE_BYTES: Final = 256 << 10
"""That are handed on at once: what is lost of each request when the process is killed."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DIRECTORY: Final = "--x-s3"
"""What the names of directory buckets end with."""
CHECK_ENDPOINT: Final = "check the region, AWS_ENDPOINT_URL_S3 and the network"


class S3Store(Place):
    """Objects below a prefix of a bucket. Requests are made once: the copy repeats them, and then sends fewer."""

    def __init__(self, address: Address, state: Path, environ: Mapping[str, str] | None = None) -> None:
        """`state` is a folder for what is known of uploads that are not done. Raises StorageError, UsageError."""
        if not _BUCKET.fullmatch(address.bucket):
            raise UsageError(f"{address}: a bucket cannot have the name {address.bucket!r}")
        self.address = address
        self._state = state
        self.is_sent = environ is None
        with _said(str(address)):
            self._bucket = Bucket(address.bucket, environ)

    def check(self) -> None:
        """See `Place`."""
        self._page("", "")

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        # A directory bucket has no order of names, and cannot be asked for those after one.
        async for page in pages(self._page, () if self.address.bucket.endswith(DIRECTORY) else cuts):
            yield [one for one in page if not is_own(one.name)]

    def _page(self, token: str, after: str) -> Page:
        prefix = f"{self.address.path}/" if self.address.path else ""
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        if token:
            query["continuation-token"] = token
        elif after:
            query["start-after"] = f"{prefix}{after}"
        with _said(str(self.address)):
            root = _root(self._bucket, "", self._bucket.send_once("GET", "", query))
        try:
            return parse(root, prefix)
        except (KeyError, ValueError) as error:
            raise StorageError(f"{self.address}: the listing is not that of S3: {error}") from error

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """See `Place`."""
        headers = {"if-match": entry.version} if entry.version.startswith('"') else {}
        if length < entry.size:
            headers["range"] = f"bytes={start}-{start + length - 1}"
        came = 0
        with _said(entry.name):
            try:
                for piece in self._bucket.stream(self.address.key(entry.name), headers, PIECE_BYTES):
                    came += len(piece)
                    if came <= length:
                        yield piece
            except MissingBucket:
                raise
            except Missing as error:
                raise SourceChanged(f"{entry.name} was removed while it was copied") from error
        if came != length:
            raise SourceChanged(f"{entry.name}: {length:,} bytes were asked for, {came:,} came")

    def put(self, name: str, data: Buffer) -> str:
        """See `Place`."""
        with _said(name):
            return self._bucket.send_once("PUT", self.address.key(name), body=data).headers["etag"]

    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        """See `Place`."""
        uploads = Uploads(self._bucket, self.address.key(entry.name))
        return await asyncio.to_thread(S3Upload, uploads, parts, source, self._state)

    async def discard_partial(self, source: str) -> None:
        """See `Place`."""
        await asyncio.to_thread(end_uploads, lambda key: Uploads(self._bucket, key), source, self._state)

    async def read_own(self, name: str) -> bytes | None:
        """See `Place`."""
        with _said(str(self.address)):
            try:
                return (await asyncio.to_thread(self._bucket.send_once, "GET", self.address.key(name))).body
            except MissingBucket:
                raise
            except Missing:
                return None

    async def expected(self, entry: Entry) -> str:
        """See `Place`: a SHA-256 that S3 keeps, if its parts are ours."""
        uploads = Uploads(self._bucket, self.address.key(entry.name))
        return (await asyncio.to_thread(uploads.stored)).digest


class Uploads:
    """Requests about the uploads of one object. All methods raise StorageError, Throttled among them."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket, self.key = bucket.name, key
        self._bucket = bucket

    def create(self) -> str:
        """Begin an upload whose parts have checksums by SHA-256; returns its id."""
        with self._said():
            root = self._parsed(self._bucket.send_once("POST", self.key, {"uploads": ""}, CHECKSUM_ALGORITHM))
        if not (found := _text(root, "UploadId")):
            raise StorageError(f"{self.key}: the store has begun no upload")
        return found

    def send(self, upload: str, number: int, body: bytes, checksum: str, sent: Sent | None = None) -> str:
        """Send a part; returns its ETag. S3 refuses a body that has not this SHA-256, in base64."""
        query = {"partNumber": str(number), "uploadId": upload}
        headers = {PAYLOAD_HEADER: b64decode(checksum).hex()}
        with self._said():
            return self._bucket.send_once("PUT", self.key, query, headers, body, sent).headers["etag"]

    def parts(self, upload: str) -> list[StoredPart]:
        """The parts that S3 has. Raises NoUpload."""
        found: list[StoredPart] = []
        query = {"uploadId": upload}
        while True:
            with self._said():
                root = self._parsed(self._bucket.send_once("GET", self.key, query))
            try:
                found += [_part(one) for one in root.iter() if _name(one) == "Part"]
            except ValueError as error:
                raise StorageError(f"{self.key}: the list of parts is not that of S3: {error}") from error
            marker = _text(root, "NextPartNumberMarker")
            if _text(root, "IsTruncated") != "true" or not marker or marker == query.get("part-number-marker"):
                return found
            query["part-number-marker"] = marker

    def complete(self, upload: str, parts: list[StoredPart]) -> str:
        """Make the object of its parts; returns its ETag. Raises NoUpload."""
        with self._said():
            return complete_once(self._bucket, self.key, upload, [(one.etag, one.checksum) for one in parts])

    def end(self, upload: str) -> None:
        """End an upload, and remove its parts."""
        with self._said():
            self._bucket.send_once("DELETE", self.key, {"uploadId": upload})

    def stored(self) -> Stored:
        """The object as it is. Raises NoUpload where it is not there."""
        with self._said():
            found = self._bucket.send_once("HEAD", self.key, headers=CHECKSUM_MODE).headers
        size = found.get("content-length", "")
        if not size.isdecimal():
            raise StorageError(f"{self.key}: the store does not say how large it is")
        return Stored(found.get("etag", ""), int(size), found.get(CHECKSUM_HEADER, ""))

    def _parsed(self, answer: Answer) -> ElementTree.Element:
        return _root(self._bucket, self.key, answer)

    @contextmanager
    def _said(self) -> Iterator[None]:
        with _said(self.key):
            try:
                yield
            except MissingBucket:
                raise
            except Missing as error:
                raise NoUpload(f"{self.key}: {error.strerror}") from error


def _root(bucket: Bucket, key: str, answer: Answer) -> ElementTree.Element:
    """The XML of an answer, which is asked for again where it was cut off."""
    try:
        return parsed(bucket, key, answer)
    except StoreError as error:
        raise Busy(str(error.strerror), str(error.filename)) from error


def _name(one: ElementTree.Element) -> str:
    return one.tag.rpartition("}")[2]


def _text(root: ElementTree.Element, name: str) -> str:
    """The text of the first element of a name; empty where there is none."""
    return next((one.text or "" for one in root.iter() if _name(one) == name), "")


def _part(one: ElementTree.Element) -> StoredPart:
    """Raises ValueError."""
    return StoredPart(
        int(_text(one, "PartNumber")), _text(one, "ETag"), int(_text(one, "Size")), _text(one, "ChecksumSHA256")
    )


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Errors of a bucket as ours."""
    try:
        yield
    except StoreError as error:
        words = str(error.strerror)
        if isinstance(error, NoAnswer):
            raise Unreachable(f"{what}: {error}", CHECK_ENDPOINT) from error
        if isinstance(error, Altered):
            raise Damaged(f"{what}: {words}") from error
        if isinstance(error, Busy):
            raise Throttled(f"{what}: {error}") from error
        if isinstance(error, MissingBucket):
            raise Fatal(f"{what}: {words}", "check its name") from error
        if isinstance(error, Denied):
            kind = Forbidden if isinstance(error, errors.Forbidden) else Fatal
            raise kind(f"{what}: {words.removesuffix(f'; {CHECK_CREDENTIALS}')}", CHECK_CREDENTIALS) from error
        if isinstance(error, Changed):
            raise SourceChanged(
                f"{what} was changed while it was copied", "copy it again once it is written"
            ) from error
        raise StorageError(f"{what}: {words}") from error
