"""Creates clusters and sets up their targets with the engine that runs jobs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.actions.targets import find_target
from windlass.clusters import up as clusters
from windlass.engines import engine_class
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.find import ManagedCluster, OnEvent
    from windlass.clusters.plan import ClusterPlan
    from windlass.clusters.terraform import StopRequests
    from windlass.clusters.up import ClusterMade


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """Sets up the target that `up` wrote for a cluster."""

    name: str
    context: Context

    def set_up(self) -> None:
        """Creates the objects that supervisors need. Raises UsageError, EngineError."""
        target = find_target(self.name, self.context)
        engine_class(target.kind).setup(target, self.context)

    def rights(self) -> Sequence[Mapping[str, Any]]:
        """Returns the Kubernetes objects that grant the permissions for runs. Raises UsageError, EngineError."""
        target = find_target(self.name, self.context)
        return engine_class(target.kind).role(target, self.context)


def up(
    named: ManagedCluster,
    context: Context,
    on_event: OnEvent,
    confirm: Callable[[ClusterPlan], bool],
    stop: StopRequests,
    **options: bool,
) -> ClusterMade | None:
    """Creates or updates the cluster, and sets up its target. Options and errors are those of `clusters.up.up`."""
    runs = TargetSetup(named.cluster.name, context)
    return clusters.up(named, context, on_event, confirm, stop, runs, **options)
