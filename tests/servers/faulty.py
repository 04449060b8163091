"""A proxy before an S3 server that counts what passes, and that answers for it, cuts or holds up what it is told to."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

CHUNK_BYTES: Final = 1 << 16
SLOW_DOWN: Final = (
    "<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate."
    "</Message><RequestId>0</RequestId></Error>"
)


@dataclass(frozen=True)
class Fault:
    """What is done instead of passing a request on."""

    is_busy: bool = False
    """Answered with 503 SlowDown."""
    cut_after: int | None = None
    """Bytes of body, of the request or of the answer, after which the connection is closed."""
    loses_answer: bool = False
    """The server gets the request, and the client nothing."""
    answer: str = ""
    """Given with 200, as if it were the server's."""


BUSY: Final = Fault(is_busy=True)
PASS: Final = Fault()


@dataclass
class Request:
    """One that came, and what has passed of it."""

    method: str
    target: str
    length: int
    """Of its body."""
    expects: bool = False
    """Whether the client waits for leave to send the body."""
    up: int = 0
    down: int = 0
    """Bytes of body."""
    status: int = 0
    """Of the server's answer; 0 as long as there is none."""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    @property
    def is_data(self) -> bool:
        """Whether it reads or writes an object of a set: no listing, no manifest, no multipart call without data."""
        bucket, _, key = self.path.strip("/").partition("/")
        kinds = set(self.query) - {"x-id", "partNumber", "uploadId"}
        return bool(bucket and key) and "/.windlass/" not in self.path and not kinds and self.method in ("GET", "PUT")


class FaultProxy:
    """Each connection carries one request: the server is asked to close it."""

    def __init__(self, port: int, host: str) -> None:
        self._to = (host, port)
        self.fault: Callable[[Request], Fault] = lambda _request: PASS
        """Asked before each request is passed on; in the thread of its connection."""
        self.passed: Callable[[int], None] = lambda _num_bytes: None
        """Called with all data that has passed so far, after each piece."""
        self.requests: list[Request] = []
        self.num_bytes = 0
        """Of data that has passed, in both directions."""
        self._lock = threading.Lock()
        self._open = 0
        self._listener = socket.create_server((host, 0), backlog=256)
        # What waits in the kernel has passed, as it is counted here, and has not come.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
        self.endpoint = f"http://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def data(self) -> list[Request]:
        with self._lock:
            return [one for one in self.requests if one.is_data]

    @property
    def num_open(self) -> int:
        """Connections."""
        return self._open

    def reset(self) -> None:
        """Forget what has passed, and pass everything."""
        with self._lock:
            self.requests.clear()
            self.num_bytes = 0
        self.fault, self.passed = lambda _request: PASS, lambda _num_bytes: None

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    self._open += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), client:
                self._answer(client)
        finally:
            with self._lock:
                self._open -= 1

    def _answer(self, client: socket.socket) -> None:
        begin = _head(client)
        if not begin:
            return
        head, _, body = begin.partition(b"\r\n\r\n")
        request = _parsed(head)
        with self._lock:
            self.requests.append(request)
        fault = self.fault(request)
        if fault.is_busy or fault.answer:
            self._answer_for_it(client, request, len(body), fault)
            return
        with socket.create_connection(self._to) as server:
            server.sendall(head + b"\r\nConnection: close\r\n\r\n")
            self._pump(client, server, request, body, fault)

    def _answer_for_it(self, client: socket.socket, request: Request, num_read: int, fault: Fault) -> None:
        while not request.expects and num_read < request.length and (data := client.recv(CHUNK_BYTES)):
            num_read += len(data)
        status, body = ("503 Slow Down", SLOW_DOWN) if fault.is_busy else ("200 OK", fault.answer)
        sent = body.encode() if request.method != "HEAD" else b""
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body.encode())}\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode() + sent)

    def _pump(self, client: socket.socket, server: socket.socket, request: Request, body: bytes, fault: Fault) -> None:
        answer: bytes | None = b""
        data, source = body, client
        while True:
            if source is server and fault.loses_answer and not data.startswith(b"HTTP/1.1 100"):
                return
            # Counted before it is sent: the client may end, and its requests be looked at, as soon as it has this.
            if source is client:
                num_bytes = self._counted(request, up=len(data))
            elif answer is None:
                num_bytes = self._counted(request, down=len(data))
            elif (found := _answer(answer := answer + data)) is not None:
                answer, (request.status, rest) = None, found
                num_bytes = self._counted(request, down=len(rest))
            else:
                num_bytes = self._counted(request)
            (server if source is client else client).sendall(data)
            self.passed(num_bytes)
            if fault.cut_after is not None and request.up + request.down > fault.cut_after:
                return
            ready, _, _ = select.select([client, server], [], [])
            source = server if server in ready else client
            data = source.recv(CHUNK_BYTES)
            if not data:
                return

    def _counted(self, request: Request, up: int = 0, down: int = 0) -> int:
        """Bytes of all data so far, with these."""
        with self._lock:
            request.up += up
            request.down += down
            if request.is_data:
                self.num_bytes += up + down
            return self.num_bytes


def _answer(answer: bytes) -> tuple[int, bytes] | None:
    """Status of an answer, and what has come of its body; None while its head has not come.

    A leave to send the body may be before it.
    """
    while True:
        head, end, rest = answer.partition(b"\r\n\r\n")
        if not end:
            return None
        if not head.startswith(b"HTTP/1.1 100"):
            return int(head.split()[1]), rest
        answer = rest


def _head(client: socket.socket) -> bytes:
    """The head of a request, and what came with it."""
    found = b""
    while b"\r\n\r\n" not in found:
        data = client.recv(CHUNK_BYTES)
        if not data:
            return b""
        found += data
    return found


def _parsed(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(method, target, int(fields.get("content-length", "0")), "expect" in fields)


@contextmanager
def fault_proxy(port: int, host: str = "127.0.0.1") -> Iterator[FaultProxy]:
    """A proxy before the server on this port of the machine, at the same address of it."""
    found = FaultProxy(port, host)
    try:
        yield found
    finally:
        found.close()
