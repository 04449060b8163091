"""Connections to the servers of stores: one for each thread, used again, past or through a proxy; and requested pauses.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from windlass.stores.answer import Answer, Sent, ask
from windlass.stores.errors import Busy, Misconfigured, NoAnswer, StoreError
from windlass.stores.proxy import Route, connect, proxy_of
from windlass.stores.store import Body

MAX_PAUSE_SECONDS = 300.0
"""The longest pause that is made because a server asks for it."""
MAX_UNIX_SECONDS = 2.0**36
"""Of a date that is used: requests are signed with years of four digits."""
_SILENT = (ConnectionRefusedError, TimeoutError, socket.timeout, socket.gaierror)


class Kept:
    """A connection that a thread uses again; closed when the last reference to it is dropped."""

    def __init__(self, of: tuple[int, bool, str], route: Route) -> None:
        self.of = of
        """The process that made it, whether it is by TLS, and the host."""
        self.route = route

    def __del__(self) -> None:
        self.route.connection.close()


class Connections:
    """Sends requests to any hosts, once each; safe for threads and forks. Proxies are those of the environment."""

    def __init__(self, environ: Mapping[str, str], hint: str, ca_variable: str) -> None:
        """`hint` is what to try where no server answers; `ca_variable` names a file of certificate authorities."""
        self._environ, self._hint, self._ca_variable = environ, hint, ca_variable
        self._context: ssl.SSLContext | None = None
        """Made once: reading the certificates takes longer than a request."""
        self._local = threading.local()
        self._pause_until: dict[str, float] = {}
        """When requests to a host may be sent again, in monotonic seconds, where it has asked for a pause."""
        self._answered: set[str] = set()
        """Hosts that have answered, ever: their address is right."""

    def wait(self, host: str) -> None:
        """Make the pause that a host has asked for: of all threads."""
        if (pause := self._pause_until.get(host, 0.0) - time.monotonic()) > 0:
            time.sleep(pause)

    def pause(self, host: str, retry_after: str, now: float) -> None:
        """Note the `Retry-After` of an answer: seconds, or a date by the clock of the host, by which it is `now`."""
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
    ) -> tuple[Answer, Kept]:
        """The head of an answer, and its connection, which is not this thread's again before the body is read: `keep`.

        `where` is whether it is by TLS, and the host; `what` is named in errors. Raises Busy, NoAnswer, StoreError.
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
            except (OSError, http.client.HTTPException) as error:
                if is_fresh:
                    is_silent = isinstance(
                        error, (ConnectionRefusedError, TimeoutError, socket.timeout, socket.gaierror)
                    )
                    text = f"the server does not answer: {words_of(error)}"
                    if is_silent and host not in self._answered:
                        raise NoAnswer(text, what, self._hint) from error
                    raise Busy(text, what) from error
                # Else the server has closed a connection that was idle.
            else:
                self._answered.add(host)
                return answer, kept

    def keep(self, kept: Kept | None) -> None:
        """Use a connection whose answer was read again in this thread; or none."""
        self._local.kept = kept

    def _connection(self, secure: bool, host: str, what: str, seconds: float) -> tuple[Kept, bool]:
        """The connection of this thread, and whether it is new; one that a parent has opened is the parent's.

        It is taken from the thread: a generator that is left in the middle of a body must leave none of it there.
        """
        kept: Kept | None = getattr(self._local, "kept", None)
        self._local.kept = None
        if kept is not None and kept.of == (os.getpid(), secure, host):
            return kept, False
        if secure and self._context is None:
            self._context = ssl.create_default_context(cafile=self._environ.get(self._ca_variable) or None)
        try:
            route = connect(host, secure, seconds, self._context, proxy_of(self._environ, host, secure))
        except ValueError as error:  # its words have no password
            raise Misconfigured(f"the proxy of the environment cannot be used: {error}", what) from None
        return Kept((os.getpid(), secure, host), route), True


def words_of(error: BaseException) -> str:
    """An error of a connection without its arguments, which may have parts of a URL."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or os.strerror(error.errno)
    return type(error).__name__


def unix_seconds(date: str) -> float | None:
    """A date of HTTP in Unix seconds; None for what is none."""
    try:
        found = email.utils.parsedate_tz(date)
        seconds = -1.0 if found is None else float(email.utils.mktime_tz(found))
    except (ValueError, OverflowError):  # such as one in the year 99999
        return None
    return seconds if 0 <= seconds < MAX_UNIX_SECONDS else None
