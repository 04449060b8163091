"""Requests to a store go through the proxy of the environment."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from windlass.stores.errors import StoreError
from windlass.stores.proxy import connect, proxy_of
from windlass.stores.s3.bucket import Bucket

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_ENDPOINT_URL_S3": "http://store.example.com",
}


@pytest.mark.parametrize(
    ("environ", "host", "secure", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, "b.s3.amazonaws.com", True, "http://p:1"),
        ({"https_proxy": "p:1"}, "store.example.com:9000", False, ""),
        ({"ALL_PROXY": "p:1"}, "store.example.com:9000", False, "p:1"),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": ".example.com"}, "store.example.com:9000", False, ""),
        ({"HTTP_PROXY": "p:1", "no_proxy": "x, store.example.com:9000"}, "store.example.com:9000", False, ""),
        ({"HTTP_PROXY": "p:1", "no_proxy": "re.example.com"}, "store.example.com:9000", False, "p:1"),
        ({"HTTP_PROXY": "p:1", "no_proxy": "*"}, "store.example.com", False, ""),
        ({"HTTP_PROXY": "p:1"}, "127.0.0.1:9000", False, ""),
        ({"HTTP_PROXY": "p:1"}, "localhost", False, ""),
    ],
)
def test_a_host_has_the_proxy_of_the_environment(environ: dict[str, str], host: str, secure: bool, proxy: str) -> None:
    assert proxy_of(environ, host, secure) == proxy


class Proxy(BaseHTTPRequestHandler):
    """Proxy that answers each request itself, and records it."""

    asked: list[tuple[str, str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Host"], self.headers["Proxy-Authorization"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_words: object) -> None:
        """Logs nothing."""


def test_a_request_without_tls_is_sent_to_the_proxy_with_its_whole_url() -> None:
    asked: list[tuple[str, str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Noting", (Proxy,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        bucket = Bucket("b", {**KEYS, "HTTP_PROXY": f"http://me:p%40ss@127.0.0.1:{server.server_port}"})
        assert bucket.send("GET", "a.bin").body == b"ok"
        bucket.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == [("http://store.example.com/b/a.bin", "store.example.com", "Basic bWU6cEBzcw==")]


def test_a_request_by_tls_goes_through_a_tunnel() -> None:
    connection = connect("store.example.com", True, 1, None, "http://me:word@proxy.example.com:3128").connection
    assert (connection.host, connection.port) == ("proxy.example.com", 3128)
    assert connection._tunnel_host == "store.example.com"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "proxy",
    [
        "http://me:wo/rd@p:1",
        "http://me:wo#rd@p:1",
        "http://me:wo\u2100rd@p:1",
        "http://me:wo]rd@[p:1",
        "wo rd:1",
        "wo..rd:1",
    ],
)
def test_a_proxy_that_cannot_be_read_is_refused_without_a_part_of_its_password(proxy: str) -> None:
    with pytest.raises(ValueError, match="only proxies of the form http://host:port are used") as raised:
        connect("store.example.com", False, 1, None, proxy)
    assert "wo" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_proxy_of_another_kind_is_refused_without_its_password() -> None:
    bucket = Bucket("b", {**KEYS, "HTTP_PROXY": "socks5://me:word@proxy.example.com:1080"})
    with pytest.raises(StoreError, match="only proxies of the form http://host:port are used") as caught:
        bucket.send("GET", "a.bin")
    assert "word" not in str(caught.value)
