"""Creates clusters with the targets that runs use, and removes them with the services that are up there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.actions.all_services import close, list_all
from windlass.actions.targets import find_target, target_names
from windlass.clusters import down as removal
from windlass.clusters import up as clusters
from windlass.clusters.find import StageStarted, Warned
from windlass.engines import engine_class
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.down import ClusterRemoved
    from windlass.clusters.find import ManagedCluster, OnEvent
    from windlass.clusters.plan import ClusterPlan
    from windlass.clusters.removal_checks import ClusterUsage
    from windlass.clusters.terraform import StopRequests
    from windlass.clusters.up import ClusterMade
    from windlass.views.services import ServiceView, UnansweredTarget


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


def down(
    named: ManagedCluster,
    context: Context,
    on_event: OnEvent,
    confirm: Callable[[ClusterPlan, ClusterUsage], bool],
    stop: StopRequests,
    *,
    force: bool = False,
    **options: bool,
) -> ClusterRemoved | None:
    """Removes the cluster. Options and errors are those of `clusters.down.down`.

    Raises UsageError while services are up on the cluster or on its SageMaker target; with `force`, ends them after the
    confirmation.
    """
    services, unanswered = _services_on(named.cluster.name, context)
    if services and not force:
        words = "; ".join(f"{one.kind} {one.name} is {one.phase}" for one in services)
        raise UsageError(
            f"{len(services)} services use {named.cluster.name}: {words}",
            "end them: windlass close NAME; or --force, which ends them",
        )

    def confirmed(plan: ClusterPlan, usage: ClusterUsage) -> bool:
        for target in unanswered:
            on_event(Warned(f"services of {target.target} are unknown and will not be closed: {target.reason}"))
        if not confirm(plan, usage):
            return False
        for one in services:
            _close(one, context, on_event)
        return True

    return removal.down(named, context, on_event, confirmed, stop, force=force, **options)


def _services_on(cluster: str, context: Context) -> tuple[list[ServiceView], list[UnansweredTarget]]:
    """Returns the services on the targets of a cluster, and the targets that did not list theirs.

    The removal itself refuses pods of services and endpoints that use the role of the cluster.
    """
    own = {cluster, f"{cluster}-sagemaker"}.intersection(target_names(context))
    lists = [list_all(context, name) for name in sorted(own)]
    return [one for found in lists for one in found.services], [one for found in lists for one in found.unanswered]


def _close(one: ServiceView, context: Context, on_event: OnEvent) -> None:
    """Ends a service; a failure is reported and does not end a forced removal, whose audit names what is left."""
    on_event(StageStarted(f"closing {one.kind} {one.name} on {one.target}"))
    try:
        close(one.name, one.target, context, lambda line: on_event(StageStarted(line)))
    except WindlassError as error:
        on_event(Warned(f"{one.name} was not closed: {error.message}"))
