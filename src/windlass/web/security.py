"""Access control of the web page: refuses foreign hosts, requests without a session and cross-site changes.

The rules, and the attacks that they prevent, are in decision 0142.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.services.browser_access import (
    Sessions,
    is_allowed_host,
    is_loopback,
    is_same_origin,
    session_of,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

START, LINK, STATIC = "/start", "/link", "/static/"
"""Paths that need no session: the exchange of a one-time link, the request of another one, and static files."""
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response."""


def csrf_token(session: str) -> str:
    """Returns the token that forms of this session must contain."""
    return hmac.new(session.encode(errors="replace"), b"windlass-csrf", hashlib.sha256).hexdigest()


class Guard:
    """ASGI middleware that refuses foreign hosts, requests without a session, and cross-site changes.

    Every response, including those of the wrapped application and of refusals, gets the security headers.
    """

    def __init__(
        self, app: ASGIApp, sessions: Sessions, host: str, port: int, refuse: Callable[[int, str], ASGIApp]
    ) -> None:
        """`host` and `port` are the address of the server; `refuse(status, why)` returns the response of a refusal."""
        self._app = app
        self._sessions = sessions
        self._host, self._port = host, port
        self._is_loopback = is_loopback(host)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or forwards one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        app = self._refusal(scope, headers) or self._app
        await app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> ASGIApp | None:
        path, method = scope["path"], scope["method"]
        if not is_allowed_host(headers.get("host", ""), self._host, is_loopback=self._is_loopback):
            return self._refuse(403, "the Host of the request is not the address of this page")
        if path in (START, LINK) or path.startswith(STATIC):
            return None
        session = session_of(headers, self._port)
        if not self._sessions.is_valid(session):
            return self._refuse(401, "this browser has no session")
        if method not in ("GET", "HEAD") and not is_same_origin(headers):
            return self._refuse(403, "another site has sent the request")
        scope["windlass.session"] = session
        return None


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message["headers"], *(one for one in added if one[0] not in known)]
        await send(message)

    return send_with_headers


def is_csrf_valid(scope: Mapping[str, Any], given: str) -> bool:
    """Whether a form has the CSRF token of the session that sent it."""
    return hmac.compare_digest(csrf_token(scope["windlass.session"]).encode(), given.encode(errors="replace"))
