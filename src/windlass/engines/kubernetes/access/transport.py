"""Sends HTTP requests to one server over persistent connections, using only the standard library."""

from __future__ import annotations

import contextlib
import http.client
import select
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Final

from windlass.engines.kubernetes.access.dial import CONNECT_SECONDS, Route

MAX_IDLE: Final = 16
"""Most idle connections that are kept open; more are opened for parallel requests."""
PIECE_BYTES: Final = 1 << 16


class Response:
    """Response to a request. Its body is read once, with `read` or `pieces`; otherwise the response must be closed."""

    def __init__(self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, pool: Pool) -> None:
        self._answer = answer
        self._connection: http.client.HTTPConnection | None = connection
        self._pool = pool
        self.status = answer.status
        self.date = answer.headers.get("Date", "")
        self.has_marked_end = answer.chunked or answer.length is not None
        """Whether a body that was cut off can be detected; without a marked end, the body ends with its connection."""

    def pieces(self) -> Iterator[bytes]:
        """Yields the body as it is received. Raises OSError (TimeoutError), http.client.HTTPException."""
        # An API server marks the end of each body. Without such a mark, the connection was cut within the headers,
        # which `http.client` does not report.
        is_cut = not self.has_marked_end and self._answer.version == 11
        try:
            while piece := self._answer.read1(PIECE_BYTES):
                is_cut = False
                yield piece
            if self._answer.length or is_cut:
                raise http.client.IncompleteRead(b"", self._answer.length)
            self._answer.close()
            kept, self._connection = self._connection, None
            if kept is not None:
                self._pool.keep(kept)
        finally:
            self.close()

    def read(self) -> bytes:
        """Returns the complete body. Raises like `pieces`."""
        return b"".join(self.pieces())

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end: the next request would read the rest."""
        if self._connection is not None:
            self._connection.close()
        self._answer.close()


class Pool:
    """Connections to one server. Thread-safe."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._is_closed = False
        self._prefix = route.server.path
        self._headers = {"Host": route.server.authority, "User-Agent": "windlass"}
        if route.is_forwarded and route.proxy is not None:
            self._prefix = f"http://{route.server.authority}{route.server.path}"
            self._headers |= route.proxy.login
        weakref.finalize(self, _close_all, self._idle)

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        read_seconds: float | None,
        *,
        is_new: bool = False,
    ) -> Response:
        """Sends a request once, over a new connection if `is_new`. Redirects are not followed.

        `read_seconds` is the most seconds without data, for the response and for its body; None is without limit.
        Raises OSError (TimeoutError, DialError), http.client.HTTPException, ValueError.
        """
        connection = (None if is_new else self._idle_connection()) or self._new_connection()
        try:
            connection.sock.settimeout(CONNECT_SECONDS)
            # The server may have responded before it closed the connection: the response is read anyway.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, {**self._headers, **headers})
            connection.sock.settimeout(read_seconds)
            answer = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            connection.close()
            answer.close()
            raise http.client.HTTPException(f"the response is encoded with {encoding}, which was not requested")
        return Response(answer, connection, self)

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keeps an idle connection for a later request, unless the server closes it or enough connections are idle."""
        with self._lock:
            if connection.sock is not None and len(self._idle) < MAX_IDLE and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes idle connections now, and every other connection after its response."""
        with self._lock:
            self._is_closed = True
            _close_all(self._idle)

    def _idle_connection(self) -> http.client.HTTPConnection | None:
        """Returns the most recently used idle connection that the server has not closed, or None."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _is_readable(connection):
                return connection
            connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(self.route.server.host, self.route.server.port)
        made.auto_open = 0
        made.sock = self.route.dial(is_tunnel=False)
        return made


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection has data to read, which means that the server closed it or sent unrequested data."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()
