"""A service in a cluster: its credentials are mounted, its pod is reached through the API server, and it ends there."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import set_up
from tests.helpers.until import until

import windlass.services.program
from windlass.actions import runs, services
from windlass.engines.pinned_http import ServerAccess, send
from windlass.errors import EngineError
from windlass.runs.context import Context
from windlass.runs.phase import Phase
from windlass.services.service import Service, ServiceKind, ServicePhase, ServiceRequest

PROGRAM = Path(windlass.services.program.__file__).parent
pytestmark = pytest.mark.timeout(900)
# The image of the bed lacks Jupyter: this program listens in its place, as the real one does.
SERVER = """
import http.server, os, pathlib, ssl
folder = pathlib.Path(os.environ["WINDLASS_SERVICE_DIR"])
token = (folder / "token").read_text()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.headers.get("authorization") == f"Bearer {token}"
        self.send_response(200 if is_known else 403)
        self.end_headers()
        self.wfile.write((folder / "page.ipynb").read_bytes() if is_known else b"")
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["WINDLASS_SERVICE_PORT"])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("listening", flush=True)
server.serve_forever()
"""


@pytest.fixture
def contexts(bed: Bed, namespace: str, tmp_path: Path) -> tuple[Context, Context]:
    """Two machines with the same target."""
    target = {"kind": "kubernetes", "context": bed.context, "namespace": namespace, "image": bed.image}
    target |= {"python": bed.python, "supervisor": "cluster"}
    (tmp_path / "targets.yaml").write_text(json.dumps({"bed": target}))
    set_up(bed, namespace)
    environ = {**os.environ, "KUBECONFIG": bed.kubeconfig, "XDG_CONFIG_HOME": str(tmp_path)}
    one, two = (
        Context({**environ, "WINDLASS_HOME": str(tmp_path / name), "WINDLASS_MACHINE": name}, tmp_path)
        for name in ("one", "two")
    )
    return one, two


def test_service_in_a_pod_is_listed_reached_and_closed_by_another_machine(
    bed: Bed, namespace: str, contexts: tuple[Context, Context]
) -> None:
    one, two = contexts
    fields = {"command": [bed.python, "-c", SERVER], "resources": {"cpus": 0.1, "memory": "128MiB"}}
    request = ServiceRequest(ServiceKind.NOTEBOOK, "notebook", PROGRAM, fields, 3600.0, files={"page.ipynb": b"page"})
    with one.store() as store:
        _, run_id = services.start_service(request, "bed", store, one)
    with two.store() as store:

        def up() -> Service | None:
            found = services.list_services(store, two).services
            return next((one for one in found if one.phase is ServicePhase.UP), None)

        found = until(up, lambda: bed.kubectl("get", "pods", "-n", namespace), 300)
        assert found is not None
        assert (found.run_id, found.in_cluster, found.ends_by) == (run_id, True, "cluster")
        engine, _ = services.engine_of(found, store, two)
        files = engine.service_files(run_id)
        access = ServerAccess(files["tls.crt"], files["token"].decode())
        with engine.ports(run_id) as open_port:
            port = found.port or 0

            def page() -> bytes | None:  # a service is up when its program runs, which may not listen yet
                with contextlib.suppress(EngineError):
                    return send(open_port(0, port), access, "GET", "/", timeout=60).body
                return None

            assert until(page, "the service does not listen") == b"page"
            wrong = ServerAccess(files["tls.crt"], "wrong")
            assert send(open_port(0, port), wrong, "GET", "/", timeout=60).status == 403
        [pod] = json.loads(bed.kubectl("get", "pods", "-n", namespace, "-l", "windlass.dev/attempt", "-o", "json"))[
            "items"
        ]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["activeDeadlineSeconds"] > 3600
        services.close_service(found, store, two)
        assert services.list_services(store, two).services == ()
    with one.store() as store:
        assert runs.engine_for(run_id, store).status(run_id).phase is Phase.STOPPED
