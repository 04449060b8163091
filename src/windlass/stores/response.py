"""HTTP responses of object stores: `http.client` without its mail header parser, a quarter of the time of a
small read.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable

from windlass.stores.store import Body

Sent = Callable[[int], object]
"""Called with the number of bytes sent, after each piece of a request body."""
PIECE_BYTES = 256 << 10
MAX_LINE_BYTES = 64 << 10
MAX_HEADERS = 200
MAX_DIGITS = 18
"""Digits of the largest size that is read; Python refuses to parse numbers of over 4,300."""


class Response(http.client.HTTPResponse):
    """HTTP response whose headers are a dict with lower-case names; `http.client` reads the body."""

    is_for_head = False
    """Whether this is the response to a HEAD request, which has no body whatever its headers say."""

    def begin(self) -> None:
        """Reads the status line and the headers. Raises HTTPException, OSError."""
        version, self.status = self._first_line()
        found: dict[str, str] = {}
        num_lines = 0
        while (line := self._line()) not in ("", "\n"):
            name, colon, value = line.partition(":")
            num_lines += 1
            if not colon or num_lines > MAX_HEADERS:
                raise http.client.HTTPException("its headers cannot be read")
            found[name.strip().lower()] = value.strip()
        self.fields = found
        self.version = 11
        self.will_close = version == "HTTP/1.0" or found.get("connection", "").lower() == "close"
        self.chunked = found.get("transfer-encoding", "").lower() == "chunked"
        self.chunk_left: int | None = None
        length = found.get("content-length", "")
        is_length = length.isdecimal() and len(length) <= MAX_DIGITS and not self.chunked
        self.length = int(length) if is_length else None
        if self.status in (204, 304) or self.is_for_head:
            self.length = 0
        self.will_close |= self.length is None and not self.chunked

    def _first_line(self) -> tuple[str, int]:
        line = self._line()
        if not line:
            raise http.client.RemoteDisconnected("the connection was closed without an answer")
        version, _, rest = line.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal() or int(code) < 200:
            raise http.client.BadStatusLine(line[:80])
        return version, int(code)

    def _line(self) -> str:
        line: bytes = self.fp.readline(MAX_LINE_BYTES + 1)
        if len(line) > MAX_LINE_BYTES:
            raise http.client.LineTooLong("header line")
        return line.decode("latin-1").replace("\r\n", "\n")


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    headers: dict[str, str],
    body: Body,
    sent: Sent | None = None,
) -> Response:
    """Sends a request and reads the status and headers of the response. Raises HTTPException, OSError."""
    if connection.sock is None:
        connection.connect()
    length = {"content-length": str(len(body))} if method in ("PUT", "POST") else {}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **length}.items())]
    connection.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    broken = _broken(connection.sock, body, sent) if len(body) else None
    answer = Response(connection.sock, method=method)
    answer.is_for_head = method == "HEAD"
    try:
        answer.begin()
    except BaseException as error:
        answer.close()
        if broken is not None and isinstance(error, Exception):
            raise broken from error
        raise
    answer.will_close |= broken is not None
    return answer


def _broken(sock: socket.socket, body: Body, sent: Sent | None) -> OSError | None:
    """Sends the body of a request. Returns the error if the connection breaks, else None.

    A store may refuse a request by its headers, respond, and close the connection before it has read the body.
    """
    try:
        view, piece_bytes = memoryview(body), PIECE_BYTES if sent is not None else len(body)
        for at in range(0, len(body), piece_bytes):
            piece = view[at : at + piece_bytes]
            sock.sendall(piece)
            if sent is not None:
                sent(len(piece))
    except socket.timeout:  # noqa: UP041 - they are two before Python 3.10
        raise
    except OSError as error:
        return error
    return None
