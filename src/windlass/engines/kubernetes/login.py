"""The login of one kubeconfig context: who a request is from, and when a login plugin is asked again.

The `kubernetes` package logs what a login plugin fails with and goes on without a token, as an anonymous user. Here
that is an error, which passes once the plugin succeeds: logins expire over night, and pods train on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

AGAIN_SECONDS: Final = 5.0
"""Between two tries to log in: each may start a program."""


class LoginError(Exception):
    """What the login plugin failed with."""


class Login:
    """Gives the headers of requests, from a `Configuration` of the kubernetes package that it keeps up to date."""

    def __init__(self, load: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`load` makes the configuration from the kubeconfig; what it logs as an error is why the login failed."""
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._failed = ""
        self._is_stale = False
        self.certificates = 0
        """How often the certificate has changed with which connections are made."""
        with _errors() as said:
            self.configuration = load()
        self._tried_at = clock()
        if said and not _has_credentials(self.configuration):
            self._failed = said[-1]

    def headers(self) -> dict[str, str]:
        """Who we are; a login that has run out is renewed first. Raises LoginError."""
        with self._lock:
            if self._failed or self._is_stale:
                self._log_in()
            with _errors() as said:
                try:
                    token = self.configuration.auth_settings().get("BearerToken")
                except Exception as error:  # whatever a login plugin raises
                    said.append(str(error))
            if said:
                self._failed, self._tried_at = said[-1], self._clock()
                raise LoginError(self._failed)
        return {"authorization": str(token["value"])} if token else {}

    def expire(self) -> None:
        """The server no longer takes the login: the next request asks for another one."""
        with self._lock:
            self._is_stale = True

    def _log_in(self) -> None:
        """Raises LoginError; also without a new try, shortly after the last."""
        if self._clock() - self._tried_at < AGAIN_SECONDS:
            if self._failed:
                raise LoginError(self._failed)
            return
        self._tried_at = self._clock()
        with _errors() as said:
            try:
                fresh = self._load()
            except Exception as error:
                said.append(str(error))
                fresh = None
        if fresh is None or (said and not _has_credentials(fresh)):
            self._failed = said[-1]
            raise LoginError(self._failed)
        if (fresh.cert_file, fresh.key_file) != (self.configuration.cert_file, self.configuration.key_file):
            self.certificates += 1
        for name in ("api_key", "refresh_api_key_hook", "cert_file", "key_file"):
            setattr(self.configuration, name, getattr(fresh, name))
        self._failed, self._is_stale = "", False


def _has_credentials(configuration: Any) -> bool:
    return bool(configuration.api_key or configuration.cert_file or configuration.username)


@contextlib.contextmanager
def _errors() -> Iterator[list[str]]:
    """What this thread logs as errors in the block, in place of where it would go."""
    said: list[str] = []
    me = threading.get_ident()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == me and record.levelno >= logging.ERROR:
                said.append(" ".join(record.getMessage().split()) or "it gave no reason")

    handler = Handler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield said
    finally:
        root.removeHandler(handler)
