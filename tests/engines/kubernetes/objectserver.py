"""API server on loopback with objects in memory: selectors, tables, watches, optimistic locking, injected failures."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.engines.kubernetes.api import config_of
from tests.helpers.ports import quiet_port

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.kinds import PLURALS
from windlass.engines.kubernetes.objects.pods import INDEX

COLUMNS = {"pods": ("Name", "Ready", "Status"), "jobs": ("Name", "Status", "Completions")}
OF_OPERATORS = {
    "jobsets",
    "trainjobs",
    "trainingruntimes",
    "clustertrainingruntimes",
    "pytorchjobs",
    "mpijobs",
    "workloads",
    "localqueues",
    "clusterqueues",
    "nodepools",
    "nodeclaims",
}
BEGAN = "2026-11-21T15:00:00Z"
PATH = re.compile(r"/apis?/([^/]+/)?v[^/]+/(namespaces/[^/]+/)?(?P<plural>[^/]+)(/(?P<name>[^/]+))?$")
Object = dict[str, Any]


class Request(NamedTuple):
    """A received request; `plural` is the whole path if the path is not one of objects."""

    verb: str
    plural: str
    name: str
    token: str
    query: Mapping[str, str]
    is_table: bool
    body: Any


class Response(NamedTuple):
    """Status code, body and content type of a response."""

    status: int
    body: bytes
    content: str = "application/json"


def sent(body: Any, code: int = 200) -> Response:
    """Returns a response with this JSON body."""
    return Response(code, json.dumps(body).encode())


def status(code: int, reason: str, message: str = "", **details: str) -> Response:
    """Returns a response with a Kubernetes Status object."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}
    return sent({**body, "details": details}, code)


NOT_SERVED = Response(404, b"404 page not found\n", "text/plain")
HTML_404 = Response(404, b"<html><body>404 page not found</body></html>", "text/html")
"""Response of a proxy in front of the API server."""


def refusing(answer: Response, *verbs: str, plural: str = "") -> Callable[[Request], Response | None]:
    """Returns a failure of requests with these verbs, for one kind of objects or for all."""

    def fails(request: Request) -> Response | None:
        return answer if request.verb in verbs and plural in ("", request.plural) else None

    return fails


class ObjectServer:
    """API server for `objects`; tests change the objects, and set how requests fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        """By plural and name; all are in namespace `team`."""
        self.served = set(PLURALS.values()) - OF_OPERATORS
        self.apis: dict[str, list[str]] = {}
        """By API group, the versions that discovery names."""
        self.forbidden: set[str] = set()
        """Plurals whose requests are refused with 403."""
        self.fails: Callable[[Request], Response | None] = lambda _: None
        """Returns the failure that a request is answered with; None for a request to process."""
        self.is_silent = False
        """Whether requests are read and never answered."""
        self.requests: list[Request] = []
        self._version = 7
        self._changes: list[tuple[int, str, str, Object]] = []
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._port = quiet_port()
        """None of those that the kernel gives out: it must still be free at the second start."""
        self._server: ThreadingHTTPServer | None = None
        self.start()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listens, after the first time on the same port as before."""
        owner = self

        class Handler(_Handler):
            server_of_objects = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuses new connections, and cuts open ones."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._changed:
            self._changed.notify_all()

    close = stop

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def kubeconfig(self, folder: Path, user: Mapping[str, Any] | None = None) -> str:
        """Writes a kubeconfig with the context `lab` for this server, and returns its path; `user` as in
        `config_of`.
        """
        return config_of(self._port, folder, user, context="lab")

    def client(self, folder: Path) -> Client:
        return Client("lab", "team", self.kubeconfig(folder))

    # -- objects ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, labels: Mapping[str, str] | None = None, **more: Any) -> Object:
        """Creates or replaces an object; `row` contains the cells of its table row after the name."""
        meta = {
            "name": name,
            "labels": dict(labels or {}),
            "creationTimestamp": more.pop("created", BEGAN),
            **more.pop("metadata", {}),
        }
        return self._store(PLURALS[kind], {"apiVersion": more.pop("api", "v1"), "kind": kind, "metadata": meta, **more})

    def remove(self, kind: str, name: str) -> None:
        """Deletes an object."""
        self._note("DELETED", PLURALS[kind], self.objects.pop((PLURALS[kind], name)))

    def names(self, kind: str) -> list[str]:
        """Returns the names of all objects of a kind."""
        return sorted(name for plural, name in self.objects if plural == PLURALS[kind])

    def _store(self, plural: str, made: Object) -> Object:
        with self._changed:
            key = plural, made["metadata"]["name"]
            before = self.objects.get(key)
            own = {
                "namespace": "team",
                "uid": before["metadata"]["uid"] if before else f"uid-{self._version}",
                "resourceVersion": str(self._version + 1),
            }
            self.objects[key] = {**made, "metadata": {"labels": {}, **made["metadata"], **own}}
            self._note("MODIFIED" if before else "ADDED", plural, self.objects[key])
            return self.objects[key]

    def _note(self, change: str, plural: str, made: Object) -> None:
        with self._changed:
            self._version += 1
            self._changes.append((self._version, change, plural, made))
            self._changed.notify_all()

    # -- a run --------------------------------------------------------------------------------------------------------

    def owner_config_map(self, run_id: str, **more: Any) -> None:
        """Adds the owner ConfigMap of a run."""
        self.put("ConfigMap", run_id, _labels(run_id), **more)

    def marker(self, run_id: str, marker: str, labels: Mapping[str, str] | None = None, **data: str) -> None:
        """Adds a marker of a run: `stop` or `end`."""
        more = {layout.MARKER_LABEL: marker, **(labels or {})}
        self.put("ConfigMap", layout.marker_name(run_id, marker), {**_labels(run_id), **more}, data=data)

    def job(self, run_id: str, status: str, completions: str = "0/1", attempt: int = 1) -> None:
        """Adds the Job of an attempt, with its table row."""
        labels = {**_labels(run_id), layout.ATTEMPT_LABEL: str(attempt)}
        self.put("Job", f"{run_id}-{attempt}", labels, api="batch/v1", row=(status, completions))

    def pod(self, run_id: str, status: str, place: int = 0, attempt: int = 1) -> str:
        """Adds a pod of an attempt, with its table row; returns its name."""
        name = f"{run_id}-{attempt}-{place}-abcde"
        labels = {**_labels(run_id), layout.ATTEMPT_LABEL: str(attempt)}
        runs = status == "Running"
        self.put(
            "Pod",
            name,
            labels,
            row=("1/1" if runs else "0/1", status),
            metadata={"annotations": {INDEX: str(place)}},
            spec={"containers": [{"name": "node"}], **({"nodeName": "bed-a"} if runs else {})},
            status={
                "containerStatuses": [{"name": "node", "state": {"running": {}}}] if runs else [],
                "conditions": [{"type": "Ready", "status": str(runs)}],
            },
        )
        return name

    def event(self, about: str, reason: str, message: str, kind: str = "Pod", component: str = "karpenter") -> None:
        """Adds an event about an object."""
        self.put(
            "Event",
            f"event-{len(self.objects)}",
            reason=reason,
            message=message,
            lastTimestamp=BEGAN,
            involvedObject={"kind": kind, "name": about},
            source={"component": component},
        )

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response | Iterator[Object] | None:
        """Returns the response, or the changes for a watch; None to send no response."""
        with self._changed:
            self.requests.append(request)
            if self.is_silent:
                self._changed.wait_for(lambda: not (self.is_up and self.is_silent), 30)
                return None
            return self.fails(request) or self._refusal(request) or self._done(request)

    def _refusal(self, request: Request) -> Response | None:
        plural, name, key = request.plural, request.name, (request.plural, request.name)
        if plural in self.forbidden:
            return status(403, "Forbidden", f"{plural} is forbidden: the user cannot list {plural}")
        if plural not in self.served and plural.removeprefix("/apis/") not in self.apis:
            return NOT_SERVED
        if request.verb == "POST" and (plural, request.body["metadata"]["name"]) in self.objects:
            name = request.body["metadata"]["name"]
            return status(409, "AlreadyExists", f"{name} already exists", name=name, kind=plural)
        if name and key not in self.objects:
            return status(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural)
        if request.verb == "PUT":
            held, known = (one["metadata"].get("resourceVersion") for one in (self.objects[key], request.body))
            return status(409, "Conflict", name=name, kind=plural) if held != known else None
        return None

    def _done(self, request: Request) -> Response | Iterator[Object]:
        verb, plural, name, _, query, is_table, body = request
        if plural.startswith("/"):
            return sent({"versions": [{"groupVersion": one} for one in self.apis[plural.removeprefix("/apis/")]]})
        if verb in ("POST", "PUT"):
            return sent(body if "dryRun" in query else self._store(plural, body), 201 if verb == "POST" else 200)
        if name:
            found = self.objects[plural, name]
            if verb == "DELETE":
                del self.objects[plural, name]
                self._note("DELETED", plural, found)
            return sent(found)
        if query.get("watch"):
            return self.changes(plural, query, is_table)
        items = [
            one
            for (kind, _), one in sorted(self.objects.items())
            if kind == plural
            and _is_selected(one, query.get("labelSelector", ""))
            and _has_fields(one, query.get("fieldSelector", ""))
        ]
        return sent(
            self.tabled(plural, query, items)
            if is_table
            else {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        )

    def tabled(self, plural: str, query: Mapping[str, str], objects: list[Object]) -> Object:
        names = COLUMNS.get(plural, ("Name",))
        with_meta = query.get("includeObject") == "Metadata"
        rows = [
            {
                "cells": [one["metadata"]["name"], *one.get("row", ())],
                "object": {"metadata": one["metadata"]} if with_meta else None,
            }
            for one in objects
        ]
        return {
            "metadata": {"resourceVersion": str(self._version)},
            "rows": rows,
            "columnDefinitions": [{"name": name} for name in names],
        }

    def changes(self, plural: str, query: Mapping[str, str], is_table: bool) -> Iterator[Object]:
        """Yields the changes for a watch until the server stops."""
        since = int(query["resourceVersion"])
        while self.is_up:
            with self._changed:
                news = [one for one in self._changes if one[0] > since]
                if not news:
                    self._changed.wait(0.2)
                    continue
            since = news[-1][0]
            for _, change, of, made in news:
                if of == plural and _is_selected(made, query.get("labelSelector", "")):
                    yield {"type": change, "object": self.tabled(plural, query, [made]) if is_table else made}


def _labels(run_id: str) -> dict[str, str]:
    return {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: run_id, layout.JOB_LABEL: run_id.partition("-")[0]}


def _is_selected(one: Object, selector: str) -> bool:
    labels = one["metadata"]["labels"]
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        name, equals, value = part.partition("=")
        if several := re.fullmatch(r"(\S+) in \((.*)\)", part):
            fits = labels.get(several[1]) in several[2].split(",")
        elif "!=" in part:
            fits = labels.get(name[:-1]) != value
        elif part.startswith("!"):
            fits = part[1:] not in labels
        else:
            fits = labels.get(name) == value if equals else name in labels
        if not fits:
            return False
    return True


def _has_fields(one: Object, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        name, value = part.split("!=") if "!=" in part else part.split("=")
        found: Any = one
        for step in name.split("."):
            found = found.get(step, {})
        if (found == value) == ("!=" in part):
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    server_of_objects: ObjectServer
    protocol_version = "HTTP/1.1"
    # With Nagle's algorithm, the body of a response would wait until its headers are acknowledged.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server_of_objects._open.add(self.connection)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.server_of_objects._open.discard(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def handle_any(self) -> None:
        address, found = urlsplit(self.path), PATH.match(urlsplit(self.path).path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        plural, name = (found["plural"], found["name"] or "") if found else (address.path, "")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        is_table = "as=Table" in self.headers["Accept"]
        request = Request(self.command, plural, name, token, dict(parse_qsl(address.query)), is_table, body)
        answer = self.server_of_objects.answer(request)
        if answer is None:
            self.close_connection = True
        elif isinstance(answer, Response):
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
        else:
            self._watch(answer)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

    def _watch(self, changes: Iterator[Object]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            for change in changes:
                line = json.dumps(change).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
