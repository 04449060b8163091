"""The fault proxy before a real HTTP server: what each fault does to a request and to its answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.servers.faulty import BARE_400, BUSY, FORBIDDEN, HTML, Fault, FaultProxy, fault_proxy, throttled


class Echo(BaseHTTPRequestHandler):
    """Answers the body of a request, and keeps it."""

    received: list[bytes]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.received.append(body)
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_POST  # noqa: N815


@contextmanager
def echo() -> Iterator[tuple[FaultProxy, list[bytes]]]:
    received: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Echo,), {"received": received}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        with fault_proxy(server.server_address[1]) as proxy:
            yield proxy, received
    finally:
        server.shutdown()
        server.server_close()


def ask(proxy: FaultProxy, body: bytes = b"abcdef", method: str = "POST", **fields: str) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, "/bucket/key", body, {name.replace("_", "-"): one for name, one in fields.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers.get("Retry-After", "")
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (BUSY, 503, b"SlowDown"),
        (FORBIDDEN, 403, b"AccessDenied"),
        (HTML, 200, b"<html>"),
        (BARE_400, 400, b""),
        (throttled(7), 429, b""),
    ],
)
def test_the_proxy_answers_for_the_server_which_gets_nothing(fault: Fault, status: int, text: bytes) -> None:
    with echo() as (proxy, received):
        proxy.fault = lambda _request: fault
        found = ask(proxy)
    assert found[0] == status
    assert text in found[1]
    assert found[2] == ("7" if status == 429 else "")
    assert not received


def test_an_answer_to_head_has_no_body() -> None:
    with echo() as (proxy, _):
        proxy.fault = lambda _request: HTML
        assert ask(proxy, b"", "HEAD")[:2] == (200, b"")


def test_a_lost_answer_is_that_of_a_request_which_was_carried_out() -> None:
    with echo() as (proxy, received):
        proxy.fault = lambda _request: Fault(loses_answer=True)
        with pytest.raises(http.client.RemoteDisconnected):
            ask(proxy)
    assert received == [b"abcdef"]


def test_a_late_answer_is_that_of_a_request_which_was_carried_out_at_once() -> None:
    with echo() as (proxy, received):
        proxy.fault = lambda _request: Fault(delay_seconds=0.3)
        began = time.monotonic()
        assert ask(proxy)[:2] == (201, b"abcdef")
        assert time.monotonic() - began >= 0.3
    assert received == [b"abcdef"]


@pytest.mark.parametrize("size", [6, 200_000])
def test_one_bit_of_one_byte_is_flipped(size: int) -> None:
    body, at = bytes(size), size - 2
    damaged = bytes(at) + b"\x01\x00"
    with echo() as (proxy, received):
        proxy.fault = lambda _request: Fault(flips_answer_at=at)
        assert ask(proxy, body)[1] == damaged
        proxy.fault = lambda _request: Fault(flips_request_at=at)
        assert ask(proxy, body)[1] == damaged
    assert received == [body, damaged]


def test_the_operation_of_both_protocols_of_aws_is_known_before_the_request_passes() -> None:
    with echo() as (proxy, _):
        ask(proxy, b"{}", X_Amz_Target="SageMaker.StopTrainingJob")
        ask(proxy, b"Action=GetRole&RoleName=a", Content_Type="application/x-www-form-urlencoded; charset=utf-8")
        assert [one.operation for one in proxy.requests] == ["StopTrainingJob", "GetRole"]
