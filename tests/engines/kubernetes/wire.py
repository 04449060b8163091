"""Servers on loopback whose connections tests script: plain, with TLS, and proxies in front of them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

NAME: Final = "api.internal"
"""The only name in the server's certificate."""
LOCALHOST: Final = "127.0.0.1"


class Server:
    """Server that calls `talk` for each connection in a thread; `heads` are the headers of received requests."""

    def __init__(self, talk: Callable[[Server, Any], None], tls: ssl.SSLContext | None = None) -> None:
        self._talk, self._tls = talk, tls
        self.heads: list[str] = []
        self.num_connections = 0
        self.num_ended = 0
        """Connections that have ended."""
        self._lock = threading.Lock()
        self._listener = socket.create_server((LOCALHOST, 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def num_open(self) -> int:
        return self.num_connections - self.num_ended

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def requested(self, connection: Any) -> str:
        """Returns the next request with its body; empty at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := connection.recv(65536)):
                return ""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
        while len(body) < length:
            body += connection.recv(65536)
        self.heads.append(head.decode())
        return (head + b"\r\n\r\n" + body).decode()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.num_connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        try:
            with contextlib.suppress(OSError), connection:
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection:
                    self._talk(self, connection)
        finally:
            with self._lock:
                self.num_ended += 1


@contextlib.contextmanager
def serving(talk: Callable[[Server, Any], None], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with contextlib.closing(Server(talk, tls)) as server:
        yield server


def answer(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    """Returns a complete response, after which the connection stays open."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more, "", ""]).encode() + body


def thing(name: str) -> bytes:
    """Returns a response with an object of this name."""
    return answer(json.dumps({"metadata": {"name": name}}).encode())


def echo(server: Server, connection: Any) -> None:
    """Answers each request with an object named like the last part of its path."""
    while request := server.requested(connection):
        connection.sendall(thing(request.split(" ")[1].rpartition("/")[2]))


def pump(source: Any, target: Any) -> None:
    """Copies data until one side ends, then ends the other."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def joined(connection: Any, port: int) -> None:
    """Connects a client of a proxy with a server on this machine until either side ends."""
    with socket.create_connection((LOCALHOST, port)) as behind:
        threading.Thread(target=pump, args=(behind, connection), daemon=True).start()
        pump(connection, behind)


class Authority:
    """Certificate authority with certificates of the server `api.internal`, of a proxy at 127.0.0.1, and of clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openssl(
            "req",
            "-x509",
            *self._key("ca"),
            "-subj",
            "/CN=ca",
            "-days",
            "30",
            "-out",
            "ca.crt",
            "-addext",
            "keyUsage=critical,keyCertSign",
        )
        self.certificate = folder / "ca.crt"
        self.make("server", f"DNS:{NAME}")
        self.make("proxy", f"IP:{LOCALHOST}")

    def make(self, name: str, subject: str = "") -> tuple[bytes, bytes]:
        """Creates a certificate and its key; returns both."""
        self._openssl("req", "-new", *self._key(name), "-subj", f"/CN={name}", "-out", f"{name}.csr")
        # Python 3.13 requires both extensions.
        (self._folder / f"{name}.ext").write_text(
            f"subjectAltName={subject or f'DNS:{name}'}\nauthorityKeyIdentifier=keyid\n"
        )
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", "30", "-extfile", f"{name}.ext", "-out", f"{name}.crt")  # fmt: skip
        return (self._folder / f"{name}.crt").read_bytes(), (self._folder / f"{name}.key").read_bytes()

    def serve(self, name: str = "server") -> ssl.SSLContext:
        """Returns the TLS context of a server that requests client certificates."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        made.load_verify_locations(self.certificate)
        made.verify_mode = ssl.CERT_OPTIONAL
        return made

    def _key(self, name: str) -> list[str]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)
