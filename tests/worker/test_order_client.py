"""The order client of a pod, run as a process: it serves the supervisor across attempts, and ends with its pod."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.engines.cases.interpreter import NO_OTHER, OTHER_PYTHONS
from tests.engines.kubernetes import asking
from tests.helpers.ports import quiet_port
from tests.helpers.until import BOUND_SECONDS, passed, until
from tests.worker.pod_process import Pod

from windlass.engines.kubernetes.access.control import Request
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.worker import event_feed, order_client, pod_reuse, process
from windlass.worker import order_protocol as protocol

KEY = bytes(range(protocol.KEY_BYTES))
NAME = "r-1-1-0-abcde"
SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[OrderServer]:
    made = OrderServer(KEY, ("127.0.0.1", 0))
    yield made
    made.close()


def environment(folder: Path, port: int, host: str = "localhost") -> dict[str, str]:
    (folder / "key").write_bytes(KEY)
    return {
        "WINDLASS_SUPERVISOR": f"{host}:{port}",
        "WINDLASS_KEY_FILE": str(folder / "key"),
        "WINDLASS_POD_NAME": NAME,
    }


def start(folder: Path, port: int, how: str = "sleeps", warm: tuple[str, ...] = ()) -> Pod:
    return Pod(folder, how, env=environment(folder, port), warm=warm)


def call(server: OrderServer, request: Request) -> int:
    return asking.call(server, NAME, request.words, SECONDS)


def ended(pid: int) -> bool:
    found = process.stat(pid)
    return found is None or found.state == "Z"


def test_client_signals_the_pod_and_orders_its_next_attempts(
    tmp_path: Path, server: OrderServer, pods: list[Pod]
) -> None:
    pods.append(one := start(tmp_path, server.port))
    one.wait_for("[0] attempt 1")
    client = client_of(one)
    assert call(server, Request.signal(1, signal.SIGTERM)) == 0
    one.wait_for("[a] over")
    assert call(server, Request.order(2, one.spec(2, "fails"))) == pod_reuse.TAKEN
    one.wait_for("[0] attempt 2")
    assert call(server, Request.order(3, one.spec(3, "sleeps"))) == pod_reuse.TAKEN
    one.wait_for("[0] attempt 3")
    assert server.pods == (NAME,)
    assert not ended(client)
    assert call(server, Request.signal(2, signal.SIGTERM)) == 0  # too late for attempt 2
    assert call(server, Request.signal(3, signal.SIGTERM)) == 0
    until(lambda: one.text().count("[a] over") == 3)
    assert call(server, Request.leave()) == pod_reuse.TAKEN
    assert one.wait() == 1
    until(lambda: ended(client))
    assert {line[:3] for line in one.text().splitlines()} <= {"[0]", "[a]", "[n]", "[w]"}


def client_of(one: Pod) -> int:
    """Returns the process id of the pod's order client."""
    [found] = set(process.children(one.process.pid)) - nodes_of(one)
    return found


def nodes_of(one: Pod) -> set[int]:
    """Returns the process ids of the pod's live node processes."""
    return {pid for pid in process.children(one.process.pid) if not _is_client(pid)}


def _is_client(pid: int) -> bool:
    try:
        return b"order_client.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # the process has ended meanwhile
        return False


def ranks_of(one: Pod) -> set[int]:
    """Returns the process ids of the pod's live ranks."""
    return {rank for node in nodes_of(one) for rank in process.children(node)}


def test_repeated_order_runs_once(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    pods.append(one := start(tmp_path, server.port, "fails"))
    one.wait_for("[a] over")
    order = Request.order(2, one.spec(2, "fails"))
    assert [call(server, order) for _ in range(2)] == [pod_reuse.TAKEN] * 2
    until(lambda: one.text().count("[a] over") == 2)
    assert call(server, order) == pod_reuse.TAKEN
    passed(0.3)
    assert one.text().count("[a] 2") == 1
    assert call(server, Request.order(3, one.spec(3, "succeeds"))) == pod_reuse.TAKEN
    assert one.wait() == 0


def test_node_ends_remaining_processes_but_not_the_client(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    pods.append(one := start(tmp_path, server.port, "leaves"))
    one.wait_for("[a] over")
    until(lambda: nodes_of(one) == set())
    assert len(process.children(one.process.pid)) == 1
    assert call(server, Request.order(2, one.spec(2, "succeeds"))) == pod_reuse.TAKEN
    assert one.wait() == 0


def test_client_does_not_prevent_forks_of_the_next_attempt(
    tmp_path: Path, server: OrderServer, pods: list[Pod]
) -> None:
    pods.append(one := start(tmp_path, server.port, "fails", warm=("decimal",)))
    one.wait_for("[a] over")
    assert call(server, Request.order(2, one.spec(2, "fails"))) == pod_reuse.TAKEN
    one.wait_for("[0] attempt 2")
    assert '"start": "warm"' in one.text()
    until(lambda: one.text().count("[a] over") == 2)
    assert call(server, Request.order(3, one.spec(3, "succeeds"))) == pod_reuse.TAKEN
    assert one.wait() == 0


@pytest.mark.parametrize("how", ["sleeps", "fails"])
def test_client_ends_when_its_pod_is_killed(tmp_path: Path, server: OrderServer, pods: list[Pod], how: str) -> None:
    pods.append(one := start(tmp_path, server.port, how))
    one.wait_for("[0] attempt 1" if how == "sleeps" else "[a] over")
    until(lambda: server.pods)
    client = client_of(one)
    one.process.kill()
    until(lambda: ended(client))
    until(lambda: not server.pods)


def test_client_shares_no_descriptor_with_the_pod_and_no_variable_with_ranks(
    tmp_path: Path, server: OrderServer, pods: list[Pod]
) -> None:
    pods.append(one := start(tmp_path, server.port))
    one.wait_for("[0] attempt 1")
    until(lambda: server.pods)
    client = client_of(one)
    files = {str(path.readlink()) for path in Path(f"/proc/{client}/fd").iterdir()}
    assert {name.partition(":")[0] for name in files} == {os.devnull, "socket", str(tmp_path / event_feed.WAKE)}
    assert str(Path(f"/proc/{client}/cwd").readlink()) == "/"
    [rank] = ranks_of(one)
    assert b"WINDLASS_SUPERVISOR" not in Path(f"/proc/{rank}/environ").read_bytes()


def test_pod_without_a_supervisor_in_the_cluster_has_no_client(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    assert set(process.children(one.process.pid)) == nodes_of(one)


def test_client_records_that_the_first_pod_has_ended(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    pods.append(start(tmp_path, server.port))
    assert call(server, Request.first_ended(1)) == 0
    assert (tmp_path / f"{pod_reuse.FIRST_ENDED}1").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), pod_reuse.UNKNOWN),
        (("reboot",), pod_reuse.UNKNOWN),
        (("leave", "now"), pod_reuse.UNKNOWN),
        (("signal", "one", "15"), order_client.FAILED),
        (("order", "A", "2"), order_client.FAILED),
    ],
)
def test_unknown_request_is_answered_with_its_code(
    tmp_path: Path, server: OrderServer, pods: list[Pod], words: tuple[str, ...], code: int
) -> None:
    (tmp_path / pod_reuse.WAITING).touch()
    pods.append(start(tmp_path, server.port))
    assert asking.call(server, NAME, words, SECONDS) == code
    assert call(server, Request.signal(0, signal.SIGUSR1)) == 0


def test_client_finds_late_and_replaced_supervisors(tmp_path: Path, pods: list[Pod]) -> None:
    port = quiet_port()
    pods.append(start(tmp_path, port))
    for _ in range(2):
        server = OrderServer(KEY, ("127.0.0.1", port))
        assert call(server, Request.first_ended(1)) == 0
        server.close()


@pytest.mark.parametrize("python", OTHER_PYTHONS.values() or [NO_OTHER], ids=OTHER_PYTHONS.keys() or ["none"])
def test_client_runs_on_other_python_versions(
    tmp_path: Path, server: OrderServer, pods: list[Pod], python: str
) -> None:
    pods.append(one := Pod(tmp_path, "sleeps", env=environment(tmp_path, server.port), python=python))
    one.wait_for("[0] attempt 1")
    assert call(server, Request.signal(1, signal.SIGTERM)) == 0
    one.wait_for("[a] over")
    assert call(server, Request.leave()) == pod_reuse.TAKEN
    assert one.wait() == 1


# -- events -----------------------------------------------------------------------------------------------------------


class Sink:
    """Receiver of the events of an attempt."""

    printed_seconds = 0.2

    def __init__(self, attempt: int, offset: int = 0) -> None:
        self.attempt, self.offset = attempt, offset
        self.tokens: set[str] = set()
        self.data = b""
        self.sizes: Mapping[int, int] = {}

    def take(self, token: str, events: bytes) -> None:
        self.tokens.add(token)
        self.data += events
        self.offset += len(events)

    def take_printed(self, sizes: Mapping[int, int]) -> None:
        self.sizes = sizes

    def disconnected(self) -> None:
        pass


def events_in(log: str, attempt: int) -> bytes:
    """Returns the events of an attempt in the log of a pod, in the form of its feed."""
    part = f"\n[a] 1\n{log}".partition(f"\n[a] {attempt}\n")[2].partition("\n[a] over")[0]
    return "".join(f"{line[4:]}\n" for line in part.splitlines() if line.startswith("[n] ")).encode()


def test_client_sends_the_same_events_as_the_log(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    first, second, third = Sink(1), Sink(2), Sink(3)
    server.subscribe(NAME, first)
    pods.append(one := start(tmp_path, server.port, "fails"))
    one.wait_for("[a] over")
    until(lambda: first.data.endswith(b"\nover\n"))
    server.subscribe(NAME, second)
    assert call(server, Request.order(2, one.spec(2, "sleeps"))) == pod_reuse.TAKEN
    one.wait_for("[0] attempt 2")
    until(lambda: second.sizes == {0: len("attempt 2\n")})
    server.subscribe(NAME, again := Sink(2, len(second.data) - 7))
    until(lambda: again.data == second.data[-7:])
    assert call(server, Request.signal(2, signal.SIGTERM)) == 0
    until(lambda: again.data.endswith(b"\nover\n"))
    server.subscribe(NAME, third)
    assert call(server, Request.order(3, one.spec(3, "succeeds"))) == pod_reuse.TAKEN
    assert one.wait() == 0
    until(lambda: third.data.endswith(b"\nend\n"), "the pod waits until its last events are sent")
    assert first.data == events_in(one.text(), 1) + b"over\n"
    assert third.data == events_in(one.text(), 3) + b"end\n"
    for sink in (first, second, third):
        assert sink.data.count(b'"k": "%s"' % next(iter(sink.tokens)).encode()) == sink.data.count(b"\n{") + 1
    assert len(first.tokens | second.tokens | third.tokens) == 3


def test_output_after_a_quiet_period_is_reported_at_once(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    sink = Sink(1)
    sink.printed_seconds = 10 * BOUND_SECONDS
    server.subscribe(NAME, sink)
    pods.append(start(tmp_path, server.port))
    until(lambda: sink.sizes == {0: len("attempt 1\n")})


def test_new_supervisor_gets_all_events_from_the_first(tmp_path: Path, server: OrderServer, pods: list[Pod]) -> None:
    server.subscribe(NAME, sink := Sink(1))
    pods.append(one := start(tmp_path, server.port))
    one.wait_for("[0] attempt 1")
    until(lambda: sink.data)
    port = server.port
    server.close()
    other = OrderServer(KEY, ("127.0.0.1", port))
    try:
        other.subscribe(NAME, again := Sink(1))
        until(lambda: again.data.startswith(sink.data))
        other.subscribe(NAME, later := Sink(2))
        assert call(other, Request.signal(1, signal.SIGTERM)) == 0
        one.wait_for("[a] over")
        assert call(other, Request.leave()) == pod_reuse.TAKEN
        assert one.wait() == 1
        assert later.data == b""
    finally:
        other.close()


# -- who is no supervisor ---------------------------------------------------------------------------------------------


class Impostor:
    """A server that a pod may reach instead of its supervisor."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SECONDS)
        words = [sys.executable, "-I", "-S", order_client.__file__, str(folder), NAME, "1"]
        env = environment(folder, self.listener.getsockname()[1], "127.0.0.1")
        self.client = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def meet(self) -> tuple[socket.socket, dict[str, object]]:
        """Accepts a connection of the pod, and returns it with its first message."""
        peer = self.listener.accept()[0]
        peer.settimeout(SECONDS)
        return peer, protocol.read(peer.makefile("rb").readline())

    def close(self) -> bytes:
        self.listener.close()
        self.client.kill()
        return self.client.communicate()[0]


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Impostor]:
    made = Impostor(tmp_path)
    yield made
    assert made.close() == b""


def is_refused(peer: socket.socket) -> bool:
    """Whether the pod closes the connection without sending anything."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


LEAVE = protocol.written(id=1, request=["signal", "1", "9"])
NONCE = "00" * protocol.NONCE_BYTES


def answer(hello: dict[str, object], key: bytes = KEY, role: str = protocol.SUPERVISOR, attempt: int = 1) -> bytes:
    nonces = (protocol.text(hello, "nonce"), NONCE)
    return protocol.written(nonce=NONCE, proof=protocol.proof(key, role, NAME, attempt, nonces)) + LEAVE


@pytest.mark.parametrize(
    "wrong",
    [{"key": bytes(protocol.KEY_BYTES)}, {"role": protocol.POD}, {"attempt": 2}],
    ids=["key", "role", "attempt"],
)
def test_unauthenticated_peer_is_not_obeyed(impostor: Impostor, wrong: dict[str, object]) -> None:
    with (met := impostor.meet())[0] as peer:
        peer.sendall(answer(met[1], **wrong))  # type: ignore[arg-type]
        assert is_refused(peer)
    assert impostor.client.poll() is None


def test_recorded_proof_is_invalid_for_another_connection(impostor: Impostor) -> None:
    with (met := impostor.meet())[0]:
        overheard = answer(met[1])
    with impostor.meet()[0] as peer:
        peer.sendall(overheard)
        assert is_refused(peer)


@pytest.mark.parametrize(
    "garbage",
    [
        LEAVE,
        b"hello\n",
        b"[]\n",
        b'{"nonce":1,"proof":"x"}\n',
        b'{"nonce":"\\ud800","proof":"\\ud800"}\n',
        b"x" * (protocol.HANDSHAKE_BYTES + 1),
        b"[" * 4000 + b"\n",
    ],
)
def test_invalid_data_closes_the_connection_and_the_client_reconnects(impostor: Impostor, garbage: bytes) -> None:
    with impostor.meet()[0] as peer:
        peer.sendall(garbage)
        assert is_refused(peer)
    impostor.meet()[0].close()


def test_silent_peer_is_disconnected(impostor: Impostor) -> None:
    with impostor.meet()[0] as peer:
        assert is_refused(peer)


def test_invalid_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(protocol.ProtocolError, match="does not have 32 bytes"):
        protocol.read_key(str(tmp_path / "key"))


# -- what it is made of -----------------------------------------------------------------------------------------------


def test_hmac_equals_that_of_the_standard_library() -> None:
    for key, message in ((KEY, b""), (b"Jefe", b"what do ya want for nothing?"), (bytes(64), b"x" * 1000)):
        assert protocol.hmac_sha256(key, message) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_lines_are_found_however_reads_split_them() -> None:
    data = b"one\n\ntwo\nthree\n"
    for size in range(1, len(data) + 1):
        lines = protocol.Lines(5)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert [line for piece in pieces for line in lines.feed(piece)] == [b"one", b"", b"two", b"three"]
    for long in (b"123456", b"1\n123456\n"):
        with pytest.raises(protocol.ProtocolError):
            list(protocol.Lines(5).feed(long))


def test_client_imports_no_large_modules() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(order_client.__file__).parents[2])!r}); "
        "from windlass.worker import order_client; print(*sys.modules)"
    )
    words = [sys.executable, "-I", "-S", "-c", program]
    modules = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert "windlass.worker.order_protocol" in modules
    assert not {"typing", "hashlib", "_hashlib", "ssl", "random", "subprocess", "base64", "dataclasses"} & {*modules}


def test_supervisor_without_connections_reports_it(server: OrderServer) -> None:
    with pytest.raises(Unreachable, match=rf"pod {NAME} is not connected to the supervisor within 0\.1 s"):
        asking.call(server, NAME, Request.leave().words, 0.1)
