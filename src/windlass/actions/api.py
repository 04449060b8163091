"""The Python API: `run`, `make_plan`, `get`, `list_runs`, and a `Run` to follow, await and stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from windlass.actions import runs as actions
from windlass.actions.cost import cost as find_cost
from windlass.actions.jobs import ReadyJob, read_job
from windlass.actions.why import why
from windlass.engines import engine_class
from windlass.errors import RunFailed, RunNotFinished, RunStopped
from windlass.runs.context import Context, here
from windlass.runs.events import Event
from windlass.runs.logs import LogLine, RunLogs
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.diagnose.verdict import Diagnosis
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan
    from windlass.runs.ledger import Cost, Ledger
    from windlass.spec.job import Job

AnyJob: TypeAlias = "Job | str | Path | Mapping[str, Any]"


class Run:
    """One run, by its id. It lives in the record: losing this object loses nothing."""

    def __init__(self, run_id: str, engine: Engine, store: Store) -> None:
        self.id = run_id
        self._engine = engine
        self._store = store

    def __repr__(self) -> str:
        return f"<windlass.Run {self.id}>"

    @property
    def status(self) -> Status:
        """Where the run is now. Raises NoSuchRun once it was removed."""
        return self._engine.status(self.id)

    @property
    def output_dir(self) -> Path:
        """The folder that the script knows as `WINDLASS_OUTPUT_DIR`."""
        return Path(self._store.status(self.id).output_dir)

    def events(self, *, follow: bool = True, after: int = 0) -> Iterator[Event]:
        """What happened, from event number `after` + 1 on; with `follow` until the run has ended."""
        return self._engine.events(self.id, follow=follow, after=after)

    def logs(
        self, *, ranks: Collection[int] | None = None, follow: bool = False, tail: int | None = None
    ) -> Iterator[LogLine]:
        """What the ranks wrote, merged in the order of time; with `follow` until the run has ended."""
        is_over = (lambda: self.status.phase.is_terminal) if follow else None
        return RunLogs(self._store.run_dir(self.id)).read(ranks=ranks, tail=tail, is_over=is_over)

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Status:
        """Block until the run has ended, at most `timeout` seconds; give its last status.

        With `check`, raises RunFailed if it failed or was lost, RunStopped if it was stopped, and RunNotFinished if
        the time was too short.
        """
        status = self._engine.wait(self.id, timeout)
        if check:
            raise_unless_succeeded(status)
        return status

    def __await__(self) -> Generator[Any, None, Status]:
        """`await run`: as `wait()`, in a thread, so that other tasks go on."""
        return asyncio.to_thread(self._wait_in_thread).__await__()

    def why(self) -> Diagnosis:
        """Why the run ended as it did: a verdict with evidence and a fix, and what else speaks for something."""
        return why(self.id, self._engine)

    def ledger(self) -> Ledger:
        """Where the run's time went until now: seconds of each phase, goodput, steps that were trained again."""
        from windlass.runs.ledger import fold_ledger

        return fold_ledger(self._store.events(self.id), time.time())

    def cost(self) -> Cost | None:
        """What the run has cost until now, by phase; None where its target has no price."""
        return find_cost(self.id, self._store, here())[0].cost

    def stop(self, *, now: bool = False) -> Self:
        """Ask the run to end: SIGTERM, its grace period, SIGKILL; `now` leaves out the grace."""
        self._engine.stop(self.id, now=now)
        return self

    def resume(self, *, nodes: int | None = None, checkpoint: str | None = None) -> Self:
        """Go on with the ended run, on so many `nodes` and from this `checkpoint` (a name or a path) if they are given.

        Raises UsageError if it goes on or has succeeded, PlanError, EngineError.
        """
        actions.resume(self.id, self._engine, here(), nodes=nodes, checkpoint=checkpoint)
        return self

    def delete(self, *, force: bool = False) -> None:
        """Remove the ended run with its logs and results.

        Raises UsageError while it goes on, and without `force` where its folder holds the only checkpoint of a run
        that did not succeed.
        """
        if not force:
            actions.require_removable(self._engine, self.id)
        self._engine.delete(self.id)

    def _wait_in_thread(self) -> Status:
        # SQLite connections stay in the thread that made them.
        with Store(self._store.home, self._store.machine) as store:
            return Run(self.id, actions.engine_for(self.id, store), store).wait()


def run(job: AnyJob, on: str | Engine = "local", *, context: Context | None = None) -> Run:
    """Start a job and return at once: `windlass.run("job.yaml").wait()`.

    `job` is a `Job`, the path of a job file or script, or a mapping of job fields; its paths are relative to the
    working folder (to the file's own for a job file). `on` names a target, or is an engine with its own planner: the
    fake engine, in the tests of your own programs. Raises JobFileError, PlanError, UsageError, EngineError, StoreError.
    """
    context = context or here()
    if not isinstance(on, str):
        ready = _ready(job, context)
        status = on.submit(on.plan(ready.job, f"{ready.job.name}-{context.token()}"))
        return Run(status.id, on, on.store)
    store = context.store()
    made = make_plan(job, on, context=context)
    engine = engine_class(made.engine).connect(store)
    return Run(engine.submit(made).id, engine, store)


def make_plan(job: AnyJob, on: str = "local", *, context: Context | None = None) -> Plan:
    """What `run` would do, touching nothing. Raises JobFileError, UsageError."""
    context = context or here()
    return actions.make_plan(_ready(job, context), on, context)


def get(run_id: str | None = None, *, context: Context | None = None) -> Run:
    """The run whose id begins with `run_id`; the newest without one. Raises NoSuchRun."""
    store = (context or here()).store()
    engine, found = actions.find(run_id, store)
    return Run(found, engine, store)


def list_runs(last: int | None = None, *, context: Context | None = None) -> list[Status]:
    """All runs, newest first; the unfinished ones and the `last` newest if a number is given."""
    with (context or here()).store() as store:
        return actions.statuses(store, last=last)


def raise_unless_succeeded(status: Status) -> None:
    """Raise what a status amounts to: RunFailed, RunStopped or RunNotFinished; nothing for a success."""
    if status.phase is Phase.SUCCEEDED:
        return
    if not status.phase.is_terminal:
        raise RunNotFinished(f"{status.id} is still {status.phase}", f"windlass status {status.id}")
    if status.phase is Phase.STOPPED:
        raise RunStopped(f"{status.id} was stopped")
    cause = status.cause or {}
    rank = f"rank {cause['rank']}: " if "rank" in cause else ""
    raise RunFailed(f"{status.id} {status.phase}: {rank}{cause.get('summary', '')}", f"windlass logs {status.id}")


def _ready(job: Any, context: Context) -> ReadyJob:
    from windlass.spec.job import Job
    from windlass.spec.parse import job_from_mapping

    if isinstance(job, Job):
        return ReadyJob(job, context.cwd, "job")
    if isinstance(job, Mapping):
        return ReadyJob(job_from_mapping(job), context.cwd, "job")
    return read_job(str(job), (), {}, context)
