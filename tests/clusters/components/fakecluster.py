"""A fake API server for any kind: discovery, server-side apply, finalizers, immediate controllers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.engines.kubernetes.api import config_of

from windlass.engines.kubernetes.access.client import Client

Object = dict[str, Any]
KINDS = {
    "v1": {
        "Namespace": 0,
        "ConfigMap": 1,
        "Secret": 1,
        "Service": 1,
        "Pod": 1,
        "Event": 1,
        "ServiceAccount": 1,
        "PersistentVolume": 0,
        "PersistentVolumeClaim": 1,
    },
    "apps/v1": {"Deployment": 1, "DaemonSet": 1},
    "batch/v1": {"Job": 1},
    "storage.k8s.io/v1": {"StorageClass": 0},
    "networking.k8s.io/v1": {"Ingress": 1},
    "apiextensions.k8s.io/v1": {"CustomResourceDefinition": 0},
}
"""Kinds served from the start by API, and whether each is namespaced."""
CONDITIONS = {"CustomResourceDefinition": "Established", "NodePool": "Ready", "EC2NodeClass": "Ready"}
STAMP = "2026-11-21T15:00:00Z"


def plural(kind: str) -> str:
    return kind.lower() + ("es" if kind.endswith(("ss", "x")) else "s")


class FakeCluster:
    """Stores objects by path; `act` is called after each change, in place of the cluster's controllers."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.kinds = {api: dict(kinds) for api, kinds in KINDS.items()}
        self.act: Callable[[str, Object], None] = lambda path, found: None
        """Given the path and the object that was applied or whose deletion was requested."""
        self.refuses: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        self.changes: list[str] = []
        """Requests that were not only to read."""
        self._lock = threading.RLock()
        owner = self

        class Handler(_Handler):
            cluster = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self, folder: Path) -> Client:
        return Client("c", "team", config_of(self._server.server_port, folder))

    def kubeconfig(self, folder: Path) -> str:
        return config_of(self._server.server_port, folder)

    # -- objects ------------------------------------------------------------------------------------------------------

    def path(self, api: str, kind: str, name: str = "", namespace: str = "") -> str:
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        place = f"/namespaces/{namespace}" if self.kinds[api][kind] and namespace else ""
        return f"{root}{place}/{plural(kind)}" + (f"/{name}" if name else "")

    def put(self, api: str, kind: str, name: str, namespace: str = "", **more: Any) -> Object:
        """Creates an object like another program would."""
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
        made = {"apiVersion": api, "kind": kind, "metadata": {"generation": 1, **meta}, **more}
        self.kinds.setdefault(api, {}).setdefault(kind, 1 if namespace else 0)
        self.objects[self.path(api, kind, name, namespace)] = made
        return made

    def release(self, path: str, *finalizers: str) -> None:
        """Removes finalizers, as a controller does after it has deleted the underlying resource."""
        found = self.objects[path]
        left = [one for one in found["metadata"].get("finalizers", ()) if one not in finalizers]
        found["metadata"]["finalizers"] = left
        if not left and found["metadata"].get("deletionTimestamp"):
            del self.objects[path]

    def names(self, kind: str) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.objects.values() if one["kind"] == kind)

    # -- requests -----------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Object]:
        with self._lock:
            if refusal := self.refuses(method, path):
                return refusal[0], _status(refusal[0], refusal[1])
            if method != "GET":
                self.changes.append(f"{method} {path}")
            if method == "PATCH":
                return 200, self._apply(path, body)
            if method == "DELETE":
                return self._delete(path)
            return self._read(path, query)

    def _read(self, path: str, query: dict[str, str]) -> tuple[int, Object]:
        if path in self.objects:
            return 200, self.objects[path]
        api = path.removeprefix("/apis/").removeprefix("/api/")
        if api in self.kinds:
            found = [
                {"name": plural(kind), "kind": kind, "namespaced": bool(scope)}
                for kind, scope in self.kinds[api].items()
            ]
            return 200, {"kind": "APIResourceList", "resources": found}
        root, _, name = path.rpartition("/")
        items = [one for at, one in sorted(self.objects.items()) if _is_in(at, root, name) and _fits(one, query)]
        is_collection = any(name == plural(kind) for kinds in self.kinds.values() for kind in kinds)
        if is_collection:
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
        return 404, _status(404, f'"{name}" not found')

    def _apply(self, path: str, body: Object) -> Object:
        found = self.objects.setdefault(path, {"metadata": {"generation": 1}})
        _merge(found, body)
        if found["kind"] == "CustomResourceDefinition":
            spec = found["spec"]
            for one in spec["versions"]:
                served = self.kinds.setdefault(f"{spec['group']}/{one['name']}", {})
                served[spec["names"]["kind"]] = int(spec["scope"] == "Namespaced")
        if kind := CONDITIONS.get(found["kind"]):
            found["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        self.act(path, found)
        return found

    def _delete(self, path: str) -> tuple[int, Object]:
        found = self.objects.get(path)
        if found is None:
            return 404, _status(404, "not found")
        if found["metadata"].get("finalizers"):
            found["metadata"].setdefault("deletionTimestamp", STAMP)
        else:
            del self.objects[path]
        self.act(path, found)
        return 200, found


def _is_in(at: str, root: str, name: str) -> bool:
    """Whether an object is in a collection, either of its namespace or of all namespaces."""
    head, _, own = at.rpartition("/")[0].rpartition("/")
    return own == name and (head == root or (head.startswith(f"{root}/namespaces/") and "/namespaces/" not in root))


def _fits(one: Object, query: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels") or {}
    for part in filter(None, query.get("labelSelector", "").split(",")):
        name, equals, value = part.partition("=")
        if not (labels.get(name) == value if equals else name in labels):
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = part.partition("=")
        found: Any = one
        for step in name.split("."):
            found = (found or {}).get(step)
        if found != value:
            return False
    return True


def _merge(into: Object, other: Object) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _status(code: int, message: str) -> Object:
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": "NotFound" if code == 404 else "Forbidden",
        "message": message,
    }


class _Handler(BaseHTTPRequestHandler):
    cluster: FakeCluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Suppresses request logs."""

    def handle_any(self) -> None:
        address = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        code, found = self.cluster.answer(self.command, address.path, dict(parse_qsl(address.query)), body)
        data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PATCH = do_DELETE = handle_any  # noqa: N815
