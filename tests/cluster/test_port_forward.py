"""`port-forward` reaches a port of a pod through the API server, also after the pod was replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cli.conftest import Call, environ, home, windlass
from tests.cli.test_port_forward import forwarded
from tests.cluster.bed.cluster import Bed
from tests.cluster.rights import LIMITED, rights_of, until_granted, until_role_is_granted
from tests.cluster.test_exec_copy import ends_with, submit, write_targets
from tests.helpers.until import until

from windlass.engines.kubernetes.reading.preflight import rbac

__all__ = ["environ", "home", "windlass"]

pytestmark = pytest.mark.timeout(900)

PORT = 6006
LARGE_BYTES = 20_000_000
CONNECTIONS = 20
# Only loopback of the pod listens. Each connection is answered with an id of the process, then with what it sends.
SERVER = f"""
import os, socket, threading, uuid
own = uuid.uuid4().hex.encode()
def serve(connection):
    with connection:
        connection.sendall(own + b"\\n")
        while data := connection.recv(1 << 16):
            if data == b"die":
                os._exit(3)
            connection.sendall(data)
listener = socket.create_server(("127.0.0.1", {PORT}), backlog=100)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""


def connected(address: object) -> tuple[socket.socket, str]:
    """Returns a connection and the id of the process in the pod, which is empty if nothing listens."""
    host, _, port = str(address).rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    name = b""
    with contextlib.suppress(ConnectionResetError):
        while not name.endswith(b"\n") and (piece := connection.recv(1)):
            name += piece
    return connection, name.decode().strip()


def process_at(address: object) -> str:
    connection, name = connected(address)
    connection.close()
    return name


def echoed(address: object, data: bytes) -> str:
    """Sends data and returns the digest of what came back."""
    connection, _ = connected(address)
    with connection:
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        digest, size = hashlib.sha256(), 0
        while size < len(data) and (piece := connection.recv(1 << 16)):
            digest.update(piece)
            size += len(piece)
        sending.join()
    return digest.hexdigest()


def test_port_of_a_pod_is_reached_with_the_printed_role_and_after_a_restart(
    windlass: Call, environ: Mapping[str, str], bed: Bed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(bed, namespace, monkeypatch, "bed-limited")
    role = windlass("check", "--on", "bed", "--role").out
    bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=role)
    until_role_is_granted(bed, namespace)
    run = submit(windlass, SERVER, "--restarts", "2")
    ends_with(lambda: windlass("exec", run, "--", "true"))
    with forwarded({**os.environ, **environ}, run, f"0:{PORT}") as (process, printed):
        first = until(lambda: process_at(printed["address"]), lambda: windlass("status", run).out, 600)
        data = os.urandom(LARGE_BYTES)
        assert echoed(printed["address"], data) == hashlib.sha256(data).hexdigest()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            assert set(pool.map(lambda _: process_at(printed["address"]), range(CONNECTIONS))) == {first}

        # the rank dies, and then its pod is deleted
        dying, _ = connected(printed["address"])
        with dying:
            dying.sendall(b"die")
        until(lambda: len(windlass("status", run, "-o", "json").json["attempts"]) > 1)
        second = until(lambda: process_at(printed["address"]), lambda: windlass("status", run).out, 600)
        assert second != first
        names = bed.kubectl("get", "pods", "-n", namespace, "-o", "name").split()
        [pod] = [name for name in names if name.startswith(f"pod/{run}-") and "supervisor" not in name]
        bed.kubectl("delete", pod, "-n", namespace, "--wait=true", "--timeout=300s")
        until(lambda: process_at(printed["address"]) not in ("", second), lambda: windlass("status", run).out, 600)

        # without the right, the refusal names it
        rules = json.loads(bed.kubectl("get", "role", "windlass", "-n", namespace, "-o", "json"))["rules"]
        patch = json.dumps({"rules": [rule for rule in rules if rule["resources"] != ["pods/portforward"]]})
        bed.kubectl("patch", "role", "windlass", "-n", namespace, "--type=merge", "-p", patch)
        until_granted(bed, namespace, LIMITED, rights_of(bed, namespace, LIMITED) - set(rbac.PORTS))
        assert process_at(printed["address"]) == ""
        assert windlass("stop", run, "--now").code == 0
        _, err = process.communicate(timeout=300)
    assert "pods/portforward" in err
    assert f"{run} has ended as stopped" in err
    checked = windlass("check", "--on", "bed").out
    assert "port-forward is refused" in checked
    windlass("rm", "--force", run)
