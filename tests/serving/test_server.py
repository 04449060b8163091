"""The listening process: paths, limits, the queue, tokens, TLS and the end, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.helpers.until import until
from tests.serving.server import JSON, ModelServer, Reply, serving, write_model
from uvicorn.server import ServerState

from windlass.serving.__main__ import parse
from windlass.serving.metrics import Metrics
from windlass.serving.pool import Pool
from windlass.serving.server import is_loopback, limited_protocol, listen, read_labels

MODEL = """
import os, time
from pathlib import Path

def load(folder):
    global path
    path = Path(folder)
    wait_for("loading")

def wait_for(name):
    while (path / name).exists():
        time.sleep(0.01)

def predict(data):
    if data == "crash":
        os.kill(os.getpid(), 9)
    if data == "hang":
        while True:
            pass
    if data == "fork":
        if os.fork() == 0:
            files = [open(os.devnull) for _ in range(9)]
            if os.fork() == 0:
                os.close(max(file.fileno() for file in files))
                (path / "grandchild").write_text(str([os.fstat(file.fileno()).st_rdev for file in files[:-1]]))
                os._exit(0)
            wait_for("waiting")
            os._exit(0)
        os._exit(3)
    if data == "wait":
        (path / "asked").touch()
        wait_for("waiting")
    return {"data": data, "pid": os.getpid()}

def predict_batch(inputs):
    return [{"inputs": inputs} for _ in inputs]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("serving")
    model = write_model(folder / "model", MODEL.partition("def predict_batch")[0])
    (model / "labels.json").write_text('["zero", "one"]')
    with serving(model, folder, "--queue=200", "--max-body=100000") as made:
        yield made


@contextlib.contextmanager
def asked(server: ModelServer, *values: object) -> Iterator[list[Future[Reply]]]:
    """Requests that are sent at the same time."""
    with ThreadPoolExecutor(max(1, len(values))) as pool:
        yield [pool.submit(server.invoke, value) for value in values]


def exchange(server: ModelServer, sent: bytes) -> bytes:
    """What the server answers to some bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


# -- paths ------------------------------------------------------------------------------------------------------------


def test_a_model_answers_by_the_media_types_of_the_request(server: ModelServer) -> None:
    reply = server.invoke([1, 2.5, "three"])
    assert (reply.status, reply.headers["content-type"], reply.value["data"]) == (
        200,
        "application/json",
        [1, 2.5, "three"],
    )
    reply = server.invoke(b"1,x", {"Content-Type": "Text/CSV; charset=utf-8", "Accept": "text/html"})
    assert (reply.status, "ask for one of" in reply.value["error"]) == (406, True)


def test_paths_report_state_labels_and_metrics(server: ModelServer) -> None:
    assert [server.ask("GET", path).status for path in ("/ping", "/live", "/nothing")] == [200, 200, 404]
    assert server.ask("GET", "/ping").body == b""
    assert server.ask("HEAD", "/ping").status == 200
    assert server.ask("GET", "/labels").value == {"0": "zero", "1": "one"}
    refused = server.ask("GET", "/invocations")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    server.invoke(b"{")
    metrics = dict(
        line.rsplit(" ", 1) for line in server.ask("GET", "/metrics").body.decode().splitlines() if line[0] != "#"
    )
    assert float(metrics['windlass_requests_total{status="400"}']) >= 1
    assert float(metrics["windlass_last_request_timestamp_seconds"]) > 1.7e9
    assert metrics["windlass_workers_ready"] == metrics["windlass_workers"] == "1"
    buckets = [float(value) for name, value in metrics.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == float(metrics["windlass_request_seconds_count"])


def test_200_requests_at_once_are_all_answered(server: ModelServer) -> None:
    with asked(server, *range(200)) as replies:
        assert sorted(one.result().value["data"] for one in replies) == list(range(200))


def test_a_worker_that_crashes_fails_its_request_and_is_replaced(server: ModelServer) -> None:
    reply = server.invoke("crash")
    assert (reply.status, reply.value["error"]) == (500, "the process of the model ended (killed by SIGKILL)")
    until(lambda: server.ask("GET", "/ping").status == 200)
    assert server.invoke(1).status == 200
    assert b"windlass_worker_restarts_total 1" in server.ask("GET", "/metrics").body


def test_a_worker_whose_child_lives_on_is_replaced(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", MODEL)
    (model / "waiting").touch()
    with serving(model, tmp_path, "--time-limit=20") as server:
        assert server.invoke("fork").value["error"] == "the process of the model ended (exit code 3)"
        until(lambda: b"windlass_workers_ready 1" in server.ask("GET", "/metrics").body)
        assert server.invoke(1).status == 200
        until((model / "grandchild").exists)  # no file of the child was closed in its child
        (model / "waiting").unlink()


def test_a_connection_has_one_timer_however_many_requests_it_carries() -> None:
    timers: list[asyncio.TimerHandle] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, *arguments: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            timers.append(super().call_later(*arguments, **options))
            return timers[-1]

    config = uvicorn.Config(lambda *_: None, log_config=None)
    config.load()
    with contextlib.closing(Loop()) as loop:
        protocol: Any = limited_protocol(30)(config, ServerState(), {}, loop)  # type: ignore[call-arg]
        for _ in range(3):
            protocol._expect_head()
    assert [timer.cancelled() for timer in timers] == [True, True, False]


@pytest.mark.parametrize(
    ("labels", "found"), [('["a"]', {"0": "a"}), ('{"7": "b"}', {"7": "b"}), ("[1]", None), ('"a"', None), ("{", None)]
)
def test_labels_are_a_list_or_an_object_of_names(tmp_path: Path, labels: str, found: object) -> None:
    (tmp_path / "labels.json").write_text(labels)
    if found is None:
        with pytest.raises(ValueError, match=r"labels.json|Expecting"):
            read_labels(tmp_path)
    else:
        assert json.loads(read_labels(tmp_path / "model.pt") or b"") == found


@pytest.mark.parametrize(
    ("host", "found"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("x", False)],
)
def test_a_host_is_loopback_or_reached_by_others(host: str, found: bool) -> None:
    assert is_loopback(host) is found


def test_answers_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY for no other


# -- hostile requests -------------------------------------------------------------------------------------------------


def test_large_bodies_are_refused_and_the_refusal_arrives(server: ModelServer) -> None:
    for body in (b"1" * 100_001, b"1" * 20_000_000):
        reply = server.invoke(body)
        assert (reply.status, reply.headers["connection"]) == (413, "close")
    chunks = (b"1" * 10_000 for _ in range(11))
    assert server.ask("POST", "/invocations", chunks, JSON).status == 413
    answer = exchange(
        server, b"POST /invocations HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9999999\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed_requests_are_refused(server: ModelServer, sent: bytes) -> None:
    assert exchange(server, sent)[:12] == b"HTTP/1.1 400"
    assert server.ask("GET", "/live").status == 200


def test_a_head_without_end_is_cut_off_long_before_the_time_limit(server: ModelServer) -> None:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\nLong: ")
        for _ in range(100):
            connection.sendall(b"x" * 65_536)
        while connection.recv(65536):
            pass


def test_a_client_that_goes_away_disturbs_nobody(server: ModelServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[1")
    assert server.invoke(1).status == 200
    assert "Traceback" not in server.log.read_text()


def test_slow_bodies_and_heads_end_after_the_limit(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "model", MODEL), tmp_path, "--body-limit=0.5") as server:
        head = b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        assert exchange(server, head + b"[").startswith(b"HTTP/1.1 408")
        assert exchange(server, head[:20]) == b""
        assert exchange(server, b"") == b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.count(b"HTTP/1.1 200") == 1


# -- the queue and the time limit -------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_loses_nothing(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", MODEL)
    (model / "waiting").touch()
    with serving(model, tmp_path, "--queue=2") as server, asked(server, "wait", "wait", "wait") as waiting:
        until(lambda: b"windlass_queue_requests 2" in server.ask("GET", "/metrics").body)
        refused = server.invoke("one more")
        assert (refused.status, refused.value["error"]) == (503, "the queue is full")
        assert int(refused.headers["retry-after"]) >= 1
        (model / "waiting").unlink()
        assert [one.result().status for one in waiting] == [200] * 3


def test_requests_that_a_worker_had_in_advance_are_answered_by_its_successor(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", MODEL)
    with serving(model, tmp_path) as server:
        for _ in range(40):  # the model becomes known as fast
            server.invoke(0)
        (model / "waiting").touch()
        [worker] = server.workers
        with asked(server, "wait") as [lost]:
            until((model / "asked").exists)
            with asked(server, *range(5)) as others:
                until(lambda: b"windlass_batches_total 46" in server.ask("GET", "/metrics").body)
                assert b"windlass_queue_requests 5" in server.ask("GET", "/metrics").body
                os.kill(worker, signal.SIGKILL)
                assert lost.result().status == 500
                assert [one.result().value["data"] for one in others] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_model_that_hangs_is_replaced_and_waiting_requests_are_answered(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "model", MODEL), tmp_path, "--time-limit=4", "--workers=2") as server:
        before = server.workers
        with asked(server, "hang", *range(20)) as [hung, *others]:
            assert {one.result().status for one in others} == {200}
            assert (hung.result().status, hung.result().value["error"]) == (504, "the model did not answer within 4 s")
        until(lambda: b"windlass_workers_ready 2" in server.ask("GET", "/metrics").body)
        assert len({*before, *server.workers}) == 3


def test_requests_are_answered_together_when_asked(tmp_path: Path) -> None:
    options = ("--batch=3", "--batch-wait=30000")
    with (
        serving(write_model(tmp_path / "model", MODEL), tmp_path, *options) as server,
        asked(server, 1, 2, 3) as replies,
    ):
        assert [sorted(one.result().value["inputs"]) for one in replies] == [[1, 2, 3]] * 3
        assert b"windlass_batches_total 1" in server.ask("GET", "/metrics").body


# -- beginning and end ------------------------------------------------------------------------------------------------


def test_readiness_waits_for_the_model_and_sigterm_for_accepted_requests(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", MODEL)
    (model / "loading").touch()
    (model / "waiting").touch()
    with serving(model, tmp_path, is_loaded=False) as server:
        assert [server.ask("GET", path).status for path in ("/live", "/ping")] == [200, 503]
        assert server.invoke(1).headers["retry-after"] == "1"
        (model / "loading").unlink()
        until(lambda: server.ask("GET", "/ping").status == 200)
        [worker] = server.workers
        with asked(server, "wait") as [reply]:
            until((model / "asked").exists)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(server.port))
            (model / "waiting").unlink()
            assert reply.result().status == 200
        assert server.process.wait(60) == 0
        assert not Path(f"/proc/{worker}").exists()


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return True
    return False


def test_workers_die_with_a_killed_server(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "model", MODEL), tmp_path, "--workers=2") as server:
        workers = server.workers
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            connection.request("POST", "/invocations", b'"hang"', JSON)
            until(lambda: b"windlass_batches_total 1" in server.ask("GET", "/metrics").body)
            server.process.kill()
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in workers))


def test_an_idle_server_ends(tmp_path: Path) -> None:
    with serving(write_model(tmp_path / "model", MODEL), tmp_path, "--idle-limit=0.1", is_loaded=False) as server:
        assert server.process.wait(60) == 0
    assert "no request for 0.1 s" in server.log.read_text()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def load(folder):\n    raise KeyError('weights')\n" + "def predict(data): ...", "error: KeyError: 'weights'"),
        ("import os\nos._exit(7)", "the process that loads the model ended (exit code 7)"),
        ("import os\nos.kill(os.getpid(), 9)", "the process that loads the model ended (killed by SIGKILL)"),
    ],
)
def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path: Path, code: str, reason: str) -> None:
    command = [sys.executable, "-m", "windlass.serving", str(write_model(tmp_path / "model", code)), "--port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert reason in done.stderr


# -- TLS and the token ------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "tls.crt", folder / "tls.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return paths


def test_with_tls_and_a_token_only_probes_need_no_token(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path)
    (tmp_path / "token").write_text("s3cret\n")
    options = (f"--certificate={pem}", f"--key={key}", f"--token-file={tmp_path / 'token'}")
    with serving(write_model(tmp_path / "model", MODEL), tmp_path, *options, is_loaded=False) as server:
        context = ssl.create_default_context(cafile=str(pem))

        def status(path: str, authorization: str = "") -> int:
            with contextlib.closing(
                http.client.HTTPSConnection("localhost", server.port, context=context)
            ) as connection:
                headers = {**JSON, **({"Authorization": authorization} if authorization else {})}
                connection.request("POST" if path == "/invocations" else "GET", path, b"[1]", headers)
                return connection.getresponse().status

        until(lambda: status("/ping") == 200)
        assert status("/live") == 200
        for wrong in ("", "Bearer wrong", "s3cret", "Bearer s3cret2", "Bearer ä"):
            assert [status(path, wrong) for path in ("/invocations", "/metrics", "/labels", "/x")] == [401] * 4
        assert status("/invocations", "Bearer s3cret") == 200
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            server.ask("GET", "/ping")
    assert "s3cret" not in server.log.read_text()


def test_a_worker_that_cannot_be_replaced_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    settings = parse(["model", "--workers=1"])
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["true"]) as process, ours, theirs:
        pool = Pool(settings, [(process, ours)], Metrics(), reasons.append)
        pool.workers[0].is_ready = True
        monkeypatch.setattr(sys, "executable", "/absent/python")
        pool.lose(pool.workers[0], -9)
    assert pool.num_ready == 0
    assert reasons == ["the process of the model cannot be started again (No such file or directory)"]
