"""Servers for browsers: links, sessions, host names, and the socket that listens."""

from __future__ import annotations

import socket

import pytest

from windlass.errors import UsageError
from windlass.services.browser_access import (
    Sessions,
    address_of,
    is_allowed_host,
    is_loopback,
    listen,
    redirect_page,
)


def test_only_the_newest_links_are_valid() -> None:
    sessions = Sessions()
    first = sessions.new_token()
    others = [sessions.new_token() for _ in range(16)]
    assert sessions.exchange(first) is None
    assert sessions.exchange(others[0]) is not None


@pytest.mark.parametrize("host", ["localhost:8421", "127.0.0.1:9000", "[::1]:8421", "LOCALHOST"])
def test_loopback_names_are_allowed_with_any_port(host: str) -> None:
    assert is_allowed_host(host, "127.0.0.1", is_loopback=True)


def test_server_for_others_accepts_addresses_and_its_name_but_no_other_name() -> None:
    assert is_allowed_host("192.168.1.9:80", "0.0.0.0", is_loopback=False)
    assert is_allowed_host("box.lan", "box.lan", is_loopback=False)
    assert not is_allowed_host("evil.example", "0.0.0.0", is_loopback=False)
    assert is_loopback("127.0.0.2")
    assert not is_loopback("0.0.0.0")


def test_port_in_use_is_named() -> None:
    with listen("127.0.0.1", (0,)) as first:
        assert first.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY for no other
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", (port,))


def test_default_port_in_use_is_replaced() -> None:
    with listen("127.0.0.1", (0,)) as first, listen("127.0.0.1", (first.getsockname()[1], 0)) as second:
        assert second.getsockname()[1] not in (0, first.getsockname()[1])


def test_unknown_host_is_refused() -> None:
    for name in ("..", "a" * 64):
        with pytest.raises(UsageError, match="is not an address"):
            listen(name, (0,))
    with pytest.raises(UsageError, match="is not an address"):
        listen("no-such-host.invalid", (0,))


def test_addresses_are_urls() -> None:
    assert address_of("::1", 80) == "http://[::1]:80/"
    assert address_of("0.0.0.0", 80, "/x") == "http://127.0.0.1:80/x"


def test_redirect_escapes_its_link() -> None:
    assert "<script>" not in redirect_page("http://x/<script>")
