"""Outputs are collected from pods by their supervisor: transfers over real connections, decisions with fakes."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest
from tests.helpers.until import BOUND_SECONDS, until

from windlass.code.unpack import move_into
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ConnectionControl, Request
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.engines.kubernetes.running import collection
from windlass.engines.kubernetes.running.collection import (
    Collected,
    OutputsCollection,
    OutputsSkipped,
    PushFetch,
    merge,
    move_to_outputs,
    receive,
)
from windlass.errors import EngineError
from windlass.runs.store import OUTPUT_DIGEST
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker import order_protocol as protocol
from windlass.worker import outputs, pod_reuse

KEY = bytes(range(protocol.KEY_BYTES))
NAME = "r-1-1-0"
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[OrderServer]:
    made = OrderServer(KEY, ("127.0.0.1", 0))
    yield made
    made.close()


def written(folder: Path, /, **files: bytes) -> Path:
    for name, data in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- a connection -----------------------------------------------------------------------------------------------------


def push(server: OrderServer, work: Path, folder: Path, key: bytes = KEY) -> subprocess.Popen[bytes]:
    """Starts the program with which a pod sends a folder."""
    work.mkdir(exist_ok=True)
    (work / "key").write_bytes(key)
    env = {"WINDLASS_SUPERVISOR": f"127.0.0.1:{server.port}", "WINDLASS_KEY_FILE": str(work / "key")}
    words = [sys.executable, "-I", "-S", outputs.__file__, "push", str(work), NAME, "1", str(folder)]
    return subprocess.Popen(words, env=env)


class Pushes:
    """Control of one pod, which sends its outputs on request like an order client."""

    def __init__(self, server: OrderServer, work: Path, folder: Path, key: bytes = KEY) -> None:
        self.events = server
        self.max_bytes = MIB
        self.codes: list[int] = []
        self._start = functools.partial(push, server, work, folder, key)
        self.started: list[subprocess.Popen[bytes]] = []

    def call_all(self, requests: Sequence[tuple[Any, Request]], _seconds: float) -> Iterator[tuple[int, int]]:
        [(pod, request)] = requests
        assert request.words == ("push-outputs", NAME, "1", layout.OUTPUT)
        assert pod["metadata"]["name"] == NAME
        self.started.append(self._start())
        yield 0, pod_reuse.TAKEN

    def ended(self) -> int:
        return self.started[-1].wait(BOUND_SECONDS)


POD = {"metadata": {"name": NAME, "labels": {layout.ATTEMPT_LABEL: "1"}}}


def test_folder_is_received_unchanged(server: OrderServer, tmp_path: Path) -> None:
    out = written(tmp_path / "out", model=os.urandom(3 * MIB + 17), deep__er__a=b"a", empty=b"")
    (out / "link").symlink_to("deep/er/a")
    (out / "away").symlink_to("/etc/passwd")
    control = Pushes(server, tmp_path / "work", out)
    skipped = PushFetch(cast(ConnectionControl, control))(POD, tmp_path / "got", 4 * MIB)
    assert control.ended() == 0
    assert read(tmp_path / "got") == {name: data for name, data in read(out).items() if name != "away"}
    assert (tmp_path / "got" / "link").readlink() == Path("deep/er/a")
    assert [one.split(":")[0] for one in skipped] == ["away"]
    assert outputs.digest(str(tmp_path / "got")) == outputs.digest(str(out))


def test_a_pod_without_the_key_sends_nothing(
    server: OrderServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "CONNECT_SECONDS", 0.0)
    control = Pushes(server, tmp_path / "work", written(tmp_path / "out", a=b"a"), key=bytes(protocol.KEY_BYTES))
    with pytest.raises(Unreachable, match="has not connected"):
        PushFetch(cast(ConnectionControl, control))(POD, tmp_path / "got", MIB)
    assert control.ended() == 1
    assert not (tmp_path / "got").exists()


def test_outputs_that_were_not_requested_are_refused(server: OrderServer, tmp_path: Path) -> None:
    out = written(tmp_path / "out", a=b"a")
    taken: SimpleQueue[socket.socket] = SimpleQueue()
    server.expect_outputs("another", taken.put)
    assert push(server, tmp_path / "work", out).wait(BOUND_SECONDS) == 1
    assert taken.empty()
    assert server.pods == (), "it is not taken for the pod's order client either"


def test_proof_for_requests_is_not_accepted_for_outputs(server: OrderServer) -> None:
    server.expect_outputs(NAME, lambda _: pytest.fail("it was taken"))
    with socket.create_connection(("127.0.0.1", server.port), BOUND_SECONDS) as peer:
        nonce, file = protocol.new_nonce(), peer.makefile("rb")
        peer.sendall(
            protocol.written(version=protocol.VERSION, pod=NAME, attempt=1, nonce=nonce, role=protocol.OUTPUTS)
        )
        nonces = (nonce, protocol.text(protocol.read(file.readline()), "nonce"))
        peer.sendall(protocol.written(proof=protocol.proof(KEY, protocol.POD, NAME, 1, nonces)))
        assert file.readline() == b""


def sent(data: bytes, *, end: bytes | None = None) -> socket.socket:
    """Returns a connection whose other end has sent a stream and closed; `end` replaces the true end."""
    here, there = socket.socketpair()

    def send() -> None:
        with there, contextlib.suppress(OSError):  # the receiver may have closed the connection
            pieces = outputs.Pieces(there)
            pieces.write(data)
            if end is None:
                pieces.end()
            else:
                there.sendall(end)
            there.shutdown(socket.SHUT_WR)
            while there.recv(MIB):
                pass

    threading.Thread(target=send, daemon=True).start()
    return here


def packed(*entries: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


ONE = packed(("root/a", b"a" * 1000))


@pytest.mark.parametrize(
    ("data", "end", "why"),
    [
        (ONE[:700], b"", "broke off|unexpected end|cut"),
        (ONE, b"", "cut"),
        (ONE, b"\0\0\0\0" + b"0" * 64 + b"\n", "its digest does not match"),
        (ONE, b"\xff\xff\xff\xff", "a piece is too long"),
        (b"no archive" * 100, None, "incomplete"),
    ],
)
def test_truncated_or_changed_stream_is_not_confirmed(tmp_path: Path, data: bytes, end: bytes | None, why: str) -> None:
    with sent(data, end=end) as connection, pytest.raises((EngineError, OSError), match=why):
        receive(connection, tmp_path / "got", MIB)


def test_paths_outside_the_folder_are_skipped(tmp_path: Path) -> None:
    hostile = packed(("root/../../evil", b"e"), ("/etc/evil", b"e"), ("root/./evil", b"e"), ("root/good", b"g"))
    (tmp_path / "deep").mkdir()
    with sent(hostile) as connection:
        skipped = receive(connection, tmp_path / "deep" / "got", MIB)
    assert len(skipped) == 3
    assert read(tmp_path) == {"deep/got/good": b"g"}


def test_outputs_over_the_limit_are_not_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sent(ONE) as connection, pytest.raises(OutputsSkipped, match="1,000 bytes, and 999"):
        receive(connection, tmp_path / "got", 999)
    monkeypatch.setattr(collection, "MAX_FILES", 1)
    with sent(packed(("root/a", b""), ("root/b", b""))) as connection, pytest.raises(OutputsSkipped):
        receive(connection, tmp_path / "got", 999)
    with (
        sent(ONE) as connection,
        contextlib.closing(outputs.PieceReader(connection, 100)) as reader,
        pytest.raises(outputs.PushError, match="more was sent"),
    ):
        reader.read()


# -- several nodes ----------------------------------------------------------------------------------------------------


def test_first_node_wins_if_several_nodes_wrote_the_same_path(tmp_path: Path) -> None:
    parts = {
        2: written(tmp_path / "2", a=b"2", same=b"s", own2=b"2", file__below=b"2", folder=b"2"),
        0: written(tmp_path / "0", a=b"0", same=b"s", own0=b"0", file=b"0", folder__below=b"0"),
        7: tmp_path / "nothing",
    }
    (parts[2] / "link").symlink_to("a")
    (parts[0] / "link").symlink_to("a")
    assert merge(parts, tmp_path / "all") == ["a of node 2", "file/below of node 2", "folder of node 2"]
    kept = {"a": b"0", "same": b"s", "own0": b"0", "own2": b"2", "file": b"0", "folder/below": b"0", "link": b"0"}
    assert read(tmp_path / "all") == kept


def test_no_file_is_written_through_a_link_of_another_node(tmp_path: Path) -> None:
    (tmp_path / "0" / "real").mkdir(parents=True)
    (tmp_path / "0" / "way").symlink_to("real")
    parts = {0: tmp_path / "0", 1: written(tmp_path / "1", way__a=b"1")}
    assert merge(parts, tmp_path / "all") == ["way/a of node 1"]
    assert not (tmp_path / "all" / "real").exists()


def test_outputs_count_as_fetched_once_all_are(tmp_path: Path) -> None:
    new = written(tmp_path / "new", a=b"new")
    move_to_outputs(new, tmp_path, "d" * 64)
    assert (tmp_path / OUTPUT_DIGEST).read_text() == "d" * 64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "output", OUTPUT_DIGEST]


def test_outputs_are_on_the_disk_before_they_count_as_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod ends afterwards, and a power failure must not leave empty files behind."""
    synced: list[tuple[bool, bool]] = []
    files = (tmp_path / "output" / "a", tmp_path / OUTPUT_DIGEST)
    monkeypatch.setattr(collection, "sync", lambda _folder: synced.append((files[0].exists(), files[1].exists())))
    move_to_outputs(written(tmp_path / "new", a=b"new"), tmp_path, "d" * 64)
    assert synced == [(True, False), (True, True)]


# -- what is decided --------------------------------------------------------------------------------------------------


class Control:
    """Control whose pods accept all requests; counts the pods that are kept alive."""

    events = None
    max_bytes = MIB

    def __init__(self) -> None:
        self.held: list[set[str]] = []

    def call_all(self, requests: Sequence[tuple[Any, Request]], _seconds: float) -> Iterator[tuple[int, int]]:
        assert all(request == Request.hold() for _, request in requests)
        self.held.append({pod["metadata"]["name"] for pod, _ in requests})
        return enumerate([pod_reuse.TAKEN] * len(requests))


class Pods:
    """Client of a cluster in which these pods run; the first `unanswered` requests fail with `error`."""

    ahead = 0.0

    def __init__(self, *nodes: int, unanswered: int = 0, error: EngineError | None = None) -> None:
        self.nodes = nodes
        self.unanswered = unanswered
        self.error = error or Unreachable("away")

    def find(self, _api: str, _kind: str, _selector: str) -> dict[str, Any]:
        self.unanswered -= 1
        if self.unanswered >= 0:
            raise self.error
        return {"items": [_running(node) for node in self.nodes]}


def _running(node: int, **spec: Any) -> dict[str, Any]:
    meta = {
        "name": f"pod-{node}",
        "labels": {layout.ATTEMPT_LABEL: "1"},
        "annotations": {"batch.kubernetes.io/job-completion-index": str(node)},
    }
    status = {"containerStatuses": [{"name": "node", "state": {"running": {}}}], "startTime": "2026-01-01T00:00:00Z"}
    return {"metadata": meta, "spec": {"containers": [{"name": "node"}], **spec}, "status": status}


def collection_of(
    folder: Path,
    fetch: Callable[[str, Path, int], list[str]],
    pods: Pods,
    max_bytes: int = MIB,
    control: Control | None = None,
) -> OutputsCollection:
    return OutputsCollection(
        cast(Client, pods),
        control or Control(),
        lambda pod, into, most: fetch(pod["metadata"]["name"], into, most),
        "r-1",
        folder,
        max_bytes,
    )


def collected(
    folder: Path,
    fetch: Callable[[str, Path, int], list[str]],
    nodes: Sequence[int],
    pods: Pods,
    max_bytes: int = MIB,
    control: Control | None = None,
    seen: Sequence[dict[str, Any]] = (),
) -> Collected:
    """Returns the result of a collection from these nodes; `seen` are the pods by node, as last observed."""
    made = collection_of(folder, fetch, pods, max_bytes, control)
    made._run({node: PodId(1, node) for node in nodes}, dict(enumerate(seen)), lambda: None)
    return made._found


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "PAUSES_SECONDS", (0.0,))
    monkeypatch.setattr(collection, "UNANSWERED_SECONDS", 0.0)


def test_broken_connection_is_opened_again(tmp_path: Path) -> None:
    tries: list[str] = []

    def fetch(name: str, into: Path, _most: int) -> list[str]:
        tries.append(name)
        assert not into.exists(), "what came before is removed"
        written(into, a=b"a")
        if len(tries) < collection.TRIES:
            raise Unreachable("cut")
        return []

    found = collected(tmp_path, fetch, [0], Pods(0))
    assert (found.nodes, found.warnings, len(tries)) == ([0], [], collection.TRIES)
    assert read(tmp_path / "output") == {"a": b"a"}
    assert not (tmp_path / collection.FOLDER).exists()


AWAY = 3 * collection.TRIES


def keeps(name: str, into: Path, _most: int) -> list[str]:
    written(into, a=name.encode())
    return []


def test_unreachable_api_server_loses_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "HOLD_SECONDS", 0.0)
    pods, control, fetched = Pods(0, unanswered=AWAY), Control(), []

    def fetch(name: str, into: Path, most: int) -> list[str]:
        fetched.append(name)
        if pods.unanswered > 0:
            until(lambda: {"pod-0"} in control.held)  # kept alive as last observed: nothing else keeps it alive
            raise Unreachable("away")
        return keeps(name, into, most)

    found = collected(tmp_path, fetch, [0], pods, control=control, seen=[_running(0)])
    assert (found.nodes, found.warnings, len(fetched)) == ([0], [], AWAY)
    assert read(tmp_path / "output") == {"a": b"pod-0"}


def test_collection_waits_for_pods_that_were_never_observed(tmp_path: Path) -> None:
    found = collected(tmp_path, keeps, [0], Pods(0, unanswered=AWAY, error=Refused("starting", "", status=503)))
    assert (found.nodes, found.warnings) == ([0], [])


def test_outputs_are_fetched_over_pod_connections_while_the_api_server_is_unreachable(tmp_path: Path) -> None:
    pod = _running(0, activeDeadlineSeconds=10**10)
    found = collected(tmp_path, keeps, [0], Pods(unanswered=10**9), seen=[pod])
    assert (found.nodes, found.warnings) == ([0], [])


def test_collection_waits_for_a_pod_until_its_deadline(tmp_path: Path) -> None:
    pod = _running(0, activeDeadlineSeconds=1)
    found = collected(tmp_path, keeps, [0], Pods(unanswered=10**9), seen=[pod])
    assert found.warnings[0].startswith(
        "the outputs of node 0 are lost: the API server did not answer until the deadline of the pod; "
    )


def test_refused_lists_end_the_collection(tmp_path: Path) -> None:
    found = collected(tmp_path, keeps, [0], Pods(0, unanswered=10**9, error=Refused("forbidden: pods", "", status=403)))
    assert "the outputs could not be fetched: " in found.warnings[0]
    assert "forbidden: pods" in found.warnings[0]


def test_run_reports_that_its_collection_waits_for_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods, woken = Pods(0, unanswered=10**9), threading.Event()
    monkeypatch.setattr(collection, "UNANSWERED_SECONDS", 0.01)
    made = collection_of(tmp_path, keeps, pods)
    record = cast(Recorder, None)

    def is_unavailable() -> bool:
        try:
            assert not made.turn(record, {0: PodId(1, 0)}, {}, woken.set)
        except TargetUnavailable as error:
            return "the pods keep the outputs" in error.message
        return False

    until(is_unavailable)
    pods.unanswered = 0
    assert woken.wait(BOUND_SECONDS)
    assert made._found.nodes == [0]


def test_a_pod_that_is_being_deleted_is_released_once_its_outputs_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Deleted(Pods):
        def find(self, _api: str, _kind: str, _selector: str) -> dict[str, Any]:
            pod = _running(0)
            return {"items": [{**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:01:00Z"}}]}

    class Releases(Control):
        def call_all(self, requests: Sequence[tuple[Any, Request]], _seconds: float) -> Iterator[tuple[int, int]]:
            done.extend(request.words[0] for _, request in requests)
            return iter(())

    monkeypatch.setattr(collection, "sync", lambda _folder: done.append("sync"))
    collected(tmp_path, keeps, [0], Deleted(0), control=Releases())
    assert done[:2] == ["sync", Request.leave().words[0]]


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_outputs_are_not_lost_while_the_disk_of_the_supervisor_is_full(tmp_path: Path) -> None:
    tries: list[str] = []

    def fetch(name: str, into: Path, most: int) -> list[str]:
        tries.append(name)
        if len(tries) <= AWAY:
            written(into, a=b"a part of it")
            raise FULL
        assert not into.exists()
        return keeps(name, into, most)

    found = collected(tmp_path, fetch, [0], Pods(0))
    assert (found.nodes, found.warnings, len(tries)) == ([0], [], AWAY + 1)
    assert read(tmp_path / "output") == {"a": b"pod-0"}


@pytest.mark.parametrize("step", ["merge", "move_to_outputs"])
def test_received_outputs_are_moved_once_the_disk_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The first try fails after a part of the files was moved."""
    real, moved = Path.rename if step == "merge" else Path.replace, []

    def move(source: Path, target: Path) -> Path:
        moved.append(source)
        if len(moved) == 2:
            raise FULL
        return real(source, target)

    def fetch(_name: str, into: Path, _most: int) -> list[str]:
        written(into, a=b"a", b=b"b", deep__c=b"c")
        return []

    monkeypatch.setattr(Path, "rename" if step == "merge" else "replace", move)
    found = collected(tmp_path, fetch, [0, 1], Pods(0, 1))
    assert (found.nodes, found.warnings, found.size["files"]) == ([0, 1], [], 3)
    assert read(tmp_path / "output") == {"a": b"a", "b": b"b", "deep/c": b"c"}
    assert (tmp_path / OUTPUT_DIGEST).read_text() == found.size["sha256"]


def test_outputs_are_lost_if_the_disk_stays_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "FULL_SECONDS", 0.0)

    def fetch(_name: str, _into: Path, _most: int) -> list[str]:
        raise FULL

    [warning] = collected(tmp_path, fetch, [0], Pods(0)).warnings
    assert "the outputs of node 0 are lost: [Errno 28] No space left on device" in warning


def test_run_reports_that_its_collection_waits_for_space(tmp_path: Path) -> None:
    space, woken = threading.Event(), threading.Event()

    def fetch(name: str, into: Path, most: int) -> list[str]:
        if not space.is_set():
            raise FULL
        return keeps(name, into, most)

    made = collection_of(tmp_path, fetch, Pods(0))

    def is_waiting() -> bool:
        try:
            assert not made.turn(cast(Recorder, None), {0: PodId(1, 0)}, {}, woken.set)
        except TargetUnavailable as error:
            return error.kind == "NotObserved" and "they are fetched once there is space" in error.message
        return False

    until(is_waiting)
    space.set()
    assert woken.wait(BOUND_SECONDS)
    assert made._found.nodes == [0]


@pytest.mark.parametrize("is_moved", [False, True])
def test_outputs_that_were_merged_before_a_kill_need_no_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    def killed(source: Path, run_dir: Path, _digest: str) -> None:
        if is_moved:
            move_into(source, run_dir / "output")
        raise KeyboardInterrupt

    def fetch(name: str, into: Path, _most: int) -> list[str]:
        written(into, **{name: b"x"})
        return ["root/pipe: neither file, folder nor link"]

    monkeypatch.setattr(collection, "move_to_outputs", killed)
    with pytest.raises(KeyboardInterrupt):
        collected(tmp_path, fetch, [0, 1], Pods(0, 1))
    monkeypatch.setattr(collection, "move_to_outputs", move_to_outputs)
    found = collected(tmp_path, fetch, [0, 1], Pods())
    assert (found.nodes, found.size["files"], len(found.warnings)) == ([0, 1], 2, 2)
    assert sorted(read(tmp_path / "output")) == ["pod-0", "pod-1"]
    assert (tmp_path / OUTPUT_DIGEST).read_text() == found.size["sha256"]
    assert collected(tmp_path, fetch, [0, 1], Pods()).nodes == [], "they are merged once"


def test_merged_outputs_of_other_pods_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_source: Path, _run_dir: Path, _digest: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collection, "move_to_outputs", killed)
    with pytest.raises(KeyboardInterrupt):
        collected(tmp_path, keeps, [0], Pods(0))
    monkeypatch.setattr(collection, "move_to_outputs", move_to_outputs)
    assert collected(tmp_path, keeps, [1], Pods(1)).nodes == [1]
    assert read(tmp_path / "output") == {"a": b"pod-1"}


def test_outputs_of_lost_nodes_are_reported_and_others_are_fetched(tmp_path: Path) -> None:
    def fetch(name: str, into: Path, _most: int) -> list[str]:
        if name == "pod-2":
            raise Unreachable("its node is away")
        if name == "pod-3":
            raise OutputsSkipped("too many")
        written(into, **{name: b"x"})
        return ["root/pipe: neither file, folder nor link"] if name == "pod-4" else []

    found = collected(tmp_path, fetch, [0, 1, 2, 3, 4], Pods(0, 2, 3, 4))
    assert found.nodes == [0, 4]
    assert sorted(read(tmp_path / "output")) == ["pod-0", "pod-4"]
    assert [message.split(";")[0] for message in found.warnings] == [
        "skipped outputs of node 4: pipe: neither file, folder nor link",
        "the outputs of node 1 are lost: the pod has ended",
        "the outputs of node 3 are lost: too many",
        "the outputs of node 2 are lost: its node is away",
    ]
    assert all(collection.KEEP in message for message in found.warnings[1:])


def test_the_limit_counts_for_all_nodes_together(tmp_path: Path) -> None:
    limits: list[int] = []

    def fetch(name: str, into: Path, most: int) -> list[str]:
        limits.append(most)
        written(into, **{name: b"x" * 400})
        return []

    assert collected(tmp_path, fetch, [0, 1], Pods(0, 1), max_bytes=1000).nodes == [0, 1]
    assert limits == [1000, 600]


def test_collection_errors_become_warnings(tmp_path: Path) -> None:
    def fetch(_name: str, _into: Path, _most: int) -> list[str]:
        raise KeyError("a defect")

    found = collected(tmp_path, fetch, [0], Pods(0))
    assert found.nodes == []
    assert "internal error: KeyError('a defect')" in found.warnings[0]
    (tmp_path / "file").touch()
    found = collected(tmp_path / "file", fetch, [0], Pods(0))
    assert found.warnings[0].startswith("the outputs could not be fetched: ")


def test_pods_not_read_yet_are_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "HOLD_SECONDS", 0.0)
    control = Control()

    def fetch(name: str, into: Path, _most: int) -> list[str]:
        seen = len(control.held)
        until(lambda: len(control.held) > seen + 1)
        assert control.held[-1] == ({"pod-0", "pod-1"} if name == "pod-0" else {"pod-1"})
        written(into, a=b"a")
        return []

    assert collected(tmp_path, fetch, [0, 1], Pods(0, 1), control=control).nodes == [0, 1]
