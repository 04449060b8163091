"""Requests reach pods over their connections to the supervisor, and through exec."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest
from tests.engines.kubernetes.asking import call
from tests.helpers.until import passed, until

from windlass.engines.kubernetes.access import order_server
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ConnectionControl, ExecControl, Request, signalling
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.order_client import order_client_fields
from windlass.worker import order_protocol as protocol

KEY = bytes(range(protocol.KEY_BYTES))
SECONDS = 60.0
LEAVE = ("leave",)


class Peer:
    """Client of the server whose messages each test controls."""

    def __init__(self, server: OrderServer, pod: str = "pod-0", source: str = "127.0.0.1") -> None:
        self.pod = pod
        self.socket = socket.create_connection(("127.0.0.1", server.port), SECONDS, (source, 0))
        self.file = self.socket.makefile("rb")

    def send(self, **message: object) -> None:
        self.socket.sendall(protocol.written(**message))

    def receive(self) -> dict[str, object]:
        return protocol.read(self.file.readline())

    def challenge(self, **wrong: object) -> str:
        """Sends the pod's name; returns the proof that the server expects."""
        hello = {"version": protocol.VERSION, "pod": self.pod, "attempt": 1, "nonce": protocol.new_nonce(), **wrong}
        self.send(**hello)
        self.answer = self.receive()
        nonces = (str(hello["nonce"]), protocol.text(self.answer, "nonce"))
        assert self.answer["proof"] == protocol.proof(KEY, protocol.SUPERVISOR, self.pod, 1, nonces)
        return protocol.proof(KEY, protocol.POD, self.pod, 1, nonces)

    def join(self) -> Peer:
        self.send(proof=self.challenge())
        return self

    def reply(self, code: int) -> object:
        """Answers the next request with an exit code; returns the request."""
        asked = self.receive()
        self.send(id=asked["id"], code=code)
        return asked["request"]

    def is_refused(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def server() -> Iterator[OrderServer]:
    made = OrderServer(KEY, ("127.0.0.1", 0))
    yield made
    made.close()


@pytest.fixture
def peers(server: OrderServer) -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


# -- who is no pod ----------------------------------------------------------------------------------------------------


def test_proof_is_valid_for_one_connection_only(server: OrderServer, peers: list[Peer]) -> None:
    nonce = protocol.new_nonce()
    peers += [first := Peer(server), second := Peer(server)]
    overheard = first.challenge(nonce=nonce)
    first.send(proof=overheard)
    until(lambda: server.pods)
    second.challenge(nonce=nonce)
    second.send(proof=overheard)
    assert second.is_refused()
    assert server.pods == ("pod-0",)


@pytest.mark.parametrize("whose", ["the supervisor's own", "of another key", "of another pod", "of another attempt"])
def test_proof_depends_on_key_role_pod_and_attempt(server: OrderServer, peers: list[Peer], whose: str) -> None:
    peers.append(one := Peer(server))
    nonce = protocol.new_nonce()
    right = one.challenge(nonce=nonce)
    nonces = (nonce, protocol.text(one.answer, "nonce"))
    proofs = {
        "the supervisor's own": one.answer["proof"],
        "of another key": protocol.proof(bytes(protocol.KEY_BYTES), protocol.POD, one.pod, 1, nonces),
        "of another pod": protocol.proof(KEY, protocol.POD, "pod-1", 1, nonces),
        "of another attempt": protocol.proof(KEY, protocol.POD, one.pod, 2, nonces),
    }
    assert right not in proofs.values()
    one.send(proof=proofs[whose])
    assert one.is_refused()
    assert server.pods == ()


HELLO: Mapping[str, object] = {"version": protocol.VERSION, "pod": "pod-0", "attempt": 1, "nonce": "00"}


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b"\xff\n",
        b"[" * 4000 + b"\n",
        b"x" * (protocol.HANDSHAKE_BYTES + 1),
        protocol.written(id=1, code=0),
        protocol.written(**{**HELLO, "version": 2}),
        protocol.written(**{**HELLO, "attempt": True}),
        protocol.written(**{**HELLO, "pod": None}),
    ],
)
def test_invalid_message_closes_the_connection(server: OrderServer, peers: list[Peer], garbage: bytes) -> None:
    peers.append(one := Peer(server))
    one.socket.sendall(garbage)
    assert one.is_refused()


@pytest.mark.parametrize(
    "garbage", [b"x" * (protocol.HANDSHAKE_BYTES + 1), b"{}\n", protocol.written(id=1, code="0"), b"null\n"]
)
def test_pod_is_dropped_after_invalid_message_and_its_request_is_sent_again(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor, garbage: bytes
) -> None:
    peers.append(one := Peer(server).join())
    code = pool.submit(call, server, one.pod, LEAVE, SECONDS)
    one.receive()
    one.socket.sendall(garbage)
    peers.append(other := Peer(server).join())
    assert other.reply(0) == ["leave"]
    assert code.result() == 0
    assert one.is_refused()


class Sink:
    """Receives the events of a pod, or raises an error."""

    attempt, offset, printed_seconds = 1, 0, 5.0

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.printed: list[Mapping[int, int]] = []

    def take(self, token: str, events: bytes) -> None:
        if self.error is not None:
            raise self.error

    def take_printed(self, sizes: Mapping[int, int]) -> None:
        self.printed.append(sizes)

    def disconnected(self) -> None:
        pass


@pytest.mark.parametrize("rank", ["²", "٣", "-1", "", "1" * 400, "\ud800", "1.0"])
def test_report_with_invalid_rank_is_ignored(server: OrderServer, peers: list[Peer], rank: str) -> None:
    sink = Sink()
    server.subscribe("pod-0", sink)
    peers.append(one := Peer(server).join())
    assert one.receive()["attempt"] == 1
    one.send(attempt=1, printed={rank: 5, "3": 7})
    until(lambda: sink.printed == [{3: 7}])
    assert server.pods == ("pod-0",)


def test_error_of_one_peer_closes_only_that_peer_and_is_recorded() -> None:
    """The thread also serves the other pods, so that no error may end it."""
    crashes: list[str] = []

    def fails(_: socket.socket) -> None:
        raise ZeroDivisionError("of the outputs")

    server = OrderServer(KEY, ("127.0.0.1", 0), crashed=lambda what, error: crashes.append(f"{what}: {error}"))
    with contextlib.closing(server):
        server.subscribe("pod-0", Sink(ZeroDivisionError("of the sink")))
        server.expect_outputs("pod-1", fails)
        bad, good = Peer(server).join(), Peer(server, "pod-2").join()
        assert bad.receive()["attempt"] == 1
        bad.send(**{"attempt": 1, "from": 0, "token": "t", "events": "e"})
        assert bad.is_refused()
        sender = Peer(server, "pod-1")
        nonce = protocol.new_nonce()
        sender.send(version=protocol.VERSION, pod="pod-1", attempt=1, nonce=nonce, role=protocol.OUTPUTS)
        nonces = (nonce, protocol.text(sender.receive(), "nonce"))
        sender.send(proof=protocol.proof(KEY, protocol.OUTPUTS, "pod-1", 1, nonces))
        assert sender.is_refused()
        until(lambda: len(crashes) == 2)
        assert crashes == ["connection of pod pod-0: of the sink", "connection of pod pod-1: of the outputs"]
        with ThreadPoolExecutor(1) as pool:
            code = pool.submit(call, server, "pod-2", LEAVE, SECONDS)
            assert good.reply(0) == ["leave"]
            assert code.result() == 0
        for one in (bad, good, sender):
            one.close()


def test_silent_unauthenticated_peers_do_not_block_pods() -> None:
    server = OrderServer(KEY, ("127.0.0.1", 0), handshake_seconds=0.3)
    strangers = [Peer(server) for _ in range(order_server.MAX_UNAUTHENTICATED + 5)]
    pod = Peer(server).join()
    until(lambda: server.pods == ("pod-0",))
    assert all(one.is_refused() for one in strangers)
    assert server.pods == ("pod-0",)  # An authenticated pod may send nothing for any time.
    for one in (*strangers, pod):
        one.close()
    server.close()


def test_many_connections_of_one_address_do_not_block_pods() -> None:
    """The peer opens as many connections as may be unauthenticated, with a handshake timeout of an hour."""
    with contextlib.closing(OrderServer(KEY, ("127.0.0.1", 0), handshake_seconds=3600.0)) as server:
        strangers = [Peer(server, source="127.0.0.2") for _ in range(order_server.MAX_UNAUTHENTICATED)]
        waiting = Peer(server)
        pod = Peer(server, "pod-1").join()
        until(lambda: server.pods == ("pod-1",))
        assert strangers[0].is_refused(), "the oldest"
        waiting.send(proof=waiting.challenge())
        until(lambda: len(server.pods) == 2)
        for one in (*strangers, waiting, pod):
            one.close()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_its_pod(server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor) -> None:
    code = pool.submit(call, server, "pod-0", ("signal", "2", "15"), SECONDS)
    passed(0.1)
    peers.append(one := Peer(server).join())
    assert one.reply(7) == ["signal", "2", "15"]
    assert code.result() == 7


def test_request_fails_without_an_answer_in_time(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor
) -> None:
    with pytest.raises(Unreachable, match=r"pod pod-0 is not connected to the supervisor within 0\.1 s"):
        call(server, "pod-0", LEAVE, 0.1)
    peers.append(one := Peer(server).join())
    with pytest.raises(Unreachable, match=r"pod pod-0 did not answer within 0\.3 s"):
        call(server, "pod-0", LEAVE, 0.3)
    code = pool.submit(call, server, "pod-0", ("order",), SECONDS)
    late = one.receive()
    one.send(id=late["id"], code=3)
    assert one.reply(0) == ["order"]
    assert code.result() == 0


def test_answers_belong_to_their_requests(server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor) -> None:
    peers.append(one := Peer(server).join())
    codes = [pool.submit(call, server, one.pod, (str(number),), SECONDS) for number in range(8)]
    asked = [one.receive() for _ in codes]
    for message in reversed(asked):
        one.send(id=message["id"], code=int(cast(list[str], message["request"])[0]))
    assert [code.result() for code in codes] == list(range(8))


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_request_with_lost_answer_is_sent_again(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor, how: str
) -> None:
    peers.append(one := Peer(server).join())
    code = pool.submit(call, server, one.pod, LEAVE, SECONDS)
    for _ in range(2):
        one.receive()
        if how == "cut":
            one.close()
        peers.append(other := Peer(server).join())
        if how == "replaced":
            assert one.is_refused()
        one = other
    assert one.reply(3) == ["leave"]
    assert code.result() == 3
    assert server.pods == ("pod-0",)


def test_pending_request_fails_when_the_server_closes(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor
) -> None:
    peers.append(one := Peer(server).join())
    code = pool.submit(call, server, one.pod, LEAVE, SECONDS)
    one.receive()
    server.close()
    with pytest.raises(Unreachable, match="not connected"):
        code.result()


def test_requests_to_many_pods_are_sent_in_parallel(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor
) -> None:
    peers += [Peer(server, f"pod-{number}").join() for number in range(3)]
    requests = [(f"pod-{number}", (str(number),)) for number in range(4)]
    answers = server.call_all(requests, 1.0)
    first = pool.submit(next, answers)
    asked = [one.receive() for one in peers]
    assert [one["request"] for one in asked] == [["0"], ["1"], ["2"]]
    peers[1].send(id=asked[1]["id"], code=7)
    assert first.result() == (1, 7), "as they come"
    peers[2].send(id=asked[2]["id"], code=8)
    left = dict(answers)
    assert left.pop(2) == 8
    assert {number: type(answer) for number, answer in left.items()} == {0: Unreachable, 3: Unreachable}


def test_a_closed_server_accepts_no_request(server: OrderServer) -> None:
    server.close()
    with pytest.raises(Unreachable):
        call(server, "pod-0", LEAVE, SECONDS)
    server.close()


def test_the_control_calls_pods_by_name(server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor) -> None:
    peers.append(one := Peer(server).join())
    answers = ConnectionControl(server).call_all([({"metadata": {"name": "pod-0"}}, Request.leave())], SECONDS)
    first = pool.submit(next, answers)
    assert one.reply(3) == ["leave"]
    assert first.result() == (0, 3)


def test_the_largest_order_arrives(server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor) -> None:
    peers.append(one := Peer(server).join())
    order = Request.order(2, b"\x00" * (protocol.MAX_ORDER_BYTES // 4 * 3 - 30))
    assert order.num_bytes <= ConnectionControl.max_bytes
    code = pool.submit(call, server, one.pod, order.words, SECONDS)
    assert one.reply(0) == [*order.words]
    assert code.result() == 0


def test_one_thread_serves_300_pods(server: OrderServer, peers: list[Peer]) -> None:
    peers += [Peer(server, f"pod-{number}").join() for number in range(300)]
    until(lambda: len(server.pods) == 300)
    before = set(threading.enumerate())
    with ThreadPoolExecutor(16) as pool:
        codes: list[Future[int]] = [pool.submit(call, server, one.pod, (one.pod,), SECONDS) for one in peers]
        for number, one in enumerate(peers):
            assert one.reply(number) == [one.pod]
        assert [code.result() for code in codes] == list(range(300))
    assert set(threading.enumerate()) <= before


def test_connections_leave_enough_file_descriptors(
    server: OrderServer, peers: list[Peer], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = order_server.RESERVED_FILES + 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    peers += [Peer(server, f"pod-{number}").join() for number in range(2)]
    until(lambda: len(server.pods) == 2)
    peers.append(Peer(server, "pod-2"))
    late = pool.submit(peers[-1].join)
    passed(0.2)
    assert not late.done()
    assert server.pods == ("pod-0", "pod-1")
    peers[0].close()
    late.result()
    until(lambda: server.pods == ("pod-1", "pod-2"))


def test_server_listens_at_the_given_address(server: OrderServer) -> None:
    with contextlib.closing(OrderServer(KEY, ("127.0.0.2", 0))) as other, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other.port), SECONDS)
    if socket.has_dualstack_ipv6():
        with contextlib.closing(OrderServer(KEY, ("::", 0))) as both:
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, both.port), SECONDS).close()


# -- by exec ----------------------------------------------------------------------------------------------------------


def test_exec_control_carries_out_requests_with_commands() -> None:
    control = ExecControl(cast(Client, None), "python3")
    program = ["python3", "-I", "-S", "/windlass/work/travel/windlass/worker/pod_reuse.py", "/windlass/work"]
    assert control.command(Request.leave()) == [*program, "leave"]
    assert control.command(Request.order(2, b"spec")) == [*program, "order", "c3BlYw==", "2"]
    told = control.command(Request.signal(2, signal.SIGTERM))
    assert told == ["python3", "-c", signalling(), "/windlass/work", "2", "15"]
    assert "windlass." not in signalling()
    *_, path = control.command(Request.first_ended(2))
    assert path == "/windlass/work/first-ended-2"


# -- the pod's spec ---------------------------------------------------------------------------------------------------


def test_pod_gets_key_and_address_of_its_supervisor() -> None:
    fields = order_client_fields("r-1", "team")
    env = {one["name"]: one.get("value") for one in fields["env"]}
    assert env == {
        "WINDLASS_POD_NAME": None,
        "WINDLASS_SUPERVISOR": f"r-1-supervisor.team.svc:{layout.ORDERS_PORT}",
        "WINDLASS_KEY_FILE": "/windlass/key/key",
    }
    [volume], [mount] = fields["volumes"], fields["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": "/windlass/key", "readOnly": True}
    items = [{"key": "key", "path": "key"}]
    assert volume["secret"] == {"secretName": "r-1-key", "items": items, "defaultMode": 0o440}
