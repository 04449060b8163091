"""HTTP server that receives progress from training libraries, which post it to `KUBEFLOW_TRAINER_SERVER_URL`.

The Trainer of transformers posts its progress from version 5 on, at most every five seconds and only from rank 0
(`KubeflowCallback` in `transformers/integrations/integration_utils.py`):

    POST URL   Authorization: Bearer <text of the file KUBEFLOW_TRAINER_SERVER_TOKEN>
    {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 30, "lastUpdatedTime": "…",
                       "metrics": [{"name": "loss", "value": "0.5"}, …]}}

Node workers fork ranks, so the server must not have threads: it runs in the node's selector. It listens on 127.0.0.1
only, accepts only posts with the node's own token, and limits connections, headers and bodies. Plain HTTP suffices,
because the traffic never leaves the loopback interface.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import selectors
import socket
from collections.abc import Mapping
from typing import Any, Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker.trainlogs import INTEGER_LIMIT, number, whole

URL, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
HOST = "127.0.0.1"
CONNECTIONS = 8
"""Maximum number of connections. A further connection closes the oldest, so that idle clients block no others."""
HEAD_BYTES = 8 << 10
BODY_BYTES = 64 << 10
METRICS = 16
NAME_CHARS = 80
VALUE_CHARS = 40
_PLACES = {
    "current_step": "step",
    "total_steps": "total",
    "current_epoch": "epoch",
    "epoch": "epoch",
    "loss": "loss",
}
"""Maps metric names of transformers to fields of progress."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
}


class RequestError(Exception):
    """Raised for a request that gets an error response."""

    def __init__(self, code: int) -> None:
        super().__init__(_REASONS[code])
        self.code = code


class StatusServer:
    """Gives each rank a URL to post progress to, and passes the progress to a callback."""

    def __init__(
        self, selector: selectors.BaseSelector, token_file: str, on_progress: Callable[[int, dict[str, Any]], None]
    ) -> None:
        """Starts to listen, and writes a new token to `token_file` (mode 0600). Raises OSError.

        `on_progress` is called with a rank and its progress. Sockets are registered in `selector`, with callbacks as
        `data`.
        """
        self._selector = selector
        self._token_file = token_file
        self._on_progress = on_progress
        self._token = os.urandom(32).hex()
        self._clients: dict[socket.socket, bytearray] = {}
        self._totals: dict[int, int] = {}
        """Total number of training steps, as reported by each rank."""
        descriptor = os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, self._token.encode())
            self._listener = socket.create_server((HOST, 0), backlog=CONNECTIONS)
        except BaseException:
            os.unlink(token_file)
            raise
        finally:
            os.close(descriptor)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self._listener.getsockname()[1])

    def environment(self, rank: int, env: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables with which a rank can post progress; empty if a proxy in `env` would receive
        the posts.
        """
        if _is_proxied(env):
            return {}
        return {URL: f"http://{HOST}:{self.port}/ranks/{rank}", TOKEN: self._token_file}

    def close(self) -> None:
        """Closes all connections and the server."""
        for client in [*self._clients]:
            self._drop(client)
        self._stop_listening()
        with contextlib.suppress(OSError):  # without the server, the token is useless
            os.unlink(self._token_file)

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:
            self._stop_listening()  # without free descriptors, `select` would report the listener forever
            return
        if len(self._clients) >= CONNECTIONS:
            self._drop(next(iter(self._clients)))
        client.setblocking(False)
        self._clients[client] = bytearray()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: socket.socket) -> None:
        if client not in self._clients:
            return  # the client was closed in the same round
        held = self._clients[client]
        try:
            data = client.recv(HEAD_BYTES + 4 + BODY_BYTES - len(held))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        held += data
        try:
            request = split(bytes(held)) if data else None
            if request is None and data:
                return  # the request is incomplete
            if request is not None:
                self._take(*request)
                self._answer(client, 200)
        except RequestError as refused:
            self._answer(client, refused.code)
        self._drop(client)

    def _answer(self, client: socket.socket, code: int) -> None:
        head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: application/json\r\nContent-Length: 3\r\n"
        try:
            client.send(f"{head}Connection: close\r\n\r\n{{}}\n".encode())
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the client has disconnected

    def _drop(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take(self, path: str, authorization: str, body: bytes) -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            raise RequestError(401)
        root, _, digits = path.rpartition("/")
        if root != "/ranks" or not digits.isdecimal() or len(digits) > 9:
            raise RequestError(404)
        rank = int(digits)
        found = progress_of(body)
        percent = found.pop("percent", None)
        if "total" in found:
            self._totals[rank] = found["total"]
        total = self._totals.get(rank)
        if total is None:
            if percent is not None:
                found["percent"] = percent
        elif percent in (0, 100) and "step" not in found:
            # the first and the last post contain a percentage but no step
            found.update(step=total if percent else 0, total=total)
        if found:
            self._on_progress(rank, found)


def split(data: bytes) -> tuple[str, str, bytes] | None:
    """Returns path, authorization header and body of a request; None if the request is incomplete. Raises
    RequestError.
    """
    head, blank, body = data.partition(b"\r\n\r\n")
    if len(head) > HEAD_BYTES:
        raise RequestError(431)
    if not blank:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise RequestError(400)
    if words[0] != "POST":
        raise RequestError(405)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length")
    if length is None:
        raise RequestError(411)
    if not (length.isascii() and length.isdecimal()):
        raise RequestError(400)
    if len(length) > 9 or int(length) > BODY_BYTES:
        raise RequestError(413)
    if len(body) < int(length):
        return None
    return words[1], headers.get("authorization", ""), body[: int(length)]


def progress_of(body: bytes) -> dict[str, Any]:
    """Returns the progress in a post, with the fields of `progress.Recogniser.feed` and `eta_seconds`. Raises
    RequestError.

    Metrics without a valid name or number are skipped, because clients choose both freely.
    """
    try:
        status = json.loads(body)["trainerStatus"]
        metrics = status.get("metrics") or []
        values = {str(each["name"])[:NAME_CHARS]: _number(each["value"]) for each in metrics[: 4 * METRICS]}
        values = {name: value for name, value in values.items() if value is not None and name.isprintable()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RequestError(400) from None
    found: dict[str, Any] = {}
    for name, value in values.items():
        place = _PLACES.get(name)
        if place is None:
            continue
        if place in ("step", "total"):
            if isinstance(value, float) and 0 <= value < INTEGER_LIMIT:
                found[place] = int(value)
        elif place == "loss" or name == "current_epoch" or place not in found:
            found[place] = value if place == "loss" else whole(value)
    others = {name: value for name, value in values.items() if name not in _PLACES}
    if others:
        found["metrics"] = {name: others[name] for name in list(others)[:METRICS]}
    percent = _number(status.get("progressPercentage"))
    if isinstance(percent, float):
        found["percent"] = min(100.0, max(0.0, percent))
    left = _number(status.get("estimatedRemainingSeconds"))
    if isinstance(left, float) and left >= 0:
        found["eta_seconds"] = left
    return found


def _number(value: object) -> float | str | None:
    """Returns a float, or "nan", "inf", "-inf" for values that JSON lacks; None for anything but a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or len(str(value)) > VALUE_CHARS:
        return None
    found: float | str | None = number(str(value))
    return found


def _is_proxied(env: Mapping[str, str]) -> bool:
    """Whether urllib would use a proxy for 127.0.0.1 in this environment."""
    if not (env.get("http_proxy") or env.get("HTTP_PROXY")):
        return False
    spared = env.get("no_proxy", env.get("NO_PROXY", ""))
    return spared != "*" and HOST not in (name.strip() for name in spared.split(","))
