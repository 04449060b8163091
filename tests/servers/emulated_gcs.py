"""An emulation of Google Cloud Storage on loopback: requests of its XML API, passed on to an S3 server.

The XML API is that of S3 but for the credentials: requests come without any here, and are passed on signed. What the
service does and this does not: it checks no credentials and no permissions, keeps no generations of objects and no
CRC32C, has no quotas, and its limits, error texts and ETags are those of the S3 server.
https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.servers.s3 import REGION, S3Server

CHUNK_BYTES = 1 << 16
ASKED = ("Content-Type", "Range", "If-Match", "If-None-Match")
"""Headers of a request that are passed on."""
ANSWERED = ("Content-Length", "Content-Range", "Content-Type", "ETag", "Last-Modified", "Accept-Ranges")
"""Headers of an answer that are passed back."""


@dataclass(frozen=True)
class EmulatedGcs:
    """A server that runs. A bucket is one of the S3 server behind it."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environ(self, endpoint: str = "") -> dict[str, str]:
        """What clients of obstore read; `endpoint` may be that of a proxy."""
        account = {
            "gcs_base_url": endpoint or self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}


@contextmanager
def emulated_gcs(behind: S3Server, secret_key: str = "") -> Iterator[EmulatedGcs]:
    """A server before an S3 server; it ends with the block. With another `secret_key`, all requests are refused."""
    signer = _Signer(Credentials(behind.access_key, secret_key or behind.secret_key), "s3", REGION)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with suppress(OSError, HTTPException):  # either side was killed
                _pass_on(self, behind, signer)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - the names that the library calls

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield EmulatedGcs(server.server_port)
        finally:
            server.shutdown()
            thread.join()


class _Signer(S3SigV4Auth):  # type: ignore[misc]
    """Leaves the body out of the signature: it is not read before it is sent."""

    def payload(self, _request: AWSRequest) -> str:
        return "UNSIGNED-PAYLOAD"


def _pass_on(handler: BaseHTTPRequestHandler, behind: S3Server, signer: _Signer) -> None:
    # Closed after this request, unless all of it goes well: what follows a body that was cut off is no request.
    is_last, handler.close_connection = handler.close_connection, True
    connection = HTTPConnection(behind.host, behind.port, timeout=120)
    try:
        request = _request(handler, behind)
        signer.add_auth(request)
        _send(handler, request, connection)
        handler.close_connection = not _answer(handler, connection.getresponse()) or is_last
    finally:
        connection.close()


def _request(handler: BaseHTTPRequestHandler, behind: S3Server) -> AWSRequest:
    asked = {name: handler.headers[name] for name in ASKED if name in handler.headers}
    if handler.headers.get("x-goog-if-generation-match") == "0":  # there is no such object
        asked["If-None-Match"] = "*"
    return AWSRequest(handler.command, f"{behind.endpoint}{_canonical(handler.path)}", asked)


def _send(handler: BaseHTTPRequestHandler, request: AWSRequest, connection: HTTPConnection) -> None:
    left = int(handler.headers.get("Content-Length") or 0)
    connection.putrequest(handler.command, _canonical(handler.path), skip_accept_encoding=True)
    for name, value in request.headers.items():
        connection.putheader(name, value)
    if handler.command in ("PUT", "POST"):
        connection.putheader("Content-Length", str(left))
    connection.endheaders()
    while left:
        data = handler.rfile.read(min(left, CHUNK_BYTES))
        if not data:
            raise ConnectionAbortedError("the body was cut off")
        connection.send(data)
        left -= len(data)


def _answer(handler: BaseHTTPRequestHandler, answer: HTTPResponse) -> bool:
    """Whether the client knows where the answer ends."""
    handler.send_response(answer.status)
    for name in ANSWERED:
        if (value := answer.getheader(name)) is not None:
            handler.send_header(name, value)
    has_end = answer.status == 204 or answer.getheader("Content-Length") is not None
    if not has_end:
        handler.send_header("Connection", "close")
    handler.end_headers()
    while data := answer.read(CHUNK_BYTES):
        handler.wfile.write(data)
    return has_end


def _canonical(target: str) -> str:
    """A path and query as they are signed: percent-encoded in the one way that AWS prescribes."""
    parts = urlsplit(target)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True))
    path = quote(unquote(parts.path), safe="/-_.~")
    return f"{path}?{urlencode(query, quote_via=quote, safe='-_.~')}" if query else path
