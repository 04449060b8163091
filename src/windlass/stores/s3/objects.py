"""Objects of a bucket: lists, reads by ranges, writes in one piece or in parts."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from windlass.stores.errors import Busy, Changed, Missing, StoreError, Unconfirmed
from windlass.stores.ranged import RangedFile
from windlass.stores.retry import repeated
from windlass.stores.s3.answer import Body, unix_seconds
from windlass.stores.s3.bucket import CHECKSUM_HEADER, PASSING, Answer, Bucket, require_stored

PART_BYTES = 16 << 20
MAX_PARTS = 10_000
AT_ONCE = 4
"""Requests for the parts of one object."""
BLOCK_BYTES = 8 << 20
"""Of a file that is read from its beginning to its end."""
CHECKSUM_MODE = {"x-amz-checksum-mode": "ENABLED"}
CHECKSUM_ALGORITHM = {"x-amz-checksum-algorithm": "SHA256"}
"""Of an upload: the store keeps, and confirms, the SHA-256 of its parts."""


@dataclass(frozen=True)
class Object:
    """An object as a bucket lists it."""

    key: str
    size: int
    etag: str
    changed_at: float = 0.0
    """Unix seconds."""


Part = tuple[str, str]
"""ETag of a part of an upload, and its SHA-256 in base64."""


def listed(bucket: Bucket, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
    """All objects whose keys begin with the prefix; with a delimiter, prefixes up to the next one in their place.

    Raises StoreError.
    """
    token = ""
    while True:
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        if delimiter:
            query["delimiter"] = delimiter
        if token:
            query["continuation-token"] = token
        found, token = _page(bucket, prefix, query)
        yield from found
        if not token:
            return


def _page(bucket: Bucket, prefix: str, query: dict[str, str]) -> tuple[list[Object | str], str]:
    root = parsed(bucket, prefix, bucket.send("GET", "", query))
    try:
        found, prefixes, token = page_of(root)
        objects = [Object(one["Key"], int(one["Size"]), one.get("ETag", ""), _changed_at(one)) for one in found]
    except (KeyError, ValueError) as error:
        raise StoreError(5, f"the listing is not that of S3: {error}", f"s3://{bucket.name}/{prefix}") from error
    return [*objects, *prefixes], token


def _changed_at(found: Mapping[str, str]) -> float:
    return unix_seconds(found["LastModified"]) if found.get("LastModified") else 0.0


def page_of(root: ElementTree.Element) -> tuple[list[dict[str, str]], list[str], str]:
    """The objects of a `ListBucketResult` by the names of their fields, the prefixes that stand for others, and the
    token of the next page, empty for the last. Raises KeyError and ValueError where it is none.
    """
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is a {root.tag[len(space) :][:40]}")
    read = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    objects = [
        {child.tag[len(space) :]: child.text or "" for child in one} for one in root.iterfind(f"{space}Contents")
    ]
    for one in objects:
        one["Key"] = read(one["Key"])
    prefixes = [read(one.findtext(f"{space}Prefix") or "") for one in root.iterfind(f"{space}CommonPrefixes")]
    if root.findtext(f"{space}IsTruncated") != "true":
        return objects, prefixes, ""
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("it goes on, and does not say where")
    return objects, prefixes, token


def parsed(bucket: Bucket, key: str, answer: Answer) -> ElementTree.Element:
    """The XML of an answer. Raises StoreError."""
    try:
        return ElementTree.fromstring(answer.body.strip())  # S3 sends spaces while it puts parts together
    except ElementTree.ParseError as error:
        raise StoreError(5, f"the answer was cut off: {error}", f"s3://{bucket.name}/{key}") from error


# -- reading ----------------------------------------------------------------------------------------------------------


def head(bucket: Bucket, key: str) -> Object:
    """What is known of an object, but for when it was changed. Raises Missing, StoreError."""
    headers = bucket.send("HEAD", key).headers
    if not headers.get("etag"):
        raise Unconfirmed(
            "the answer has no ETag: a login page or a proxy may have answered", f"s3://{bucket.name}/{key}"
        )
    return Object(key, int(headers.get("content-length") or 0), headers["etag"])


def opened(bucket: Bucket, key: str) -> ObjectFile:
    """An object as a file. Raises Missing, StoreError."""
    return ObjectFile(f"s3://{bucket.name}/{key}", head(bucket, key), partial(read_once, bucket))


def read_once(bucket: Bucket, one: Object, start: int, length: int) -> bytes:
    """Bytes of this version of an object, by one request. Raises Busy, Changed, Missing, StoreError."""
    what = f"s3://{bucket.name}/{one.key}"
    headers = {"range": f"bytes={start}-{start + length - 1}"} if length < one.size else {}
    if one.etag.startswith('"'):
        headers["if-match"] = one.etag
    answer = bucket.send_once("GET", one.key, headers=headers)
    if one.etag.startswith('"') and answer.headers.get("etag") != one.etag:
        raise Changed("it was written meanwhile", what)
    if len(answer.body) != length:
        if answer.status == 200:
            raise Changed("it has another length", what)
        raise Busy(f"{length} bytes were asked for, {len(answer.body)} came", what)
    return answer.body


class ObjectFile(RangedFile):
    """An object as an unbuffered file: blocks are fetched ahead where it is read in order. Raises StoreError."""

    def __init__(self, name: str, one: Object, read_once: Callable[[Object, int, int], bytes]) -> None:
        """`read_once(one, start, length)` gives so many bytes of the object, in any thread; it is repeated."""
        super().__init__(one.size)
        self.name = name
        self._one, self._read_once = one, read_once
        self._block, self._block_at = memoryview(b""), 0
        self._ahead: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
        self._ahead_at = 0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        target = memoryview(buffer).cast("B")
        if not self._block_at <= self._at < self._block_at + len(self._block):
            if self._at >= self._size or not len(target):
                return 0
            self._block, self._block_at = memoryview(self._next()), self._at
        begin = self._at - self._block_at
        count = min(len(target), len(self._block) - begin)
        target[:count] = self._block[begin : begin + count]
        self._at += count
        return count

    def close(self) -> None:
        """See `io.RawIOBase`."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _next(self) -> bytes:
        """The block that begins here; those behind it are fetched ahead."""
        if self._pool is None and self._size - self._at > BLOCK_BYTES:
            self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        if self._pool is None:
            return self._block_from(self._at)
        if not self._ahead or self._ahead_at - len(self._ahead) * BLOCK_BYTES != self._at:
            self._ahead.clear()  # it is read elsewhere now
            self._ahead_at = self._at
        while len(self._ahead) < AT_ONCE and self._ahead_at < self._size:
            self._ahead.append(self._pool.submit(self._block_from, self._ahead_at))
            self._ahead_at += BLOCK_BYTES
        return self._ahead.popleft().result()

    def _block_from(self, start: int) -> bytes:
        return repeated(lambda: self._read_once(self._one, start, min(BLOCK_BYTES, self._size - start)))


# -- writing ----------------------------------------------------------------------------------------------------------


def put(bucket: Bucket, key: str, body: Body) -> None:
    """Write a new object in one piece: there is none by this key, or it has just this content. Raises Changed."""
    try:
        bucket.send("PUT", key, headers={"if-none-match": "*"}, body=body)
    except Changed:
        # The answer to an earlier try of this request may have been lost.
        if bucket.send("GET", key).body != bytes(body):
            raise


def write(bucket: Bucket, key: str, pieces: Iterable[Body]) -> None:
    """Write an object of any size, which is there as a whole or not at all. Raises StoreError, and what `pieces` does.

    At most some parts of `PART_BYTES` are in memory.
    """
    parts = parts_of(pieces)
    first = next(parts, b"")
    second = next(parts, None)
    if second is None:
        put(bucket, key, first)
        return
    upload = _begin(bucket, key)
    try:
        _complete(bucket, key, upload, _upload(bucket, key, upload, itertools.chain((first, second), parts)))
    except BaseException:
        with contextlib.suppress(StoreError):  # else a rule of the bucket's life cycle removes the parts
            bucket.send("DELETE", key, {"uploadId": upload})
        raise


def parts_of(pieces: Iterable[Body]) -> Iterator[bytes]:
    """The same bytes in parts of about `PART_BYTES`, at least so many but for the last one."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part = bytearray()
    if part:
        yield bytes(part)


def _begin(bucket: Bucket, key: str) -> str:
    root = parsed(bucket, key, bucket.send("POST", key, {"uploads": ""}, CHECKSUM_ALGORITHM))
    found = next((one.text for one in root.iter() if one.tag.rpartition("}")[2] == "UploadId"), None)
    if not found:
        raise StoreError(5, "the store has begun no upload", f"s3://{bucket.name}/{key}")
    return found


def _upload(bucket: Bucket, key: str, upload: str, parts: Iterable[bytes]) -> list[Part]:
    """Upload the parts, some at once."""

    def send(number: int, part: bytes) -> Part:
        query = {"partNumber": str(number), "uploadId": upload}
        made = bucket.send("PUT", key, query, body=part).headers
        return made["etag"], made[CHECKSUM_HEADER]

    tags: list[Part] = []
    pending: collections.deque[concurrent.futures.Future[Part]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for number, part in enumerate(parts, 1):
                if number > MAX_PARTS:
                    most = PART_BYTES * MAX_PARTS // 10**9
                    raise StoreError(27, f"it has more than the {most} GB of one upload", f"s3://{bucket.name}/{key}")
                pending.append(pool.submit(send, number, part))
                if len(pending) > AT_ONCE:
                    tags.append(pending.popleft().result())
            tags += [one.result() for one in pending]
        except BaseException:
            for one in pending:
                one.cancel()
            raise
    return tags


def _complete(bucket: Bucket, key: str, upload: str, parts: Sequence[Part]) -> None:
    for is_last in (False, True):
        try:
            repeated(lambda: complete_once(bucket, key, upload, parts))
        except Missing:  # the answer to an earlier try may have been lost: then the object is there
            repeated(lambda: _confirm(bucket, key, parts))
        except NotCompleted:
            if is_last:
                raise
            continue
        return


class NotCompleted(StoreError):
    """The store could not put the parts together."""


def complete_once(bucket: Bucket, key: str, upload: str, parts: Sequence[Part]) -> str:
    """Make the object of all parts of an upload, in their order; returns its ETag.

    Raises Missing where there is no such upload, NotCompleted, Unconfirmed, Busy, StoreError.
    """
    what = f"s3://{bucket.name}/{key}"
    each = (
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag><ChecksumSHA256>{checksum}</ChecksumSHA256></Part>"
        for number, (tag, checksum) in enumerate(parts, 1)
    )
    body = f"<CompleteMultipartUpload>{''.join(each)}</CompleteMultipartUpload>".encode()
    answer = bucket.send_once("POST", key, {"uploadId": upload}, body=body)
    try:
        root = parsed(bucket, key, answer)
    except StoreError as error:  # it was cut off: the next try finds the object
        raise Busy(str(error.strerror), what) from error
    found = {one.tag.rpartition("}")[2]: one.text or "" for one in root.iter()}
    # S3 may answer 200 at once, and with an error once the parts are put together.
    if "Error" in found:
        said = f"the upload could not be completed: {found.get('Code', '')} {found.get('Message', '')}"
        raise Busy(said, what) if found.get("Code") in PASSING else NotCompleted(5, said, what)
    if "CompleteMultipartUploadResult" not in found:
        raise Unconfirmed(f"the answer to the completion of an upload is a {root.tag[:40]}: nothing is stored", what)
    if "ChecksumSHA256" not in found:  # as some stores answer a second completion, where the first answer was lost
        return _confirm(bucket, key, parts)
    require_stored(found.get("ETag"), found["ChecksumSHA256"], _composite(parts), what)
    return found["ETag"]


def _confirm(bucket: Bucket, key: str, parts: Sequence[Part]) -> str:
    """The ETag of the object that was made of these parts. Raises Unconfirmed, and what `send_once` raises."""
    found = bucket.send_once("HEAD", key, headers=CHECKSUM_MODE).headers
    require_stored(found.get("etag"), found.get(CHECKSUM_HEADER), _composite(parts), f"s3://{bucket.name}/{key}")
    return found["etag"]


def _composite(parts: Sequence[Part]) -> str:
    """The `ChecksumSHA256` of an object of several parts."""
    whole = hashlib.sha256(b"".join(b64decode(checksum) for _, checksum in parts)).digest()
    return f"{b64encode(whole).decode()}-{len(parts)}"
