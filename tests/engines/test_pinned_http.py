"""One request reaches the server whose certificate is known, and no other server receives anything."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from windlass.engines.deployments import ModelResponse
from windlass.engines.pinned_http import ServerAccess, last_request_of, send
from windlass.errors import EngineError
from windlass.services.certificates import Credentials, new_credentials


class Server(NamedTuple):
    credentials: Credentials
    port: int
    received: list[tuple[str, str, bytes]]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def access(self) -> ServerAccess:
        return ServerAccess(self.credentials.certificate, self.credentials.token)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    received: list[tuple[str, str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b"[7]")

        def log_message(self, *_arguments: Any) -> None:
            pass

    credentials = new_credentials("digits", 1_790_000_000.0, None)
    for name, data in credentials.files().items():
        (tmp_path / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.socket = context.wrap_socket(served.socket, server_side=True)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield Server(credentials, served.server_address[1], received)
    served.shutdown()
    served.server_close()


def test_request_carries_the_token_and_returns_the_answer(server: Server) -> None:
    found = send(server.connect(), server.access(), "POST", "/invocations", body=b"[1]", timeout=10)
    assert found == ModelResponse(200, "application/json", b"[7]")
    assert server.received == [("/invocations", f"Bearer {server.credentials.token}", b"[1]")]


def test_server_with_another_certificate_receives_nothing(server: Server) -> None:
    other = new_credentials("digits", 1_790_000_000.0, None)
    with pytest.raises(EngineError, match="another server answers"):
        send(server.connect(), ServerAccess(other.certificate, other.token), "POST", "/", body=b"[1]", timeout=10)
    assert server.received == []


def test_server_without_tls_receives_no_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = socket.create_connection(listener.getsockname())
        answering, _ = listener.accept()
        with answering:
            answering.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            credentials = new_credentials("digits", 1_790_000_000.0, None)
            with pytest.raises(EngineError, match="cannot be reached"):
                send(stream, ServerAccess(credentials.certificate, "secret"), "GET", "/", timeout=10)
            assert b"secret" not in answering.recv(65536)


def test_server_that_does_not_answer_is_given_up(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = socket.create_connection(listener.getsockname())
        with pytest.raises(EngineError, match=r"did not answer within 0\.1 s"):
            send(stream, server.access(), "GET", "/", timeout=0.1)


def test_time_of_the_last_request_is_read_from_metrics() -> None:
    text = b"# HELP x\nwindlass_requests_total 3\nwindlass_last_request_timestamp_seconds 1790000001.5\n"
    assert last_request_of(ModelResponse(200, "text/plain", text)) == 1790000001.5
    assert last_request_of(ModelResponse(200, "text/plain", b"windlass_last_request_timestamp_seconds 0\n")) is None
    assert last_request_of(ModelResponse(200, "text/plain", b"windlass_last_request_timestamp_seconds x\n")) is None
    assert last_request_of(ModelResponse(401, "text/plain", text)) is None


@pytest.mark.parametrize("damaged", [ServerAccess(b"none", "token"), ServerAccess(b"\xff", "token")])
def test_damaged_certificate_is_an_error_of_the_server(server: Server, damaged: ServerAccess) -> None:
    with pytest.raises(EngineError, match="the certificate or the token of the server is damaged"):
        send(server.connect(), damaged, "POST", "/invocations", timeout=30)
    assert server.received == []
