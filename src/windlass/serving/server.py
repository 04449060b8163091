"""The model server: SageMaker's `/ping` and `/invocations`, and `/live`, `/labels` and `/metrics`, on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from windlass.serving.metrics import Metrics
from windlass.serving.pool import Pool, Process
from windlass.serving.settings import Settings

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]
JSON = "application/json"
LINGER_SECONDS = 2.0
"""Seconds for which the rest of a refused body is read and dropped. Without this, a client that is still sending would
not receive the response."""
MAX_HEAD_BYTES = 1 << 17
"""Maximum bytes of the head of a request. h11 has a lower limit, httptools has none."""
OPEN_PATHS = ("/ping", "/live")
"""Paths that need no token: the kubelet and SageMaker, which probe them, have none."""


class Response(NamedTuple):
    """An HTTP answer of the server."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Refusal(Exception):
    """A request that does not reach the model."""

    def __init__(self, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(reason)
        self.response = error_response(status, reason, *headers)


def error_response(status: int, reason: str, *headers: tuple[bytes, bytes]) -> Response:
    """Returns the answer with an error: `{"error": REASON}`."""
    return Response(status, json.dumps({"error": reason}).encode(), headers=headers)


class Application:
    """The ASGI application."""

    def __init__(self, settings: Settings, pool: Pool, metrics: Metrics, labels: bytes | None) -> None:
        self.settings = settings
        self.pool = pool
        self.metrics = metrics
        self.labels = labels
        self.num_active = 0
        """Number of requests to the model that have no answer yet."""
        self._token = b"Bearer " + settings.token.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        body = Body(receive, is_complete=is_empty(dict(scope["headers"])))
        try:
            response = await self._answer(scope, body)
        except Refusal as refusal:
            response = refusal.response
        headers = [
            (b"content-type", response.content_type.encode("latin-1", "replace")),
            (b"content-length", str(len(response.body)).encode()),
            *response.headers,
        ]
        if not body.is_complete:
            headers.append((b"connection", b"close"))
            if b"expect" not in dict(scope["headers"]):
                await body.discard()
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _answer(self, scope: MutableMapping[str, Any], body: Body) -> Response:
        path, headers = scope["path"], dict(scope["headers"])
        if self.settings.token and path not in OPEN_PATHS:
            self._require_token(headers)
        method = "POST" if path == "/invocations" else "GET"
        if path not in ("/invocations", "/ping", "/live", "/labels", "/metrics"):
            raise Refusal(404, f"{path} does not exist")
        if scope["method"] != method and not (method == "GET" and scope["method"] == "HEAD"):
            raise Refusal(405, f"{path} takes {method}", (b"allow", method.encode()))
        if path == "/invocations":
            return await self._invoke(headers, body)
        return self._report(path)

    def _require_token(self, headers: Headers) -> None:
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            raise Refusal(401, "a valid token is required", (b"www-authenticate", b"Bearer"))

    def _report(self, path: str) -> Response:
        if path == "/metrics":
            pool = self.pool
            text = self.metrics.text(waiting=pool.num_waiting, ready=pool.num_ready, workers=len(pool.workers))
            return Response(200, text.encode(), "text/plain; version=0.0.4")
        if path == "/labels":
            no_labels = error_response(404, "the model has no labels.json")
            return no_labels if self.labels is None else Response(200, self.labels)
        if path == "/ping" and not self.pool.num_ready:
            return error_response(503, "the model is not loaded", (b"retry-after", b"1"))
        return Response(200, b"", "text/plain")

    async def _invoke(self, headers: Headers, body: Body) -> Response:
        started = time.perf_counter()
        self.metrics.last_request_at = time.time()
        try:
            response = await self._queued(headers, body)
        except Refusal as refusal:
            response = refusal.response
        self.metrics.observe(response.status, time.perf_counter() - started)
        return response

    async def _queued(self, headers: Headers, body: Body) -> Response:
        """Reads the body and waits for the model. A request counts as queued while its body is read, so that the queue
        also bounds the memory.
        """
        if not self.pool.num_ready:
            raise Refusal(503, "the model is not loaded", (b"retry-after", b"1"))
        if self.num_active >= self.settings.queue + self.settings.workers * self.settings.batch:
            raise Refusal(503, "the queue is full", (b"retry-after", str(self.pool.retry_seconds).encode()))
        self.num_active += 1
        try:
            content = await body.read(headers, self.settings.max_body_bytes, self.settings.body_limit_seconds)
            content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
            accept = headers.get(b"accept", b"").decode("latin-1")
            status, media_type, answer = await self.pool.submit((content_type or JSON, accept, content))
        finally:
            self.num_active -= 1
        return Response(status, answer, media_type) if media_type else error_response(status, answer.decode())


def is_empty(headers: Headers) -> bool:
    """Whether a request has no body."""
    return b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"


class Body:
    """The body of a request."""

    def __init__(self, receive: Receive, *, is_complete: bool) -> None:
        self._receive = receive
        self.is_complete = is_complete

    async def read(self, headers: Headers, max_bytes: int, limit_seconds: float) -> bytes:
        """Returns the body. Raises Refusal: 413 if it is larger than `max_bytes`, 408 if it takes longer than
        `limit_seconds`, 400 if the client disconnects.
        """
        too_large = f"the body is larger than {max_bytes:,} bytes"
        if int(headers.get(b"content-length", b"0")) > max_bytes:
            raise Refusal(413, too_large)
        chunks: list[bytes] = []
        num_bytes = 0
        with limit(limit_seconds, Refusal(408, f"the body did not arrive within {limit_seconds:g} s")):
            while not self.is_complete:
                chunks.append(await self._next())
                num_bytes += len(chunks[-1])
                if num_bytes > max_bytes:
                    raise Refusal(413, too_large)
        return b"".join(chunks)

    async def discard(self) -> None:
        """Reads and drops the rest of the body, for at most LINGER_SECONDS."""
        with contextlib.suppress(Refusal), limit(LINGER_SECONDS, Refusal(408, "")):
            while not self.is_complete:
                await self._next()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the client disconnected")
        self.is_complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


@contextlib.contextmanager
def limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raises an error if the block takes longer. asyncio.wait_for would start a task, which costs a fifth of the time
    of a request, and Python 3.10 lacks asyncio.timeout.
    """
    task = asyncio.current_task()
    assert task is not None
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        raise error from None
    finally:
        timer.cancel()


# -- the process ------------------------------------------------------------------------------------------------------


def limited_protocol(limit_seconds: float) -> type[asyncio.Protocol]:
    """Returns uvicorn's protocol with limits on the time and the size of the head of a request."""

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is self._last_cycle:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self.transport.abort()

        def on_response_complete(self) -> None:
            finished = self.cycle
            super().on_response_complete()
            if self.cycle is finished:  # otherwise the head of the next request has arrived already
                self._expect_head()

        def _expect_head(self) -> None:
            self._last_cycle, self._head_bytes = self.cycle, 0
            # One timer for each connection: a timer keeps its request in memory until it is due.
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head_timer = self.loop.call_later(limit_seconds, self._close_without_head, self.cycle)

        def _close_without_head(self, last_cycle: object) -> None:
            if self.cycle is last_cycle:
                self.transport.close()

    return Limited


class Server(uvicorn.Server):
    """uvicorn's server, extended: it connects the workers, reports when it listens, and ends when idle."""

    def __init__(self, settings: Settings, processes: list[Process], labels: bytes | None) -> None:
        """Binds the port. Raises OSError."""
        self.settings = settings
        self.failure = ""
        """Why the server ends by itself; empty without an error."""
        self.listener = listen(settings.host, settings.port)
        self.metrics = Metrics()
        self.pool = Pool(settings, processes, self.metrics, self._fail)
        self.application = Application(settings, self.pool, self.metrics, labels)
        self._started_at = time.time()
        config = uvicorn.Config(
            self.application,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=limited_protocol(settings.body_limit_seconds),
            ssl_certfile=settings.certificate or None,
            ssl_keyfile=settings.key or None,
            timeout_graceful_shutdown=int(settings.time_limit_seconds + settings.body_limit_seconds) + 1,
            callback_notify=self._end_if_idle,
            timeout_notify=1,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept connections, then writes the ready file."""
        await super().startup(sockets)
        await self.pool.connect()
        port = self.listener.getsockname()[1]
        if self.settings.ready_file:
            write_ready(Path(self.settings.ready_file), port)
        print(introduction(self.settings, port), file=sys.stderr, flush=True)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.should_exit = True

    async def _end_if_idle(self) -> None:
        limit = self.settings.idle_limit_seconds
        since = time.time() - max(self._started_at, self.metrics.last_request_at)
        if limit and not self.application.num_active and since >= limit:
            print(f"no request for {limit:g} s: the server ends", file=sys.stderr, flush=True)
            self.should_exit = True


def run(settings: Settings, processes: list[Process]) -> int:
    """Serves until SIGTERM, SIGINT or the idle limit; returns the exit code, 1 if a worker cannot load the model.

    A signal stops accepting; requests that were accepted are answered first. Raises OSError if the port is taken.
    """
    server = Server(settings, processes, read_labels(Path(settings.model.path)))
    # After its shutdown, uvicorn raises the caught signal again. The default handler would prevent exit code 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[server.listener])
    finally:
        server.pool.close()
    if server.failure:
        print(f"error: {server.failure}", file=sys.stderr, flush=True)
    return 1 if server.failure else 0


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, each answer waits 40 ms.
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen(2048)
    except OSError:
        found.close()
        raise
    return found


def introduction(settings: Settings, port: int) -> str:
    """Returns lines with the address of the server and a curl command that sends a request to the model."""
    scheme = "https" if settings.certificate else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    words = ["curl", f"{scheme}://{host}:{port}/invocations", "-H 'Content-Type: application/json' --data @input.json"]
    if settings.certificate:
        words.append(f"--cacert {settings.certificate}")
    if settings.token:
        words.append('-H "Authorization: Bearer $TOKEN"')
    warning = (
        "" if settings.token or is_loopback(settings.host) else "other machines can reach the model without a token\n"
    )
    return f"{warning}listening on {scheme}://{host}:{port}\n{' '.join(words)}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_ready(path: Path, port: int) -> None:
    """Writes the ready file under another name and renames it, so that no reader sees an incomplete file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"port": port, "pid": os.getpid()}))
    partial.replace(path)


def read_labels(model: Path) -> bytes | None:
    """Returns `labels.json` of the model's folder as `{"0": NAME, …}`; None without the file. Raises ValueError."""
    path = (model if model.is_dir() else model.parent) / "labels.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_bytes())
    if isinstance(found, list):
        found = dict(enumerate(found))
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ValueError(f"{path} is neither a list of names nor an object of index to name")
    return json.dumps(found).encode()
