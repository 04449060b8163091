"""Multipart uploads. S3 verifies the SHA-256 of each part on arrival and confirms it on completion."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from windlass.stores.errors import Busy, Missing, NotCompleted, StoreError, TooLarge, Unconfirmed
from windlass.stores.part_sizes import MAX_PARTS, STREAM_PART_BYTES
from windlass.stores.response import Sent
from windlass.stores.retry import repeated
from windlass.stores.s3.bucket import CHECKSUM_HEADER, PASSING, PAYLOAD_HEADER, Bucket, parsed, require_stored
from windlass.stores.store import Body

AT_ONCE = 4
"""Parts of one object that are uploaded concurrently."""
CHECKSUM_MODE = {"x-amz-checksum-mode": "ENABLED"}
CHECKSUM_ALGORITHM = {"x-amz-checksum-algorithm": "SHA256"}
"""Header of an upload that makes the store keep and confirm the SHA-256 of the parts."""


@dataclass(frozen=True)
class StoredPart:
    """Part of an upload that S3 has stored."""

    number: int
    """Part number, from 1."""
    etag: str
    size: int
    checksum: str
    """SHA-256 of the part in base64; empty if S3 has none."""


@dataclass(frozen=True)
class Stored:
    """Object that S3 has stored."""

    etag: str
    size: int
    checksum: str
    """`ChecksumSHA256` of the object; empty if S3 has none."""


class Uploads:
    """Sends the requests for the uploads of one object, and repeats none. Every method raises StoreError, or Missing if
    the object does not exist or the upload was completed or aborted.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket, self.key = bucket.name, key
        self._bucket = bucket
        self._what = f"s3://{bucket.name}/{key}"

    def create(self) -> str:
        """Creates an upload whose parts have SHA-256 checksums. Returns its id."""
        answer = self._bucket.send("POST", self.key, {"uploads": ""}, CHECKSUM_ALGORITHM)
        if not (found := _text(parsed(answer, self._what), "UploadId")):
            raise StoreError("the store has begun no upload", self._what)
        return found

    def send(self, upload: str, number: int, body: Body, checksum: str, sent: Sent | None = None) -> str:
        """Uploads a part and returns its ETag. S3 refuses a body whose SHA-256 differs from `checksum`, in base64."""
        query = {"partNumber": str(number), "uploadId": upload}
        headers = {PAYLOAD_HEADER: b64decode(checksum).hex()}
        return self._bucket.send("PUT", self.key, query, headers, body, sent).headers["etag"]

    def parts(self, upload: str) -> list[StoredPart]:
        """Lists the parts that S3 has stored."""
        found: list[StoredPart] = []
        query = {"uploadId": upload}
        while True:
            root = parsed(self._bucket.send("GET", self.key, query), self._what)
            try:
                found += [_part(one) for one in root.iter() if _name(one) == "Part"]
            except ValueError as error:
                raise StoreError(f"the list of parts is not that of S3: {error}", self._what) from error
            marker = _text(root, "NextPartNumberMarker")
            if _text(root, "IsTruncated") != "true" or not marker or marker == query.get("part-number-marker"):
                return found
            query["part-number-marker"] = marker

    def complete(self, upload: str, parts: Sequence[StoredPart]) -> str:
        """Combines the parts of the upload to the object, in order. Returns the object's ETag. Raises NotCompleted,
        Unconfirmed."""
        each = (
            f"<Part><PartNumber>{one.number}</PartNumber><ETag>{escape(one.etag)}</ETag>"
            f"<ChecksumSHA256>{one.checksum}</ChecksumSHA256></Part>"
            for one in parts
        )
        body = f"<CompleteMultipartUpload>{''.join(each)}</CompleteMultipartUpload>".encode()
        root = parsed(self._bucket.send("POST", self.key, {"uploadId": upload}, body=body), self._what)
        found = {_name(one): one.text or "" for one in root.iter()}
        # S3 may respond with status 200 at once and report an error in the body after combining the parts.
        if "Error" in found:
            said = f"the upload could not be completed: {found.get('Code', '')} {found.get('Message', '')}"
            raise (Busy if found.get("Code") in PASSING else NotCompleted)(said, self._what)
        if "CompleteMultipartUploadResult" not in found:
            said = f"the answer to the completion of an upload is a {root.tag[:40]}: nothing is stored"
            raise Unconfirmed(said, self._what)
        # Some stores omit the checksum when a completion is repeated.
        if "ChecksumSHA256" not in found:
            return self.confirm(parts)
        require_stored(found.get("ETag"), found["ChecksumSHA256"], _composite(parts), self._what)
        return found["ETag"]

    def confirm(self, parts: Sequence[StoredPart]) -> str:
        """Returns the ETag of the object made of these parts. Raises Unconfirmed if the object has another checksum."""
        found = self._bucket.send("HEAD", self.key, headers=CHECKSUM_MODE).headers
        require_stored(found.get("etag"), found.get(CHECKSUM_HEADER), _composite(parts), self._what)
        return found["etag"]

    def end(self, upload: str) -> None:
        """Aborts an upload, which removes its parts."""
        self._bucket.send("DELETE", self.key, {"uploadId": upload})

    def stored(self) -> Stored:
        """Returns the stored object."""
        found = self._bucket.send("HEAD", self.key, headers=CHECKSUM_MODE).headers
        size = found.get("content-length", "")
        if not size.isdecimal():
            raise StoreError("the answer has no size", self._what)
        return Stored(found.get("etag", ""), int(size), found.get(CHECKSUM_HEADER, ""))


def write_parts(uploads: Uploads, parts: Iterable[Body]) -> str:
    """Writes an object in parts, which appears only once it is complete. Returns its ETag. Requests are repeated.

    Raises StoreError, and any error of `parts`.
    """
    upload = repeated(uploads.create)
    try:
        return _complete(uploads, upload, _send(uploads, upload, parts))
    except BaseException:
        # Parts that are not removed here are removed by the bucket's lifecycle rule.
        with contextlib.suppress(StoreError):
            repeated(lambda: uploads.end(upload))
        raise


def _send(uploads: Uploads, upload: str, parts: Iterable[Body]) -> list[StoredPart]:

    def send(number: int, part: Body) -> StoredPart:
        checksum = b64encode(hashlib.sha256(part).digest()).decode()
        etag = repeated(lambda: uploads.send(upload, number, part, checksum))
        return StoredPart(number, etag, len(part), checksum)

    sent: list[StoredPart] = []
    pending: collections.deque[concurrent.futures.Future[StoredPart]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for number, part in enumerate(parts, 1):
                if number > MAX_PARTS:
                    most = STREAM_PART_BYTES * MAX_PARTS // 10**9
                    what = f"s3://{uploads.bucket}/{uploads.key}"
                    raise TooLarge(f"it has more than the {most} GB of one upload", what)
                pending.append(pool.submit(send, number, part))
                if len(pending) > AT_ONCE:
                    sent.append(pending.popleft().result())
            sent += [one.result() for one in pending]
        except BaseException:
            for one in pending:
                one.cancel()
            raise
    return sent


def _complete(uploads: Uploads, upload: str, parts: Sequence[StoredPart]) -> str:
    """Completes an upload; tries again if S3 could not combine its parts."""
    for is_last in (False, True):
        try:
            return repeated(lambda: uploads.complete(upload, parts))
        except Missing:  # the object exists if only the response of an earlier try was lost
            return repeated(lambda: uploads.confirm(parts))
        except NotCompleted:
            if is_last:
                raise
    raise AssertionError


def _composite(parts: Sequence[StoredPart]) -> str:
    """Returns the `ChecksumSHA256` of an object made of several parts."""
    whole = hashlib.sha256(b"".join(b64decode(one.checksum) for one in parts)).digest()
    return f"{b64encode(whole).decode()}-{len(parts)}"


def _name(one: ElementTree.Element) -> str:
    return one.tag.rpartition("}")[2]


def _text(root: ElementTree.Element, name: str) -> str:
    return next((one.text or "" for one in root.iter() if _name(one) == name), "")


def _part(one: ElementTree.Element) -> StoredPart:
    return StoredPart(
        int(_text(one, "PartNumber")), _text(one, "ETag"), int(_text(one, "Size")), _text(one, "ChecksumSHA256")
    )
