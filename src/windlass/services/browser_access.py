"""Functions that all servers for browsers on this machine share: listening, one-time links, sessions, origin checks.

The rules, and the attacks that they prevent, are in decision 0142.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import urlsplit

from windlass.errors import UsageError

MAX_LINKS: Final = 16
"""Maximum number of unused one-time links; the oldest one becomes invalid."""
MAX_SESSIONS: Final = 64
"""Maximum number of sessions; the least recently used one ends."""
TOKEN_BYTES: Final = 32
FORWARD_START: Final = "/.windlass/start"
"""Path of the one-time links of a forward. Requests to it never reach the service."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class Sessions:
    """One-time tokens and the sessions that they start. Only digests are kept, in memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: OrderedDict[str, str] = OrderedDict()
        """Digest of each unused token → path of the page that it opens."""
        self._sessions: OrderedDict[str, None] = OrderedDict()
        """Digest of each session id, least recently used first."""

    def new_token(self, path: str = "/") -> str:
        """Returns a token that starts one session, which begins at the page `path`."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            self._links[_digest(token)] = path
            if len(self._links) > MAX_LINKS:
                self._links.popitem(last=False)
        return token

    def exchange(self, token: str) -> tuple[str, str] | None:
        """Uses up a token; returns the new session id and the path to open. None for a wrong or used token."""
        with self._lock:
            path = self._links.pop(_digest(token), None)
            if path is None:
                return None
            session = secrets.token_urlsafe(TOKEN_BYTES)
            self._sessions[_digest(session)] = None
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return session, path

    def is_valid(self, session: str) -> bool:
        """Whether this is the id of a session."""
        digest = _digest(session)
        with self._lock:
            if digest not in self._sessions:
                return False
            self._sessions.move_to_end(digest)
        return True


def _digest(secret: str) -> str:
    """Returns the digest under which a secret is kept. The time of a lookup then reveals nothing about the secret."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def cookie_name(port: int) -> str:
    """Returns the name of the session cookie. Browsers share cookies between ports, so the name has the port."""
    return f"windlass-{port}"


def session_of(headers: Mapping[str, str], port: int) -> str:
    """Returns the session id in the cookies of a request; empty without one."""
    # `http.cookies` drops all cookies if it cannot parse one, and any server on this host may set such a cookie.
    found = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in found if name == cookie_name(port)), "")


def is_allowed_host(host: str, named: str, *, is_loopback: bool) -> bool:
    """Whether the `Host` of a request names this server, rather than a domain that an attacker has pointed at it.

    `named` is the `--host` of the server. Any port is allowed, because `ssh -L` may forward another one. A server that
    other machines reach also accepts IP addresses: an attacker's page has a domain name.
    """
    try:
        parts = urlsplit(f"//{host}")
        name = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return False
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return False
    if name in LOOPBACK or name == named.lower():
        return True
    return not is_loopback and _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` is reachable from this machine only."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a page of this server has sent a state-changing request. Browsers send `Origin` with each POST."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None or site not in (None, "same-origin"):
        return False
    return origin == f"http://{headers.get('host', '')}"


def listen(host: str, ports: Sequence[int], option: str = "--host") -> socket.socket:
    """Returns a socket that listens on `host` and the first of the `ports` that is free; port 0 is any free one.

    `option` is the option of the command that named the host. Raises UsageError.
    """
    for number in ports:
        try:
            flags = socket.AI_PASSIVE
            family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=flags)[
                0
            ]
            # asyncio sets TCP_NODELAY only if the protocol is given; without it, answers may wait 40 ms.
            found = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError) as error:  # the latter for names that DNS cannot express
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"{option} {host} is not an address of this machine ({why})") from error
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)
        except OSError as error:
            found.close()
            if number == ports[-1]:
                why = error.strerror or str(error)
                raise UsageError(f"cannot listen on {host} port {number} ({why})", "name another port") from error
        else:
            return found
    raise AssertionError("unreachable")


def address_of(host: str, port: int, path: str = "/") -> str:
    """Returns the URL of a page of a server. Wildcard addresses are shown as the loopback address."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}{path}"


def redirect_page(link: str) -> str:
    """Returns a page that loads `link` at once."""
    found = escape(link)
    return (
        f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={found}"><title>Windlass</title><a href="{found}">Windlass</a>\n'
    )
