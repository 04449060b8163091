"""Minimal Kubernetes API client with the standard library, faster than starting kubectl for each call."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """An unsuccessful response; `code` is its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:400]}")
        self.code = code


@contextlib.contextmanager
def suppressed(code: int) -> Iterator[None]:
    """Suppresses ApiError with this status."""
    try:
        yield
    except ApiError as problem:
        if problem.code != code:
            raise


def calm(ask: Callable[[], object]) -> bool:
    """Returns whether the answer is true; False if the server cannot be reached now."""
    try:
        return bool(ask())
    except (OSError, http.client.HTTPException, ApiError):
        return False


def answers(address: str, port: int, path: str) -> bool:
    """Returns whether the health endpoint of a program reports success."""

    def ask() -> bool:
        connection = http.client.HTTPConnection(address, port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    return calm(ask)


@dataclass(frozen=True)
class Api:
    """Client of one API server, as one user."""

    server: str
    authority: str
    """Path of the CA certificate of the server."""
    token: str

    def get(self, path: str) -> Object:
        return self._call("GET", path)

    def create(self, path: str, body: Object) -> Object:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Object, kind: str = MERGE) -> Object:
        return self._call("PATCH", path, body, kind)

    def delete(self, path: str) -> Object:
        return self._call("DELETE", path)

    def ensure(self, collection: str, body: Object) -> None:
        """Creates an object that may already exist."""
        with suppressed(409):
            self.create(collection, body)

    def discard(self, path: str) -> None:
        """Deletes an object that may not exist."""
        with suppressed(404):
            self.delete(path)

    def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready."""
        return calm(self._ask_ready)

    def _ask_ready(self) -> bool:
        connection = self._connect(5)
        try:
            connection.request("GET", "/readyz", headers=self._headers())
            return connection.getresponse().read() == b"ok"
        finally:
            connection.close()

    def watch(self, path: str, seconds: int) -> Iterator[Object]:
        """Yields events of a collection, starting with its existing objects."""
        connection = self._connect(seconds + 10)
        try:
            connection.request("GET", f"{path}?watch=1&timeoutSeconds={seconds}", headers=self._headers())
            reply = connection.getresponse()
            if reply.status != 200:
                raise ApiError(reply.status, reply.read().decode(errors="replace"))
            while line := reply.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        connection = self._connect(60)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, body=content, headers=self._headers(kind))
            reply = connection.getresponse()
            text = reply.read().decode(errors="replace")
        finally:
            connection.close()
        if reply.status >= 300:
            raise ApiError(reply.status, text)
        answer: Object = json.loads(text)
        return answer

    def _headers(self, kind: str = "application/json") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        at = urlsplit(self.server)
        context = ssl.create_default_context(cafile=self.authority)
        return http.client.HTTPSConnection(at.hostname or "", at.port, timeout=timeout, context=context)
