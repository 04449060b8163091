"""Connections to ports of pods, through a server on loopback that speaks as API servers and kubelets do, or lies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.access.test_transport import client_of, secure_client_of, tunnelling
from tests.engines.kubernetes.api import config_of, reply
from tests.engines.kubernetes.objects.test_pod_assignment import config
from tests.engines.kubernetes.websockets import CLOSE, WebSocket
from tests.engines.kubernetes.wire import LOCALHOST, Authority, Server, answer, serving
from tests.helpers.until import passed, until

from windlass.engines.kubernetes.access import port_forward
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.port_forward import open_port
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pods import INDEX
from windlass.engines.kubernetes.target import ClusterRuns
from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError
from windlass.runs.context import Context
from windlass.runs.store import Store
from windlass.spec.address import ClusterAddress

PORT = 8888
PORT_BYTES = PORT.to_bytes(2, "little")
REFUSED = (
    b"error forwarding port 8888 to pod d-1, uid : failed to execute portforward in network namespace"
    b' "/var/run/netns/x": failed to connect to localhost:8888 inside namespace "x": dial tcp4 127.0.0.1:8888: connect:'
    b" connection refused"
)
Pod = Callable[[WebSocket], None]


def opened(talk: WebSocket) -> None:
    """Begins a connection as kubelets do."""
    talk.send(b"\0" + PORT_BYTES)
    talk.send(b"\1" + PORT_BYTES)


def echo(talk: WebSocket) -> None:
    """Sends back what it receives, while it receives more."""
    opened(talk)
    while (data := talk.receive()) is not None:
        talk.send(data)


@contextlib.contextmanager
def forwarded(pod: Pod, folder: Path) -> Iterator[tuple[Server, PortSocket]]:
    with (
        serving(lambda server, connection: pod(WebSocket(server, connection))) as server,
        contextlib.closing(open_port(client_of(server, folder), "d-1", PORT)) as stream,
    ):
        stream.settimeout(60)
        yield server, stream


def read_all(stream: socket.socket) -> bytes:
    return b"".join(iter(lambda: stream.recv(1 << 16), b""))


def both_ways(stream: socket.socket, data: bytes) -> bytes:
    """Sends data, and returns as many bytes that it receives meanwhile."""
    sending = threading.Thread(target=stream.sendall, args=(data,))
    sending.start()
    got = bytearray()
    while len(got) < len(data) and (piece := stream.recv(1 << 18)):
        got += piece
    sending.join()
    return bytes(got)


def test_request_names_pod_port_and_protocol(tmp_path: Path) -> None:
    with forwarded(echo, tmp_path) as (server, stream):
        assert both_ways(stream, b"hello") == b"hello"
    [head] = server.heads
    assert head.startswith(f"GET /api/v1/namespaces/team/pods/d-1/portforward?ports={PORT} HTTP/1.1\r\n")
    assert "sec-websocket-protocol: v4.channel.k8s.io" in head
    assert "authorization: Bearer secret" in head
    assert "secret" not in head.split("\r\n")[0]


def test_port_and_data_in_one_message_are_told_apart(tmp_path: Path) -> None:
    def pod(talk: WebSocket) -> None:
        talk.send(b"\0" + PORT_BYTES[:1])
        talk.send(b"\0" + PORT_BYTES[1:] + b"first")
        talk.send(b"\1" + PORT_BYTES)
        talk.send(b"", CLOSE)

    with forwarded(pod, tmp_path) as (_, stream):
        assert read_all(stream) == b"first"
        assert stream.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("has_proxy", [False, True])
def test_100_mb_pass_both_ways_without_damage(tmp_path: Path, has_proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy, the connection to the API server is TLS inside TLS."""
    data = random.Random(3).randbytes(10_000_000 if has_proxy else 100_000_000)
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with (
        serving(lambda server, connection: echo(WebSocket(server, connection)), authority.serve()) as server,
        serving(tunnelling(server.port), authority.serve("proxy")) as proxy,
    ):
        settings = {"proxy-url": f"https://u:p%22@{LOCALHOST}:{proxy.port}"} if has_proxy else {}
        client = secure_client_of(server, tmp_path, authority, **settings)
        with contextlib.closing(open_port(client, "d-1", PORT)) as stream:
            assert hashlib.sha256(both_ways(stream, data)).digest() == hashlib.sha256(data).digest()


def test_fifty_connections_at_once(tmp_path: Path) -> None:
    with serving(lambda server, connection: echo(WebSocket(server, connection))) as server:
        client = client_of(server, tmp_path)

        def ask(number: int) -> bool:
            with contextlib.closing(open_port(client, "d-1", PORT)) as stream:
                return both_ways(stream, b"%d" % number * 10_000) == b"%d" % number * 10_000

        with ThreadPoolExecutor(50) as pool:
            assert all(pool.map(ask, range(50)))
        until(lambda: server.num_open == 0, "connections to the API server are left")
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("port ")], "threads are left")


def test_port_without_a_listener_is_a_failure(tmp_path: Path) -> None:
    def pod(talk: WebSocket) -> None:
        opened(talk)
        talk.send(b"\1" + REFUSED)
        talk.send(b"\x03\xe8", CLOSE)

    with forwarded(pod, tmp_path) as (_, stream):
        assert read_all(stream) == b""
        assert stream.failure is not None
        assert stream.failure.message == "nothing listens on port 8888 of pod d-1"


def test_other_error_of_the_node_is_shown(tmp_path: Path) -> None:
    def pod(talk: WebSocket) -> None:
        opened(talk)
        talk.send(b"\1" + b"lost network\nnamespace " + b"x" * 100_000)

    with forwarded(pod, tmp_path) as (_, stream):
        assert read_all(stream) == b""
        assert stream.failure is not None
        assert "port 8888 of pod d-1 cannot be reached: lost network namespace xx" in stream.failure.message
        assert len(stream.failure.message) < 5000


def cut(talk: WebSocket) -> None:
    opened(talk)
    talk.send(b"\0part")


def internal_error(talk: WebSocket) -> None:
    cut(talk)
    talk.send((1011).to_bytes(2, "big"), CLOSE)


@pytest.mark.parametrize("pod", [cut, internal_error])
def test_connection_that_breaks_is_no_regular_end(tmp_path: Path, pod: Pod) -> None:
    with forwarded(pod, tmp_path) as (_, stream):
        assert read_all(stream) == b"part"
        assert stream.failure is not None
        assert "the connection to port 8888 of pod d-1 was lost" in stream.failure.message


@pytest.mark.parametrize(
    "message", [b"\0" + (22).to_bytes(2, "little"), b"\2" + PORT_BYTES, b"\xff", b"\0" + PORT_BYTES[::-1] + b"x"]
)
def test_server_that_does_not_speak_port_forward_is_a_failure(tmp_path: Path, message: bytes) -> None:
    def pod(talk: WebSocket) -> None:
        talk.send(message)
        talk.receive()

    with forwarded(pod, tmp_path) as (_, stream):
        assert read_all(stream) == b""
        assert stream.failure is not None


def test_frame_that_is_cut_off_is_a_failure(tmp_path: Path) -> None:
    def talk(server: Server, connection: Any) -> None:
        opened(WebSocket(server, connection))
        connection.sendall(b"\x82\x7f" + (1000).to_bytes(8, "big") + b"\0abc")

    with serving(talk) as server, contextlib.closing(open_port(client_of(server, tmp_path), "d-1", PORT)) as stream:
        assert read_all(stream) == b""
        assert stream.failure is not None


def test_missing_right_is_refused_with_the_right(tmp_path: Path) -> None:
    message = 'pods "d-1" is forbidden: User "ada" cannot create resource "pods/portforward" in API group ""'
    body = json.dumps({"message": message, "reason": "Forbidden", "code": 403}).encode()

    def talk(server: Server, connection: Any) -> None:
        server.requested(connection)
        connection.sendall(answer(body, "403 Forbidden"))

    with serving(talk) as server, pytest.raises(Refused) as refused:
        open_port(client_of(server, tmp_path), "d-1", PORT)
    assert "pods/portforward" in refused.value.message
    assert "windlass check --on TARGET" in refused.value.hint


def test_closed_socket_ends_the_connection(tmp_path: Path) -> None:
    with forwarded(echo, tmp_path) as (server, stream):
        assert both_ways(stream, b"x") == b"x"
        stream.close()
        until(lambda: server.num_open == 0)


def test_end_of_one_direction_leaves_time_for_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "SILENT_SECONDS", 0.2)

    def pod(talk: WebSocket) -> None:
        opened(talk)
        received = talk.receive()
        assert received is not None
        talk.send(received + b" answered")
        talk.receive()  # the kubelet is not told of the end

    with forwarded(pod, tmp_path) as (_, stream):
        stream.sendall(b"asked")
        stream.shutdown(socket.SHUT_WR)
        assert read_all(stream) == b"asked answered"
        assert stream.failure is None


def test_slow_answer_after_the_end_of_the_input_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "SILENT_SECONDS", 1.0)

    def pod(talk: WebSocket) -> None:
        opened(talk)
        for _ in range(4):
            passed(0.4)
            talk.send(b"\0more")
        talk.receive()

    with forwarded(pod, tmp_path) as (_, stream):
        stream.shutdown(socket.SHUT_WR)
        assert read_all(stream) == b"more" * 4


# -- pods of a run ----------------------------------------------------------------------------------------------------


class ClusterOfOnePod:
    """API server of a run with one node; its pod echoes."""

    def __init__(self) -> None:
        self.pod = "old"
        self.num_lookups = 0

    def talk(self, server: Server, connection: Any) -> None:
        request = server.requested(connection)
        path = request.split(" ")[1]
        if "/portforward" in path:
            if f"/pods/{self.pod}/" in path:
                echo(WebSocket(server, connection, request))
            else:
                connection.sendall(reply({"message": "no such pod", "reason": "NotFound", "code": 404}, 404))
        elif "/configmaps" in path:
            connection.sendall(reply({"metadata": {}, "items": [config()]}))
        else:
            self.num_lookups += 1
            labels = {layout.ATTEMPT_LABEL: "1"}
            meta = {"name": self.pod, "labels": labels, "annotations": {INDEX: "0"}, "creationTimestamp": "1"}
            running = {"name": "node", "state": {"running": {}}}
            pod = {
                "metadata": meta,
                "spec": {"containers": [{"name": "node"}]},
                "status": {"phase": "Running", "containerStatuses": [running]},
            }
            connection.sendall(reply({"metadata": {}, "items": [pod]}))


def test_run_of_another_machine_is_reached_also_when_its_pod_was_replaced(tmp_path: Path) -> None:
    cluster = ClusterOfOnePod()
    with serving(cluster.talk) as server, Store(tmp_path / "home") as store:
        address = ClusterAddress("lab", "c", "team", kubeconfig=config_of(server.port, tmp_path))
        with ClusterRuns(store, address, Context({}, tmp_path)).ports("digits-ab12") as open_to:

            def ask() -> bytes:
                with contextlib.closing(open_to(0, PORT)) as stream:
                    return both_ways(stream, b"hello")

            assert [ask(), ask(), cluster.num_lookups] == [b"hello", b"hello", 1]
            cluster.pod = "new"
            assert [ask(), ask(), cluster.num_lookups] == [b"hello", b"hello", 2]
            with pytest.raises(EngineError, match="the pod of node 1 does not exist yet"):
                open_to(1, PORT)
