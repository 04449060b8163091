"""The forward: sessions, foreign pages, the pinned certificate, and what reaches the service."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.services.upstream import OK, Service, ask, head_of, read_all, read_head, service

from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError, WindlassError
from windlass.services import http_exchange
from windlass.services.certificates import new_credentials
from windlass.services.forward import Access, Forward
from windlass.services.streams import RESET

SECRET = "Bearer of-the-service"


class Browser:
    """A client with a session of a forward."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        _, data = ask(forward.port, head_of("GET", path_of(forward.new_link("/board/")), forward.port))
        found = re.search(rb"set-cookie: (windlass-\d+=[^;]+);", data)
        assert found
        self.cookie = found[1].decode()

    def head(self, method: str = "GET", path: str = "/", **headers: str) -> bytes:
        return head_of(method, path, self.forward.port, **{"cookie": self.cookie, **headers})

    def ask(self, method: str = "GET", path: str = "/", **headers: str) -> tuple[int, bytes]:
        return ask(self.forward.port, self.head(method, path, **headers))

    @contextlib.contextmanager
    def websocket(self) -> Iterator[socket.socket]:
        """A connection after an accepted upgrade."""
        with socket.create_connection(("127.0.0.1", self.forward.port), timeout=30) as connection:
            connection.sendall(self.head(**upgrade(self.forward.address[:-1])))
            assert b" 101 " in read_head(connection)
            yield connection


def path_of(link: str) -> str:
    return "/" + link.split("/", 3)[3]


def upgrade(origin: str) -> dict[str, str]:
    return {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec_websocket_version": "13",
        "origin": origin,
    }


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "service") as made:
        yield made


@pytest.fixture
def failures() -> list[WindlassError]:
    return []


@pytest.fixture
def forward(board: Service, failures: list[WindlassError]) -> Iterator[Forward]:
    access = Access(board.credentials.certificate, SECRET, "run: windlass tensorboard")
    with Forward(board.connect, access, on_failure=failures.append) as made:
        yield made


def echo(connection: socket.socket, head: bytes) -> None:
    """Accepts an upgrade, and sends back all that it receives, from a thread that does not wait for the reader."""
    connection.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


# -- who is let through -----------------------------------------------------------------------------------------------


def test_link_starts_a_session_once(forward: Forward, board: Service) -> None:
    link = path_of(forward.new_link("/board/"))
    status, data = ask(forward.port, head_of("GET", link, forward.port))
    assert (status, b'url=/board/"' in data) == (200, True)
    assert b"HttpOnly; SameSite=Strict" in data
    assert ask(forward.port, head_of("GET", link, forward.port))[0] == 403
    assert board.num_connections == 0


def test_preview_of_a_link_does_not_use_it_up(forward: Forward) -> None:
    link = path_of(forward.new_link())
    assert ask(forward.port, head_of("HEAD", link, forward.port))[0] == 405
    assert ask(forward.port, head_of("GET", link, forward.port))[0] == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/.windlass/start?token=guess", {}, 403),
        ("/.windlass/start", {}, 403),
        ("/", {}, 401),
        ("/", {"cookie": "windlass-1=guess"}, 401),
        ("/", {"cookie": 'a="{[; windlass-1'}, 401),
        ("//[", {}, 401),
        ("http://evil.example/", {}, 400),
        ("/", {"host": "evil.example"}, 403),
    ],
)
def test_stranger_reaches_nothing(
    forward: Forward, board: Service, path: str, headers: dict[str, str], status: int
) -> None:
    assert ask(forward.port, head_of("GET", path, forward.port, **headers))[0] == status
    assert board.num_connections == 0


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"host": "evil.example"}),
        ("GET", {"host": "192.168.1.9"}),
        ("POST", {"origin": "http://evil.example", "content_length": "0"}),
        ("POST", {"content_length": "0"}),
        ("OPTIONS", {"origin": "http://evil.example"}),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors"}),
        ("GET", upgrade("http://evil.example")),
        ("GET", upgrade("http://127.0.0.1:1")),
        ("GET", upgrade("")),
    ],
)
def test_session_is_no_use_to_another_site(
    forward: Forward, board: Service, method: str, headers: dict[str, str]
) -> None:
    status, data = Browser(forward).ask(method, **headers)
    assert (status, b"hello" in data) == (403, False)
    assert board.num_connections == 0


def test_browser_without_a_session_is_told_how_to_get_one(forward: Forward) -> None:
    _, data = ask(forward.port, head_of("GET", "/", forward.port))
    assert b"windlass tensorboard" in data
    assert b"default-src 'none'" in data


# -- what reaches the service -----------------------------------------------------------------------------------------


def test_service_gets_its_token_and_no_session(forward: Forward, board: Service) -> None:
    browser = Browser(forward)
    cookies = f'json={{"a":"b}}; _xsrf=1; {browser.cookie}; windlass-8421=other; theme=dark'
    status, data = browser.ask(path="/board/?x=1", cookie=cookies, authorization="Bearer of-the-page", te="trailers")
    assert (status, data.endswith(b"hello")) == (200, True)
    [head] = board.heads
    assert head.startswith(b"GET /board/?x=1 HTTP/1.1\r\n")
    lines = head.lower().split(b"\r\n")
    assert [line for line in lines if line.startswith(b"authorization")] == [
        f"authorization: {SECRET}".lower().encode()
    ]
    assert b'cookie: json={"a":"b}; _xsrf=1; theme=dark' in lines
    assert b"connection: close" in lines
    assert f"host: 127.0.0.1:{forward.port}".encode() in lines
    assert not {line for line in lines if line.startswith((b"te:", b"upgrade:"))}


def test_service_cannot_set_the_cookie_of_a_session(forward: Forward, board: Service) -> None:
    cookies = b"Set-Cookie: windlass-8421=stolen\r\nSet-Cookie: _xsrf=2\r\n"
    board.answer = lambda connection, _: connection.sendall(OK.replace(b"\r\n", b"\r\n" + cookies, 1))
    _, data = Browser(forward).ask()
    assert (b"stolen" in data, b"_xsrf=2" in data) == (False, True)


def test_body_is_passed_on_in_both_directions(forward: Forward, board: Service) -> None:
    def answer(connection: socket.socket, received: bytes) -> None:
        body = received.partition(b"\r\n\r\n")[2]
        while len(body) < 300_000:
            body += connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.0 201 Made\r\n\r\n" + body[::-1])  # as werkzeug: the body ends with the connection

    board.answer = answer
    data = random.Random(1).randbytes(300_000)
    browser = Browser(forward)
    head = browser.head("POST", content_length="300000", origin=forward.address[:-1])
    status, got = ask(forward.port, head, data)
    assert status == 201
    assert _unchunked(got) == data[::-1]


def test_body_has_one_length_at_the_service(forward: Forward, board: Service) -> None:
    def answer(connection: socket.socket, received: bytes) -> None:
        while not received.endswith(b"0\r\n\r\n"):  # closing a connection with unread data would reset it
            received += connection.recv(1 << 16)
        connection.sendall(OK)

    board.answer = answer
    framing = {"content_length": "3", "transfer_encoding": "chunked"}
    head = Browser(forward).head("POST", origin=forward.address[:-1], **framing)
    assert ask(forward.port, head, b"2\r\nok\r\n0\r\n\r\n")[0] == 200
    [received] = board.heads
    assert (b"content-length" in received, b"transfer-encoding: chunked" in received) == (False, True)


def test_service_that_resets_its_connection_is_reported(
    forward: Forward, board: Service, failures: list[WindlassError]
) -> None:
    def reset(connection: socket.socket, _received: bytes) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()

    board.answer = reset
    status, data = Browser(forward).ask()
    assert (status, b"the service ended the connection" in data) == (502, True)
    until(lambda: len(failures) == 1)


def _unchunked(response: bytes) -> bytes:
    head, _, rest = response.partition(b"\r\n\r\n")
    assert b"chunked" in head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def test_page_that_streams_arrives_before_it_ends(forward: Forward, board: Service) -> None:
    go_on = threading.Event()

    def answer(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        go_on.wait(30)
        connection.sendall(b"4\r\nlast\r\n0\r\n\r\n")

    board.answer = answer
    browser = Browser(forward)
    with socket.create_connection(("127.0.0.1", forward.port), timeout=30) as connection:
        connection.sendall(browser.head())
        data = b""
        while b"first" not in data:
            data += connection.recv(1000)
        assert b"last" not in data
        go_on.set()
        assert b"last" in read_all(connection)


def test_closed_page_ends_the_request_at_the_service(forward: Forward, board: Service) -> None:
    has_ended = threading.Event()

    def answer(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1")
        with contextlib.suppress(OSError):
            read_all(connection)
        has_ended.set()

    board.answer = answer
    browser = Browser(forward)
    with socket.create_connection(("127.0.0.1", forward.port), timeout=30) as connection:
        connection.sendall(browser.head())
        connection.recv(10)
    assert has_ended.wait(30)


@pytest.mark.parametrize("size", [200_000, 5_000_000])
def test_huge_head_is_refused(forward: Forward, board: Service, size: int) -> None:
    with contextlib.suppress(OSError):  # the rest of the head is not read
        status, _ = ask(forward.port, head_of("GET", "/", forward.port, x="y" * size))
        assert status == 431
    assert board.num_connections == 0


@pytest.mark.parametrize(
    "head", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"a\r\n\r\n"]
)
def test_what_is_not_http_is_refused(forward: Forward, board: Service, head: bytes) -> None:
    assert ask(forward.port, head)[0] == 400
    assert board.num_connections == 0


def test_slow_head_is_given_up(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "HEAD_SECONDS", 0.05)
    with pytest.raises(ConnectionResetError):
        ask(forward.port, b"GET / HT")


# -- the service must be the right one --------------------------------------------------------------------------------


def test_service_with_another_certificate_receives_nothing(board: Service, failures: list[WindlassError]) -> None:
    other = new_credentials("test", time.time(), None)
    with Forward(board.connect, Access(other.certificate, SECRET), on_failure=failures.append) as forward:
        status, data = Browser(forward).ask()
    assert (status, b"another certificate" in data) == (502, True)
    assert (board.num_connections, b"".join(board.heads)) == (1, b"")
    assert "another certificate" in failures[0].message


def test_plain_http_at_the_port_of_the_service_receives_no_request(tmp_path: Path) -> None:
    with (
        service(tmp_path, is_tls=False) as board,
        Forward(board.connect, Access(board.credentials.certificate, SECRET)) as forward,
    ):
        status, data = Browser(forward).ask()
        assert (status, b"does not use TLS" in data) == (502, True)
        until(lambda: bool(board.heads))
        assert not [head for head in board.heads if b"HTTP" in head or b"of-the-service" in head]


def test_service_that_does_not_listen_is_an_answer(board: Service, failures: list[WindlassError]) -> None:
    board.close()
    with Forward(board.connect, Access(board.credentials.certificate, SECRET), on_failure=failures.append) as forward:
        status, data = Browser(forward).ask()
    assert (status, b"nothing listens" in data) == (502, True)
    assert "nothing listens" in failures[0].message


def test_refusal_of_the_node_is_the_reason(board: Service) -> None:
    def connect() -> socket.socket:
        one, other = socket.socketpair()
        found = PortSocket(fileno=one.detach())
        found.failure = EngineError("pod a refused the connection to port 6006")
        other.close()
        return found

    with Forward(connect, Access(board.credentials.certificate, SECRET)) as forward:
        status, data = Browser(forward).ask()
    assert (status, b"pod a refused" in data) == (502, True)


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, b"HTTP/1.1 101 x\r\n\r\n"]
)
def test_service_that_lies_gets_a_bad_gateway(
    forward: Forward, board: Service, failures: list[WindlassError], answer: bytes
) -> None:
    board.answer = lambda connection, _: connection.sendall(answer)
    assert Browser(forward).ask()[0] == 502
    assert failures


def test_cut_response_is_cut_for_the_browser_and_for_no_other(forward: Forward, board: Service) -> None:
    browser = Browser(forward)
    cut = threading.Event()

    def answer(connection: socket.socket, head: bytes) -> None:
        if b"/slow" in head:
            cut.wait(30)
            connection.sendall(OK)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")

    board.answer = answer
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(browser.ask, path="/slow")
        until(lambda: len(board.heads) == 1)
        with contextlib.suppress(ConnectionResetError):
            _, data = browser.ask()
            assert not data.partition(b"\r\n\r\n")[2].startswith(b"part" * 25)
        cut.set()
        assert slow.result(30)[1].endswith(b"hello")


# -- web sockets ------------------------------------------------------------------------------------------------------


def test_web_socket_carries_data_both_ways(forward: Forward, board: Service) -> None:
    board.answer = echo
    with Browser(forward).websocket() as connection:
        connection.sendall(b"ping")
        assert connection.recv(10) == b"ping"
    assert b"upgrade: websocket" in board.heads[0].lower()
    assert b"connection: upgrade" in board.heads[0].lower()


def test_refused_upgrade_is_an_answer(forward: Forward) -> None:
    status, data = Browser(forward).ask(**upgrade(forward.address[:-1]))
    assert (status, data.endswith(b"hello")) == (200, True)


def test_end_of_the_service_ends_the_web_socket_after_its_last_data(forward: Forward, board: Service) -> None:
    last = random.Random(2).randbytes(1 << 20)

    def answer(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + last)

    board.answer = answer
    with Browser(forward).websocket() as connection:
        assert read_all(connection)[-1000:] == last[-1000:]


@pytest.mark.slow
def test_fifty_web_sockets_carry_100_mb_both_ways(forward: Forward, board: Service) -> None:
    board.answer = echo
    browser = Browser(forward)

    def check(seed: int) -> bool:
        data = random.Random(seed).randbytes(2 << 20)
        with browser.websocket() as connection:
            sending = threading.Thread(target=connection.sendall, args=(data,))
            sending.start()
            got = b""
            while len(got) < len(data):
                got += connection.recv(1 << 16)
            sending.join()
        return hashlib.sha256(got).digest() == hashlib.sha256(data).digest()

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(check, range(50)))


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_plain_forward_passes_bytes_and_each_end_on(tmp_path: Path) -> None:
    def answer(connection: socket.socket, received: bytes) -> None:
        connection.sendall((received + read_all(connection))[::-1])

    with (
        service(tmp_path, answer, is_tls=False) as board,
        Forward(board.connect) as forward,
        socket.create_connection((forward.host, forward.port), timeout=30) as connection,
    ):
        connection.sendall(b"abc\r\n\r\n")
        connection.sendall(b"def")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"fed\n\r\n\rcba"


def test_connection_that_breaks_at_the_node_is_reset_for_the_client(failures: list[WindlassError]) -> None:
    def connect() -> socket.socket:
        one, other = socket.socketpair()
        found = PortSocket(fileno=one.detach())
        found.failure = EngineError("the node is gone")
        other.sendall(b"part")
        other.close()
        return found

    with (
        Forward(connect, on_failure=failures.append) as forward,
        socket.create_connection((forward.host, forward.port), timeout=30) as connection,
        pytest.raises(ConnectionResetError),
    ):
        read_all(connection)
    assert [one.message for one in failures] == ["the node is gone"]


def test_connections_end_with_the_forward(board: Service) -> None:
    board.answer = echo
    with contextlib.ExitStack() as stack:
        with Forward(board.connect, Access(board.credentials.certificate, SECRET)) as forward:
            connection = stack.enter_context(Browser(forward).websocket())
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((forward.host, forward.port))
