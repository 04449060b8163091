"""A service behind a forward: a real server on loopback with TLS, and clients that send raw requests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from windlass.errors import EngineError
from windlass.services.certificates import Credentials, new_credentials

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
Answer = Callable[[socket.socket, bytes], None]
"""Called with a connection, and what was received up to the end of the head."""


def say_hello(connection: socket.socket, _head: bytes) -> None:
    connection.sendall(OK)


class Service:
    """Accepts connections, keeps all heads of requests, and answers them."""

    def __init__(self, folder: Path, answer: Answer = say_hello, *, is_tls: bool = True) -> None:
        self.credentials: Credentials = new_credentials("test", time.time(), time.time() + 3600)
        folder.mkdir(exist_ok=True)
        for name, data in self.credentials.files().items():
            (folder / name).write_bytes(data)
        self.answer = answer
        self.heads: list[bytes] = []
        self.num_connections = 0
        self._tls = None
        if is_tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self) -> socket.socket:
        try:
            return socket.create_connection(self.address)
        except OSError as error:
            raise EngineError(f"nothing listens on port {self.address[1]}") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.num_connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(plain)
            connection = plain
            if self._tls is not None:
                connection = stack.enter_context(self._tls.wrap_socket(plain, server_side=True))
            data = read_head(connection)
            self.heads.append(data)
            self.answer(connection, data)


@contextlib.contextmanager
def service(folder: Path, answer: Answer = say_hello, *, is_tls: bool = True) -> Iterator[Service]:
    made = Service(folder, answer, is_tls=is_tls)
    try:
        yield made
    finally:
        made.close()


def read_head(connection: socket.socket) -> bytes:
    """Reads a head; ends after the first bytes of a TLS handshake, as a server of plain HTTP would."""
    data = b""
    while b"\r\n\r\n" not in data and not data.startswith(b"\x16\x03"):
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
    return data


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 18):
        pieces.append(piece)
    return b"".join(pieces)


def head_of(method: str, path: str, port: int, **headers: str) -> bytes:
    """Returns the head of a request; `_` in names of headers stands for `-`."""
    every = {"host": f"127.0.0.1:{port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items() if value), "", ""]
    return "\r\n".join(lines).encode()


def ask(port: int, head: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """Sends a request to a port of this machine, and returns the status and all that was received."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head + body)
        data = read_all(connection)
    return int(data.split(b" ")[1]) if data else 0, data
