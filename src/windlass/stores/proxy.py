"""Connections to a host, direct or through the proxy of HTTP_PROXY, HTTPS_PROXY and NO_PROXY."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from windlass.stores.url import HOST

NAMES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True)
class Route:
    """Connection by which requests reach a host."""

    connection: http.client.HTTPConnection
    base: str = ""
    """Prefix of each request target. A proxy without TLS receives the whole URL."""
    authorization: str = ""
    """Proxy-Authorization header of each request; empty if the proxy needs none."""


def connect(host: str, secure: bool, seconds: float, context: ssl.SSLContext | None, proxy: str) -> Route:
    """Creates an unopened connection to a host. `proxy` is a URL or empty. Raises ValueError if the URL is invalid."""
    if not proxy:
        if secure:
            return Route(http.client.HTTPSConnection(host, timeout=seconds, context=context))
        return Route(http.client.HTTPConnection(host, timeout=seconds))
    try:
        at = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        name, port = at.hostname or "", at.port or 80
    except ValueError:  # the error is not quoted, because its text may contain a part of the password
        name = ""
    if not name or at.scheme != "http" or not HOST.fullmatch(f"[{name}]" if ":" in name else name):
        raise ValueError(
            "only proxies of the form http://host:port are used; in a login, / is %2F, # is %23 and @ is %40"
        )
    login = _authorization(at)
    if not secure:
        connection = http.client.HTTPConnection(name, port, timeout=seconds)
        return Route(connection, f"http://{host}", login)
    tunnelled = http.client.HTTPSConnection(name, port, timeout=seconds, context=context)
    tunnelled.set_tunnel(host, headers={"Proxy-Authorization": login} if login else {})
    return Route(tunnelled)


def proxy_of(environ: Mapping[str, str], host: str, secure: bool) -> str:
    """Returns the proxy URL for a host with its port; empty if the host is reached directly."""
    found = {name.lower(): value for name, value in environ.items() if name.lower() in NAMES and value}
    if not found:
        return ""
    name = urlsplit(f"//{host}").hostname or ""
    excluded = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower().split(",")
    if _is_here(name) or any(_matches(one.strip(), name, host) for one in excluded):
        return ""
    return found.get("https_proxy" if secure else "http_proxy") or found.get("all_proxy", "")


def _matches(excluded: str, name: str, host: str) -> bool:
    """Whether an entry of NO_PROXY matches the host: `example.com`, `.example.com`, `host:port` or `*`."""
    excluded = excluded.lstrip(".")
    return bool(excluded) and (excluded in ("*", name, host) or name.endswith(f".{excluded}"))


def _is_here(host: str) -> bool:
    """Whether the host is this machine, which is never reached through a proxy."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(at: SplitResult) -> str:
    if not at.username:
        return ""
    login = f"{unquote(at.username)}:{unquote(at.password or '')}"
    return f"Basic {base64.b64encode(login.encode()).decode()}"
