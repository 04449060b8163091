"""Proxy to the API server that cuts or stalls connections, and a relay through which pods reach this machine."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.bed.cluster import Cluster

CUT_BYTES = 6000


class Proxy:
    """Forwards connections to the API server.

    While `is_cutting`, each connection is cut after some bytes of the response; while `is_stalling`, no data passes.
    """

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._to = (str(parts.hostname), parts.port or 443)
        self.is_cutting = False
        self.is_stalling = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._to, 10) as server:
            server.settimeout(None)  # the timeout is for connecting only: a frozen server keeps connections open
            sent = 0
            while True:
                ready, _, _ = select.select([] if self.is_stalling else [client, server], [], [], 0.5)
                for source in ready:
                    data = source.recv(4096)
                    if not data:
                        return
                    if source is client:
                        server.sendall(data)
                        continue
                    if self.is_cutting and sent + len(data) > CUT_BYTES:
                        client.sendall(data[: max(0, CUT_BYTES - sent)])
                        return
                    sent += len(data)
                    client.sendall(data)


def kubeconfig_of(cluster: Cluster) -> dict[str, Any]:
    """Returns the kubeconfig of a cluster's context only."""
    text = cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json")
    found: dict[str, Any] = json.loads(text)
    return found


@contextmanager
def proxied(cluster: Cluster) -> Iterator[Proxy]:
    """Starts a proxy to the API server of a cluster."""
    found = Proxy(kubeconfig_of(cluster)["clusters"][0]["cluster"]["server"])
    try:
        yield found
    finally:
        found.close()


def behind(cluster: Cluster, proxy: Proxy, path: Path) -> Cluster:
    """Returns the same cluster with a separate kubeconfig for the proxy."""
    view = kubeconfig_of(cluster)
    found = view["clusters"][0]["cluster"]
    host = urlsplit(found["server"]).hostname
    found |= {"server": f"https://127.0.0.1:{proxy.port}", "tls-server-name": host}
    path.write_text(json.dumps(view))
    return replace(cluster, kubeconfig=str(path))


@contextmanager
def relay(host: str, port: int) -> Iterator[int]:
    """Forwards a port of `host` to a port of loopback; yields the port."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=pump, args=(one, other), daemon=True).start()

    def pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()

    with socket.create_server((host, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
