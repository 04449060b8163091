"""Reads files from HTTP servers: their size and version, and their bytes from any offset.

The query of a URL (as of a presigned URL), its user and its password are secrets. These secrets are sent only to the
URL's host, and never appear in the text of a `Url` or an error.
"""

from __future__ import annotations

import http.client
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.stores.connection import Connections, Kept, words_of
from windlass.stores.errors import Busy, Changed, Forbidden, Misconfigured, Missing, StoreError, TooLarge
from windlass.stores.response import Response
from windlass.stores.url import Url

SECONDS = 30
"""Socket timeout: without data for this time, a request fails and may be repeated."""
CHECK_HOST = "check the host name, the network and HTTPS_PROXY"
MAX_REDIRECTS = 10
PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Status codes of temporary errors."""
REDIRECTS = frozenset((301, 302, 303, 307, 308))
COMPLETE = (200, 203)
"""Status codes of answers with a whole file. 202 and 204, for example, say that there is no file, or none yet."""
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_BEYOND_ASCII = re.compile("[\x80-\xff]")


@dataclass(frozen=True)
class Head:
    """Size, version and content type of a file, as an HTTP server reports them."""

    size: int
    """Bytes of the whole file."""
    version: str
    """Strong ETag, else Last-Modified, for `If-Range`; empty if the server sends neither."""
    has_ranges: bool
    """Whether the server supports range requests."""
    is_page: bool
    """Whether the content is HTML."""


class HttpClient:
    """HTTP client for downloads; safe for threads. Uses the proxies and certificates of the environment.

    Methods send one request and raise StoreError: Busy if the same request may succeed later, Missing, Forbidden, or
    Changed if the server has another version of the file.
    """

    def __init__(self) -> None:
        self._connections = Connections(os.environ, CHECK_HOST, "SSL_CERT_FILE")

    def head(self, url: Url) -> Head:
        """Returns size and version of a file. Sends GET for the first byte, because presigned URLs often refuse
        HEAD.
        """
        with self._answered(url, {"range": "bytes=0-0"}) as answer:
            found = _head_of(answer, url)
            if answer.length == 1:
                answer.read()  # the byte is read so that the connection can be reused
            return found

    def read(self, url: Url, max_bytes: int) -> bytes:
        """Returns the content of a small file, such as a list."""
        with self._answered(url, {}) as answer:
            if answer.length is None and not answer.chunked:
                raise StoreError("the server does not state the size of the file", str(url))
            data: bytes = answer.read(max_bytes + 1)
            if len(data) > max_bytes:
                raise TooLarge(f"it has more than {max_bytes:,} bytes", str(url))
            if answer.length:  # `http.client` returns what came before the connection broke
                raise http.client.IncompleteRead(data, answer.length)
        return data

    def stream(self, url: Url, head: Head, start: int, length: int, piece_bytes: int) -> Iterator[bytes]:
        """Yields bytes of the file that `head` describes, read by one request, in pieces of at most `piece_bytes`.

        A server without range requests sends the whole file; the bytes before `start` are then discarded.
        """
        fields = {}
        if length < head.size and head.has_ranges:
            fields["range"] = f"bytes={start}-{start + length - 1}"
            if head.version:
                fields["if-range"] = head.version
        with self._answered(url, fields) as answer:
            found, at = _head_of(answer, url), _start_of(answer)
            if (found.size, found.version) != (head.size, head.version) or at > start:
                raise Changed("the file has changed on the server", str(url))
            while at < start + length:
                piece = answer.read(min(piece_bytes, start + length - at))
                if not piece:
                    raise http.client.IncompleteRead(b"", start + length - at)
                if (skipped := max(0, start - at)) < len(piece):
                    yield piece[skipped:]
                at += len(piece)

    @contextmanager
    def _answered(self, url: Url, fields: Mapping[str, str]) -> Iterator[Response]:
        """Sends GET, follows redirects, and yields the successful response; the caller's block reads its body."""
        at = url
        for _ in range(MAX_REDIRECTS + 1):
            answer, kept = self._asked(at, fields)
            if answer.status not in REDIRECTS:
                break
            answer.close()
            at = _redirected(url, at, answer.fields.get("location", ""))
        else:
            raise StoreError(f"the server redirects more than {MAX_REDIRECTS} times", str(url))
        try:
            with answer:
                is_asked = answer.status in COMPLETE or (answer.status == 206 and "range" in fields)
                if not is_asked and not _is_empty(answer):
                    raise self._refusal(url, at, answer)
                yield answer
        except StoreError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Busy(f"the connection broke: {words_of(error)}", str(url)) from error
        if answer.length == 0 and not answer.will_close:
            self._connections.keep(kept)

    def _asked(self, url: Url, fields: Mapping[str, str]) -> tuple[Response, Kept]:
        """Sends one GET. Returns the response and its connection, which may be reused once the body was read."""
        self._connections.wait(url.host)
        sent = {"host": url.host, "user-agent": "windlass", "accept": "*/*", "accept-encoding": "identity", **fields}
        if url.authorization:
            sent["authorization"] = url.authorization
        where = url.scheme == "https", url.host
        return self._connections.ask(where, "GET", url.target, sent, what=str(url), seconds=SECONDS)

    def _refusal(self, url: Url, at: Url, answer: Response) -> StoreError:
        status, what = answer.status, str(url)
        where = "" if at.host == url.host else f", after a redirect to {at.host}"
        said = f"the server answers {status} {http.client.responses.get(status, '')}".rstrip() + where
        if status in PASSING:
            self._connections.pause(at.host, answer.fields.get("retry-after", ""), time.time())
            return Busy(said, what)
        if status in (404, 410):
            return Missing(said, what, "check the URL")
        if status == 407:
            return Misconfigured("the proxy of the environment asks for a login", what, "set it in HTTP_PROXY")
        if status in (401, 403):
            words = f"{said}: it may need a login, or the URL may have expired"
            return Forbidden(words, what, "check the login, or make a new presigned URL")
        if status == 412:
            return Changed(said, what)
        return StoreError(said, what)


def _redirected(first: Url, at: Url, location: str) -> Url:
    """Returns the target of a redirect. Raises StoreError if the redirect is not allowed."""
    if not location:
        raise StoreError("the server redirects, and names no address", str(first))
    try:
        # Bytes beyond ASCII, which headers may have as UTF-8, are requested as they were sent.
        found = at.joined(_BEYOND_ASCII.sub(lambda char: f"%{ord(char[0]):02X}", location))
    except ValueError:
        raise StoreError("the server redirects to an address that is not http or https", str(first)) from None
    if (at.scheme, found.scheme) == ("https", "http"):
        raise StoreError(f"the server redirects from https to http, at {found.host}", str(first))
    return found


def _head_of(answer: Response, url: Url) -> Head:
    fields = answer.fields
    tag = fields.get("etag", "")
    version = tag if tag.startswith('"') else fields.get("last-modified", "")
    is_page = fields.get("content-type", "").partition(";")[0].strip().lower() == "text/html"
    if answer.status in (206, 416):
        found = _RANGE.fullmatch(fields.get("content-range", ""))
        size = found[3] if found else ""
    else:
        size = "" if answer.length is None else str(answer.length)
    if not size:
        raise StoreError("the server does not state the size of the file", str(url))
    return Head(int(size), version, answer.status in (206, 416), is_page)


def _start_of(answer: Response) -> int:
    found = _RANGE.fullmatch(answer.fields.get("content-range", "")) if answer.status == 206 else None
    return int(found[1] or 0) if found else 0


def _is_empty(answer: Response) -> bool:
    """Whether a response shows an empty file, for which the range of the first byte is not satisfiable."""
    return answer.status == 416 and answer.fields.get("content-range", "").strip() == "bytes */0"
