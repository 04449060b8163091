"""The namespace of a cluster in which a run takes place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ClusterNamespace(NamedTuple):
    """A namespace of a cluster, and how to reach it."""

    context: str
    namespace: str
    kubeconfig: str


def namespace_of(plan: Mapping[str, Any]) -> ClusterNamespace:
    """The namespace of the run of a recorded plan, as JSON."""
    [cluster] = [step["request"] for step in plan["steps"] if step["kind"] == "cluster"]
    return ClusterNamespace(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
