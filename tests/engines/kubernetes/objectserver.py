"""An API server on loopback that keeps objects: lists with selectors, tables, watches, and how it fails."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.client import PLURALS, Client

COLUMNS = {"pods": ("Name", "Ready", "Status"), "jobs": ("Name", "Status", "Completions")}
CORE = ("configmaps", "pods", "jobs", "events", "nodes", "persistentvolumeclaims", "services")
BEGAN = "2026-11-21T15:00:00Z"
Object = dict[str, Any]


class ObjectServer:
    """Serves `objects`; a test changes them, and how requests fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        """By plural and name; all are in namespace `team`."""
        self.served = set(CORE)
        self.forbidden: set[str] = set()
        """Plurals whose requests are refused with 403."""
        self.is_silent = False
        """Whether requests are read and never answered."""
        self.asked: list[str] = []
        self._version = 7
        self._changes: list[tuple[int, str, str, Object]] = []
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, on the same port as before."""
        owner = self

        class Handler(_Handler):
            server_of_objects = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and cut those that are open."""
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

    def kubeconfig(self, folder: Path) -> str:
        """A kubeconfig whose context `lab` is this server."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "kubeconfig"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        }))  # fmt: skip
        return str(path)

    def client(self, folder: Path) -> Client:
        return Client("lab", "team", self.kubeconfig(folder))

    # -- objects ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, labels: Mapping[str, str] | None = None, **more: Any) -> Object:
        """Make or replace an object; `row` is what its row in a table says beside the name."""
        meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": dict(labels or {}),
                "creationTimestamp": more.pop("created", BEGAN), **more.pop("metadata", {})}  # fmt: skip
        key = (PLURALS[kind], name)
        made = {"apiVersion": more.pop("api", "v1"), "kind": kind, "metadata": meta, **more}
        self._note("MODIFIED" if key in self.objects else "ADDED", key[0], made)
        self.objects[key] = made
        return made

    def remove(self, kind: str, name: str) -> None:
        """Delete an object."""
        self._note("DELETED", PLURALS[kind], self.objects.pop((PLURALS[kind], name)))

    def _note(self, change: str, plural: str, made: Object) -> None:
        with self._changed:
            self._version += 1
            self._changes.append((self._version, change, plural, made))
            self._changed.notify_all()

    # -- a run --------------------------------------------------------------------------------------------------------

    def anchor(self, run_id: str, **more: Any) -> None:
        """What a run has before anything else."""
        self.put("ConfigMap", run_id, _labels(run_id), **more)

    def mark(self, run_id: str, mark: str, labels: Mapping[str, str] | None = None, **data: str) -> None:
        """A mark on a run: `stop` or `end`."""
        more = {layout.MARK_LABEL: mark, **(labels or {})}
        self.put("ConfigMap", layout.mark_name(run_id, mark), {**_labels(run_id), **more}, data=data)

    def job(self, run_id: str, status: str, completions: str = "0/1", attempt: int = 1) -> None:
        """The Job of an attempt, as its row has it."""
        labels = {**_labels(run_id), layout.ATTEMPT_LABEL: str(attempt)}
        self.put("Job", f"{run_id}-{attempt}", labels, api="batch/v1", row=(status, completions))

    def pod(self, run_id: str, status: str, place: int = 0, attempt: int = 1) -> str:
        """A pod of an attempt, as its row has it."""
        name = f"{run_id}-{attempt}-{place}-abcde"
        labels = {**_labels(run_id), layout.ATTEMPT_LABEL: str(attempt)}
        self.put("Pod", name, labels, row=("1/1" if status == "Running" else "0/1", status), status={},
                 spec={"containers": [{"name": "node"}]})  # fmt: skip
        return name

    def event(self, about: str, reason: str, message: str, kind: str = "Pod", component: str = "karpenter") -> None:
        """An event of an object."""
        self.put("Event", f"event-{len(self.objects)}", reason=reason, message=message, lastTimestamp=BEGAN,
                 involvedObject={"kind": kind, "name": about}, source={"component": component})  # fmt: skip

    # -- answers ------------------------------------------------------------------------------------------------------

    def found(self, plural: str, query: Mapping[str, str]) -> list[Object]:
        """The objects that a list is to have."""
        return [one for (kind, _), one in sorted(self.objects.items())
                if kind == plural and _is_selected(one, query.get("labelSelector", ""))
                and _has_fields(one, query.get("fieldSelector", ""))]  # fmt: skip

    def listed(self, plural: str, query: Mapping[str, str]) -> Object:
        return {"metadata": {"resourceVersion": str(self._version)}, "items": self.found(plural, query)}

    def tabled(self, plural: str, query: Mapping[str, str], objects: list[Object]) -> Object:
        names = COLUMNS.get(plural, ("Name",))
        with_meta = query.get("includeObject") == "Metadata"
        rows = [{"cells": [one["metadata"]["name"], *one.get("row", ())],
                 "object": {"metadata": one["metadata"]} if with_meta else None} for one in objects]  # fmt: skip
        return {"metadata": {"resourceVersion": str(self._version)}, "rows": rows,
                "columnDefinitions": [{"name": name} for name in names]}  # fmt: skip

    def changes(self, plural: str, query: Mapping[str, str]) -> Iterator[Object]:
        """What a watch tells, until the server stops."""
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
                    yield {"type": change, "object": self.tabled(plural, query, [made])}


def _labels(run_id: str) -> dict[str, str]:
    return {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: run_id, layout.JOB_LABEL: run_id.partition("-")[0]}


def _is_selected(one: Object, selector: str) -> bool:
    labels = one["metadata"]["labels"]
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if part.startswith("!"):
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

    def setup(self) -> None:
        super().setup()
        self.server_of_objects._open.add(self.connection)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.server_of_objects._open.discard(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said of requests."""

    def do_GET(self) -> None:
        server, address = self.server_of_objects, urlsplit(self.path)
        server.asked.append(f"GET {self.path}")
        if server.is_silent:
            with server._changed:
                server._changed.wait_for(lambda: not (server.is_up and server.is_silent), 30)
            self.close_connection = True
            return
        query = dict(parse_qsl(address.query))
        words = [word for word in address.path.split("/") if word]
        plural = next((word for word in words if word in PLURALS.values() and word != "namespaces"), "")
        name = words[-1] if words[-1] != plural else ""
        if plural in server.forbidden:
            self._answer(403, _status(403, "Forbidden", f"{plural} is forbidden: the user cannot list {plural}"))
        elif plural not in server.served:
            self._answer(404, "404 page not found")
        elif name:
            one = server.objects.get((plural, name))
            missing = _status(404, "NotFound", f'{plural} "{name}" not found', {"name": name, "kind": plural})
            self._answer(404, missing) if one is None else self._answer(200, one)
        elif query.get("watch"):
            self._watch(server.changes(plural, query))
        elif "as=Table" in self.headers["Accept"]:
            self._answer(200, server.tabled(plural, query, server.found(plural, query)))
        else:
            self._answer(200, server.listed(plural, query))

    def do_POST(self) -> None:
        server = self.server_of_objects
        server.asked.append(f"POST {self.path}")
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        meta = made["metadata"]
        if (PLURALS[made["kind"]], meta["name"]) in server.objects:
            self._answer(409, _status(409, "AlreadyExists", f"{meta['name']} already exists"))
            return
        more = {name: value for name, value in made.items() if name not in ("apiVersion", "kind", "metadata")}
        self._answer(201, server.put(made["kind"], meta["name"], meta["labels"], api=made["apiVersion"], **more))

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

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


def _status(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details or {}}
