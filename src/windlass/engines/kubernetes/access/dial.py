"""Opens connections to one server: TCP or TLS, directly or through an HTTP, HTTPS or SOCKS5 proxy."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

CONNECT_SECONDS: Final = 5.0
"""Timeout in seconds for each step of connecting, and for sending a request."""
PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class DialError(OSError):
    """No TCP connection could be made to the server or its proxy."""


class Address(NamedTuple):
    """Address of a server or a proxy, parsed from its URL."""

    scheme: str
    host: str
    port: int
    path: str
    user: str
    password: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Parses a URL; the default scheme is http, as in `HTTPS_PROXY=proxy:3128`. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        # The error does not include the URL, which may contain a password.
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"no address of scheme {', '.join(PORTS)}: {parts.scheme}://{parts.hostname or ''}")
        return cls(
            parts.scheme,
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            parts.path.rstrip("/"),
            unquote(parts.username or ""),
            unquote(parts.password or ""),
        )

    @property
    def netloc(self) -> str:
        """Host and port, in the format of URLs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """Host, and port unless it is the default one, in the format of the header `Host`."""
        return self.netloc.removesuffix(f":{PORTS[self.scheme]}")

    @property
    def login(self) -> dict[str, str]:
        """Header with the user's credentials for a proxy."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {pair}"} if self.user else {}


class Route(NamedTuple):
    """Route to a server: its address, its proxy, and its TLS settings."""

    server: Address
    proxy: Address | None = None
    tls: ssl.SSLContext | None = None
    """TLS settings of an https server; None for http."""
    tls_name: str = ""
    """Host name in the server's certificate, if it differs from the host."""

    @property
    def is_forwarded(self) -> bool:
        """Whether requests are sent to a proxy that forwards each of them, rather than through a tunnel."""
        return self.proxy is not None and self.proxy.scheme in ("http", "https") and self.tls is None

    def dial(self, *, is_tunnel: bool) -> Any:
        """Returns a connected socket: to the server, or without `is_tunnel` to a proxy that forwards requests.

        Raises OSError (TimeoutError, DialError, ssl.SSLError), http.client.HTTPException.
        """
        made: Any = _connect(self.proxy or self.server)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.proxy is not None and self.proxy.scheme == "https":
                made = ssl.create_default_context().wrap_socket(made, server_hostname=self.proxy.host)
            if self.proxy is not None and self.proxy.scheme.startswith("socks"):
                _by_socks(made, self.proxy, self.server)
            elif self.proxy is not None and (is_tunnel or not self.is_forwarded):
                _by_tunnel(made, self.proxy, self.server)
            if self.tls is not None:
                made = _secured(made, self.tls, self.tls_name or self.server.host.rstrip("."))
        except BaseException:
            made.close()
            raise
        return made


def _connect(to: Address) -> socket.socket:
    try:
        host: Any = _encoded(to.host)
        return socket.create_connection((host, to.port), CONNECT_SECONDS)
    except OSError as error:
        raise DialError(f"{to.netloc}: {error.strerror or error}") from error


def _secured(connection: Any, tls: ssl.SSLContext, name: str) -> Any:
    if isinstance(connection, ssl.SSLSocket):  # `ssl` does not support TLS over TLS.
        from windlass.engines.kubernetes.access.nested_tls import NestedTls

        return NestedTls(connection, tls, name)
    return tls.wrap_socket(connection, server_hostname=_encoded(name))


def _encoded(name: str) -> str | bytes:
    """Encodes ASCII host names, since the codec that sockets use for `str` takes 5 ms to import."""
    return name.encode() if name.isascii() else name


def _by_tunnel(connection: Any, proxy: Address, server: Address) -> None:
    """Requests a tunnel from an HTTP proxy. `http.client` is not used: before Python 3.12, it puts no brackets around
    IPv6 addresses.
    """
    headers = {"Host": server.netloc, **proxy.login}
    lines = [f"CONNECT {server.netloc} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connection.sendall("\r\n".join(lines).encode())
    answer = http.client.HTTPResponse(connection, method="CONNECT")
    try:
        answer.begin()
        if answer.status != 200:
            raise OSError(f"the proxy {proxy.netloc} refused: {answer.status} {answer.reason}")
    finally:
        answer.close()


def _by_socks(connection: socket.socket, proxy: Address, server: Address) -> None:
    """Requests a connection from a SOCKS5 proxy (RFC 1928, 1929). As with kubectl, the proxy resolves host names."""
    methods = b"\x00\x02" if proxy.user else b"\x00"
    connection.sendall(bytes([5, len(methods)]) + methods)
    method = _received(connection, 2)[1]
    if method == 2:
        user, password = proxy.user.encode(), proxy.password.encode()
        connection.sendall(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        method = _received(connection, 2)[1]
    if method != 0:
        raise OSError(f"the proxy {proxy.netloc} rejected the login")
    connection.sendall(b"\x05\x01\x00" + _socks_host(server.host) + server.port.to_bytes(2, "big"))
    _, reply, _, kind = _received(connection, 4)
    if reply != 0:
        raise OSError(f"the proxy {proxy.netloc} refused: SOCKS reply {reply}")
    _received(connection, {1: 4, 4: 16}.get(kind) or _received(connection, 1)[0])
    _received(connection, 2)


def _socks_host(host: str) -> bytes:
    for kind, family in ((1, socket.AF_INET), (4, socket.AF_INET6)):
        try:
            return bytes([kind]) + socket.inet_pton(family, host)
        except OSError:
            pass
    name = host.encode("idna")
    return bytes([3, len(name)]) + name


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the proxy closed the connection")
        data += piece
    return data
