"""Plan, run, see, follow, stop and remove runs: what the commands of the same names and the Python API do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from windlass.actions.edge import Edge, here
from windlass.actions.jobs import ReadyJob
from windlass.actions.targets import DEFAULT, engine_of, find_target, find_targets, plan_for, plan_for_first
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.runs.record import Event, Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan
    from windlass.runs.ledger import Ledger, Restart

STOP_SECONDS: Final = 60.0
"""How much longer than its grace period a run is waited for whose target does not answer."""
STOP_LOOK_SECONDS: Final = 5.0


def make_plan(ready: ReadyJob, on: str, edge: Edge) -> Plan:
    """The plan of a run of this job on the target called `on`, or on the first of several that can run it: `a,b`.

    Touches nothing. Raises UsageError, JobFileError.
    """
    return plan_for_first(ready, find_targets(on, edge), f"{ready.job.name}-{edge.token()}", edge)


def expected(on: str, edge: Edge) -> AbstractContextManager[None]:
    """A run on this target is about to be submitted in the block: what takes long can begin. Makes no record."""
    if on != DEFAULT:
        return nullcontext()
    from windlass.engines.local.waiting import prepared

    return prepared(edge.home)


def submit(plan: Plan, store: Store) -> Status:
    """Carry a plan out; returns once the run needs nobody. Raises PlanError, EngineError, StoreError."""
    return engine_of(plan.engine, store).submit(plan)


def engine_for(run_id: str, store: Store) -> Engine:
    """The engine that keeps this run. Raises NoSuchRun."""
    return engine_of(store.plan(run_id)["engine"], store)


def status(run: str | None, store: Store) -> Status:
    """The status, true now, of the run that `run` stands for; the newest without one. Raises NoSuchRun."""
    run_id = store.find(run)
    return engine_for(run_id, store).status(run_id)


def statuses(store: Store, *, last: int | None = None) -> list[Status]:
    """All unfinished runs, brought to the truth, and the `last` newest of all (every run with None), newest first."""
    if last is None:
        store.empty_trash()  # a list of all runs takes its time anyway
    fresh = {}
    for unfinished in store.statuses(unfinished=True):
        fresh[unfinished.id] = unfinished
        with contextlib.suppress(WindlassError):  # one that cannot be looked at now must not hide the others
            fresh[unfinished.id] = engine_for(unfinished.id, store).status(unfinished.id)
    found = {**fresh, **{status.id: status for status in store.statuses(last=last)}}
    return sorted(found.values(), key=lambda status: (-status.created_at, status.id))


def events(run: str | None, store: Store, *, follow: bool = False, after: int = 0) -> Iterator[Event]:
    """The events of a run; with `follow` also those to come, until it has ended. Raises NoSuchRun."""
    import time

    run_id = store.find(run)
    engine = engine_for(run_id, store)
    while True:
        over = engine.status(run_id).phase.is_terminal  # asked first: the events of an ended run are then all there
        for event in store.events(run_id, after):
            after = event.seq
            yield event
        if over or not follow:
            return
        time.sleep(0.1)


def ledger(run: str | None, store: Store, now: float | None = None) -> Ledger:
    """Where a run's time went, up to its end or `now` (Unix seconds; this moment without one). Raises NoSuchRun."""
    import time

    from windlass.runs.ledger import fold_ledger

    return fold_ledger(store.events(store.find(run)), time.time() if now is None else now)


def ledgers(run_id: str, store: Store) -> Callable[[], Ledger]:
    """What gives the ledger of a run at each moment, for whoever looks again and again: each event is read once."""
    import time

    from windlass.runs.ledger import ledger_of
    from windlass.runs.tally import Tally

    tally: list[Tally] = []

    def ledger() -> Ledger:
        if tally:
            tally[0].take(store.events(run_id, tally[0].last_seq))
        else:
            tally.append(Tally(store.events(run_id)))
        return ledger_of(tally[0], time.time())

    return ledger


def restarts(run: str | None, store: Store) -> list[Restart]:
    """Every attempt of a run but its first: why it was begun, and what that cost. Raises NoSuchRun."""
    from windlass.runs.ledger import restarts

    return restarts(store.events(store.find(run)))


def stop(run: str | None, store: Store, *, now: bool = False) -> str:
    """Ask a run to end; gives its id. Raises NoSuchRun."""
    run_id = store.find(run)
    engine_for(run_id, store).stop(run_id, now=now)
    return run_id


def left_running(run_id: str, store: Store) -> list[str]:
    """What still works of a run that has ended by its record, as far as its target says. Raises NoSuchRun."""
    with contextlib.suppress(EngineError):
        return engine_for(run_id, store).left_running(run_id)
    return []


def require_here(run_id: str, store: Store) -> None:
    """Raise UsageError for a run that goes on and is kept by another machine, which alone can end it."""
    if (host := stops_elsewhere(run_id, store)) is not None:
        raise UsageError(f"{run_id} has not ended, and is kept by {host}", f"call this on {host}")


def resume(
    run: str | None, store: Store, edge: Edge | None = None, *, nodes: int | None = None, checkpoint: str | None = None
) -> Status:
    """Go on with an ended run, on so many `nodes` if that is given, from the newest checkpoint or the one given.

    Its code is what the folder of the job has now. Raises NoSuchRun, UsageError, PlanError, EngineError, StoreError.
    """
    run_id = store.find(run)
    engine = engine_for(run_id, store)
    plan = None if nodes is None else replanned(store.plan(run_id), nodes, edge or here())
    return engine.resume(run_id, plan, checkpoint)


def replanned(old: Mapping[str, Any], nodes: int, edge: Edge) -> Plan:
    """The plan of the same run for another number of nodes; an elastic job may still shrink as far as it could."""
    from windlass.actions.jobs import planned_job

    if old["engine"] == "fake":
        raise UsageError("a fake run is planned by the program that plays it", "leave --nodes out")
    asked = old["job"].get("nodes", {"min": 1, "max": 1})
    least = min(nodes, asked["min"]) if asked["min"] < asked["max"] else nodes
    ready = planned_job(old, {"nodes": {"min": least, "max": nodes}})
    return plan_for(ready, find_target(old["target"], edge), old["run_id"], edge)


def wait(
    run: str | None, store: Store, *, timeout: float | None = None, on_change: Callable[[Status], None] | None = None
) -> Status:
    """Block until a run has ended, at most `timeout` seconds; gives the last status seen. Raises NoSuchRun."""
    run_id = store.find(run)
    return engine_for(run_id, store).wait(run_id, timeout, on_change)


def wait_stopped(run_id: str, store: Store, grace_seconds: float) -> Status:
    """Block until a run that was asked to end has ended.

    Raises EngineError where its supervisor cannot find out for `STOP_SECONDS` after the grace period whether it has:
    a cluster that does not answer must not hold a terminal for good. Raises NoSuchRun.
    """
    give_up = time.monotonic() + grace_seconds + STOP_SECONDS
    while True:
        found = wait(run_id, store, timeout=STOP_LOOK_SECONDS)
        if found.phase.is_terminal:
            return found
        if found.condition and time.monotonic() >= give_up:
            why = found.condition["message"]
            raise EngineError(f"{run_id} was asked to end, and it is not known whether it has: {why}",
                              f"it goes on being stopped; look again: windlass status {run_id}")  # fmt: skip


def stops_elsewhere(run_id: str, store: Store) -> str | None:
    """The machine that has to act on a stop of this run, where it is not this one and the run goes on; else None."""
    found = store.status(run_id)
    return None if found.phase.is_terminal else store.host_elsewhere(found)


def remove(run: str, store: Store, *, force: bool = False) -> str:
    """Remove an ended run with its logs and the results inside its folder. Raises NoSuchRun, UsageError.

    Without `force`, a run that did not succeed and could be resumed is refused.
    """
    run_id = store.find(run)
    if not force:
        require_removable(status(run_id, store), store)
    engine_for(run_id, store).delete(run_id)
    return run_id


def require_removable(found: Status, store: Store) -> None:
    """Raise UsageError for a run that goes on, or whose folder holds all that it could be resumed from."""
    from windlass.actions.checkpoints import kept_only_here

    run_id = found.id
    if not found.phase.is_terminal:
        host = store.host_elsewhere(found)
        where = f", and is kept by {host}" if host is not None else ""
        raise UsageError(f"{run_id} has not ended{where}", f"windlass stop {run_id}, then remove it")
    if lost := kept_only_here(found, store):
        raise UsageError(
            f"{run_id} has ended as {found.phase} and can be resumed; with it would go {lost}",
            f"windlass resume {run_id}, or windlass rm --force {run_id}",
        )
