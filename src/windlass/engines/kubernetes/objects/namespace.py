"""The namespace of a cluster in which a run takes place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from windlass.plan.steps import ClusterStep

if TYPE_CHECKING:
    from windlass.plan.plan import Plan


class ClusterNamespace(NamedTuple):
    """A namespace of a cluster, and how to reach it."""

    context: str
    namespace: str
    kubeconfig: str


def namespace_of(plan: Plan) -> ClusterNamespace:
    """The namespace of the run of a recorded plan."""
    cluster = plan.only(ClusterStep)
    return ClusterNamespace(cluster.context, cluster.namespace, cluster.kubeconfig)
