"""Forwards connections from a port of this machine to one service: HTTP requests with access control, or plain bytes.

With `Access`, browsers need a session, and each request is sent over its own TLS connection, whose certificate must be
the service's. The rules are in decision 0146. Without `Access`, bytes are copied unchanged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from windlass.engines.pinned_http import client_tls
from windlass.errors import MissingExtra, WindlassError
from windlass.services.browser_access import FORWARD_START, Sessions, address_of, listen
from windlass.services.streams import CHUNK_BYTES, Stream, copy_both, open_stream

if TYPE_CHECKING:
    from windlass.services.http_exchange import Gate

Connect = Callable[[], socket.socket]
"""Opens a connection to the port of a service. Must be thread-safe. Raises EngineError."""
LOOPBACK: Final = "127.0.0.1"
INSTALL: Final = "pip install 'h11>=0.16'"
MAX_CONNECTIONS: Final = 512
"""Maximum number of connections at a time; further ones are closed at once."""
MAX_CONNECTING: Final = 16
"""Maximum number of connections to the service that are opened at a time."""


@dataclass(frozen=True, slots=True)
class Access:
    """Certificate and header of a service that browsers reach over HTTP."""

    certificate: bytes
    """Certificate of the service, in PEM. A server with another one receives no request."""
    authorization: str = field(repr=False)
    """Value of the header `Authorization` of each request to the service: `Bearer TOKEN`, for Jupyter `token TOKEN`."""
    renew: str = "ask for a new link"
    """How to get a new one-time link, as the end of a sentence, for browsers without a session."""


class Forward:
    """Server on one port of this machine that passes connections on to one service. It runs in its own thread.

    It listens from its creation on, and accepts connections within `with`.
    """

    def __init__(
        self,
        connect: Connect,
        access: Access | None = None,
        *,
        host: str = LOOPBACK,
        ports: Sequence[int] = (0,),
        on_failure: Callable[[WindlassError], None] = lambda _error: None,
    ) -> None:
        """Listens on the first of `ports` that is free; 0 is any free port.

        Without `access`, any program that connects reaches the service. `on_failure` is called in the thread of the
        forward with the reason for which one connection failed. Raises UsageError if no port is free, MissingExtra.
        """
        if access is not None and importlib.util.find_spec("h11") is None:
            raise MissingExtra("services in the browser need h11", INSTALL)
        self._connect = connect
        self._on_failure = on_failure
        self._sessions = Sessions()
        self._listener = listen(host, ports, "--address")
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        """The port on which the forward listens."""
        self._gate = None if access is None else self._gate_of(access)
        self._certificate = b"" if access is None else ssl.PEM_cert_to_DER_cert(access.certificate.decode())
        self._tls = None if access is None else client_tls()
        self._pool = ThreadPoolExecutor(MAX_CONNECTING, "windlass-connect")
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="windlass-forward", daemon=True)

    def _gate_of(self, access: Access) -> Gate:
        from windlass.services.http_exchange import Gate

        return Gate(self._sessions, self.host, self.port, access.authorization, access.renew)

    @property
    def address(self) -> str:
        """URL of the forward. With `Access`, browsers need a session to open it."""
        return address_of(self.host, self.port)

    def new_link(self, path: str = "/") -> str:
        """Returns a link that starts one session of one browser, which begins at the page `path` of the service."""
        return address_of(self.host, self.port, f"{FORWARD_START}?token={self._sessions.new_token(path)}")

    def __enter__(self) -> Forward:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stops listening and ends all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- connections --------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._accept, sock=self._listener, limit=CHUNK_BYTES):
            self._started.set()
            await self._stop.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection from its beginning to its end."""
        client, task = Stream(reader, writer), asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MAX_CONNECTIONS:
            client.abort()
            return
        self._tasks.add(task)
        try:
            await self._handle(client)
        except WindlassError as error:
            self._on_failure(error)
        except (OSError, asyncio.CancelledError):  # the client is gone, or the forward ends
            client.abort()
        finally:
            self._tasks.discard(task)
            await client.close()

    async def _handle(self, client: Stream) -> None:
        if self._gate is not None:
            from windlass.services.http_exchange import Exchange

            await Exchange(self._gate, client, self._open).run()
            return
        service = await self._open()
        try:
            await copy_both(client, service)
        finally:
            await service.close()

    async def _open(self) -> Stream:
        """Opens a connection to the service. Raises EngineError."""
        opening = self._pool.submit(self._connect)
        try:
            source = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(lambda it: None if it.cancelled() or it.exception() else it.result().close())
            raise
        return await open_stream(source, self._tls, self._certificate)
