"""An HTTP server on loopback that serves files with ranges, and that cuts, refuses or changes what it is told to."""

from __future__ import annotations

import hashlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Get:
    """A request that came."""

    name: str
    range: str
    """Its header; empty where there is none."""
    if_range: str
    query: str = ""
    authorization: str = ""


@dataclass(frozen=True)
class Reply:
    """What is done instead of sending the file."""

    status: int = 0
    """Sent instead of the file."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with it."""
    cut_after: int | None = None
    """Bytes of this answer after which the connection is closed."""
    ignores_range: bool = False
    ignores_if_range: bool = False
    states: int | None = None
    """Length of the file that is stated, if not its own."""
    says_part: bool = False
    """Whether a whole file is sent as a part of itself."""
    has_version: bool = True
    """Whether an ETag is sent."""


PLAIN = Reply()


@dataclass
class FileHost:
    """Files by name, and what has been asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    reply: Callable[[Get], Reply] = lambda _get: PLAIN
    """Asked for each request, in the thread of its connection."""
    sent: Callable[[int], None] = lambda _num_bytes: None
    """Called with all bytes of files that were sent so far, after each piece."""
    gets: list[Get] = field(default_factory=list)
    connects: int = 405
    """Status of the answer to CONNECT, which is sent to a proxy."""
    num_bytes: int = 0
    """Of files, sent so far."""
    address: str = ""


@contextmanager
def file_host(
    files: dict[str, bytes], tls: ssl.SSLContext | None = None, name: str = "127.0.0.1"
) -> Iterator[FileHost]:
    """A server that ends with the block, at an address of this machine; by TLS, where a context is given."""
    host = FileHost(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, host)

        def do_CONNECT(self) -> None:
            self.send_response(host.connects)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer((name, 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    host.address = f"{'http' if tls is None else 'https'}://{name}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "127.0.0.1"  # a proxy of the environment does not reach this machine
    try:
        yield host
    finally:
        del os.environ["no_proxy"]
        if before is not None:
            os.environ["no_proxy"] = before
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(handler: BaseHTTPRequestHandler, host: FileHost) -> None:
    headers = handler.headers
    path, _, query = handler.path.partition("?")
    get = Get(
        unquote(path.lstrip("/")),
        headers.get("Range", ""),
        headers.get("If-Range", ""),
        query,
        headers.get("Authorization", ""),
    )
    host.gets.append(get)
    reply = host.reply(get)
    data = host.files.get(get.name)
    if reply.status or data is None:
        handler.send_response(reply.status or 404)
        for name, value in (*reply.headers, ("Content-Length", "0")):
            handler.send_header(name, value)
        handler.end_headers()
        return
    tag = f'"{hashlib.md5(data).hexdigest()}"'
    start, end = _span(get, reply, tag, len(data))
    if start >= len(data) > 0:
        handler.send_response(416)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    is_part = (start, end) != (0, len(data)) or reply.says_part
    handler.send_response(206 if is_part else 200)
    if is_part:
        handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
    if reply.has_version:
        handler.send_header("ETag", tag)
    for name, value in (*reply.headers, ("Content-Length", str(reply.states or end - start))):
        handler.send_header(name, value)
    handler.end_headers()
    _send(handler, host, data[start:end][: reply.cut_after])


def _span(get: Get, reply: Reply, tag: str, size: int) -> tuple[int, int]:
    """Which bytes of a file are sent."""
    is_other = get.if_range and get.if_range != tag and not reply.ignores_if_range
    if not get.range or reply.ignores_range or is_other:
        return 0, size
    first, _, last = get.range.removeprefix("bytes=").partition("-")
    return int(first), min(size, int(last) + 1) if last else size


def _send(handler: BaseHTTPRequestHandler, host: FileHost, data: bytes) -> None:
    try:
        for at in range(0, len(data), CHUNK_BYTES):
            piece = data[at : at + CHUNK_BYTES]
            # Counted before it is sent: the client may end, and the count be looked at, as soon as it has this.
            host.num_bytes += len(piece)
            num_bytes = host.num_bytes
            handler.wfile.write(piece)
            host.sent(num_bytes)
    except OSError:
        return  # the client was killed
