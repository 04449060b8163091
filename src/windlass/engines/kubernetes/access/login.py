"""Provides the credentials of one kubeconfig context, and runs its login plugin again when they expire.

A failed login is tried again, since logins expire overnight while pods keep training.

The plugin protocol: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
"""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access.kubeconfig import Context, Section
from windlass.runs.clock import Clock

AGAIN_SECONDS: Final = 5.0
"""Seconds between two tries to log in, each of which may start a plugin."""
AHEAD_SECONDS: Final = 30.0
"""Seconds before its expiry at which a login is renewed. Requests use the old login meanwhile, so that a slow plugin
delays none."""
WAIT_SECONDS: Final = 15.0
"""Seconds for which requests wait for a running login. If a user is at the terminal, requests wait without limit."""
PLUGIN_SECONDS: Final = 60.0
"""Time limit, in seconds, of a login plugin that cannot ask the user."""
FILE_SECONDS: Final = 60.0
"""Seconds after which a `tokenFile` is read again: the kubelet replaces the token of a service account before it
expires."""
EXTENSION: Final = "client.authentication.k8s.io/exec"


class LoginError(Exception):
    """The login failed; the message is the plugin's, or the reason."""


class Credentials(NamedTuple):
    """Token and client certificate for requests."""

    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires_at: float | None = None
    """Expiry of the credentials, in Unix seconds."""


class Login:
    """Provides headers for requests and the TLS context for connections, and renews the login."""

    def __init__(
        self,
        load: Callable[[], Context],
        clock: Clock | None = None,
    ) -> None:
        """Raises the errors of `load`, which reads the kubeconfig. The login itself happens in `headers`."""
        self._load = load
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._failed = ""
        self._is_stale = self._is_renewing = False
        self._credentials = Credentials()
        self.generation = 0
        """Counter that is increased with each change of the context or the client certificate, both of which
        connections use."""
        self.context = load()
        self._tried_at = self._clock.monotonic()
        self._renew()
        self._is_stale = bool(self._failed)

    def headers(self) -> dict[str, str]:
        """Returns the headers of a request; an expired login is renewed first. Raises LoginError."""
        with self._changed:
            if not self._is_renewing and self._is_due():
                self._tried_at = self._clock.monotonic()
                threading.Thread(target=self._renew, name="login", daemon=True).start()
                self._is_renewing = True
            if not self._is_valid():
                tried_for = self._clock.monotonic() - self._tried_at
                left = None if _is_at_terminal() else max(0.0, WAIT_SECONDS - tried_for)
                if not self._changed.wait_for(lambda: not self._is_renewing, left):
                    raise LoginError(f"the login has not succeeded within {WAIT_SECONDS:g} s: its plugin still runs")
                if self._failed:
                    raise LoginError(self._failed)
            found = self._credentials.authorization
        return {"authorization": found} if found else {}

    def expire(self) -> None:
        """Marks the login as rejected by the server, so that the next request renews it."""
        with self._changed:
            self._is_stale = True

    def _is_valid(self) -> bool:
        return not self._is_stale and not self._expires_within(0.0)

    def _expires_within(self, seconds: float) -> bool:
        expires_at = self._credentials.expires_at
        return expires_at is not None and expires_at - seconds <= self._clock.time()

    def _is_due(self) -> bool:
        if self._expires_within(0.0) and not self._failed and not self._is_stale:
            return True
        is_wanted = self._failed or self._is_stale or self._expires_within(AHEAD_SECONDS)
        return bool(is_wanted) and self._clock.monotonic() - self._tried_at >= AGAIN_SECONDS

    def tls(self) -> ssl.SSLContext:
        """Returns the TLS context for connections to the server. Raises OSError, ValueError for an invalid
        certificate.
        """
        made = self.context.tls()
        found = self._credentials
        if found.certificate:
            import tempfile  # This import loads three compression libraries, which other logins do not need.

            with tempfile.TemporaryDirectory() as folder:  # `ssl` reads certificates only from files.
                certificate, key = Path(folder, "certificate"), Path(folder, "key")
                certificate.write_bytes(found.certificate)
                key.write_bytes(found.key)
                made.load_cert_chain(str(certificate), str(key))
        return made

    def _log_in(self, context: Context) -> Credentials:
        return credentials_of(context, self._clock.time())

    def _renew(self) -> None:
        """Logs in again. After a failure, it reads the kubeconfig anew, since `aws eks update-kubeconfig` may have
        changed the user.
        """
        context, found, failed = self.context, None, ""
        try:
            if self._failed or self._is_stale:
                context = self._load()
            found = self._log_in(context)
        except Exception as error:  # Reading files and running a plugin raise errors of many types.
            failed = " ".join(str(error).split()) or type(error).__name__
        with self._changed:
            if context != self.context:
                self.context = context
                self.generation += 1
            if found is not None:
                if (found.certificate, found.key) != (self._credentials.certificate, self._credentials.key):
                    self.generation += 1
                self._credentials, self._is_stale = found, False
            self._failed, self._is_renewing, self._tried_at = failed, False, self._clock.monotonic()
            self._changed.notify_all()


def _is_at_terminal() -> bool:
    """Whether a login plugin can ask the user."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()


def credentials_of(context: Context, now: float, plugin_seconds: float = PLUGIN_SECONDS) -> Credentials:
    """Returns the credentials of the context's user; `now` is in Unix seconds. Raises LoginError, OSError,
    ValueError.
    """
    user, settings = context.user, context.user.settings
    certificate, key = user.data("client-certificate") or b"", user.data("client-key") or b""
    if "auth-provider" in settings:
        return Credentials(_by_package(context), certificate, key)
    if path := settings.get("tokenFile"):
        token = (user.folder / path).read_text().strip()
        return Credentials(f"Bearer {token}", certificate, key, now + FILE_SECONDS)
    if token := settings.get("token"):
        return Credentials(f"Bearer {token}", certificate, key)
    if "exec" in settings:
        return _by_plugin(Section(settings["exec"], user.folder), context, plugin_seconds)
    if "username" in settings and "password" in settings:
        pair = f"{settings['username']}:{settings['password']}".encode()
        return Credentials(f"Basic {base64.b64encode(pair).decode()}", certificate, key)
    return Credentials("", certificate, key)


def _by_plugin(plugin: Section, context: Context, seconds: float) -> Credentials:
    """Runs an exec plugin, with a time limit unless it can ask the user. Raises LoginError, OSError, ValueError."""
    import subprocess

    settings = plugin.settings
    program = str(settings["command"])
    if os.sep in program:
        program = str(plugin.folder / program)
    is_interactive = settings.get("interactiveMode") != "Never" and _is_at_terminal()
    spec: dict[str, Any] = {"interactive": is_interactive}
    if settings.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(context.cluster)
    info = {"apiVersion": settings["apiVersion"], "kind": "ExecCredential", "spec": spec}
    more = {str(item["name"]): str(item["value"]) for item in settings.get("env") or ()}
    try:
        with subprocess.Popen(
            [program, *map(str, settings.get("args") or ())],
            stdout=subprocess.PIPE,
            stdin=None if is_interactive else subprocess.DEVNULL,
            stderr=None if is_interactive else subprocess.PIPE,
            env={**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            start_new_session=not is_interactive,
        ) as running:
            try:
                output, said = running.communicate(timeout=None if is_interactive else seconds)
            except BaseException:
                # Child processes are killed too: a shell script would otherwise leave the programs that it started.
                running.kill() if is_interactive else os.killpg(running.pid, signal.SIGKILL)
                raise
    except FileNotFoundError:
        raise LoginError(settings.get("installHint") or f"the login plugin {program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise LoginError(f"{program} did not end within {seconds:g} s") from None
    if running.returncode:
        why = (said or b"").decode("utf-8", "replace").strip()
        raise LoginError(f"{program} ended with code {running.returncode}" + (f": {why}" if why else ""))
    status = json.loads(output)["status"]
    if not status.get("token") and not status.get("clientCertificateData"):
        raise LoginError(f"{program} gave neither a token nor a certificate")
    expires = status.get("expirationTimestamp")
    return Credentials(
        f"Bearer {status['token']}" if status.get("token") else "",
        status.get("clientCertificateData", "").encode(),
        status.get("clientKeyData", "").encode(),
        datetime.fromisoformat(expires).timestamp() if expires else None,
    )


def _cluster_info(cluster: Section) -> Mapping[str, Any]:
    """Returns the cluster information for a plugin with `provideClusterInfo`."""
    authority = cluster.data("certificate-authority")
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    found = {name: cluster.settings[name] for name in names if name in cluster.settings}
    if authority is not None:
        found["certificate-authority-data"] = base64.b64encode(authority).decode()
    for one in cluster.settings.get("extensions") or ():
        if one["name"] == EXTENSION:
            found["config"] = one["extension"]
    return found


def _by_package(context: Context) -> str:
    """Returns the token of an `auth-provider` with the help of the kubernetes package; kubectl has kept only the OIDC
    provider.
    """
    try:
        from kubernetes.client.configuration import Configuration
        from kubernetes.config import kube_config
    except ImportError:
        raise LoginError("its user has an auth-provider: use a login plugin, or pip install kubernetes") from None
    configuration: Any = Configuration()
    load: Any = kube_config.load_kube_config
    load(config_file=context.files, context=context.name, client_configuration=configuration, persist_config=False)
    token = configuration.auth_settings().get("BearerToken")
    if token is None:
        raise LoginError("its auth-provider gave no token")
    return str(token["value"])
