"""Reads one context of the user's kubeconfig files: the API server, its CA certificate, and the user's credentials."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import shlex
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from windlass.errors import UsageError

SECTIONS: Final = ("contexts", "clusters", "users")


class Section(NamedTuple):
    """Settings of one cluster or user, and the folder of the file that contains them: paths are relative to it."""

    settings: Mapping[str, Any]
    folder: Path

    def data(self, name: str) -> bytes | None:
        """Returns the decoded field `NAME-data`, or the contents of the file in the field `NAME`. Raises OSError,
        ValueError.
        """
        if encoded := self.settings.get(f"{name}-data"):
            return base64.b64decode(encoded)
        path = self.settings.get(name)
        return (self.folder / path).read_bytes() if path else None


class Context(NamedTuple):
    """A context of a kubeconfig with its cluster and user."""

    name: str
    cluster: Section
    user: Section
    files: str
    """Kubeconfig files, in the format of `$KUBECONFIG`."""

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self.cluster.settings.get("server") or "http://localhost:8080").rstrip("/")

    def tls(self) -> ssl.SSLContext:
        """Returns a TLS context that verifies the server as the cluster's settings require, without a client
        certificate.

        Raises OSError, ValueError for an invalid certificate.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.cluster.settings.get("insecure-skip-tls-verify"):
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        elif authority := self.cluster.data("certificate-authority"):
            made.load_verify_locations(cadata=authority.decode())
        else:
            made.load_default_certs()
        made.set_alpn_protocols(["http/1.1"])
        return made

    def proxy(self) -> str | None:
        """Returns the proxy for the server, from the kubeconfig or else from the environment."""
        if chosen := self.cluster.settings.get("proxy-url"):
            return str(chosen)
        if not any(name.lower().endswith("_proxy") for name in os.environ):
            return None
        from urllib.parse import urlsplit
        from urllib.request import getproxies

        server = urlsplit(self.server)
        proxies = getproxies()
        if _is_direct(server.hostname or "", proxies.get("no", "")):
            return None
        return proxies.get(server.scheme) or proxies.get("all")


def _is_direct(host: str, no_proxy: str) -> bool:
    """Whether a server is accessed without the environment's proxy. As with kubectl, this includes loopback addresses,
    and entries of `NO_PROXY`: host names, addresses and networks in CIDR notation.
    """
    import ipaddress
    from urllib.request import proxy_bypass

    if host == "localhost" or proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # The host is a name and no address.
        return False
    if address.is_loopback:
        return True
    for one in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # The entry is a name and no network.
            if address in ipaddress.ip_network(one.strip(), strict=False):
                return True
    return False


def read_context(name: str, files: str) -> Context:
    """Returns the context `name` from the kubeconfig files, in the format of `$KUBECONFIG`. The first entry of a name
    takes precedence.

    Raises UsageError if the context does not exist or a file cannot be read.
    """
    found: dict[str, dict[str, Section]] = {section: {} for section in SECTIONS}
    paths = [path for one in files.split(os.pathsep) if one and (path := Path(os.path.expanduser(one))).is_file()]
    if not paths:
        raise UsageError(
            f"context {name}: there is no kubeconfig at {files}", "aws eks update-kubeconfig --name CLUSTER"
        )
    for path in paths:
        about = path.stat()
        for section, entries in _sections(path, about.st_mtime_ns, about.st_size).items():
            found[section] = {**entries, **found[section]}
    contexts = found["contexts"]
    if name not in contexts:
        raise UsageError(
            f"the kubeconfig {files} has no context '{name}'", f"known: {', '.join(sorted(contexts)) or 'none'}"
        )
    chosen = contexts[name].settings
    cluster = found["clusters"].get(str(chosen.get("cluster")))
    if cluster is None:
        raise UsageError(
            f"the kubeconfig {files} has no cluster '{chosen.get('cluster')}', which context {name} names",
            "aws eks update-kubeconfig --name CLUSTER",
        )
    return Context(name, cluster, found["users"].get(str(chosen.get("user")), Section({}, Path())), files)


@functools.lru_cache(maxsize=16)
def _sections(path: Path, _mtime_ns: int, _size: int) -> dict[str, dict[str, Section]]:
    """Returns the sections of one file, with their entries by name; the file is read again when it has changed."""
    read = _read(path)
    found: dict[str, dict[str, Section]] = {section: {} for section in SECTIONS}
    for section in SECTIONS:
        entries = read.get(section) if isinstance(read, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            settings = entry.get(section[:-1]) if isinstance(entry, dict) else None
            if isinstance(settings, dict):
                found[section].setdefault(str(entry.get("name")), Section(settings, path.parent.absolute()))
    return found


def _read(path: Path) -> Any:
    """Parses a kubeconfig as JSON, which needs no package, or else as YAML. Raises UsageError."""
    try:
        data = path.read_bytes()
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            from ruamel.yaml import YAML
            from ruamel.yaml.error import YAMLError
        try:
            return YAML(typ="safe", pure=True).load(data)
        except YAMLError as error:
            raise ValueError(str(error)) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"the kubeconfig {path} cannot be read: {reason}", "see: kubectl config view") from error


def kubectl(context: str, kubeconfig: str) -> str:
    """Returns the start of a kubectl command line for a context. Several kubeconfig files are not named: kubectl finds
    them in `$KUBECONFIG`.
    """
    is_usual = os.pathsep in kubeconfig or kubeconfig == os.path.expanduser("~/.kube/config")
    file = "" if is_usual else f"--kubeconfig {shlex.quote(kubeconfig)} "
    return f"kubectl {file}--context {context}"
