"""An S3 bucket as a store. Standard library only, Python 3.9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from windlass.compat import override
from windlass.stores.errors import Busy, Changed, StoreError, Unconfirmed
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.s3.bucket import Bucket, parsed
from windlass.stores.s3.uploads import Uploads, write_parts
from windlass.stores.store import Body, Object, Page, Store

PIECE_BYTES = 256 << 10
"""Size of the pieces yielded by `stream`: at most this much of each request is lost if the process is killed."""


class S3Store(Store):
    """Store in a bucket of S3. Credentials and endpoint come from the environment."""

    def __init__(self, bucket: str, environ: Mapping[str, str] | None = None) -> None:
        """Raises StoreError if the configured endpoint is invalid."""
        self.address = f"s3://{bucket}"
        self._bucket = Bucket(bucket, environ)

    def __reduce__(self) -> Any:
        return S3Store, (self._bucket.name,)

    def uploads(self, key: str) -> Uploads:
        """Returns the uploads of an object, for callers that resume them."""
        return Uploads(self._bucket, key)

    @override
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        query.update({name: at for name, at in (("delimiter", delimiter), ("start-after", after)) if at})
        is_over = False

        def page() -> Page | None:
            nonlocal is_over
            if is_over:
                return None
            what = f"{self.address}/{prefix}"
            root = parsed(self._bucket.send("GET", "", query), what)
            try:
                found, token = page_of(root)
            except (KeyError, ValueError) as error:
                raise StoreError(f"the listing is not that of S3: {error}", what) from error
            query["continuation-token"], is_over = token, not token
            query.pop("start-after", None)
            return found

        return iter(page, None)

    @override
    def head_once(self, key: str) -> Object:
        headers = self._bucket.send("HEAD", key).headers
        if not headers.get("etag"):
            words = "the answer has no ETag: a login page or a proxy may have answered"
            raise Unconfirmed(words, f"{self.address}/{key}")
        return Object(key, int(headers.get("content-length") or 0), headers["etag"])

    @override
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        what = f"{self.address}/{one.key}"
        answer = self._bucket.send("GET", one.key, headers=_headers(one, start, length))
        if len(answer.body) != length:
            if answer.status == 200:
                raise Changed("it has another length", what)
            raise Busy(f"{length} bytes were asked for, {len(answer.body)} came", what)
        return answer.body

    @override
    def stream(self, one: Object, start: int, length: int) -> Iterator[Body]:
        return self._bucket.stream(one.key, _headers(one, start, length), PIECE_BYTES)

    @override
    def get_once(self, key: str) -> bytes:
        return self._bucket.send("GET", key).body

    @override
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        condition = {"if-none-match": "*"} if is_new else {}
        return self._bucket.send("PUT", key, headers=condition, body=body).headers["etag"]

    @override
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = STREAM_PART_BYTES) -> str:
        return write_parts(self.uploads(key), parts)

    @override
    def remove_once(self, key: str) -> None:
        self._bucket.send("DELETE", key)


def _headers(one: Object, start: int, length: int) -> dict[str, str]:
    """Returns the headers of a range request for this version of an object."""
    headers = {"if-match": one.version} if one.version.startswith('"') else {}
    if length < one.size:
        headers["range"] = f"bytes={start}-{start + length - 1}"
    return headers


def page_of(root: ElementTree.Element) -> tuple[Page, str]:
    """Parses a `ListBucketResult`: its objects and prefixes, and the token of the next page, empty for the last page.
    Raises KeyError and ValueError for other documents.
    """
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is a {root.tag[len(space) :][:40]}")
    read = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    page: Page = []
    for one in root.iterfind(f"{space}Contents"):
        found = {child.tag[len(space) :]: child.text or "" for child in one}
        modified = found.get("LastModified", "")
        page.append(Object(read(found["Key"]), int(found["Size"]), found.get("ETag") or modified, modified))
    page += [read(one.findtext(f"{space}Prefix") or "") for one in root.iterfind(f"{space}CommonPrefixes")]
    if root.findtext(f"{space}IsTruncated") != "true":
        return page, ""
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("it is truncated and has no continuation token")
    return page, token
