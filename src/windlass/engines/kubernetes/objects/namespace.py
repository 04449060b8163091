"""Identifies the cluster and the namespace of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from windlass.plan.steps import ClusterStep

if TYPE_CHECKING:
    from windlass.plan.plan import Plan


class ClusterNamespace(NamedTuple):
    """A namespace of a cluster, and the kubeconfig context through which it is reached."""

    context: str
    namespace: str
    kubeconfig: str


def namespace_of(plan: Plan) -> ClusterNamespace:
    """Returns the cluster and namespace of the run of a recorded plan."""
    cluster = plan.only(ClusterStep)
    return ClusterNamespace(cluster.context, cluster.namespace, cluster.kubeconfig)
