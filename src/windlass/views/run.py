"""A run, in a list and alone: output of `ps`, `status`, `run`, `stop` and `resume`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.code.kept import why_not_kept
from windlass.code.revision import Revision
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
    from windlass.plan.plan import Plan
    from windlass.runs.store import Store

LEDGER_SECONDS: Final = 1.0
"""Maximum age in seconds of the time accounting in a view, which is slow to compute from all events."""


@dataclass(frozen=True, slots=True)
class RunId:
    """Id of a run that was started with --detach."""

    id: str


@dataclass(frozen=True, slots=True)
class RunNote:
    """The note on a run."""

    id: str
    note: str
    """Text of the note; empty if the run has no note."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list."""

    id: str
    name: str
    """Name of the job."""
    target: str
    host: str | None
    """Host name of the machine that supervises the run; null if its supervisor runs in the cluster."""
    is_here: bool
    """Whether `host` is this machine."""
    user: str
    """User who started the run; empty if unknown."""
    supervisor: str
    """Location of the supervisor: `cluster` for a pod of the cluster; empty for a process on `host`."""
    labels: Mapping[str, str]
    """Labels of the job."""
    note: str
    """The user's note on the run."""
    phase: Phase
    exit_code: int | None
    """Exit code of the rank that failed first; null while the run is active."""
    created_at: float
    """Creation time in Unix seconds."""
    ended_at: float | None
    """End time in Unix seconds; null while the run is active."""
    attempts: tuple[Attempt, ...]
    """Attempts, oldest first."""
    phases: Mapping[Phase, float]
    """Seconds in each phase; their sum is the wall-clock time."""
    ranks: tuple[RankState, ...]
    """Ranks of the newest attempt."""
    progress: events.Progress
    """Latest progress reported by the script."""
    cause: events.RootCause | None
    """Root cause of the newest failure."""
    checkpoint: events.CheckpointChanged | None
    """Newest saved checkpoint."""
    warnings: tuple[RunWarning, ...]
    """Conditions that did not end the run but may spoil its result, in the order of first occurrence."""
    restarts_left: int | None
    """Number of restarts left; null if the engine does not count restarts."""
    waits_for: str | None
    """Why the newest attempt has not started, as reported by the target."""
    condition: events.ConditionChanged | None
    """Condition that prevents supervision of the run; null if there is none."""
    logs_dropped: tuple[Dropped, ...]
    """Output that is missing in the logs; empty if the logs are complete."""
    output_dir: str
    """Folder in which the script writes its results."""
    as_of: float | None
    """Time at which the state was read, in Unix seconds; null if it is current."""
    stale: str | None
    """Why the state may be outdated; null if it is current."""

    def elapsed(self, now: float) -> float:
        """Returns the seconds from the start of the run to its end, or to `now`."""
        return (now if self.ended_at is None else self.ended_at) - self.created_at


@dataclass(frozen=True, slots=True)
class Run(RunSummary):
    """A single run with all details."""

    num_nodes: int
    """Planned number of nodes; an elastic run may have fewer."""
    procs_per_node: int
    max_restarts: int
    """Number of restarts that the job allows."""
    checkpoint_find: str | None
    """Pattern of the checkpoints that the script saves itself; null if the job has none."""
    revision: Revision | None
    """Git commit of the code; null outside a git work tree."""
    code_not_kept: str
    """Why the code of the run was not stored next to the record; empty if the code was stored."""
    imports: tuple[str, ...]
    """Slow-to-import libraries that the script imported."""
    ledger: Ledger
    network: events.NetworkCreated | None
    """Node addresses in a network created for the run; null without such a network."""
    data: tuple[events.DataStaged, ...]
    """Staged data sets that the ranks read."""
    data_differences: tuple[DataDifference, ...]
    """Data sets whose contents have changed since the newest earlier run of the job."""
    outputs: events.OutputsUploaded | None
    """Location of the uploaded outputs; null if they were not uploaded."""
    collected: events.OutputsCollected | None
    """Outputs collected from the pods of a cluster; null if there are none."""
    changed_files: ChangedFiles | None
    """New and changed files in the code folder; null if there are none, or they are unknown."""
    own_save: SavedState | None
    """Newest file, in the code folder or in the folders of the run, whose name suggests a saved training state; null
    without such a file, or if unknown."""
    outputs_left: bool
    """Whether the ranks have succeeded and only the upload of outputs is missing, which `resume` completes."""
    disk_full: bool
    """Whether the disk with the record is full. The end of a run is still recorded, in reserved space; all other events
    are recorded once space is available."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress of a run, as reported by its script."""

    share: float | None
    """Completed fraction, 0 to 1; None if the last step is unknown."""
    step: int | None
    total: int | None
    """Number of the last step; None if unknown."""
    rate: float | None
    """Steps per second; None if unknown."""
    left_seconds: float | None
    """Seconds to the last step at the current rate; None if unknown."""


def summary_of(status: Status, now: float, *, is_here: bool, current: RunState | None = None) -> RunSummary:
    """Builds the list view of a run; `current` has the reason why the state may be outdated."""
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
    """Builds the view of a single run; `plan` is its recorded plan."""
    from windlass.plan.steps import NetworkStep  # lists of runs need no plans, whose import takes milliseconds

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
    """Builds the view of a single run from its record. Raises NoSuchRun."""
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
    """Returns a function that builds the view of a run from its newest status, and reads each event only once. Raises
    NoSuchRun.
    """
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
    """Returns the progress of a run. `rate` is measured by the caller in steps per second, for scripts that report no
    rate.
    """
    progress = run.progress
    step = progress.step if progress.step is not None and progress.step >= 0 else None
    total = progress.total if progress.total is not None and progress.total > 0 else None
    if total is not None and (step or 0) > total:
        total = None  # the script reported the total of one epoch
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
    """Returns steps per second since training began; None in later attempts, which may have resumed at any step."""
    if not step or len(run.attempts) != 1:
        return None
    seconds = run.phases.get(Phase.TRAINING, 0.0)
    if run.phase is Phase.TRAINING and run.progress.at is not None:
        seconds -= max(0.0, now - run.progress.at)
    return step / seconds if seconds >= 1.0 else None
