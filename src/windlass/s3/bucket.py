"""Requests to one bucket of S3, or of a compatible store: signed, repeated while the store is busy."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from windlass.s3 import answer as answers
from windlass.s3.answer import Body, ask
from windlass.s3.credentials import Credentials
from windlass.s3.errors import (
    CHECK_CREDENTIALS,
    Busy,
    Changed,
    Denied,
    Missing,
    MissingBucket,
    NoAnswer,
    StoreError,
)
from windlass.s3.proxy import Route, connect, proxy_of
from windlass.s3.retry import repeated
from windlass.s3.signature import path_of, query_of, signed

SECONDS = 20
"""Without a byte, after which a request is repeated."""
PASSING = frozenset(
    ("SlowDown", "Throttling", "RequestTimeout", "InternalError", "ServiceUnavailable", "RequestTimeTooSkewed")
)
"""Codes of errors that pass."""
OF_KEYS = frozenset(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"))
"""Codes of errors of credentials, which S3 answers with 400."""
REGION_HEADER = "x-amz-bucket-region"
PAYLOAD_HEADER = "x-amz-content-sha256"
"""SHA-256 of the body, which a caller may have already."""
_REGION = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True)
class Answer:
    """What the store has answered."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


class _Kept:
    """A connection that a thread uses again; it closes with the last one who has it."""

    def __init__(self, of: tuple[int, bool, str], route: Route) -> None:
        self.of = of
        """The process that made it, whether it is by TLS, and the host."""
        self.route = route

    def __del__(self) -> None:
        self.route.connection.close()


class Bucket:
    """One bucket; safe for threads, forks and pickling. Endpoint, region and keys are those of the environment.

    Its methods raise StoreError, which is an OSError.
    """

    def __init__(
        self, name: str, environ: Mapping[str, str] | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        environ = os.environ if environ is None else environ
        self.name = name
        self._credentials = Credentials(environ, f"s3://{name}")
        self._region = self._credentials.region
        self._endpoint = self._credentials.endpoint
        if self._endpoint and urlsplit(self._endpoint).scheme not in ("http", "https"):
            raise StoreError(
                22, "AWS_ENDPOINT_URL_S3 is no URL: write http://host:port or https://host", self._endpoint
            )
        self._cafile = environ.get("AWS_CA_BUNDLE") or None
        self._context: ssl.SSLContext | None = None
        """Made once: reading the certificates takes longer than a request."""
        self._environ = environ
        self._sleep = sleep
        self._local = threading.local()
        self._has_answered = False
        """Whether its store has, ever: then it is at this address."""

    def __reduce__(self) -> Any:
        return Bucket, (self.name,)

    def close(self) -> None:
        """Close the connection of this thread; the next request makes another one."""
        self._local.kept = None

    def send(
        self, method: str, key: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        body: Body = b"",
    ) -> Answer:  # fmt: skip
        """The answer to a request about an object, or with an empty `key` about the bucket; repeated while the store is
        busy. Raises Missing, Denied, Changed where a condition of the headers does not hold, Busy, and StoreError.
        """
        return repeated(lambda: self.send_once(method, key, query, headers, body), sleep=self._sleep)

    def send_once(
        self, method: str, key: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        body: Body = b"",
    ) -> Answer:  # fmt: skip
        """The same without a second try: it goes to the region that the bucket names."""
        with self._answered(method, key, query or {}, headers or {}, body) as answer:
            return Answer(answer.status, answer.fields, answer.read())

    def stream(self, key: str, headers: Mapping[str, str], piece_bytes: int) -> Iterator[bytes]:
        """The bytes of an object as they come, in pieces of this size, by one request that is not repeated.

        Raises StoreError as `send` does, Busy also where the connection breaks in between.
        """
        with self._answered("GET", key, {}, headers, b"") as answer:
            while piece := answer.read(piece_bytes):
                yield piece
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)

    @contextmanager
    def _answered(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> Iterator[answers.Answer]:  # fmt: skip
        """An answer without an error, whose body is still to be read: to its end, in the block."""
        answer, kept = self._asked(method, key, query, headers, body)
        region = answer.fields.get(REGION_HEADER)
        if answer.status in (301, 307, 400) and region != self._region and _REGION.fullmatch(region or ""):
            answer.close()
            self._region = str(region)
            answer, kept = self._asked(method, key, query, headers, body)
        try:
            with answer:
                if answer.status < 300:
                    yield answer
                    refusal = None
                else:
                    refusal = self._refusal(key, answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise Busy(f"the connection broke: {type(error).__name__} {error}", f"s3://{self.name}/{key}") from error
        if not answer.will_close:
            self._local.kept = kept
        if refusal is not None:
            raise refusal

    def _asked(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> tuple[answers.Answer, _Kept]:  # fmt: skip
        """The head of an answer, and its connection, which is not this thread's again before the body is read."""
        secure, host, base = self._where()
        path, words = f"{base}/{path_of(key)}", query_of(query)
        # The store refuses a body that is not the one which was signed.
        payload = headers.get(PAYLOAD_HEADER) or hashlib.sha256(body).hexdigest()
        asked = signed(self._credentials.keys(), self._region, host, method, path, words, headers, payload)
        target = f"{path}?{words}" if words else path
        while True:
            kept, is_fresh = self._connection(secure, host)
            route = kept.route
            login = {"proxy-authorization": route.authorization} if route.authorization else {}
            try:
                answer = ask(route.connection, method, f"{route.base}{target}", {**asked, **login}, body)
            except ssl.SSLCertVerificationError as error:
                raise StoreError(5, f"its certificate is not trusted; see AWS_CA_BUNDLE: {error}", host) from error
            except (OSError, http.client.HTTPException) as error:
                if is_fresh:
                    is_silent = isinstance(error, (ConnectionRefusedError, TimeoutError, socket.gaierror))
                    kind = NoAnswer if is_silent and not self._has_answered else Busy
                    raise kind(f"it does not answer: {type(error).__name__} {error}", host) from error
                # Else the store has closed a connection that was idle.
            else:
                self._has_answered = True
                return answer, kept

    def _where(self) -> tuple[bool, str, str]:
        """Whether it is by TLS, the host, and what begins the path."""
        if self._endpoint:
            parts = urlsplit(self._endpoint)
            return parts.scheme == "https", parts.netloc, f"{parts.path.rstrip('/')}/{self.name}"
        domain = f"s3.{self._region}.amazonaws.com{'.cn' if self._region.startswith('cn-') else ''}"
        if "." in self.name:  # the certificate has no names below the bucket's
            return True, domain, f"/{self.name}"
        return True, f"{self.name}.{domain}", ""

    def _connection(self, secure: bool, host: str) -> tuple[_Kept, bool]:
        """The connection of this thread, and whether it is new; one that a parent has opened is the parent's.

        It is taken from the thread: a generator that is left in the middle of a body must leave none of it there.
        """
        kept = getattr(self._local, "kept", None)
        self._local.kept = None
        if kept is not None and kept.of == (os.getpid(), secure, host):
            return kept, False
        if secure and self._context is None:
            self._context = ssl.create_default_context(cafile=self._cafile)
        try:
            route = connect(host, secure, SECONDS, self._context, proxy_of(self._environ, host, secure))
        except ValueError as error:  # its words have no password
            raise StoreError(22, f"the proxy of the environment cannot be used: {error}", host) from None
        return _Kept((os.getpid(), secure, host), route), True

    def _refusal(self, key: str, status: int, body: bytes) -> StoreError:
        what = f"s3://{self.name}/{key}"
        try:
            root = ElementTree.fromstring(body)
            code, words = root.findtext("Code") or "", root.findtext("Message") or ""
        except ElementTree.ParseError:
            code, words = "", ""
        said = f"the store answered {status} {code} {words}".rstrip()
        if (status >= 500 and status != 501) or status == 429 or code in PASSING:
            return Busy(said, what)
        if code == "NoSuchBucket":
            return MissingBucket(f"there is no bucket {self.name}", what)
        if status == 404:
            return Missing(said, what)
        if status in (401, 403) or code in OF_KEYS:
            return Denied(f"{said}; {CHECK_CREDENTIALS}", what)
        if status in (409, 412):
            return Changed(said, what)
        return StoreError(5, said, what)
