"""Posts of progress are received on loopback, from any program with the node's token, at little cost for the node."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.plan.environment import STATUS_VARIABLES, known_at_start
from windlass.worker.logfile import LogFile
from windlass.worker.statusserver import (
    BODY_BYTES,
    CONNECTIONS,
    HEAD_BYTES,
    TOKEN,
    URL,
    RequestError,
    StatusServer,
    progress_of,
    split,
)

Metrics = dict[str, object]


class Harness:
    """A server in a selector loop, as in a node."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.heard: list[tuple[int, dict[str, Any]]] = []
        self.token_file = folder / "node-0.token"
        self.server = StatusServer(self.selector, str(self.token_file), lambda *post: self.heard.append(post))
        self.env = self.server.environment(0, {})

    def serve_while(self, talk: Callable[[], Any]) -> Any:
        """Returns the result of `talk`, while this thread runs the server."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(talk()))
        thread.start()
        while thread.is_alive():
            for key, _ in self.selector.select(0.02):
                key.data()
        thread.join()
        return found[0]

    def post(self, data: object, *, rank: int = 0, token: str | None = None) -> int:
        body = data if isinstance(data, bytes) else json.dumps({"trainerStatus": data}).encode()
        url = self.server.environment(rank, {})[URL]
        bearer = token if token is not None else self.token_file.read_text()
        request = urllib.request.Request(url, body, {"Authorization": f"Bearer {bearer}"}, method="POST")

        def talk() -> int:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        return int(self.serve_while(talk))

    def say(self, data: bytes) -> bytes:
        """Sends `data` over a plain socket and returns the response."""

        def talk() -> bytes:
            with self.connect() as client:
                answer = b""
                with contextlib.suppress(ConnectionError):
                    client.sendall(data)
                    while piece := client.recv(4096):
                        answer += piece
                return answer

        return bytes(self.serve_while(talk))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.env[URL].split(":")[2].split("/")[0])), timeout=60)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.server.close()
    assert not harness.token_file.exists()
    assert not harness.selector.get_map()
    harness.selector.close()


def trainer_metrics(**values: object) -> list[Metrics]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def test_post_of_transformers_is_read_as_progress(harness: Harness) -> None:
    metrics = trainer_metrics(
        loss=0.5, learning_rate=1e-4, epoch=0.9, current_step=45, total_steps=100, current_epoch=1
    )
    status = {"progressPercentage": 45, "estimatedRemainingSeconds": 30, "metrics": metrics}
    assert harness.post({**status, "lastUpdatedTime": "2026-01-01T00:00:00+00:00"}, rank=3) == 200
    expected = {"step": 45, "total": 100, "epoch": 1, "loss": 0.5, "metrics": {"learning_rate": 1e-4}}
    assert harness.heard == [(3, {**expected, "eta_seconds": 30})]


def test_first_and_last_post_give_first_and_last_step(harness: Harness) -> None:
    assert harness.post({"progressPercentage": 0, "metrics": trainer_metrics(total_steps=400)}) == 200
    assert harness.post({"progressPercentage": 100, "estimatedRemainingSeconds": 0}) == 200
    assert harness.heard == [(0, {"total": 400, "step": 0}), (0, {"step": 400, "total": 400, "eta_seconds": 0})]


def test_progress_without_steps_is_a_percentage(harness: Harness) -> None:
    assert harness.post({"progressPercentage": 45}) == 200
    assert harness.heard == [(0, {"percent": 45})]


@pytest.mark.parametrize("token", ["", "0" * 64, "ümlaut"])
def test_post_without_the_token_is_refused(harness: Harness, token: str) -> None:
    assert harness.post({"progressPercentage": 45}, token=token) == 401
    assert not harness.heard


def test_token_is_private_and_different_each_time(harness: Harness, tmp_path: Path) -> None:
    assert stat.S_IMODE(harness.token_file.stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    other = Harness(tmp_path / "other")
    assert other.token_file.read_text() != harness.token_file.read_text()
    other.server.close()
    other.selector.close()


def test_server_listens_on_loopback_only(harness: Harness) -> None:
    listener = next(key.fileobj for key in harness.selector.get_map().values())
    assert isinstance(listener, socket.socket)
    assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /ranks/0 HTTP/1.1\r\n\r\n", 405),
        (b"POST /ranks/0 HTTP/1.1\r\n\r\n", 411),
        (b"POST /ranks/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /ranks/0 HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES + 1), 413),
        (b"POST /ranks/0 HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST /ranks/0 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 401),
        (b"x" * (HEAD_BYTES + 1), 431),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_request_other_than_post_is_refused(harness: Harness, request_: bytes, code: int) -> None:
    assert harness.say(request_).startswith(b"HTTP/1.1 %d " % code)
    assert not harness.heard


OTHER_SHAPES = ["", "[]", "{}", '{"trainerStatus": 1}', "[" * 50_000, '{"trainerStatus": {"metrics": "abc"}}']


@pytest.mark.parametrize("body", [b"\xff", *map(str.encode, OTHER_SHAPES)], ids=lambda body: str(body[:20]))
def test_body_of_another_shape_is_refused(harness: Harness, body: bytes) -> None:
    assert harness.post(body) in (200, 400)
    assert not harness.heard


def test_invalid_rank_in_the_url_is_refused(harness: Harness) -> None:
    token = harness.token_file.read_text().encode()
    for path in (b"/", b"/ranks/", b"/ranks/-1", b"/ranks/1/2", b"/ranks/" + b"9" * 50, b"/../ranks/0"):
        head = b"POST %s HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n" % (path, token)
        assert harness.say(head).startswith(b"HTTP/1.1 404 "), path


def test_idle_connections_do_not_block_others(harness: Harness) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3 * CONNECTIONS):
            stack.enter_context(harness.connect())
            harness.serve_while(lambda: time.sleep(0.01))
        assert harness.post({"progressPercentage": 45}) == 200
        assert len(harness.selector.get_map()) <= CONNECTIONS + 1


def test_post_may_arrive_in_pieces(harness: Harness) -> None:
    body = b'{"trainerStatus": {"progressPercentage": 45}}'
    token = harness.token_file.read_bytes()
    whole = b"POST /ranks/0 HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (
        token,
        len(body),
        body,
    )

    def talk() -> bytes:
        with harness.connect() as client:
            for at in range(0, len(whole), 7):
                client.sendall(whole[at : at + 7])
                time.sleep(0.001)
            return client.recv(4096)

    assert bytes(harness.serve_while(talk)).startswith(b"HTTP/1.1 200 ")
    assert harness.heard == [(0, {"percent": 45})]


@given(
    data=st.binary(max_size=200), start=st.sampled_from([b"", b"POST /ranks/0 HTTP/1.1\r\nContent-Length: 3\r\n\r\n"])
)
@settings(max_examples=100)
def test_arbitrary_bytes_do_not_break_the_server(data: bytes, start: bytes) -> None:
    with contextlib.suppress(RequestError):
        split(start + data)
    with contextlib.suppress(RequestError):
        progress_of(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["name", "value", "metrics", "progressPercentage"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(status=_JSON, metrics=st.lists(st.fixed_dictionaries({"name": st.text(max_size=9), "value": _JSON}), max_size=5))
@settings(max_examples=100)
def test_posted_progress_is_plain_json_data(status: object, metrics: object) -> None:
    for posted in (status, {"metrics": metrics}):
        with contextlib.suppress(RequestError):
            found = progress_of(json.dumps({"trainerStatus": posted}).encode())
            json.dumps(found, allow_nan=False)
            assert all(name.isprintable() for name in found.get("metrics", {}))


def test_token_is_not_sent_to_a_proxy(harness: Harness) -> None:
    assert harness.server.environment(0, {"http_proxy": "http://proxy:3128"}) == {}
    assert harness.server.environment(0, {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": ".corp"}) == {}
    for spared in ("*", "localhost, 127.0.0.1"):
        assert harness.server.environment(0, {"http_proxy": "http://proxy:3128", "no_proxy": spared}) == harness.env
    assert set(harness.env) == {URL, TOKEN} == set(STATUS_VARIABLES)


def test_status_variables_are_not_set_for_scripts_that_report_elsewhere() -> None:
    for name in (*STATUS_VARIABLES, "KUBEFLOW_TRAINER_SERVER_CA_CERT", "DISABLE_KUBEFLOW_INTEGRATION"):
        assert not set(STATUS_VARIABLES) & set(known_at_start("torchrun", is_python=True, taken={name}))
    assert set(STATUS_VARIABLES) <= set(known_at_start("torchrun", is_python=True, taken={"PATH"}))
    assert not set(STATUS_VARIABLES) & set(known_at_start("torchrun", is_python=False, taken=()))


def test_bar_with_another_total_belongs_to_an_evaluation(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path), 0, None)
    log.report({"step": 0, "total": 400})
    log.keep(b" 50%|#####     | 200/400 [00:05<00:05, 40.0it/s]\r", 0)
    log.keep(b"\n 50%|#####     | 1/2 [00:00<00:00, 80.0it/s]\r", 0)
    assert log.progress == {"step": 200, "total": 400, "rate": 40, "phase": "evaluating"}
    log.keep(b"\n 51%|#####     | 204/400 [00:05<00:05, 41.0it/s]\r", 0)
    assert log.progress == {"step": 204, "total": 400, "rate": 41, "phase": "training"}
    log.close()


def test_posted_values_are_points_unless_the_rank_prints_them(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path), 0, None)
    log.report({"step": 3, "total": 9, "loss": 0.5, "metrics": {"lr": 0.1}})
    log.keep(b"step 4 loss 0.25\n", 5 * 10**9)
    log.report({"step": 4, "loss": 0.3, "metrics": {"lr": 0.2}})
    points = log.take_points()
    assert [point[:3] + point[4:] for point in points] == [
        ("log", "loss", 3, 0.5),
        ("log", "lr", 3, 0.1),
        ("log", "loss", 4, 0.25),
        ("log", "lr", 4, 0.2),
    ]
    assert log.take_points() == []
    log.close()
