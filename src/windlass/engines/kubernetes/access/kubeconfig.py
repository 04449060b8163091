"""Reads one context of the user's kubeconfig files: the API server, how to verify it, and how the user logs in."""

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
    """The settings of one cluster or user, with the folder of the file that has them: paths are relative to it."""

    settings: Mapping[str, Any]
    folder: Path

    def data(self, name: str) -> bytes | None:
        """What `NAME-data` holds in base64, or the file `NAME` itself. Raises OSError, ValueError."""
        if encoded := self.settings.get(f"{name}-data"):
            return base64.b64decode(encoded)
        path = self.settings.get(name)
        return (self.folder / path).read_bytes() if path else None


class Context(NamedTuple):
    """A context of a kubeconfig."""

    name: str
    cluster: Section
    user: Section
    files: str
    """The kubeconfig files, as in `$KUBECONFIG`."""

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self.cluster.settings.get("server") or "http://localhost:8080").rstrip("/")

    def tls(self) -> ssl.SSLContext:
        """Verifies the server by the cluster's settings; without a certificate of the user.

        Raises OSError, ValueError for a certificate that cannot be read.
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
        """The proxy before the server: of the kubeconfig, else of the environment."""
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
    """Whether a server is reached without a proxy of the environment: as by kubectl, any on this machine, and what
    `NO_PROXY` has, by its name, its address or a network in CIDR notation."""
    import ipaddress
    from urllib.request import proxy_bypass

    if host == "localhost" or proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name
        return False
    if address.is_loopback:
        return True
    for one in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # a name
            if address in ipaddress.ip_network(one.strip(), strict=False):
                return True
    return False


def read_context(name: str, files: str) -> Context:
    """The context called `name`; `files` is as `$KUBECONFIG`. Of sections with one name, the first counts.

    Raises UsageError for a context that is not there, or a file that cannot be read.
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
            f"the kubeconfig {files} has no context '{name}'", f"known are: {', '.join(sorted(contexts)) or 'none'}"
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
    """The sections of one file, each entry by its name; read again when the file has changed."""
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
    """A kubeconfig as JSON, which needs no package, or as YAML. Raises UsageError."""
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
    """The beginning of a command line of kubectl for a context; it reads several files only by `$KUBECONFIG`."""
    is_usual = os.pathsep in kubeconfig or kubeconfig == os.path.expanduser("~/.kube/config")
    file = "" if is_usual else f"--kubeconfig {shlex.quote(kubeconfig)} "
    return f"kubectl {file}--context {context}"
