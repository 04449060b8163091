"""Objects below a prefix of an S3 bucket, by the standard library alone.

obstore's threads do not survive a fork, and a DataLoader forks its workers: a request in a worker would wait for ever.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus, urlsplit
from xml.etree import ElementTree

from windlass.train.stream.answer import ask
from windlass.train.stream.credentials import Credentials
from windlass.train.stream.errors import Busy, SourceChanged, StreamError
from windlass.train.stream.retry import repeated
from windlass.train.stream.sigv4 import path_of, query_of, signed
from windlass.train.stream.source import OWN, Object, Source, changed

SECONDS = 20
"""Without a byte, after which a request is repeated."""
PASSING = {"SlowDown", "Throttling", "RequestTimeout", "InternalError", "ServiceUnavailable", "RequestTimeTooSkewed"}
"""Codes of errors that pass."""
REGION_HEADER = "x-amz-bucket-region"
_REGION = re.compile(r"[a-z0-9-]{1,40}")


class _Kept:
    """A connection that is closed with the thread that has it."""

    def __init__(self, of: tuple[int, bool, str], connection: http.client.HTTPConnection) -> None:
        self.of, self.connection = of, connection

    def __del__(self) -> None:
        self.connection.close()


class S3Source(Source):
    """Objects below a prefix; safe for threads, forks and pickling. Credentials and endpoint are of the environment."""

    def __init__(self, bucket: str, prefix: str, environ: Mapping[str, str] = os.environ) -> None:
        """Raises StreamError for an endpoint that is none."""
        self.address = f"s3://{bucket}/{prefix}/" if prefix else f"s3://{bucket}/"
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._credentials = Credentials(environ)
        self._region = self._credentials.region
        self._endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        if self._endpoint and urlsplit(self._endpoint).scheme not in ("http", "https"):
            raise StreamError(f"AWS_ENDPOINT_URL_S3={self._endpoint}: write http://host:port or https://host")
        self._cafile = environ.get("AWS_CA_BUNDLE") or None
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return S3Source, (self._bucket, self._prefix.rstrip("/"))

    # -- what is there ------------------------------------------------------------------------------------------------

    def objects(self) -> list[Object]:
        """See `Source`."""
        found = [one for page in self._pages() for one in page]
        return sorted((one for one in found if not one.name.startswith(f"{OWN}/")), key=lambda one: one.name)

    def _pages(self) -> Iterator[list[Object]]:
        token = ""
        while True:
            query = {"list-type": "2", "prefix": self._prefix, "encoding-type": "url"}
            if token:
                query["continuation-token"] = token
            page, token = repeated(lambda query=query: self._page(query))  # type: ignore[misc]
            yield page
            if not token:
                return

    def _page(self, query: Mapping[str, str]) -> tuple[list[Object], str]:
        status, _, body = self._get("", query, {})
        try:
            root = ElementTree.fromstring(body)
        except ElementTree.ParseError as error:
            raise Busy(f"{self.address}: the listing was cut off") from error
        if status != 200:
            raise self._refusal(self.address, status, body)
        space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
        try:
            page = list(_entries(root, space, self._prefix))
            token = root.findtext(f"{space}NextContinuationToken") or ""
            if root.findtext(f"{space}IsTruncated") == "true" and not token:
                raise ValueError("it is truncated, and has no token")
        except (KeyError, ValueError) as error:
            raise StreamError(f"{self.address}: the listing is not that of S3: {error}") from error
        return page, token if root.findtext(f"{space}IsTruncated") == "true" else ""

    # -- reads --------------------------------------------------------------------------------------------------------

    def read(self, one: Object, start: int, length: int) -> bytes:
        """See `Source`."""
        what = f"{self.address}{one.name}"
        headers = {"range": f"bytes={start}-{start + length - 1}"} if length < one.size else {}
        if one.version.startswith('"'):
            headers["if-match"] = one.version
        status, answer, body = self._get(self._prefix + one.name, {}, headers)
        if status == 404:
            raise SourceChanged(f"{what} was removed since the stream was opened")
        if status == 412 or (status < 300 and one.version.startswith('"') and answer.get("etag") != one.version):
            raise changed(what)
        if status not in (200, 206):
            raise self._refusal(what, status, body)
        if len(body) != length:
            raise changed(what) if status == 200 else Busy(f"{what}: {length} bytes were asked for, {len(body)} came")
        return body

    def read_own(self, name: str) -> bytes | None:
        """See `Source`."""
        return repeated(lambda: self._own(f"{self._prefix}{OWN}/{name}"))

    def _own(self, key: str) -> bytes | None:
        status, _, body = self._get(key, {}, {})
        if status == 404:
            if b"NoSuchBucket" in body:
                raise StreamError(f"{self.address}: there is no bucket {self._bucket}")
            return None
        # Without the right to list a bucket, S3 answers 403 for a key that is not there: the listing reports it.
        if status == 403:
            return None
        if status != 200:
            raise self._refusal(f"s3://{self._bucket}/{key}", status, body)
        return body

    # -- one request --------------------------------------------------------------------------------------------------

    def _get(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of an answer; the request goes to the region that the bucket names."""
        status, answer, body = self._send(key, query, headers)
        region = answer.get(REGION_HEADER)
        if status in (301, 307, 400) and region and region != self._region and _REGION.fullmatch(region):
            self._region = region
            status, answer, body = self._send(key, query, headers)
        return status, answer, body

    def _send(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        secure, host, base = self._where()
        path, words = f"{base}/{path_of(key)}", query_of(query)
        asked = signed(self._credentials.keys(), self._region, host, path, words, headers)
        target = f"{path}?{words}" if words else path
        while True:
            connection, is_fresh = self._connection(secure, host)
            try:
                with ask(connection, target, asked) as answer:
                    body = answer.read()
            except ssl.SSLCertVerificationError as error:
                raise StreamError(f"{host}: its certificate is not trusted; see AWS_CA_BUNDLE: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if is_fresh:
                    raise Busy(f"{host} does not answer: {type(error).__name__} {error}") from error
                continue  # the store has closed a connection that was idle
            if answer.will_close:
                self._drop()
            return answer.status, answer.fields, body

    def _where(self) -> tuple[bool, str, str]:
        """Whether it is by TLS, the host, and what begins the path."""
        if self._endpoint:
            parts = urlsplit(self._endpoint)
            return parts.scheme == "https", parts.netloc, f"{parts.path.rstrip('/')}/{self._bucket}"
        domain = f"s3.{self._region}.amazonaws.com{'.cn' if self._region.startswith('cn-') else ''}"
        if "." in self._bucket:  # the certificate has no names below the bucket's
            return True, domain, f"/{self._bucket}"
        return True, f"{self._bucket}.{domain}", ""

    def _connection(self, secure: bool, host: str) -> tuple[http.client.HTTPConnection, bool]:
        """The connection of this thread, and whether it is new; one that a parent has opened is the parent's."""
        of = (os.getpid(), secure, host)
        kept: _Kept | None = getattr(self._local, "kept", None)
        if kept is not None and kept.of == of:
            return kept.connection, False
        made = http.client.HTTPConnection(host, timeout=SECONDS)
        if secure:
            context = ssl.create_default_context(cafile=self._cafile)
            made = http.client.HTTPSConnection(host, timeout=SECONDS, context=context)
        self._local.kept = _Kept(of, made)
        return made, True

    def _drop(self) -> None:
        self._local.kept = None

    def _refusal(self, what: str, status: int, body: bytes) -> StreamError:
        try:
            root = ElementTree.fromstring(body)
            code, words = root.findtext("Code") or "", root.findtext("Message") or ""
        except ElementTree.ParseError:
            code, words = "", ""
        said = f"{what}: the store answered {status} {code} {words}".rstrip()
        if status >= 500 or status == 429 or code in PASSING:
            return Busy(said)
        if code == "NoSuchBucket":
            return StreamError(f"{what}: there is no bucket {self._bucket}")
        if status in (401, 403):
            return StreamError(f"{said}; check the credentials, and what they may do")
        return StreamError(said)


def _entries(root: ElementTree.Element, space: str, prefix: str) -> Iterator[Object]:
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    read: Callable[[str], str] = unquote_plus if is_encoded else str
    for one in root.iterfind(f"{space}Contents"):
        found = {child.tag[len(space) :]: child.text or "" for child in one}
        key, size = read(found["Key"]), int(found["Size"])
        # An empty object whose key ends with a slash stands for a folder, in the consoles of stores.
        if key.startswith(prefix) and not (key.endswith("/") and not size):
            yield Object(key[len(prefix) :], size, found.get("ETag") or found["LastModified"])
