"""Image registry in a test cluster: requires a login for `private/…`, and knows no other image.

Container runtimes use plain HTTP only for `localhost`, so the registry listens there, in the network namespace that the
nodes share: a second registry on the same port could not listen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bed.cluster import Bed
from tests.cluster.faults import scene

PROGRAM = """
import http.server, json, sys

class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_private = "/private/" in self.path
        code = "UNAUTHORIZED" if is_private else "MANIFEST_UNKNOWN"
        body = json.dumps({"errors": [{"code": code, "message": "no"}]}).encode()
        self.send_response(200 if self.path == "/v2/" else 401 if is_private else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
"""


@contextmanager
def registry_of(bed: Bed) -> Iterator[str]:
    """Yields the registry's address, as reached from the nodes of the test cluster."""
    port = random.randint(20000, 29999)
    name = f"wl-registry-{port}"
    bed.kubectl("create", "namespace", name)
    try:
        bed.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=600s")
        bed.apply(_server(bed, port), namespace=name)
        patience = f"--timeout={scene.PATIENCE_SECONDS:.0f}s"
        bed.kubectl("wait", "-n", name, "--for=condition=ready", "pods", "--all", patience)
        yield f"localhost:{port}"
    finally:
        bed.kubectl("delete", "namespace", name, "--wait=false")


def _server(bed: Bed, port: int) -> dict[str, Any]:
    container = {
        "name": "registry",
        "image": bed.image,
        "command": [bed.python, "-uc", PROGRAM, str(port)],
        "readinessProbe": {"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1},
    }
    spec = {"hostNetwork": True, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "registry"}, "spec": spec}
