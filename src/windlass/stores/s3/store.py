"""A bucket of S3 as a store. Standard library only, Python 3.9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from windlass.stores.errors import Busy, Changed, StoreError, Unconfirmed
from windlass.stores.s3.bucket import Bucket, parsed
from windlass.stores.s3.uploads import Uploads, write_parts
from windlass.stores.store import PART_BYTES, Body, Object, Page, Store

PIECE_BYTES = 256 << 10
"""Passed on at once by `stream`: what is lost of each request when the process is killed."""


class S3Store(Store):
    """By requests of `Bucket`; credentials and endpoint are of the environment."""

    def __init__(self, bucket: str, environ: Mapping[str, str] | None = None) -> None:
        """Raises StoreError for an endpoint that is none."""
        self.address = f"s3://{bucket}"
        self._bucket = Bucket(bucket, environ)

    def __reduce__(self) -> Any:
        return S3Store, (self._bucket.name,)

    def uploads(self, key: str) -> Uploads:
        """Requests about the uploads of an object, for a caller who resumes them."""
        return Uploads(self._bucket, key)

    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """See `Store`."""
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

    def head_once(self, key: str) -> Object:
        """See `Store`."""
        headers = self._bucket.send("HEAD", key).headers
        if not headers.get("etag"):
            words = "the answer has no ETag: a login page or a proxy may have answered"
            raise Unconfirmed(words, f"{self.address}/{key}")
        return Object(key, int(headers.get("content-length") or 0), headers["etag"])

    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """See `Store`."""
        what = f"{self.address}/{one.key}"
        answer = self._bucket.send("GET", one.key, headers=_headers(one, start, length))
        if one.version.startswith('"') and answer.headers.get("etag") != one.version:
            raise Changed("it was written meanwhile", what)
        if len(answer.body) != length:
            if answer.status == 200:
                raise Changed("it has another length", what)
            raise Busy(f"{length} bytes were asked for, {len(answer.body)} came", what)
        return answer.body

    def stream(self, one: Object, start: int, length: int) -> Iterator[Body]:
        """See `Store`."""
        return self._bucket.stream(one.key, _headers(one, start, length), PIECE_BYTES)

    def get_once(self, key: str) -> bytes:
        """See `Store`."""
        return self._bucket.send("GET", key).body

    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        """See `Store`."""
        condition = {"if-none-match": "*"} if is_new else {}
        return self._bucket.send("PUT", key, headers=condition, body=body).headers["etag"]

    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = PART_BYTES) -> str:
        """See `Store`."""
        return write_parts(self.uploads(key), parts)

    def remove_once(self, key: str) -> None:
        """See `Store`."""
        self._bucket.send("DELETE", key)


def _headers(one: Object, start: int, length: int) -> dict[str, str]:
    """Of a request for bytes of this version of an object."""
    headers = {"if-match": one.version} if one.version.startswith('"') else {}
    if length < one.size:
        headers["range"] = f"bytes={start}-{start + length - 1}"
    return headers


def page_of(root: ElementTree.Element) -> tuple[Page, str]:
    """The objects and prefixes of a `ListBucketResult`, and the token of the next page, empty for the last. Raises
    KeyError and ValueError where it is none.
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
        raise ValueError("it goes on, and does not say where")
    return page, token
