"""TLS inside another TLS connection, for an https server behind an https proxy; `ssl` does not support this."""

from __future__ import annotations

import io
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

PIECE_BYTES: Final = 1 << 14
"""Largest payload of a TLS record, in bytes."""


class NestedTls:
    """Socket-like object with the methods that `http.client` and `websocket` use. One thread may read while another
    writes.
    """

    def __init__(self, outer: ssl.SSLSocket, tls: ssl.SSLContext, name: str) -> None:
        """Makes the inner TLS handshake. Raises OSError (ssl.SSLError, TimeoutError)."""
        self._outer = outer
        self._lock = threading.Lock()
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._received, self._to_send, server_hostname=name)
        self._io_refs = 0
        self._is_closed = False
        self._done(self._tls.do_handshake)
        self.fileno, self.settimeout, self.gettimeout = outer.fileno, outer.settimeout, outer.gettimeout
        self.setsockopt, self.shutdown = outer.setsockopt, outer.shutdown

    def sendall(self, data: Any) -> None:
        """Sends all data, like `socket.sendall`."""
        view = memoryview(data)
        while len(view):
            view = view[self.send(view) :]

    def send(self, data: Any) -> int:
        """Sends data, like `socket.send`."""
        return int(self._done(lambda: self._tls.write(data)))

    def recv(self, size: int) -> bytes:
        """Receives data, like `socket.recv`."""
        data = bytearray(size)
        return bytes(data[: self.recv_into(data)])

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        """Receives data into a buffer, like `socket.recv_into`."""
        try:
            return int(self._done(lambda: self._tls.read(size or len(buffer), buffer)))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a readable file; as with a socket, the connection is closed once all of its files are closed."""
        file: Any = socket.SocketIO
        self._io_refs += 1
        return io.BufferedReader(file(self, "r"))

    def close(self) -> None:
        """Closes the connection, like `socket.close`."""
        self._is_closed = True
        if self._io_refs <= 0:
            self._outer.close()

    def _decref_socketios(self) -> None:
        """Decrements the count of open files; `socket.SocketIO` calls it when it is closed."""
        self._io_refs -= 1
        if self._is_closed:
            self.close()

    def _done(self, step: Callable[[], Any]) -> Any:
        """Runs a step of the inner connection, moves encrypted bytes until it completes, and returns its result."""
        while True:
            is_done, result = True, None
            with self._lock:
                try:
                    result = step()
                except ssl.SSLWantReadError:
                    is_done = False
                finally:
                    if waiting := self._to_send.read():
                        self._outer.sendall(waiting)
            if is_done:
                return result
            if data := self._outer.recv(PIECE_BYTES):
                self._received.write(data)
            else:
                self._received.write_eof()
