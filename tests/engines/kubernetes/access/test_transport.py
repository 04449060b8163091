"""Requests over persistent connections: retries after broken connections, proxies, and TLS."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.logins import FakeLogin
from tests.engines.kubernetes.wire import LOCALHOST, NAME, Authority, Server, answer, echo, joined, serving, thing
from tests.helpers.clock import FakeClock
from tests.helpers.until import until

import windlass
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.dial import Address
from windlass.engines.kubernetes.access.errors import Refused, Silent, Unreachable
from windlass.engines.kubernetes.access.login import AGAIN_SECONDS, Credentials
from windlass.engines.kubernetes.access.transport import MAX_IDLE
from windlass.errors import EngineError

Talk = Callable[[Server, Any], None]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def client_at(folder: Path, server: str, **settings: Any) -> Client:
    """Returns a client of a server with these settings of its cluster in the kubeconfig."""
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": server, **settings}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return Client("c", "team", str(path))


def client_of(server: Server, folder: Path, **settings: Any) -> Client:
    return client_at(folder, f"http://{LOCALHOST}:{server.port}", **settings)


def secure_client_of(server: Server, folder: Path, authority: Authority, **settings: Any) -> Client:
    more = {"certificate-authority": str(authority.certificate), "tls-server-name": NAME, **settings}
    return client_at(folder, f"https://{LOCALHOST}:{server.port}/k8s/clusters/x", **more)


def name_at(client: Client, path: str) -> str:
    return str(client.call("GET", path)["metadata"]["name"])


# -- connections ------------------------------------------------------------------------------------------------------


def test_consecutive_requests_share_a_connection(tmp_path: Path) -> None:
    with serving(echo) as server:
        client = client_of(server, tmp_path)
        assert [name_at(client.within("other"), f"/{at}") for at in range(5)] == list("01234")
        assert client.call("POST", "/six", {"a": 1}) == {"metadata": {"name": "six"}}
        assert server.num_connections == 1
        client.close()
        until(lambda: server.num_ended == 1)
        assert name_at(client, "/still-asked") == "still-asked"
        until(lambda: server.num_ended == 2, "a closed client keeps a connection")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_connection_closed_by_the_server_is_not_reused(tmp_path: Path, method: Any) -> None:
    def talk(server: Server, connection: Any) -> None:
        if server.requested(connection):
            connection.sendall(thing("one"))  # The server closes the connection without announcing it.

    with serving(talk) as server:
        client = client_of(server, tmp_path)
        client.call("GET", "/first")
        until(lambda: server.num_ended == 1)
        client.call(method, "/second", {} if method == "POST" else None)
        assert [head.split("\r\n")[0] for head in server.heads] == ["GET /first HTTP/1.1", f"{method} /second HTTP/1.1"]


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1), ("PATCH", 1)])
def test_only_reads_are_retried_if_an_idle_connection_was_closed(tmp_path: Path, method: Any, times: int) -> None:
    def talk(server: Server, connection: Any) -> None:
        while request := server.requested(connection):
            if "/second" in request and sum("/second" in head for head in server.heads) == 1:
                return
            connection.sendall(thing("one"))

    with serving(talk) as server:
        client = client_of(server, tmp_path)
        for lines in [client.lines("/first", {}, silence=30.0) for _ in range(2)]:
            list(lines)  # Two connections are idle now; the retry must use neither.
        with contextlib.nullcontext() if times == 2 else pytest.raises(Unreachable):
            client.call(method, "/second", {} if method != "GET" else None)
        assert sum("/second" in head for head in server.heads) == times
        assert server.num_connections == 1 + times


def test_32_threads_share_a_client_and_get_their_own_responses(tmp_path: Path) -> None:
    with serving(echo) as server:
        client = client_of(server, tmp_path)

        def ask(thread: int) -> list[str]:
            return [name_at(client, f"/{thread}-{at}") for at in range(20)]

        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(ask, range(32)))
        assert found == [[f"{thread}-{at}" for at in range(20)] for thread in range(32)]
        assert server.num_connections < 32 * 20
        until(lambda: server.num_connections - server.num_ended <= MAX_IDLE)
        client.close()
        until(lambda: server.num_connections == server.num_ended)


# -- answers ----------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CUTS = {
    "in a chunk": CHUNKED + b"2\r\non\r\n2\r\ne\n\r\nff\r\ntw",
    "after a chunk": CHUNKED + b"4\r\none\n\r\n",
    "in the size of a chunk": CHUNKED + b"4\r\none\n\r\n1",
    "before its length": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\none\ntwo",
    "in mid-line, of no length": b"HTTP/1.1 200 OK\r\n\r\none\ntwo",
}


@pytest.mark.parametrize("cut", CUTS)
def test_cut_response_yields_complete_lines_and_raises(tmp_path: Path, cut: str) -> None:
    def talk(server: Server, connection: Any) -> None:
        server.requested(connection)
        connection.sendall(CUTS[cut])

    with serving(talk) as server:
        lines = client_of(server, tmp_path).lines("/log", {}, silence=30.0)
        assert next(lines) == b"one"
        with pytest.raises(Unreachable) as cut_off:
            next(lines)
        assert not isinstance(cut_off.value, Silent)


HEAD = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", range(len(HEAD)))
def test_response_cut_in_its_headers_is_not_taken_for_empty(tmp_path: Path, size: int) -> None:
    def talk(server: Server, connection: Any) -> None:
        server.requested(connection)
        connection.sendall(HEAD[:size])

    with serving(talk) as server, pytest.raises(Unreachable):
        list(client_of(server, tmp_path).lines("/log", {}, silence=30.0))


def test_connection_is_kept_only_after_a_stream_is_read_to_its_end(tmp_path: Path) -> None:
    def talk(server: Server, connection: Any) -> None:
        while server.requested(connection):
            connection.sendall(CHUNKED + b"4\r\none\n\r\n3\r\ntwo\r\n0\r\n\r\n")

    with serving(talk) as server:
        client = client_of(server, tmp_path)
        for _ in range(3):
            assert list(client.lines("/log", {}, silence=30.0)) == [b"one", b"two"]
        assert server.num_connections == 1
        lines: Any = client.lines("/log", {}, silence=30.0)
        assert next(lines) == b"one"
        lines.close()
        until(lambda: server.num_ended == 1)


def test_silent_stream_differs_from_missing_response(tmp_path: Path) -> None:
    is_over = threading.Event()

    def talk(server: Server, connection: Any) -> None:
        if "/mute" not in server.requested(connection):
            connection.sendall(CHUNKED + b"4\r\none\n\r\n")
        is_over.wait(60)

    with serving(talk) as server:
        client = client_of(server, tmp_path)
        lines = client.lines("/log", {}, silence=0.2)
        assert next(lines) == b"one"
        with pytest.raises(Silent):
            next(lines)
        with pytest.raises(Unreachable) as mute:
            client.lines("/mute", {}, silence=0.2)
        assert not isinstance(mute.value, Silent)
        is_over.set()


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (answer(b"", "302 Found", "Location: http://127.0.0.1:1/"), "not JSON"),
        (answer(b"abcd", "200 OK", "Content-Encoding: br"), "encoded with br"),
    ],
)
def test_redirects_and_unrequested_encodings_are_errors(tmp_path: Path, response: bytes, words: str) -> None:
    def talk(server: Server, connection: Any) -> None:
        while server.requested(connection):
            connection.sendall(response)

    with serving(talk) as server, pytest.raises(Unreachable, match=words):
        client_of(server, tmp_path).call("GET", "/x")


def test_connection_error_contains_the_system_message(tmp_path: Path) -> None:
    with serving(echo) as server:
        port = server.port
    with pytest.raises(Unreachable, match=f"{LOCALHOST}:{port}: Connection refused"):
        client_at(tmp_path, f"http://{LOCALHOST}:{port}").call("GET", "/x")

    def talk(_server: Server, connection: Any) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(talk) as server, pytest.raises(Unreachable, match=r"SSL: \w+\] [\w ]+\n"):
        client_at(tmp_path, f"https://{LOCALHOST}:{server.port}").call("GET", "/x")
    with pytest.raises(EngineError, match="no address of scheme"):
        client_at(tmp_path, "ftp://host")


# -- how a server is reached ------------------------------------------------------------------------------------------


def test_tls_server_name_and_path_of_kubeconfig_are_used(tmp_path: Path, authority: Authority) -> None:
    with serving(echo, authority.serve()) as server:
        client = secure_client_of(server, tmp_path, authority)
        assert name_at(client, "/api/v1/x") == "x"
        first, *headers = server.heads[0].split("\r\n")
        assert first == "GET /k8s/clusters/x/api/v1/x HTTP/1.1"
        assert f"Host: {LOCALHOST}:{server.port}" in headers
        assert "authorization: Bearer secret" in headers
        nameless = secure_client_of(server, tmp_path, authority, **{"tls-server-name": ""})
        with pytest.raises(Unreachable, match="IP address mismatch"):
            nameless.call("GET", "/x")


def test_a_new_client_certificate_is_used_by_new_connections(tmp_path: Path, authority: Authority) -> None:
    def talk(server: Server, connection: Any) -> None:
        while server.requested(connection):
            connection.sendall(thing(dict(part[0] for part in connection.getpeercert()["subject"])["commonName"]))

    pairs = [authority.make(name) for name in ("first", "second")]
    credentials = [Credentials("", *pairs[0], expires_at=time.time() + 3600)]
    with serving(talk, authority.serve()) as server:
        client = secure_client_of(server, tmp_path, authority)
        client._login = FakeLogin("c", str(tmp_path / "kubeconfig"), lambda: credentials[0])
        assert [name_at(client, "/x"), name_at(client, "/x")] == ["first", "first"]
        client._login._credentials = Credentials("", *pairs[0], expires_at=0.0)
        credentials[0] = Credentials("", *pairs[1])
        assert [name_at(client, "/x"), name_at(client, "/x")] == ["second", "second"]
        assert server.num_connections == 2


def tunnelling(port: int) -> Talk:
    def talk(proxy: Server, connection: Any) -> None:
        if "proxy-authorization: basic dtpwig==" not in proxy.requested(connection).lower():
            connection.sendall(answer(b"", "407 Login Required"))
            return
        connection.sendall(b"HTTP/1.1 200 Made\r\n\r\n")
        joined(connection, port)

    return talk


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_https_server_is_reached_through_a_tunnel_of_its_proxy(
    tmp_path: Path, authority: Authority, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The proxy is verified with the system's certificates.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    tls = authority.serve("proxy") if scheme == "https" else None
    with serving(echo, authority.serve()) as server, serving(tunnelling(server.port), tls) as proxy:
        by = f"{scheme}://u:p%22@{LOCALHOST}:{proxy.port}"
        client = secure_client_of(server, tmp_path, authority, **{"proxy-url": by})
        assert [name_at(client, f"/{at}") for at in range(3)] == list("012")
        assert proxy.heads[0].startswith(f"CONNECT {LOCALHOST}:{server.port} HTTP/1.1\r\n")
        assert (proxy.num_connections, server.num_connections) == (1, 1)
        assert "Proxy-Authorization" not in server.heads[0]
        stranger = secure_client_of(server, tmp_path, authority, **{"proxy-url": by.replace("u:", "x:")})
        with pytest.raises(Unreachable, match="refused: 407 Login Required"):
            stranger.call("GET", "/x")


def test_large_body_passes_tls_inside_tls(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talk(server: Server, connection: Any) -> None:
        while request := server.requested(connection):
            connection.sendall(answer(request.partition("\r\n\r\n")[2].encode()))

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with (
        serving(talk, authority.serve()) as server,
        serving(tunnelling(server.port), authority.serve("proxy")) as proxy,
    ):
        by = {"proxy-url": f"https://u:p%22@{LOCALHOST}:{proxy.port}"}
        client = secure_client_of(server, tmp_path, authority, **by)
        body = {"data": "x" * 1_000_000}
        assert client.call("POST", "/x", body) == body


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("http", True), ("https", True)])
def test_exec_uses_the_same_route_to_the_server(
    tmp_path: Path, authority: Authority, scheme: str, is_secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talk(server: Server, connection: Any) -> None:
        request = server.requested(connection)
        key = next(line[19:] for line in request.split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
        accept = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
        head = [
            "HTTP/1.1 101 X",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept}",
            "",
            "",
        ]
        connection.sendall("\r\n".join(head).encode() + b"\x82\x03\x01hi")
        connection.recv(100)

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    tls = authority.serve("proxy") if scheme == "https" else None
    with (
        serving(talk, authority.serve() if is_secure else None) as server,
        serving(tunnelling(server.port), tls) as proxy,
    ):
        by = {"proxy-url": f"{scheme}://u:p%22@{LOCALHOST}:{proxy.port}"}
        client = secure_client_of(server, tmp_path, authority, **by) if is_secure else client_of(server, tmp_path, **by)
        with contextlib.closing(client.websocket("/exec", [("command", "a b")])) as stream:
            assert stream.recv() == b"\x01hi"
    assert server.heads[0].startswith(f"GET {'/k8s/clusters/x' if is_secure else ''}/exec?command=a+b HTTP/1.1\r\n")
    assert proxy.heads[0].startswith(f"CONNECT {LOCALHOST}:{server.port} HTTP/1.1\r\n")


def test_changed_server_in_kubeconfig_is_used_after_next_login(tmp_path: Path) -> None:
    def refusing(server: Server, connection: Any) -> None:
        while server.requested(connection):
            connection.sendall(answer(b"{}", "401 Unauthorized"))

    clock = FakeClock()
    with serving(refusing) as before, serving(echo) as after:
        path = tmp_path / "kubeconfig"
        client_of(before, tmp_path)
        client = Client("c", "team", str(path), clock)
        with pytest.raises(Refused):
            client.call("GET", "/x")
        client_of(after, tmp_path)
        clock.now += AGAIN_SECONDS
        assert name_at(client, "/x") == name_at(client.within("other"), "/x") == "x"


def test_requests_to_an_http_server_are_forwarded_by_its_proxy(tmp_path: Path) -> None:
    with serving(echo) as proxy:
        client = client_at(tmp_path, "http://api/base", **{"proxy-url": f"http://u:p%22@{LOCALHOST}:{proxy.port}"})
        assert name_at(client, "/x") == "x"
    first, *headers = proxy.heads[0].split("\r\n")
    assert first == "GET http://api/base/x HTTP/1.1"
    assert {"Host: api", "Proxy-Authorization: Basic dTpwIg=="} <= set(headers)


@pytest.mark.parametrize("password", ["", "p"])
def test_socks_proxy_resolves_the_server_name(tmp_path: Path, authority: Authority, password: str) -> None:
    asked: list[bytes] = []

    def talk(proxy: Server, connection: Any) -> None:
        is_closed = bool(password)
        methods = connection.recv(100)[2:]
        connection.sendall(b"\x05\x02" if is_closed else b"\x05\x00")
        if is_closed:
            assert methods == b"\x00\x02"
            asked.append(connection.recv(100))
            connection.sendall(b"\x01\x00")
        asked.append(connection.recv(100))
        connection.sendall(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x01")
        joined(connection, server.port)

    with serving(echo, authority.serve()) as server, serving(talk) as proxy:
        by = f"socks5://{f'u:{password}@' if password else ''}{LOCALHOST}:{proxy.port}"
        more = {"certificate-authority": str(authority.certificate), "proxy-url": by}
        client = client_at(tmp_path, f"https://{NAME}:6443", **more)
        assert name_at(client, "/x") == "x"
    assert asked[-1] == b"\x05\x01\x00\x03" + bytes([len(NAME)]) + NAME.encode() + (6443).to_bytes(2, "big")
    assert asked[:-1] == ([b"\x01\x01u\x01p"] if password else [])


def test_refusal_of_a_socks_proxy_has_a_readable_error(tmp_path: Path) -> None:
    def talk(proxy: Server, connection: Any) -> None:
        connection.recv(100)
        connection.sendall(b"\x05\x00")
        connection.recv(100)
        connection.sendall(b"\x05\x04\x00\x01")

    with serving(talk) as proxy, pytest.raises(Unreachable, match="refused: SOCKS reply 4"):
        client_at(tmp_path, "http://api", **{"proxy-url": f"socks5h://{LOCALHOST}:{proxy.port}"}).call("GET", "/x")


@pytest.mark.parametrize(
    ("url", "netloc", "authority"),
    [
        ("https://[::1]:6443/a/", "[::1]:6443", "[::1]:6443"),
        ("https://[2001:db8::1]", "[2001:db8::1]:443", "[2001:db8::1]"),
        ("http://host:80", "host:80", "host"),
        ("proxy:3128", "proxy:3128", "proxy:3128"),
    ],
)
def test_address_is_parsed_from_url(url: str, netloc: str, authority: str) -> None:
    found = Address.of(url)
    assert (found.netloc, found.authority) == (netloc, authority)


# -- in a pod ---------------------------------------------------------------------------------------------------------

IN_A_POD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from windlass.engines.kubernetes.access import in_cluster
from windlass.engines.kubernetes.access.client import Client

folder = Path(sys.argv[2])
environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": sys.argv[3]}
client = Client(in_cluster.CONTEXT, "team", str(in_cluster.write_kubeconfig(folder, environ, folder)))
print(client.call("GET", "/api/v1/x")["metadata"]["name"])
client.close()
print(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"windlass", "__main__"}))
"""


def test_client_in_a_pod_needs_only_the_standard_library(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "token").write_text("of the kubelet\n")
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    # The certificate is for an IP address, as an API server's often is.
    with serving(echo, authority.serve("proxy")) as server:
        source = str(Path(windlass.__file__).parents[1])
        command = [sys.executable, "-I", "-S", "-c", IN_A_POD, source, str(tmp_path), str(server.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines() == ["x", "[]"], done.stderr
    assert "authorization: Bearer of the kubelet" in server.heads[0]
