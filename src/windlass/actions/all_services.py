"""Lists and closes services on all targets: runs such as notebooks, and deployments."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from windlass.actions import runs
from windlass.actions import services as runs_of_services
from windlass.actions.deployments import deployments_of, elsewhere, has_deployments, undeploy
from windlass.actions.targets import find_target, target_names
from windlass.engines import target_class
from windlass.engines.deployments import HERE, Deployment, DeploymentPhase
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.services.known import KnownDeployment, forget, known_deployments, read_known
from windlass.services.service import ServiceKind
from windlass.views.services import (
    DEPLOYMENT,
    ClosedService,
    ServiceList,
    ServiceView,
    UnansweredTarget,
    deployment_view,
    service_view,
)

if TYPE_CHECKING:
    from windlass.engines.deployments import OnProgress
    from windlass.runs.context import Context

MAX_TARGETS_AT_ONCE: Final = 8


def list_all(context: Context, on: str | None = None) -> ServiceList:
    """Lists the services of all targets, or of the target `on`. If a target does not answer, the deployments that this
    machine created there are listed with phase `unknown`. Raises StoreError.
    """
    known = [one for one in known_deployments(context.home) if on in (None, one.target)]
    names = [on] if on is not None else list(dict.fromkeys([*target_names(context), *(one.target for one in known)]))
    now = context.now()
    with ThreadPoolExecutor(MAX_TARGETS_AT_ONCE) as pool:
        listed = pool.submit(_runs, context, on)  # in parallel with the deployments: a target may time out in both
        asked = list(pool.map(lambda name: _deployed(name, context, known), names))
        of_runs = listed.result()
    unanswered = dict(of_runs.unanswered) | {name: why for name, (_, why) in zip(names, asked, strict=True) if why}
    views = [
        *(service_view(one) for one in of_runs.services if one.kind is not ServiceKind.DEPLOYMENT),
        *(deployment_view(one, now) for found, _ in asked for one in found),
    ]
    ordered = sorted(views, key=lambda one: (one.target, one.kind, one.name))
    return ServiceList(tuple(ordered), tuple(UnansweredTarget(name, why) for name, why in unanswered.items()))


def _runs(context: Context, on: str | None) -> runs_of_services.ServiceList:
    with context.store() as store:
        return runs_of_services.list_services(store, context, on)


def _deployed(name: str, context: Context, known: Sequence[KnownDeployment]) -> tuple[tuple[Deployment, ...], str]:
    """Returns the deployments of a target, and why some may be missing; empty if none is missing.

    Forgets deployments that this machine created there and that the target no longer has. Deployments that it created
    at another place, for example with another login, are listed as `unknown`.
    """
    mine = [one for one in known if one.target == name]
    try:
        if not has_deployments(name, context):
            return (), ""
        with context.store() as store:  # threads cannot share a connection to the record
            deployments = deployments_of(name, store, context)
            found, place = deployments.list(), deployments.place()
    except WindlassError as error:
        # The target does not answer, a package for it is missing, or the targets file no longer names it.
        return tuple(_unknown(one, error.message) for one in mine), error.message
    there, unknown = {one.name for one in found}, []
    for one in mine:
        if one.name in there:
            continue
        if other := elsewhere(one, place):
            unknown.append(_unknown(one, other))
        elif read_known(context.home, name, one.name) == one:  # a command may have created it during the list
            forget(context.home, name, one.name)
    return (*found, *unknown), ""


def _unknown(known: KnownDeployment, why: str) -> Deployment:
    return Deployment(
        known.name,
        known.target,
        DeploymentPhase.UNKNOWN,
        run_id=known.run_id,
        cause=why,
        created_at=known.created_at,
        ends_at=known.ends_at,
    )


def find(name: str, on: str | None, context: Context) -> ServiceView:
    """Returns the service with this name, or the only run whose id begins with it. Raises UsageError if there is none
    or more than one, EngineError if a target that may have the service does not answer.
    """
    listed = list_all(context, on)
    found = [one for one in listed.services if one.name == name]
    if not found and not listed.unanswered:  # users choose the names of deployments: `digits` is not `digits-v2`
        found = [one for one in listed.services if one.kind != DEPLOYMENT and one.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(f"{one.name} on {one.target}" for one in found)
        raise UsageError(
            f"several services are called '{name}': {places}", "name it whole, and its target: --on TARGET"
        )
    if listed.unanswered:
        target = listed.unanswered[0]
        raise EngineError(
            f"no service '{name}' was found, and target {target.target} does not answer: {target.reason}",
            "try again when it answers, or name another target: --on TARGET",
        )
    raise UsageError(f"no service '{name}' is up", "windlass services lists all services")


def close(name: str, on: str | None, context: Context, on_progress: OnProgress) -> ClosedService:
    """Ends a service and waits until all of its objects are gone. Raises UsageError, and EngineError with the objects
    that are left.
    """
    found = find(name, on, context)
    if found.kind == DEPLOYMENT:
        return undeploy(found.name, found.target, context, on_progress)
    with context.store() as store:
        engine, run_id = runs.find(found.run, store, found.target, context)
        service = runs_of_services.service(engine, run_id, context.now())
        runs_of_services.close_service(service, store, context, on_progress)
    return ClosedService(found.name, found.target, (f"run {run_id}",))


def forget_deployment(name: str, on: str | None, context: Context) -> ClosedService:
    """Forgets a deployment that this machine has made, without asking its target, where it may still be up. Raises
    UsageError, also for targets on this machine: they always answer, and serve the model from the forgotten files.
    """
    found = [one for one in known_deployments(context.home) if one.name == name and on in (None, one.target)]
    if len(found) != 1:
        places = ", ".join(one.target for one in found) or "none"
        raise UsageError(f"this machine remembers {name} on these targets: {places}", "name one: --on TARGET")
    on, is_local = found[0].target, False
    with contextlib.suppress(WindlassError):  # the targets file may no longer name it
        is_local = not target_class(find_target(on, context).kind, f"target {on}").is_remote
    if is_local and found[0].place in (HERE, ""):
        raise UsageError(f"{on} answers, and {name} may be up there", f"windlass undeploy {name} --on {on}")
    forget(context.home, on, name)
    return ClosedService(name, on, ())


def deployed_on(name: str, on: str | None, context: Context) -> str:
    """Returns the target of the deployment with this name. Raises UsageError, EngineError.

    Targets are asked only if this machine did not create such a deployment, or created it on several targets.
    """
    if on is not None:
        return on
    known = {one.target for one in known_deployments(context.home) if one.name == name}
    if len(known) == 1:
        return known.pop()
    found = find(name, None, context)
    if found.kind != DEPLOYMENT or found.name != name:
        raise UsageError(f"there is no deployment '{name}'", "windlass services lists all services")
    return found.target
