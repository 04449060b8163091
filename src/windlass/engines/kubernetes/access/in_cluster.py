"""Writes the kubeconfig of a pod's service account, for requests from inside the cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from windlass.errors import UsageError

CONTEXT: Final = "in-cluster"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which the kubelet mounts the service account's token and the API server's CA certificate."""


def write_kubeconfig(folder: Path, environ: Mapping[str, str], account: Path = ACCOUNT) -> Path:
    """Writes a kubeconfig with the context `in-cluster` into `folder`; returns its path. Raises UsageError, OSError.

    The file is JSON, so that no YAML package is needed to read it. It refers to the token's file, since the kubelet
    replaces the token before it expires.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (account / "token").is_file():
        raise UsageError(
            f"this process has no service account: no KUBERNETES_SERVICE_HOST or no {account / 'token'}",
            "in the pod's spec: automountServiceAccountToken: true",
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = {"server": server, "certificate-authority": str(account / "ca.crt")}
    path = folder / "in-cluster-kubeconfig.json"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": CONTEXT,
                "clusters": [{"name": CONTEXT, "cluster": cluster}],
                "users": [{"name": CONTEXT, "user": {"tokenFile": str(account / "token")}}],
                "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
            }
        )
    )
    return path
