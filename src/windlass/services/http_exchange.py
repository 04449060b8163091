"""Passes one HTTP request of a browser on to a service, if the browser has a session and no other site sent it.

The rules are in decision 0146.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

import h11

from windlass.errors import EngineError, WindlassError
from windlass.services.browser_access import (
    FORWARD_START,
    Sessions,
    cookie_name,
    is_allowed_host,
    is_loopback,
    is_same_origin,
    redirect_page,
    session_of,
)
from windlass.services.streams import CHUNK_BYTES, Stream, copy_both

HEAD_BYTES: Final = 64 << 10
"""Maximum bytes of an incomplete head of a request or a response. With the last read (`CHUNK_BYTES`), a head has at
most 128 KiB."""
HEAD_SECONDS: Final = 30.0
"""Seconds within which a client must send the head of its request."""
HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"})
"""Headers that apply to one connection only, and are not passed on."""
_OWN_COOKIE: Final = re.compile(rb"\s*windlass-\d+\s*=")
"""Matches a session cookie of any server of Windlass. Browsers send the cookies of all ports of a host."""

SWITCHING_PROTOCOLS: Final = 101
Headers = list[tuple[bytes, bytes]]
TEXT: Final[Headers] = [(b"content-type", b"text/plain; charset=utf-8")]
OWN_HEADERS: Final[Headers] = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
]
"""Headers of each response that is not from the service."""


class Refusal(Exception):
    """A request that is not passed on, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides which requests are passed on to a service."""

    sessions: Sessions
    host: str
    port: int
    """Address on which the forward listens."""
    authorization: str = field(repr=False)
    """Value of the header `Authorization` of each request to the service."""
    renew: str
    """How to get a new link, for browsers without a session."""

    def require_allowed(self, request: h11.Request) -> None:
        """Raises Refusal for requests of foreign hosts, of browsers without a session, and of pages of other sites."""
        headers = _texts(request)
        if not is_allowed_host(headers.get("host", ""), self.host, is_loopback=is_loopback(self.host)):
            raise Refusal(403, "the Host of the request is not the address of this forward")
        if not request.target.startswith(b"/"):
            raise Refusal(400, "the target of the request is no path")
        if _path(request) == FORWARD_START:
            return
        if not self.sessions.is_valid(session_of(headers, self.port)):
            raise Refusal(401, f"this browser has no session; {self.renew}")
        is_change = request.method not in (b"GET", b"HEAD") or _is_websocket(request)
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        is_navigation = headers.get("sec-fetch-mode") == "navigate"
        if (is_change and not is_same_origin(headers)) or (is_foreign and not is_navigation):
            raise Refusal(403, "a page of another site has sent the request")

    def started(self, request: h11.Request) -> tuple[Headers, bytes] | None:
        """Exchanges the token of a one-time link for a session. Returns headers and body of the response, or None for
        other requests. Raises Refusal.

        The response is an HTML page that loads the next page, not a redirect: after a redirect, browsers would not send
        the `SameSite=Strict` cookie, because another program started the navigation.
        """
        if _path(request) != FORWARD_START:
            return None
        if request.method != b"GET":  # link previews must not use up the token
            raise Refusal(405, "a link is opened by GET")
        query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
        found = self.sessions.exchange(query.get("token", [""])[0])
        if found is None:
            raise Refusal(403, f"this link is wrong or was used already; {self.renew}")
        session, path = found
        cookie = f"{cookie_name(self.port)}={session}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"set-cookie", cookie.encode())]
        return headers, redirect_page(path).encode()

    def request_for_service(self, request: h11.Request) -> h11.Request:
        """Returns the request to send to the service: with the service's token, without the browser's session."""
        headers: Headers = []
        is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        for name, value in request.headers:
            if name == b"content-length" and is_chunked:
                continue  # request smuggling: a service that obeyed it would parse the rest as another request
            if name == b"cookie":
                value = b";".join(one for one in value.split(b";") if not _OWN_COOKIE.match(one)).strip()
            if name not in HOP_BY_HOP and name != b"authorization" and (name != b"cookie" or value):
                headers.append((name, value))
        is_websocket = _is_websocket(request)
        headers += [(b"upgrade", b"websocket")] if is_websocket else []
        headers += [(b"connection", b"upgrade" if is_websocket else b"close")]
        headers += [(b"authorization", self.authorization.encode())]
        return h11.Request(method=request.method, target=request.target, headers=headers)


def _texts(request: h11.Request) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}


def _path(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("latin-1")


def _is_websocket(request: h11.Request) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in request.headers)


class _Http:
    """One end of HTTP/1.1 over a stream."""

    def __init__(self, stream: Stream, role: Any) -> None:
        self.stream = stream
        self.protocol = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)

    async def next_event(self) -> Any:
        """Returns the next event of the peer. Raises h11.RemoteProtocolError, OSError."""
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            self.protocol.receive_data(await self.stream.reader.read(CHUNK_BYTES))
        return event

    async def send(self, event: Any) -> None:
        """Sends an event. Raises OSError."""
        await self.stream.send(self.protocol.send(event) or b"")


class Exchange:
    """One request of a client, and the response of the service."""

    def __init__(self, gate: Gate, client: Stream, open_service: Callable[[], Awaitable[Stream]]) -> None:
        """`open_service` opens a connection to the service; raises EngineError."""
        self._gate = gate
        self._client = _Http(client, h11.SERVER)
        self._open_service = open_service
        self._is_client_gone = False

    async def run(self) -> None:
        """Answers one request. Raises EngineError if the service does not answer, OSError if the client is gone."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await self._client.next_event()
            if not isinstance(request, h11.Request):
                return
            self._gate.require_allowed(request)
            if (page := self._gate.started(request)) is not None:
                await self._answer(200, *page)
                return
        except h11.RemoteProtocolError as error:
            await self._answer(error.error_status_hint, TEXT, b"the request is not valid HTTP/1.1\n")
            return
        except Refusal as error:
            await self._answer(error.status, TEXT, f"{error}\n".encode())
            return
        try:
            service = _Http(await self._open_service(), h11.CLIENT)
            try:
                await self._pass_on(request, service)
            finally:
                await service.stream.close()
        except EngineError as error:
            if self._client.protocol.our_state is h11.SEND_RESPONSE:
                await self._answer(502, TEXT, f"{error}\n".encode())
            else:
                self._client.stream.abort()
            if not self._is_client_gone:
                raise

    async def _answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a response that is not from the service."""
        every = [*headers, *OWN_HEADERS, (b"content-length", b"%d" % len(body))]
        await self._client.send(h11.Response(status_code=status, headers=every))
        await self._client.send(h11.Data(data=body))
        await self._client.send(h11.EndOfMessage())

    async def _pass_on(self, request: h11.Request, service: _Http) -> None:
        is_websocket = _is_websocket(request)
        await service.send(self._gate.request_for_service(request))
        sending = asyncio.create_task(self._send_body(service, is_watched=not is_websocket))
        try:
            if is_websocket:  # a WebSocket request has no body; its client waits for the response
                await sending
            await self._receive(service)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_body(self, service: _Http, *, is_watched: bool) -> None:
        """Passes the body of the request on. With `is_watched`, then waits for the client, and cuts the connection to
        the service when the client is gone.
        """
        try:
            while isinstance(event := await self._client.next_event(), (h11.Data, h11.EndOfMessage)):
                with contextlib.suppress(OSError):  # a service may answer, and close, before it has read the body
                    await service.send(event)
                if isinstance(event, h11.EndOfMessage):
                    break
            if not is_watched or await self._client.stream.reader.read(1):
                return
        except (h11.RemoteProtocolError, OSError):
            pass
        self._is_client_gone = True
        service.stream.abort()

    async def _receive(self, service: _Http) -> None:
        """Passes the response on, or all data if it is the response to an upgrade. Raises EngineError, OSError."""
        while True:
            event = await _event_of(service)
            if isinstance(event, h11.Response):
                event = _response_for_client(event)
            await self._client.send(event)
            if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING_PROTOCOLS:
                await self._client.stream.send(service.protocol.trailing_data[0])
                await service.stream.send(self._client.protocol.trailing_data[0])
                await copy_both(self._client.stream, service.stream)
                return
            if isinstance(event, h11.EndOfMessage):
                return


async def _event_of(service: _Http) -> Any:
    """Returns the next part of the response. Raises EngineError if the service does not send a complete one."""
    try:
        event = await service.next_event()
    except (h11.RemoteProtocolError, OSError) as error:
        reason: WindlassError = service.stream.failure or EngineError(
            f"the service ended the connection before its response was complete ({error})", "is it still running?"
        )
        raise reason from error
    if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
        raise service.stream.failure or EngineError("the service has not answered with HTTP/1.1")
    return event


def _response_for_client(response: h11.Response) -> h11.Response:
    """Returns the response without hop-by-hop headers, and without cookies that would replace a Windlass session."""
    headers = [
        (name, value)
        for name, value in response.headers
        if name not in HOP_BY_HOP and not (name == b"set-cookie" and _OWN_COOKIE.match(value))
    ]
    return h11.Response(
        status_code=response.status_code, headers=[*headers, (b"connection", b"close")], reason=response.reason
    )
