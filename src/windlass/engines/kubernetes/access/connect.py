"""Connects to the cluster of a target with the user's kubeconfig."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.access.client import Client

if TYPE_CHECKING:
    from windlass.spec.address import ClusterAddress
    from windlass.spec.targets import KubernetesTarget


def find_kubeconfig(target: ClusterAddress | KubernetesTarget, environ: Mapping[str, str]) -> str:
    """Returns the target's kubeconfig files, or else those that kubectl uses, in the format of `$KUBECONFIG`."""
    home = environ.get("HOME", "/")
    if target.kubeconfig is not None:
        return home + target.kubeconfig[1:] if target.kubeconfig.startswith("~/") else target.kubeconfig
    named = environ.get("KUBECONFIG") or f"{home}/.kube/config"
    return os.pathsep.join(os.path.abspath(path) for path in named.split(os.pathsep) if path)  # noqa: PTH100


def connect(target: ClusterAddress | KubernetesTarget, environ: Mapping[str, str]) -> contextlib.closing[Client]:
    """Returns a client for the target's context and namespace, which is closed at the end of its `with` block. Raises
    UsageError.
    """
    return contextlib.closing(Client(target.context, target.namespace, find_kubeconfig(target, environ)))
