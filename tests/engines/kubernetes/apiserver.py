"""A small API server on loopback: objects in memory, lists by label, optimistic locking, and answers that fail."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

WATCH_SECONDS = 0.2
"""How long a watch lasts here."""
PATH = re.compile(
    r"/apis?/(?P<api>v1|[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)(/(?P<name>[^/]+))?$"
)


class Answer(NamedTuple):
    """What is sent in place of a true answer."""

    status: int
    body: bytes
    content: str = "application/json"


class Request(NamedTuple):
    """One that has come."""

    verb: str
    plural: str
    name: str
    token: str


def status(code: int, reason: str, message: str = "", **details: str) -> Answer:
    """A Status object, as API servers send it."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}
    return Answer(code, json.dumps({**body, "details": details}).encode())


HTML_404 = Answer(404, b"<html><body>404 page not found</body></html>", "text/html")
"""As of a proxy in front of the API server."""


@dataclass
class ApiServer:
    """Its objects, by plural and name, and what has been asked of it."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    fails: Callable[[Request], Answer | None] = lambda _: None
    """Gives the answer to a request that is not to be done; None for one that is."""
    port: int = 0
    _version: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, plural: str, name: str, **more: Any) -> dict[str, Any]:
        """Make an object by hand."""
        made = {"metadata": {"name": name, "labels": {}, **more.pop("metadata", {})}, **more}
        return self._store(plural, name, made)

    def names(self, plural: str) -> list[str]:
        """Of all objects of a kind."""
        return sorted(name for kind, name in self.objects if kind == plural)

    def asked(self, verb: str, plural: str) -> int:
        """How often that has been asked for."""
        return sum((one.verb, one.plural) == (verb, plural) for one in self.requests)

    def _store(self, plural: str, name: str, made: Mapping[str, Any]) -> dict[str, Any]:
        self._version += 1
        meta = {"uid": f"uid-{self._version}", "namespace": "team", **made["metadata"]}
        found = {**made, "metadata": {**meta, "resourceVersion": str(self._version)}}
        self.objects[plural, name] = found
        return found

    def answer(self, request: Request, query: Mapping[str, list[str]], body: Any) -> Answer:
        with self._lock:
            self.requests.append(request)
            failed = self.fails(request)
            if failed is None and "watch" not in query:
                return self._do(request, query, body)
        if failed is None:
            threading.Event().wait(WATCH_SECONDS)  # nothing happens meanwhile
        return failed or Answer(200, b"")

    def _do(self, request: Request, query: Mapping[str, list[str]], body: Any) -> Answer:
        verb, plural, name, _ = request
        if plural.startswith("/"):
            return status(404, "NotFound", "the server could not find the requested resource")
        if verb == "POST":
            name = body["metadata"]["name"]
            if (plural, name) in self.objects:
                return status(409, "AlreadyExists", name=name, kind=plural)
            return _sent(self._store(plural, name, body), 201)
        if not name:
            wanted = [one.partition("=") for one in ",".join(query.get("labelSelector", [])).split(",") if "=" in one]
            items = [one for (kind, _), one in self.objects.items() if kind == plural and _matches(one, wanted)]
            return _sent({"items": items, "metadata": {"resourceVersion": str(self._version)}})
        found = self.objects.get((plural, name))
        if found is None:
            return status(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural)
        if verb == "DELETE":
            del self.objects[plural, name]
        elif verb == "PUT":
            if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                return status(409, "Conflict", name=name, kind=plural)
            found = self._store(plural, name, body)
        return _sent(found)


def _sent(made: Any, code: int = 200) -> Answer:
    return Answer(code, json.dumps(made).encode())


def _matches(one: Mapping[str, Any], wanted: list[tuple[str, str, str]]) -> bool:
    labels = one["metadata"].get("labels", {})
    return all((labels.get(key.rstrip("!")) == value) != key.endswith("!") for key, _, value in wanted)


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """One that serves until the end of the block."""
    served = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            found = PATH.match(url.path)
            plural, name = (found["plural"], found["name"] or "") if found else (url.path, "")
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            answer = served.answer(Request(self.command, plural, name, token), parse_qs(url.query), body)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(server: ApiServer, path: Path, user: Mapping[str, Any] | None = None) -> str:
    """A kubeconfig with the context `bed` for this server, and its path."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "me", "user": dict(user or {"token": "good"})}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "me", "namespace": "team"}}],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)
