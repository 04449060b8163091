"""A proxy before an HTTP server (S3, emulated AWS) that counts requests and injects faults and lies.

A fault is chosen for each request: dropped, late, cut and damaged answers, and answers that the server never gave.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of being passed on unchanged."""

    status: int = 0
    """The status with which the proxy itself answers; the server does not get the request. 0: the request passes."""
    answer: str = ""
    """The body of that answer; sent without a body for HEAD, as servers do."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Header fields of that answer."""
    cut_after: int | None = None
    """Bytes of body, of the request or of the answer, after which the connection is closed."""
    loses_answer: bool = False
    """The server carries the request out, and the client gets no answer."""
    delay_seconds: float = 0.0
    """The time for which the answer is held back; the server carries the request out at once."""
    flips_answer_at: int | None = None
    """The offset of the byte of the answer's body in which one bit is flipped."""
    flips_request_at: int | None = None
    """The offset of the byte of the request's body in which one bit is flipped."""


XML: Final = {"Content-Type": "application/xml"}


def refusal(status: int, code: str, message: str) -> Fault:
    """An error as S3 answers it."""
    found = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>0</RequestId></Error>"
    return Fault(status=status, answer=f"<?xml version='1.0' encoding='UTF-8'?>{found}", fields=XML)


BUSY: Final = refusal(503, "SlowDown", "Please reduce your request rate.")
FORBIDDEN: Final = refusal(403, "AccessDenied", "Access Denied")
BARE_400: Final = Fault(status=400)
"""What S3 answers to HEAD where the token has expired: an error without a code."""
HTML: Final = Fault(status=200, answer="<html>Please log in</html>", fields={"Content-Type": "text/html"})
"""What a captive portal or a proxy of a company answers to every request."""
PASS: Final = Fault()


def throttled(seconds: int) -> Fault:
    """429 with the pause that the server asks for."""
    return Fault(status=429, fields={"Retry-After": str(seconds)})


@dataclass
class Request:
    """One that came, and what has passed of it."""

    method: str
    target: str
    length: int
    """Of its body."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Header fields, their names in lower case."""
    form: Mapping[str, list[str]] = field(default_factory=dict)
    """The body, where it is a form, as in the query protocol of AWS."""
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
    def operation(self) -> str:
        """The operation of AWS that the request asks for, by the JSON or the query protocol; else empty."""
        return self.fields.get("x-amz-target", "").rpartition(".")[2] or self.form.get("Action", [""])[0]

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
        self._closing = threading.Event()
        """Ends the delays of answers."""
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
        self._closing.set()
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
        if request.fields.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            while len(body) < request.length and (data := client.recv(CHUNK_BYTES)):
                body += data
            request.form = parse_qs(body.decode())
        with self._lock:
            self.requests.append(request)
        fault = self.fault(request)
        if fault.status:
            self._answer_for_it(client, request, len(body), fault)
            return
        with socket.create_connection(self._to) as server:
            server.sendall(head + b"\r\nConnection: close\r\n\r\n")
            self._pump(client, server, request, body, fault)

    def _answer_for_it(self, client: socket.socket, request: Request, num_read: int, fault: Fault) -> None:
        while not request.expects and num_read < request.length and (data := client.recv(CHUNK_BYTES)):
            num_read += len(data)
        if fault.delay_seconds:
            self._closing.wait(fault.delay_seconds)
        fields = "".join(f"{name}: {value}\r\n" for name, value in fault.fields.items())
        body = fault.answer.encode()
        head = f"HTTP/1.1 {fault.status} Fault\r\n{fields}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode() + (body if request.method != "HEAD" else b""))

    def _pump(self, client: socket.socket, server: socket.socket, request: Request, body: bytes, fault: Fault) -> None:
        answer: bytes | None = b""
        data, source = body, client
        while True:
            if source is server and not data.startswith(b"HTTP/1.1 100") and answer is not None:
                if fault.loses_answer:
                    return
                if fault.delay_seconds and not request.status:
                    self._closing.wait(fault.delay_seconds)
            # Counted before it is sent: the client may end, and its requests be looked at, as soon as it has this.
            if source is client:
                data = _flipped(data, len(data), request.up, fault.flips_request_at)
                num_bytes = self._counted(request, up=len(data))
            elif answer is None:
                data = _flipped(data, len(data), request.down, fault.flips_answer_at)
                num_bytes = self._counted(request, down=len(data))
            elif (found := _answer(answer := answer + data)) is not None:
                answer, (request.status, rest) = None, found
                data = _flipped(data, len(rest), request.down, fault.flips_answer_at)
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


def _flipped(data: bytes, num_body: int, offset: int, at: int | None) -> bytes:
    """`data`, whose last `num_body` bytes are body from `offset` on, with one bit flipped in the body's byte `at`."""
    if at is None or not offset <= at < offset + num_body:
        return data
    index = len(data) - num_body + at - offset
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


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
    return Request(method, target, int(fields.get("content-length", "0")), fields, expects="expect" in fields)


@contextmanager
def fault_proxy(port: int, host: str = "127.0.0.1") -> Iterator[FaultProxy]:
    """A proxy before the server on this port of the machine, at the same address of it."""
    found = FaultProxy(port, host)
    try:
        yield found
    finally:
        found.close()
