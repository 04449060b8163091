"""Starts, lists and closes services that are runs: TensorBoard, notebooks, and deployments on this machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from windlass.actions import runs
from windlass.actions.jobs import ReadyJob
from windlass.actions.targets import find_address, find_target, remote_names
from windlass.engines import engine_class
from windlass.errors import NoSuchRun, UsageError, WindlassError
from windlass.runs.private import service_folder
from windlass.services.service import Service, ServiceRequest, is_service, job_of, service_of

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.engines.values import RunState
    from windlass.plan.plan import Plan
    from windlass.runs.context import Context
    from windlass.runs.record import Status
    from windlass.runs.store import Store

PORT_FILE: Final = "port"
"""File in the folder of a service on this machine with the port at which it listens: a number, or JSON with `port`."""
MAX_TARGETS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ServiceList:
    """Services that have not ended, newest first, and targets that did not list theirs."""

    services: tuple[Service, ...]
    unanswered: tuple[tuple[str, str], ...] = ()
    """Names of targets whose services are unknown, each with the reason."""


def plan_service(request: ServiceRequest, on: str, context: Context) -> Plan:
    """Plans the run of a service on the target `on`, with new credentials.

    Raises UsageError, JobFileError, EngineError, MissingExtra.
    """
    from windlass.services.certificates import new_credentials

    target = find_target(on, context)
    if not engine_class(target.kind, f"target {on}").runs_services:
        raise UsageError(f"target {on} runs no {request.kind}", "name this machine or a Kubernetes cluster: --on local")
    ready = ReadyJob(job_of(request), request.base, request.kind.value)
    made = runs.make_plan(ready, on, context)
    now = context.now()
    ends_at = None if request.seconds is None else now + request.seconds
    credentials = new_credentials(made.run_id, now, ends_at)
    # The code is part of Windlass, so its commit says nothing about the service.
    return replace(made, revision=None, service_files={**request.files, **credentials.files()})


def start_service(request: ServiceRequest, on: str, store: Store, context: Context) -> tuple[Engine, str]:
    """Starts a service on the target `on`. Returns the engine of its run, and the run id.

    Returns before the service listens. Raises the errors of `plan_service` and `Engine.submit`.
    """
    plan = plan_service(request, on, context)
    engine = engine_class(plan.engine).connect(store)
    return engine, runs.submit(engine, plan, context).id


def service(engine: Engine, run_id: str, now: float) -> Service:
    """Returns the state of a service at `now` (Unix seconds). Raises NoSuchRun, UsageError if the run is no service."""
    state = engine.state(run_id, now)
    if not is_service(state.status):
        raise UsageError(f"{run_id} is a run, and no service", "windlass services lists all services")
    return _service(state, engine.store)


def list_services(store: Store, context: Context, on: str | None = None) -> ServiceList:
    """Lists the services of all targets, or of the target `on`: those that this machine started, and those in clusters
    that other machines started. Targets are asked in parallel; `unanswered` names those that do not answer.
    """
    own = [one for one in runs.states(_unfinished(store), store, context.now()) if not one.status.phase.is_terminal]
    found = {one.status.id: _service(one, store) for one in own if on in (None, one.status.target)}
    names = [name for name in remote_names(context) if on in (None, name)]
    unanswered: list[tuple[str, str]] = []
    with ThreadPoolExecutor(MAX_TARGETS_AT_ONCE) as pool:
        for name, listed in zip(names, pool.map(lambda name: _listed(name, context), names), strict=True):
            if isinstance(listed, WindlassError):
                unanswered.append((name, listed.message))
            else:
                found = {one.run_id: one for one in listed} | found
    newest_first = sorted(found.values(), key=lambda one: (-one.created_at, one.run_id))
    return ServiceList(tuple(newest_first), tuple(unanswered))


def _unfinished(store: Store) -> list[Status]:
    return [one for one in runs.statuses(store, last=0) if is_service(one) and not one.phase.is_terminal]


def _listed(name: str, context: Context) -> list[Service] | WindlassError:
    """Lists the services in a cluster; returns the error if it does not answer. Other kinds of targets have none."""
    try:
        if not engine_class(find_address(name, context).kind).runs_services:
            return []
        with context.store() as store:  # threads cannot share a connection to the record at the same time
            states = runs.connect(name, store, context).list()
            return [
                _service(one, store) for one in states if is_service(one.status) and not one.status.phase.is_terminal
            ]
    except WindlassError as error:
        return error


def close_service(
    found: Service, store: Store, context: Context, on_line: Callable[[str], None] = lambda _: None
) -> Status:
    """Ends a service. Waits until its processes or pods have ended and its load balancer is gone. Returns the status of
    its run.

    Raises NoSuchRun, UsageError, EngineError.
    """
    engine, run_id = engine_of(found, store, context)
    on_line(f"stopping {run_id} on {found.target}")
    engine.stop(run_id)
    if engine.conceal(run_id):
        on_line(f"removed the load balancer of {run_id}")
    return runs.wait_stopped(engine, run_id, engine.grace_seconds(run_id))


def engine_of(found: Service, store: Store, context: Context) -> tuple[Engine, str]:
    """Returns the engine that operates on a service, and the run id. Raises NoSuchRun, EngineError."""
    with contextlib.suppress(NoSuchRun):
        return runs.engine_for(found.run_id, store), found.run_id
    return runs.find(found.run_id, store, found.target, context)


def _service(state: RunState, store: Store) -> Service:
    """Converts a run with the label of services. The price is known if this machine has the run's plan."""
    from windlass.engines.kubernetes.objects.layout import SERVICE_PORT
    from windlass.runs.phase import Phase

    run_id, price = state.status.id, None
    with contextlib.suppress(WindlassError):
        price = store.plan(run_id).price
    if state.status.supervision.machine is None:
        port = SERVICE_PORT if state.status.phase in (Phase.TRAINING, Phase.CHECKPOINTING) else None
    else:
        port = local_port(store, run_id)
    return service_of(state, port, price)


def local_port(store: Store, run_id: str) -> int | None:
    """Returns the port at which a service on this machine listens; None if it does not listen yet."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = json.loads((service_folder(store.home, run_id) / PORT_FILE).read_text())
        return int(found["port"] if isinstance(found, dict) else found)
    return None
