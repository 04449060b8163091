"""A run, in a list and alone: what `ps`, `status`, `run`, `stop` and `resume` print."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.code.kept import why_not_kept
from windlass.code.revision import Revision
from windlass.plan.plan import Plan
from windlass.plan.steps import NetworkStep
from windlass.runs import events
from windlass.runs.data import DataDifference, data_differences
from windlass.runs.ledger import Ledger, fold_ledger, ledger_of
from windlass.runs.phase import Phase
from windlass.runs.record import Attempt, Dropped, RankState, Status
from windlass.runs.time_accounting import Tally
from windlass.runs.warnings import RunWarning
from windlass.views.code_files import ChangedFiles, changed_files, newest_save
from windlass.views.serialise import view_of
from windlass.worker.protocol import SavedState

if TYPE_CHECKING:
    from windlass.engines.values import RunState
    from windlass.runs.store import Store

LEDGER_SECONDS: Final = 1.0
"""How old the ledger of a view may be: it is added up from all events."""


@dataclass(frozen=True, slots=True)
class RunId:
    """A run that was started and is not waited for."""

    id: str


@dataclass(frozen=True, slots=True)
class RunNote:
    """The note on a run."""

    id: str
    note: str
    """Empty where there is none."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list."""

    id: str
    name: str
    """Name of the job."""
    target: str
    host: str | None
    """Name of the machine that supervises it; null where its supervisor runs in the cluster."""
    is_here: bool
    """Whether that is this machine."""
    user: str
    """The user who started it; empty where that is not known."""
    supervisor: str
    """`cluster` where its supervisor is a pod of the cluster; empty where it is a process of `host`."""
    labels: Mapping[str, str]
    """Labels of the job."""
    note: str
    """What its user has written about it."""
    phase: Phase
    exit_code: int | None
    """The exit code of the rank that failed first; null while the run is active."""
    created_at: float
    """Unix seconds."""
    ended_at: float | None
    """Unix seconds; null while the run is active."""
    attempts: tuple[Attempt, ...]
    """Oldest first."""
    phases: Mapping[Phase, float]
    """Seconds in each phase; they sum to the wall clock."""
    ranks: tuple[RankState, ...]
    """Ranks of the newest attempt."""
    progress: events.Progress
    """The newest report of the script."""
    cause: events.RootCause | None
    """The root cause of the newest failure."""
    checkpoint: events.CheckpointChanged | None
    """The newest checkpoint that was saved."""
    warnings: tuple[RunWarning, ...]
    """What did not end it and may spoil its result, in the order in which it was first seen."""
    restarts_left: int | None
    """How many of the job's restarts are left; null for a run whose engine counts none."""
    waits_for: str | None
    """Why the newest attempt has not begun, as its target reports it."""
    condition: events.ConditionChanged | None
    """What keeps the run from being supervised; null if nothing does."""
    logs_dropped: tuple[Dropped, ...]
    """Output that the logs lack; empty where they are complete."""
    output_dir: str
    """Where the script writes its results."""
    as_of: float | None
    """When the state was read, in Unix seconds; null if it is current."""
    stale: str | None
    """Why the state may have changed since; null if it is current."""

    def elapsed(self, now: float) -> float:
        """Seconds from the run's beginning to its end, or to `now`."""
        return (now if self.ended_at is None else self.ended_at) - self.created_at


@dataclass(frozen=True, slots=True)
class Run(RunSummary):
    """A run alone."""

    num_nodes: int
    """As planned; an elastic run may have fewer."""
    procs_per_node: int
    max_restarts: int
    """How many restarts the job allows."""
    checkpoint_find: str | None
    """The pattern of the checkpoints that the script itself saves; null where the job has none."""
    revision: Revision | None
    """The commit that its code was at; null outside of a git work tree."""
    code_not_kept: str
    """Why the code that it began with was not kept beside its record; empty where it was."""
    imports: tuple[str, ...]
    """Libraries that take long to import, and that its script was seen to import."""
    ledger: Ledger
    network: events.NetworkCreated | None
    """The addresses of nodes that have a network of their own; null where they have none."""
    data: tuple[events.DataStaged, ...]
    """The data sets that its ranks read, as far as they were staged."""
    data_differences: tuple[DataDifference, ...]
    """Those of them that an earlier run of the job has not read."""
    outputs: events.OutputsUploaded | None
    """Where its outputs were uploaded; null where they were not."""
    collected: events.OutputsCollected | None
    """Its outputs that were collected from the pods of a cluster; null where none were."""
    changed_files: ChangedFiles | None
    """The new and changed files of the code folder; null where there are none, or none are known."""
    own_save: SavedState | None
    """The newest file in the code folder or in those of the run that is a saved state by its name; null for none, or
    where it is not known."""
    outputs_left: bool
    """Whether its ranks have succeeded, so that `resume` only stores its outputs."""
    disk_full: bool
    """Whether the disk under the record is full: the ends of runs are recorded, all else once there is space."""


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a run is, as far as its script reports it."""

    share: float | None
    """0 to 1; None where the last step is not known."""
    step: int | None
    total: int | None
    """The last step."""
    rate: float | None
    """Steps a second."""
    left_seconds: float | None
    """Time to the last step at this rate."""


def summary_of(status: Status, now: float, *, is_here: bool, current: RunState | None = None) -> RunSummary:
    """The view of a run for a list; `current` has why its state may be old."""
    return view_of(
        RunSummary,
        status,
        status.times,
        status.supervision,
        status.about,
        host=None if status.supervision.machine is None else status.supervision.machine.host,
        is_here=is_here,
        phases={phase: round(seconds, 3) for phase, seconds in status.phases_at(now).items()},
        logs_dropped=status.dropped,
        as_of=current.as_of if current is not None and current.stale else None,
        stale=(current.stale or None) if current is not None else None,
    )


def run_of(
    status: Status,
    plan: Plan,
    ledger: Ledger,
    now: float,
    *,
    is_here: bool,
    current: RunState | None = None,
    disk_full: bool = False,
    data_differences: tuple[DataDifference, ...] = (),
    code_not_kept: str = "",
) -> Run:
    """The view of one run; `plan` is its recorded plan."""
    network = plan.first(NetworkStep)
    return view_of(
        Run,
        summary_of(status, now, is_here=is_here, current=current),
        num_nodes=plan.num_nodes,
        procs_per_node=plan.procs_per_node,
        max_restarts=plan.policy.max_restarts,
        checkpoint_find=plan.job.get("checkpoint", {}).get("find"),
        revision=plan.revision,
        code_not_kept=code_not_kept,
        imports=plan.nodes.imports,
        ledger=ledger,
        network=None if network is None else events.NetworkCreated.from_json(network.request),
        data=status.files.data,
        data_differences=data_differences,
        outputs=status.files.outputs,
        collected=status.files.collected,
        own_save=newest_save(status.files.code_files),
        changed_files=changed_files(status.files.code_files, plan),
        outputs_left=status.phase.is_terminal and status.ending is not None,
        disk_full=disk_full,
    )


def recorded_run(status: Status, store: Store, now: float, current: RunState | None = None) -> Run:
    """The view of one run, from its record. Raises NoSuchRun."""
    plan = store.plan(status.id)
    return run_of(
        status,
        plan,
        fold_ledger(store.events(status.id), now, plan.num_spares),
        now,
        current=current,
        is_here=store.host_elsewhere(status) is None,
        disk_full=not status.phase.is_terminal and not store.reserve.has_space(),
        data_differences=data_differences(status, store),
        code_not_kept=why_not_kept(store.run_dir(status.id)),
    )


def run_viewer(run_id: str, store: Store) -> Callable[[Status], Run]:
    """A function that makes the view of a run from its newest status; it reads each event once. Raises NoSuchRun."""
    plan, tally = store.plan(run_id), Tally(store.events(run_id))
    made: list[tuple[float, Ledger]] = []

    def view(status: Status) -> Run:
        now = time.time()
        if not made or now - made[0][0] >= LEDGER_SECONDS:
            tally.take(store.events(run_id, tally.last_seq))
            made[:] = [(now, ledger_of(tally, now, plan.num_spares))]
        return run_of(status, plan, made[0][1], now, is_here=store.host_elsewhere(status) is None)

    return view


def advance_of(run: RunSummary, now: float, rate: float | None = None) -> Advance:
    """How far the run is; `rate` in steps a second is the caller's own measurement, for a script that reports none."""
    progress = run.progress
    step = progress.step if progress.step is not None and progress.step >= 0 else None
    total = progress.total if progress.total is not None and progress.total > 0 else None
    if total is not None and (step or 0) > total:
        total = None  # it is that of an epoch
    share = None
    if step is not None and total is not None:
        share = min(1.0, step / total)
    elif progress.percent is not None:
        share = min(1.0, max(0.0, progress.percent / 100))
    rate = (progress.rate if progress.rate and progress.rate > 0 else None) or rate or _mean_rate(run, step, now)
    left = None
    if run.phase.is_terminal:
        return Advance(share, step, total, rate, None)
    if rate and step is not None and total is not None and step <= total:
        left = (total - step) / rate
    elif progress.eta_seconds is not None and progress.eta_seconds > 0:
        left = progress.eta_seconds
    return Advance(share, step, total, rate, left)


def _mean_rate(run: RunSummary, step: int | None, now: float) -> float | None:
    """Steps a second since training began: of the first attempt alone, since a later one may have resumed anywhere."""
    if not step or len(run.attempts) != 1:
        return None
    seconds = run.phases.get(Phase.TRAINING, 0.0)
    if run.phase is Phase.TRAINING and run.progress.at is not None:
        seconds -= max(0.0, now - run.progress.at)
    return step / seconds if seconds >= 1.0 else None
