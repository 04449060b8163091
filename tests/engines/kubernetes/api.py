"""API server on loopback with scripted responses: complete ones, HTML of a proxy, and bodies that are cut off."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.engines.kubernetes.wire import Server

from windlass.engines.kubernetes.access.client import Client

Respond = Callable[[str, str], bytes]
"""Function from method and path with query to the bytes to send, after which the connection is closed."""


def reply(body: object, status: int = 200, *, cut: int | None = None) -> bytes:
    """Returns a complete response with its length; `cut` removes this number of bytes from its end."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
    return head + (data if cut is None else data[:-cut])


def chunked(*pieces: bytes, is_whole: bool = True) -> bytes:
    """Returns a response in chunks, like those of watches and logs; without the last chunk, the connection counts as
    cut off.
    """
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + body + (b"0\r\n\r\n" if is_whole else b"ff\r\nhalf a")


def not_found(kind: str, name: str) -> bytes:
    """Returns the API server's response for a missing object."""
    return reply(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": f'{kind} "{name}" not found',
            "reason": "NotFound",
            "details": {"name": name, "kind": kind},
            "code": 404,
        },
        404,
    )


class Api(Server):
    """Server that calls `answer`, which tests may replace at any time; `asked` are the received requests."""

    def __init__(self, answer: Respond) -> None:
        self.answer = answer
        self.asked: list[str] = []
        super().__init__(lambda _, connection: self._reply(connection))

    def _reply(self, connection: socket.socket) -> None:
        if request := self.requested(connection):
            method, path, _ = request.split("\r\n")[0].split(" ")
            self.asked.append(f"{method} {path}")
            connection.sendall(self.answer(method, path))


@contextlib.contextmanager
def serving(answer: Respond) -> Iterator[Api]:
    with contextlib.closing(Api(answer)) as api:
        yield api


def config_of(port: int, folder: Path, user: Mapping[str, Any] | None = None, *, context: str = "c") -> str:
    """Writes a kubeconfig for the server, and returns its path; `user` contains the credentials, by default a token."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": context,
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": dict(user or {"token": "secret"})}],
                "contexts": [{"name": context, "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            }
        )
    )
    return str(path)


def client_of(api: Api, folder: Path, user: Mapping[str, Any] | None = None) -> Client:
    return Client("c", "team", config_of(api.port, folder, user))


# -- a cluster of one run ---------------------------------------------------------------------------------------------


class ClusterOfOneRun:
    """Fake cluster with the pods of attempt 1 of run `r-1`, their owner object and logs; tests set its responses."""

    def __init__(self, num_pods: int = 1) -> None:
        self.logs = [b""] * num_pods
        self.pods = [_pod(place) for place in range(num_pods)]
        self.cut_logs: int | None = None
        """Bytes after which the connection of a log is cut."""
        self.is_silent = False
        """Whether a log that is followed stays open with nothing new, rather than end at once."""
        self.closed = threading.Event()
        self._changed = threading.Condition()

    def end_pod(self, place: int, exit_code: int) -> None:
        status = {
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": [
                {"name": "node", "restartCount": 0, "state": {"terminated": {"exitCode": exit_code}}}
            ],
        }
        with self._changed:
            self.pods[place] = {**self.pods[place], "status": status}
            self._changed.notify_all()

    def delete_pod(self, place: int, grace: int) -> None:
        """Deletes a pod like the API server: the pod keeps its status until the Job controller removes its
        finalizer.
        """
        gone = {"deletionTimestamp": "2026-11-01T10:00:00Z", "deletionGracePeriodSeconds": grace}
        with self._changed:
            self.pods[place] = {**self.pods[place], "metadata": {**self.pods[place]["metadata"], **gone}}
            self._changed.notify_all()

    def __call__(self, method: str, path: str) -> bytes:
        where, _, query = path.partition("?")
        if "/log" in where:
            return self._log(int(where.split("/")[-2].rpartition("-")[2]), query)
        if where.endswith("/pods") and "watch=1" in query:
            before = list(self.pods)
            with self._changed:
                self._changed.wait_for(lambda: self.pods != before or self.closed.is_set(), 0.5)
            changed = [pod for pod, was in zip(self.pods, before, strict=True) if pod != was]
            lines = [json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n" for pod in changed]
            return chunked(*lines)
        if where.endswith("/pods"):
            return reply({"metadata": {"resourceVersion": "1"}, "items": self.pods})
        if where.endswith("/events"):
            return reply({"metadata": {}, "items": []})
        if where.endswith("/exec"):
            return reply({"kind": "Status", "reason": "Forbidden", "message": "no exec", "code": 403}, 403)
        name = where.rpartition("/")[2]
        if method == "GET" and name in ("r-1", "r-1-1"):
            return reply({"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {}})
        return not_found(where.split("/")[-2], name)

    def _log(self, place: int, query: str) -> bytes:
        since = parse_qs(query).get("sinceTime", [""])[0][:19].encode()
        lines = [line for line in self.logs[place].splitlines(keepends=True) if line[:19] >= since]
        data = b"".join(lines)
        if self.cut_logs is not None and len(data) > self.cut_logs:
            return chunked(data[: self.cut_logs], is_whole=False)
        if "follow" in query and self.is_silent:
            self.closed.wait(30)
        return chunked(data) if data else chunked()


class Pods:
    """Pods as their watch reports them; tests set which are gone."""

    def __init__(self, cluster: ClusterOfOneRun) -> None:
        self.cluster = cluster
        self.gone = False

    def pod(self, place: int) -> Any:
        return self.cluster.pods[place]

    def is_gone(self, place: int) -> bool:
        return self.gone


def _pod(place: int) -> dict[str, Any]:
    meta = {
        "name": f"r-1-1-{place}",
        "uid": f"u{place}",
        "labels": {"windlass.dev/attempt": "1"},
        "annotations": {"batch.kubernetes.io/job-completion-index": str(place)},
    }
    running = {"name": "node", "restartCount": 0, "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [running], "conditions": []}
    return {"metadata": meta, "spec": {"containers": [{"name": "node"}], "nodeName": "n"}, "status": status}


def said(*lines: str, start: int = 0) -> bytes:
    """Returns lines of a log in the format of the API, one second apart."""
    return b"".join(
        b"2026-01-02T03:%02d:%02d.000000001Z %s\n" % (at // 60, at % 60, line.encode())
        for at, line in enumerate(lines, start)
    )
