"""Sends signed requests to one bucket of S3 or of a compatible store, each once."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from windlass.stores import response as responses
from windlass.stores.connection import Connections, Kept, unix_seconds, words_of
from windlass.stores.errors import (
    CHECK_CREDENTIALS,
    Altered,
    Busy,
    Changed,
    Denied,
    Forbidden,
    Misconfigured,
    Missing,
    MissingBucket,
    NoLogin,
    StoreError,
    Unconfirmed,
)
from windlass.stores.response import Sent
from windlass.stores.s3.credentials import Credentials
from windlass.stores.s3.signature import path_of, query_of, signed
from windlass.stores.store import Body

SECONDS = 20
"""Socket timeout: a request that receives no byte for this time fails and is repeated."""
PASSING = frozenset(
    ("SlowDown", "Throttling", "RequestTimeout", "InternalError", "ServiceUnavailable", "RequestTimeTooSkewed")
)
"""Error codes of temporary errors."""
OF_KEYS = frozenset(
    ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch")
)
"""Error codes of invalid credentials, some of which S3 sends with status 400."""
ALTERED = frozenset(("BadDigest", "XAmzContentSHA256Mismatch"))
"""Error codes for bodies that differ from the signed checksum."""
CHECK_ENDPOINT = "check the region, AWS_ENDPOINT_URL_S3 and the network"
SKEW_SECONDS = 60.0
"""Clock difference to the store from which a refused request is signed again with the store's time."""
REGION_HEADER = "x-amz-bucket-region"
CHECKSUM_HEADER = "x-amz-checksum-sha256"
PAYLOAD_HEADER = "x-amz-content-sha256"
"""Header with the SHA-256 of the body. Callers that have already computed it set this header."""
_REGION = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class BucketResponse:
    """Response of the store, with its body."""

    status: int
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: bytes


class Bucket:
    """One bucket; safe for threads, forks and pickling. Endpoint, region and credentials come from the environment.

    Each method sends one request. Methods raise StoreError, an OSError; its subclass Busy means that the request may be
    repeated.
    """

    def __init__(self, name: str, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.name = name
        self._credentials = Credentials(environ, f"s3://{name}")
        self._region = self._credentials.region
        self._endpoint = self._credentials.endpoint
        if self._endpoint and urlsplit(self._endpoint).scheme not in ("http", "https"):
            words = "AWS_ENDPOINT_URL_S3 is no URL: write http://host:port or https://host"
            raise Misconfigured(words, self._endpoint)
        self._connections = Connections(environ, CHECK_ENDPOINT, "AWS_CA_BUNDLE")
        self._skew = 0.0
        """Seconds by which the clock of the store is ahead of this machine's."""

    def __reduce__(self) -> Any:
        return Bucket, (self.name,)

    def close(self) -> None:
        """Closes the connection of this thread; the next request opens a new one."""
        self._connections.keep(None)

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        sent: Sent | None = None,
    ) -> BucketResponse:
        """Sends a request about an object, or about the bucket if `key` is empty, in the bucket's region.

        Raises Missing, Denied, Busy, StoreError, and Changed if a conditional header does not match. A PUT carries the
        SHA-256 of its body; raises Unconfirmed if the store does not confirm it, and Altered if another body arrived.
        """
        found = dict(headers or {})
        if method == "PUT":
            found[PAYLOAD_HEADER] = payload = found.get(PAYLOAD_HEADER) or hashlib.sha256(body).hexdigest()
            found[CHECKSUM_HEADER] = b64encode(bytes.fromhex(payload)).decode()
        with self._answered(method, key, query or {}, found, body, sent) as answer:
            made = BucketResponse(answer.status, answer.fields, answer.read())
        if method == "PUT":
            require_stored(
                made.headers.get("etag"),
                made.headers.get(CHECKSUM_HEADER),
                found[CHECKSUM_HEADER],
                f"s3://{self.name}/{key}",
            )
        return made

    def stream(self, key: str, headers: Mapping[str, str], piece_bytes: int) -> Iterator[bytes]:
        """Yields the bytes of an object in pieces of at most `piece_bytes`, by one request.

        Raises StoreError as `send` does, before the first piece, and Busy if the connection breaks during the body.
        """
        with self._answered("GET", key, {}, headers) as answer:
            while piece := answer.read(piece_bytes):
                yield piece
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)

    @contextmanager
    def _answered(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Body = b"",
        sent: Sent | None = None,
    ) -> Iterator[responses.Response]:
        """Yields a successful response with an unread body. The caller's block must read the body to its end."""
        answer, kept = self._asked(method, key, query, headers, body, sent)
        region = answer.fields.get(REGION_HEADER)
        if answer.status in (301, 307, 400) and region != self._region and _REGION.fullmatch(region or ""):
            answer.close()
            self._region = str(region)
            answer, kept = self._asked(method, key, query, headers, body, sent)
        elif answer.status == 403 and self._corrects_clock(answer.fields.get("date", "")):
            answer.close()
            answer, kept = self._asked(method, key, query, headers, body, sent)
        try:
            with answer:
                if answer.status < 300:
                    _require_asked(headers, answer, f"s3://{self.name}/{key}")
                    yield answer
                    refusal = None
                else:
                    refusal = self._refusal(method, key, answer, answer.read())
        except StoreError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Busy(f"the connection broke: {words_of(error)}", f"s3://{self.name}/{key}") from error
        if not answer.will_close:
            self._connections.keep(kept)
        if refusal is not None and method == "HEAD" and answer.status in (400, 403):
            refusal = self._explained(key, refusal)
        if refusal is not None:
            raise refusal

    def _corrects_clock(self, date: str) -> bool:
        """Corrects the signing clock by the `Date` header of a response. Returns whether the clock was wrong."""
        if (found := unix_seconds(date)) is None:
            return False
        skew = found - time.time()
        is_wrong = abs(skew - self._skew) > SKEW_SECONDS
        self._skew = skew if is_wrong else self._skew
        return is_wrong

    def _explained(self, key: str, refusal: StoreError) -> StoreError:
        """Returns the reason why a HEAD was refused. A HEAD response has no body: even an expired token is only status
        400.
        """
        try:
            self.send("GET", key, headers={"range": "bytes=0-0"})
        except Denied as error:
            return error
        except StoreError:
            return refusal
        return refusal

    def _asked(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Body,
        sent: Sent | None,
    ) -> tuple[responses.Response, Kept]:
        """Sends one request. Returns the response and its connection, which is reusable once the body has been read."""
        secure, host, base = self._where()
        self._connections.wait(host)
        path, words = f"{base}/{path_of(key)}", query_of(query)
        # The signed checksum makes the store refuse a body that was altered in transit.
        payload = headers.get(PAYLOAD_HEADER) or hashlib.sha256(body).hexdigest()
        now = time.time() + self._skew
        asked = signed(self._credentials.keys(), self._region, host, method, path, words, headers, payload, now)
        target = f"{path}?{words}" if words else path
        return self._connections.ask((secure, host), method, target, asked, body, sent, what=host, seconds=SECONDS)

    def _where(self) -> tuple[bool, str, str]:
        """Returns whether TLS is used, the host, and the path prefix."""
        if self._endpoint:
            parts = urlsplit(self._endpoint)
            return parts.scheme == "https", parts.netloc, f"{parts.path.rstrip('/')}/{self.name}"
        domain = f"s3.{self._region}.amazonaws.com{'.cn' if self._region.startswith('cn-') else ''}"
        if "." in self.name:  # the wildcard certificate does not match bucket names with dots
            return True, domain, f"/{self.name}"
        return True, f"{self.name}.{domain}", ""

    def _refusal(self, method: str, key: str, answer: responses.Response, body: bytes) -> StoreError:
        what, status = f"s3://{self.name}/{key}", answer.status
        try:
            root = ElementTree.fromstring(body)
            code, words = root.findtext("Code") or "", root.findtext("Message") or ""
        except ElementTree.ParseError:
            code, words = "", ""
        said = f"the store answered {status} {code} {words}".rstrip()
        if (status >= 500 and status != 501) or status == 429 or code in PASSING:
            self._connections.pause(self._where()[1], answer.fields.get("retry-after", ""), time.time() + self._skew)
            return Busy(said, what)
        if code in ALTERED:
            return Altered(f"{said}; the bytes were changed on their way", what)
        if code == "NoSuchBucket":
            return MissingBucket(f"there is no bucket {self.name}", what, "check its name")
        if status == 404:
            return Missing(said, what)
        if key and status == 403 and code not in OF_KEYS:
            return Forbidden(said, what, CHECK_CREDENTIALS)
        if method == "HEAD" and status == 400:
            words = f"{said}, without a reason: the token may have expired"
            return Forbidden(words, what, CHECK_CREDENTIALS)
        if status in (401, 403) or code in OF_KEYS:
            return (NoLogin if code in OF_KEYS else Denied)(said, what, CHECK_CREDENTIALS)
        if status in (409, 412):
            return Changed(said, what)
        return StoreError(said, what)


def _require_asked(asked: Mapping[str, str], answer: responses.Response, what: str) -> None:
    """Compares a response with the `if-match` and `range` of its request, which some servers and caches ignore. Raises
    Changed and Busy.
    """
    etag, found = answer.fields.get("etag"), answer.fields.get("content-range", "")
    if asked.get("if-match", etag) != etag:
        raise Changed("it was written meanwhile", what)
    if "range" in asked:
        begin = asked["range"].replace("=", " ").rpartition("-")[0]
        if answer.status != 206 or not found.startswith(f"{begin}-"):
            came = f"{answer.status} with {found or 'no Content-Range'}"
            raise Busy(f"{asked['range']} was asked for, the store answered {came}", what)


def require_stored(etag: str | None, checksum: str | None, expected: str, what: str) -> None:
    """Compares the checksum confirmed by the store with the SHA-256 that was sent, both in base64. Raises
    Unconfirmed.
    """
    if not etag:
        raise Unconfirmed("the answer has no ETag: a login page or a proxy may have answered; nothing is stored", what)
    if checksum != expected:
        found = f"confirmed the SHA-256 {checksum}" if checksum else "did not confirm the SHA-256"
        raise Unconfirmed(f"the store {found} of what was sent, {expected}: it must return {CHECKSUM_HEADER}", what)


def parsed(answer: BucketResponse, what: str) -> ElementTree.Element:
    """Parses the XML body of a response. Raises Busy if the body is truncated."""
    try:
        # S3 sends spaces before the document while it combines parts.
        return ElementTree.fromstring(answer.body.strip())
    except ElementTree.ParseError as error:
        raise Busy(f"the answer was cut off: {error}", what) from error
