"""Answers of HTTP servers that are no file, incomplete or out of range are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest
from tests.servers.http_files import FileHost, Reply, file_host

from windlass.stores.connection import Connections
from windlass.stores.errors import Busy, Misconfigured, StoreError
from windlass.stores.http import HttpClient
from windlass.stores.url import Url

LIST = b"a line of a list\n" * 20


@pytest.fixture
def host() -> Iterator[FileHost]:
    with file_host({"d/SHA256SUMS": LIST, "d/x": b"x"}) as found:
        yield found


def url(host: FileHost, name: str = "d/x") -> Url:
    return Url.parse(f"{host.address}/{name}")


def test_a_list_whose_connection_breaks_is_not_read_as_a_shorter_list(host: FileHost) -> None:
    host.reply = lambda _get: Reply(cut_after=len(LIST) // 2)
    with pytest.raises(Busy, match="the connection broke"):
        HttpClient().read(url(host, "d/SHA256SUMS"), 1 << 20)


def test_a_list_without_a_stated_size_is_refused_because_its_end_is_unknown(host: FileHost) -> None:
    host.reply = lambda _get: Reply(states=10**18)
    with pytest.raises(StoreError, match="does not state the size"):
        HttpClient().read(url(host, "d/SHA256SUMS"), 1 << 20)


@pytest.mark.parametrize("status", [202, 204, 205, 206])
def test_a_success_without_a_file_is_not_an_empty_file(host: FileHost, status: int) -> None:
    host.reply = lambda _get: Reply(status)
    with pytest.raises(StoreError, match=f"the server answers {status}|does not state the size"):
        HttpClient().head(url(host))
    with pytest.raises(StoreError, match=f"the server answers {status}"):
        HttpClient().read(url(host), 1 << 20)


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_size_that_no_file_has_is_an_error_of_the_server(host: FileHost, digits: int) -> None:
    for reply in (Reply(states=10**18), Reply(206, (("Content-Range", f"bytes 0-0/{'9' * digits}"),))):
        host.reply = lambda _get, reply=reply: reply  # type: ignore[misc]
        with pytest.raises(StoreError, match="does not state the size"):
            HttpClient().head(url(host))


def test_a_redirect_without_an_address_is_named(host: FileHost) -> None:
    host.reply = lambda _get: Reply(302)
    with pytest.raises(StoreError, match="redirects, and names no address"):
        HttpClient().head(url(host))


def test_a_redirect_in_utf8_is_followed_as_it_was_sent(host: FileHost) -> None:
    host.files["d/é"] = b"ok"
    to = (("Location", "/d/é".encode().decode("latin-1")),)
    host.reply = lambda get: Reply(302, to) if get.name == "d/x" else Reply()
    assert HttpClient().read(url(host), 10) == b"ok"


@pytest.mark.parametrize("name", ["a..b", "." * 3, "a" * 64 + ".com"])
def test_a_redirect_to_a_host_that_cannot_exist_is_an_error(host: FileHost, name: str) -> None:
    host.reply = lambda _get: Reply(302, (("Location", f"http://{name}/x"),))
    with pytest.raises(StoreError, match="redirects to an address that is not"):
        HttpClient().head(url(host))


def test_a_whole_file_in_place_of_the_first_byte_is_not_read_to_learn_its_size(host: FileHost) -> None:
    host.files["d/x"] = b"x" * (64 << 20)
    host.reply = lambda _get: Reply(ignores_range=True, says_part=True)
    assert HttpClient().head(url(host)).size == 64 << 20
    assert host.num_bytes < 64 << 20


def asked(environ: Mapping[str, str], secure: bool) -> StoreError:
    """Returns the error of a request with these variables."""
    client = Connections(environ, "", "SSL_CERT_FILE")
    with pytest.raises(StoreError) as raised:
        client.ask((secure, "store.example.com"), "GET", "/", {}, what="it", seconds=5)
    return raised.value


def test_a_host_name_that_cannot_be_looked_up_is_an_error() -> None:
    client = Connections({}, "", "")
    with pytest.raises(Misconfigured, match="its host name, or that of the proxy, is not valid"):
        client.ask((False, "a..b"), "GET", "/", {}, what="it", seconds=5)


def test_certificates_that_cannot_be_read_are_named_with_their_variable() -> None:
    for file in ("/nowhere.pem", os.devnull):
        error = asked({"SSL_CERT_FILE": file}, secure=True)
        assert isinstance(error, Misconfigured)
        assert f"SSL_CERT_FILE names {file}, which has no certificates" in str(error)


@pytest.mark.parametrize(("status", "kind"), [(407, Misconfigured), (403, Misconfigured), (502, Busy)])
def test_a_proxy_that_refuses_a_tunnel_is_named_with_its_status(
    host: FileHost, status: int, kind: type[StoreError]
) -> None:
    host.connects = status
    error = asked({"HTTPS_PROXY": host.address}, secure=True)
    assert isinstance(error, kind)
    assert f"the proxy of the environment answers {status}" in str(error)


def test_a_proxy_that_asks_for_a_login_is_not_taken_for_the_server(host: FileHost) -> None:
    host.reply = lambda _get: Reply(407)
    with pytest.raises(Misconfigured, match="the proxy of the environment asks for a login"):
        HttpClient().head(url(host))
