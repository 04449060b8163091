"""Requests use the credentials of the kubeconfig's user, and the server is verified as the kubeconfig requires."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.logins import FakeLogin, LeapingClock
from tests.helpers.clock import FakeClock
from tests.helpers.machine import lives
from tests.helpers.until import until

from windlass.engines.kubernetes.access import in_cluster
from windlass.engines.kubernetes.access.kubeconfig import Context, read_context
from windlass.engines.kubernetes.access.login import (
    AGAIN_SECONDS,
    AHEAD_SECONDS,
    FILE_SECONDS,
    WAIT_SECONDS,
    Credentials,
    Login,
    LoginError,
    credentials_of,
)
from windlass.errors import UsageError

SHOW = "import json, os; print(json.dumps({'status': {'token': os.environ['KUBERNETES_EXEC_INFO']}}))"
V1 = "client.authentication.k8s.io/v1"


def config(folder: Path, user: Any, cluster: Any = None, name: str = "a") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://host:6443/", **(cluster or {})}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


def context(folder: Path, user: Any, cluster: Any = None) -> Context:
    return read_context("a", str(config(folder, user, cluster)))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("user", "credentials"),
    [
        ({}, Credentials()),
        ({"token": "t"}, Credentials("Bearer t")),
        ({"token": "old", "tokenFile": "token"}, Credentials("Bearer of the file", expires_at=100.0 + FILE_SECONDS)),
        ({"username": "u", "password": "p"}, Credentials("Basic dTpw")),
        ({"client-certificate": "cert", "client-key-data": encoded("key")}, Credentials("", b"cert of a file", b"key")),
    ],
    ids=["none", "token", "token file", "password", "certificate"],
)
def test_credentials_are_read_from_kubeconfig_with_relative_paths(
    tmp_path: Path, user: Any, credentials: Credentials
) -> None:
    (tmp_path / "token").write_text("of the file\n")
    (tmp_path / "cert").write_text("cert of a file")
    assert credentials_of(context(tmp_path, user), 100.0) == credentials


def test_plugin_gets_requested_cluster_info_and_returns_token_or_certificate(tmp_path: Path) -> None:
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    cluster = {"certificate-authority-data": encoded("ca"), "extensions": extensions}
    exec_ = {"apiVersion": V1, "command": sys.executable, "args": ["-c", SHOW], "provideClusterInfo": True}
    found = credentials_of(context(tmp_path, {"exec": exec_}, cluster), 0.0)
    info = json.loads(found.authorization.removeprefix("Bearer "))
    assert info["spec"]["cluster"]["certificate-authority-data"] == encoded("ca")
    assert info["spec"]["cluster"]["config"] == {"audience": "x"}
    status = {"clientCertificateData": "cert", "clientKeyData": "key", "expirationTimestamp": "2030-01-01T00:00:00Z"}
    (tmp_path / "login").write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps({'status': status}))})\n")
    (tmp_path / "login").chmod(0o700)
    found = credentials_of(context(tmp_path, {"exec": {"apiVersion": V1, "command": "./login"}}), 0.0)
    assert (found.certificate, found.key, found.expires_at) == (b"cert", b"key", 1893456000.0)


def test_missing_plugin_is_reported_with_its_install_hint(tmp_path: Path) -> None:
    exec_ = {"apiVersion": V1, "command": "no-such-plugin-x", "installHint": "install aws"}
    with pytest.raises(LoginError, match="install aws"):
        credentials_of(context(tmp_path, {"exec": exec_}), 0.0)


def test_first_kubeconfig_file_with_an_entry_takes_precedence(tmp_path: Path) -> None:
    first, second = config(tmp_path / "1", {"token": "1"}), config(tmp_path / "2", {"token": "2"}, name="b")
    files = f"{tmp_path / 'none'}:{first}:{second}"
    assert credentials_of(read_context("b", files), 0.0).authorization == "Bearer 1"
    with pytest.raises(UsageError, match="has no context 'c'") as refused:
        read_context("c", files)
    assert refused.value.hint == "known: a, b"
    second.write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_context("a", files)


def test_server_is_verified_unless_kubeconfig_disables_it(tmp_path: Path) -> None:
    assert context(tmp_path, {}).tls().verify_mode == ssl.CERT_REQUIRED
    assert context(tmp_path, {}, {"insecure-skip-tls-verify": True}).tls().verify_mode == ssl.CERT_NONE


def test_proxy_is_read_from_kubeconfig_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://of-environment:1")
    assert context(tmp_path, {}).proxy() == "http://of-environment:1"
    assert context(tmp_path, {}, {"proxy-url": "http://chosen:1"}).proxy() == "http://chosen:1"
    monkeypatch.setenv("no_proxy", "host")
    assert context(tmp_path, {}).proxy() is None


@pytest.mark.parametrize(
    ("server", "is_direct"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://localhost:6443", True),
        ("https://[::1]:6443", True),
        ("https://10.1.2.3", True),
        ("https://192.168.1.1:6443", True),
        ("https://[fd00::7]:6443", True),
        ("https://11.1.2.3", False),
        ("https://[fe80::7]:6443", False),
        ("https://10.example.com", False),
    ],
)
def test_loopback_servers_and_no_proxy_networks_are_accessed_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, is_direct: bool
) -> None:
    """kubectl does the same: kind, minikube and k3s serve at a loopback address."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", "http://of-environment:1")
    monkeypatch.setenv("no_proxy", ".internal, 10.0.0.0/8,192.168.1.1,fd00::/8")
    assert (context(tmp_path, {}, {"server": server}).proxy() is None) is is_direct
    chosen = {"server": server, "proxy-url": "http://chosen:1"}
    assert context(tmp_path, {}, chosen).proxy() == "http://chosen:1"


def test_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(UsageError, match="no service account"):
        in_cluster.write_kubeconfig(tmp_path, environ, tmp_path)
    (tmp_path / "token").write_text("first")
    path = str(in_cluster.write_kubeconfig(tmp_path, environ, tmp_path))
    clock = FakeClock(time.time())
    login = Login(lambda: read_context(in_cluster.CONTEXT, path), clock)
    assert login.context.server == "https://[fd00::1]:443"
    for token, known, seconds in (("second", "second", FILE_SECONDS), ("third", "second", 0.0)):
        (tmp_path / "token").write_text(token)
        clock.now += seconds
        assert login.headers() == {"authorization": f"Bearer {known}"}


# -- a plugin that hangs ----------------------------------------------------------------------------------------------


def test_hanging_plugin_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    (tmp_path / "login").write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path / 'started'}\nwait\n")
    (tmp_path / "login").chmod(0o700)
    exec_ = {"apiVersion": V1, "command": "./login", "interactiveMode": "Never"}
    with pytest.raises(LoginError, match=r"login did not end within 0\.5 s"):
        credentials_of(context(tmp_path, {"exec": exec_}), 0.0, plugin_seconds=0.5)
    until(lambda: not lives(int((tmp_path / "started").read_text())))


class Plugin:
    """Login plugin that succeeds at once the first time, and later only after it is released."""

    def __init__(self, folder: Path, valid_seconds: float) -> None:
        self.released, self.num_calls, self.clock = threading.Event(), 0, FakeClock()
        self.next = Credentials("Bearer first", expires_at=self.clock.now + valid_seconds)
        path = str(config(folder, {}))
        self.login = FakeLogin("a", path, self.log_in, self.clock)

    def log_in(self) -> Credentials:
        self.num_calls += 1
        if self.num_calls > 1:
            assert self.released.wait(60.0)
        return self.next

    def release(self) -> None:
        self.next = Credentials("Bearer second", expires_at=self.clock.now + 3600)
        self.released.set()


def test_requests_use_the_valid_login_while_a_plugin_hangs(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, AHEAD_SECONDS - 1)
    plugin.clock.now += AGAIN_SECONDS
    for _ in range(3):
        assert plugin.login.headers() == {"authorization": "Bearer first"}
    until(lambda: plugin.num_calls == 2)
    plugin.release()
    until(lambda: plugin.login.headers() == {"authorization": "Bearer second"})
    assert plugin.num_calls == 2, "one at a time"


def test_requests_with_expired_login_wait_for_hanging_plugin_up_to_their_limit(
    tmp_path: Path,
) -> None:
    plugin = Plugin(tmp_path, 0.0)
    plugin.login._clock = LeapingClock(WAIT_SECONDS)
    for _ in range(3):
        with pytest.raises(LoginError, match="has not succeeded within 15 s"):
            plugin.login.headers()
    plugin.login._clock = FakeClock()
    plugin.release()
    assert plugin.login.headers() == {"authorization": "Bearer second"}
