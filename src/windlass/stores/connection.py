"""Connections to object stores: one per thread, reused, direct or through a proxy; honours Retry-After.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from windlass.stores.errors import Busy, Misconfigured, NoAnswer, StoreError
from windlass.stores.proxy import Route, connect, proxy_of
from windlass.stores.response import Response, Sent, ask
from windlass.stores.store import Body

MAX_PAUSE_SECONDS = 300.0
"""Upper limit for the pause that a server may request by Retry-After."""
MAX_UNIX_SECONDS = 2.0**36
"""Latest date that is accepted from a server: signatures contain years of four digits."""
_SILENT = (ConnectionRefusedError, TimeoutError, socket.timeout, socket.gaierror)


class Kept:
    """Connection that a thread reuses. It is closed when its last reference is dropped."""

    def __init__(self, of: tuple[int, bool, str], route: Route) -> None:
        self.of = of
        """Process that opened the connection, whether it uses TLS, and the host."""
        self.route = route

    def __del__(self) -> None:
        self.route.connection.close()


class Connections:
    """Sends requests to any host, without retries; safe for threads and forks. The environment configures proxies."""

    def __init__(self, environ: Mapping[str, str], hint: str, ca_variable: str) -> None:
        """`hint` is the advice in errors if no server answers; `ca_variable` names the variable with the CA bundle
        file.
        """
        self._environ, self._hint, self._ca_variable = environ, hint, ca_variable
        self._context: ssl.SSLContext | None = None
        """TLS context, created once because reading the certificates takes longer than a request."""
        self._local = threading.local()
        self._pause_until: dict[str, float] = {}
        """Time from which requests may be sent again to a host that asked for a pause, in monotonic seconds."""
        self._answered: set[str] = set()
        """Hosts that have answered at least once, so that their address must be right."""

    def wait(self, host: str) -> None:
        """Waits, in every thread, until the pause that a host has requested is over."""
        if (pause := self._pause_until.get(host, 0.0) - time.monotonic()) > 0:
            time.sleep(pause)

    def pause(self, host: str, retry_after: str, now: float) -> None:
        """Records the `Retry-After` of a response: seconds, or a date. `now` is the time by the host's clock."""
        seconds = float(retry_after) if retry_after.isdecimal() else (unix_seconds(retry_after) or 0.0) - now
        until = time.monotonic() + min(MAX_PAUSE_SECONDS, seconds)
        self._pause_until[host] = max(self._pause_until.get(host, 0.0), until)

    def ask(
        self,
        where: tuple[bool, str],
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Body = b"",
        sent: Sent | None = None,
        *,
        what: str,
        seconds: float,
    ) -> tuple[Response, Kept]:
        """Sends a request. Returns the response, whose body is unread, and its connection.

        The thread cannot reuse the connection until the body has been read and `keep` was called. `where` is whether
        TLS is used, and the host; `what` names the object in errors. Raises Busy, NoAnswer, StoreError.
        """
        secure, host = where
        while True:
            kept, is_fresh = self._connection(secure, host, what, seconds)
            route = kept.route
            login = {"proxy-authorization": route.authorization} if route.authorization else {}
            try:
                answer = ask(route.connection, method, f"{route.base}{target}", {**headers, **login}, body, sent)
            except ssl.SSLCertVerificationError as error:
                text = f"the certificate of the server is not valid: {error.verify_message}"
                raise StoreError(text, what, f"{self._ca_variable} names a file of other authorities") from error
            except UnicodeError as error:
                raise Misconfigured("its host name, or that of the proxy, is not valid", what) from error
            except (OSError, http.client.HTTPException) as error:
                if (code := _refused_tunnel(error)) in range(400, 500):
                    hint = "set its login in HTTPS_PROXY" if code == 407 else "check HTTPS_PROXY and NO_PROXY"
                    raise Misconfigured(f"the proxy of the environment answers {code}", what, hint) from error
                if is_fresh:
                    text = f"the server does not answer: {words_of(error)}"
                    if isinstance(error, _SILENT) and host not in self._answered:
                        raise NoAnswer(text, what, self._hint) from error
                    raise Busy(text, what) from error
                # The server has closed an idle connection. The request is sent again on a new connection.
            else:
                self._answered.add(host)
                return answer, kept

    def keep(self, kept: Kept | None) -> None:
        """Makes a connection reusable in this thread after its response has been read. None is ignored."""
        self._local.kept = kept

    def _connection(self, secure: bool, host: str, what: str, seconds: float) -> tuple[Kept, bool]:
        """Returns the connection of this thread, and whether it is new. Connections opened before a fork are left to
        the parent.

        The thread's reference is removed: a generator abandoned in the middle of a body must not leave a half-read
        connection behind.
        """
        kept: Kept | None = getattr(self._local, "kept", None)
        self._local.kept = None
        if kept is not None and kept.of == (os.getpid(), secure, host):
            return kept, False
        if secure and self._context is None:
            file = self._environ.get(self._ca_variable) or None
            try:
                self._context = ssl.create_default_context(cafile=file)
            except OSError as error:
                text = f"{self._ca_variable} names {file}, which has no certificates: {words_of(error)}"
                raise Misconfigured(text, what) from error
        try:
            route = connect(host, secure, seconds, self._context, proxy_of(self._environ, host, secure))
        except ValueError as error:  # the error may be quoted, because its text contains no password
            raise Misconfigured(f"the proxy of the environment cannot be used: {error}", what) from None
        return Kept((os.getpid(), secure, host), route), True


def words_of(error: BaseException) -> str:
    """Returns the text of a connection error, without arguments that may contain parts of a URL."""
    if code := _refused_tunnel(error):
        return f"the proxy of the environment answers {code}"
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or os.strerror(error.errno)
    return type(error).__name__


def _refused_tunnel(error: BaseException) -> int:
    """Returns the status code with which a proxy has refused a connection; 0 for other errors."""
    found = re.match(r"Tunnel connection failed: (\d{3})\b", str(error))
    return int(found[1]) if found else 0


def unix_seconds(date: str) -> float | None:
    """Parses an HTTP date. Returns Unix seconds, or None if the date is invalid."""
    try:
        found = email.utils.parsedate_tz(date)
        seconds = -1.0 if found is None else float(email.utils.mktime_tz(found))
    except (ValueError, OverflowError):  # a server may send a date in the year 99999
        return None
    return seconds if 0 <= seconds < MAX_UNIX_SECONDS else None
