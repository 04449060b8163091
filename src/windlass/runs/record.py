"""Folds the events of a run into its status. Only this module decides phases, durations and exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from windlass.runs import events
from windlass.runs.events import Event, Machine
from windlass.runs.phase import TERMINAL, Phase
from windlass.runs.warnings import RunWarning, warnings_after

_NOT_BEGUN: Final = frozenset({Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING})

_NOT_ENTERED: Final = TERMINAL | {Phase.IDLE, Phase.PREEMPTED, None}
"""Phases that a `phase` event cannot set."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of all workers."""

    number: int
    """Number of the attempt within the run, from 1."""
    world_size: int
    """Number of ranks."""
    phase: Phase
    started_at: float
    """Start in Unix seconds."""
    ended_at: float | None = None
    """End in Unix seconds; null while the attempt runs."""
    reason: str | None = None
    """Why the attempt ended, unless it succeeded: `failure`, `preemption`, `node-loss`, `hang`, `resize`, `stop`,
    `timeout`, `upload`, `same-step-twice` or `same-error-twice`. Null while it runs."""
    restored_step: int | None = None
    """Step of the checkpoint that the attempt continued from; null if none was restored."""
    members: tuple[int, ...] = ()
    """Numbers of the nodes in the attempt, which are constant for the whole run."""
    is_resume: bool = False
    """Whether `windlass resume` started the attempt."""


@dataclass(frozen=True, slots=True)
class RankState:
    """State of one rank of the newest attempt."""

    rank: int
    """Global rank, from 0."""
    node: int
    """Number of the rank's node."""
    pid: int | None = None
    """Process id on the node; null before the rank starts."""
    exit_code: int | None = None
    """Exit code of the process, −N for signal N; null while it runs."""


REMOVED: Final = "RemovedFromCluster"
"""Condition type of a run that another machine has removed from its cluster."""
SUPERVISOR_ABSENT: Final = "SupervisorAbsent"
"""Condition type of a run whose supervisor pod does not run."""
CLUSTER: Final = "cluster"
"""Value of `Status.supervisor` for a run whose supervisor is a pod in its cluster."""
ROTATED: Final = "rotated"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Output of one rank in one attempt that is missing in its log."""

    attempt: int
    rank: int
    bytes: int
    """Number of missing bytes; 0 if only lines were counted."""
    lines: int
    why: str = events.DISK_FULL
    """Why output is missing: `disk-full`, or `rotated` if the kubelet removed lines before a supervisor read them."""

    @property
    def key(self) -> tuple[int, int, str]:
        """Attempt, rank and reason, which identify one entry."""
        return self.attempt, self.rank, self.why


@dataclass(frozen=True, slots=True)
class Times:
    """Start and end of a run, and how its time was spent. Times are Unix seconds."""

    created_at: float
    phase_since: float
    """Start of the current phase."""
    ended_at: float | None = None
    """End of the run; None while it continues."""
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds in each completed phase; `Status.phases_at` includes the current one."""
    limited_from: float | None = None
    """Time from which the job's time limit counts; None for the start of the run."""
    admission_seconds: float = 0.0
    """Seconds spent waiting in queues of this machine, which time limits do not count."""
    awaits_admission: bool = False
    """Whether the run is waiting in a queue of this machine."""

    def limited_seconds(self, now: float) -> float:
        """Returns the used seconds of the job's time limit. Idle time and waits in queues of this machine do not count,
        and a resume restarts at 0.
        """
        began_at = self.created_at if self.limited_from is None else self.limited_from
        return now - began_at - self.phases.get(Phase.IDLE, 0.0) - self.admission_seconds_at(now)

    def admission_seconds_at(self, now: float) -> float:
        """Returns `admission_seconds` up to `now`."""
        return self.admission_seconds + (max(0.0, now - self.phase_since) if self.awaits_admission else 0.0)


@dataclass(frozen=True, slots=True)
class Supervision:
    """Supervisor of a run, and a condition that prevents supervision."""

    machine: Machine | None = None
    """Machine on which the supervisor, and on target `local` the ranks, were started; None if the supervisor runs in
    the cluster."""
    supervisor: str = ""
    """Place of the supervisor: `cluster`, or empty for a process of `machine`."""
    stop_requested: bool = False
    condition: events.ConditionChanged | None = None
    """Condition that prevents supervision although workers may continue to train; None without one."""


@dataclass(frozen=True, slots=True)
class Files:
    """Data sets that a run reads, and the locations of the files it has written."""

    data: tuple[events.DataStaged, ...] = ()
    """Staged data sets that the ranks read."""
    outputs: events.OutputsUploaded | None = None
    """Newest upload of the outputs; None if there was none."""
    collected: events.OutputsCollected | None = None
    """Newest outputs that the supervisor has fetched from pods."""
    code_files: tuple[events.CodeFiles, ...] = ()
    """New and changed files of the code folder, for each node of the newest attempt that has reported them, in the
    order of the reports."""


@dataclass(frozen=True, slots=True)
class About:
    """Descriptions of a run by users."""

    user: str = ""
    """User who started the run; empty if unknown."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job."""
    note: str = ""
    """The user's note on the run."""


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run after its last event."""

    id: str
    name: str
    target: str
    phase: Phase
    times: Times
    output_dir: str
    exit_code: int | None = None
    """Exit code of the rank that failed first; None while the run continues."""
    attempts: tuple[Attempt, ...] = ()
    ranks: tuple[RankState, ...] = ()
    progress: events.Progress = field(default_factory=events.Progress)
    """Newest progress."""
    cause: events.RootCause | None = None
    """Root cause of the newest failure."""
    checkpoint: events.CheckpointChanged | None = None
    """Newest saved checkpoint. If a restore found it damaged, `refused` has the reason until another checkpoint is
    restored or saved."""
    restarts_left: int | None = None
    """Remaining restarts of the job; None for an engine that does not count them."""
    resume_from: str | None = None
    """Checkpoint of `windlass resume RUN --from CHECKPOINT`, until the run has saved a new one."""
    waits_for: str | None = None
    """Why the newest attempt has not started, as reported by its target; None without a report."""
    supervision: Supervision = Supervision()
    dropped: tuple[Dropped, ...] = ()
    """Output missing in the logs, by attempt and rank; empty if the logs are complete."""
    last_seq: int = 0
    files: Files = Files()
    ending: events.RunEnding | None = None
    """How the run ends once its outputs are uploaded or fetched; None before that is decided. An ended run has this
    value if its ranks succeeded but its outputs could not be uploaded."""
    about: About = About()
    warnings: tuple[RunWarning, ...] = ()
    """Warnings that may affect the result but did not end the run, in the order of first occurrence."""

    @property
    def one_line(self) -> str:
        """Summary such as `digits-7f3k2 training, step 90 of 500, loss 0.31`."""
        step, total, loss = self.progress.step, self.progress.total, self.progress.loss
        of = f" of {total}" if total is not None else ""
        facts = [f"step {step}{of}" if step is not None else "", self.waits_for or ""]
        facts += [f"loss {loss:.4g}" if isinstance(loss, int | float) else ""]
        return ", ".join([f"{self.id} {self.phase}", *filter(None, facts)])

    def __repr__(self) -> str:
        return f"<windlass.Status {self.one_line}>"

    def with_condition(self, condition: events.ConditionChanged | None) -> Status:
        """Returns a copy with this condition."""
        return replace(self, supervision=replace(self.supervision, condition=condition))

    def with_note(self, note: str) -> Status:
        """Returns a copy with this note of the user."""
        return replace(self, about=replace(self.about, note=note))

    def phases_at(self, now: float) -> dict[Phase, float]:
        """Returns the seconds in each phase up to `now` (Unix seconds). The values sum to the wall time of the run."""
        seconds = dict(self.times.phases)
        if not self.phase.is_terminal:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + max(0.0, now - self.times.phase_since)
        return seconds


def created(event: Event) -> Status:
    """Returns the status after the first event of a run. Raises ValueError for any other event."""
    if not isinstance(first := event.entry, events.Created):
        raise ValueError(f"a run begins with 'created', not with '{event.kind}'")
    return Status(
        id=first.id,
        name=first.name,
        target=first.target,
        phase=Phase.QUEUED,
        times=Times(event.time, event.time),
        output_dir=first.output_dir,
        restarts_left=first.restarts,
        supervision=Supervision(first.machine, first.supervisor),
        last_seq=event.seq,
        about=About(first.user, dict(first.labels)),
    )


def fold(history: Iterable[Event]) -> Status:
    """Returns the status after all events. Raises ValueError if the first one is not `created`."""
    remaining = iter(history)
    first = next(remaining, None)
    if first is None:
        raise ValueError("a run without events has no status")
    status = created(first)
    for event in remaining:
        status = advance(status, event)
    return status


def advance(status: Status, event: Event) -> Status:
    """Returns the status after one more event.

    Unknown kinds change only `last_seq`; so does, after the end, every kind except `resume`.
    """
    if event.seq <= status.last_seq:
        return status
    entry = event.entry
    if not status.phase.is_terminal:
        status = _after(status, entry, event.time)
    elif isinstance(entry, events.RunResumed):
        status = _after_resume(status, entry, event.time)
    else:
        return replace(status, last_seq=event.seq)
    return replace(status, last_seq=event.seq, warnings=warnings_after(status, entry))


def _after(status: Status, entry: events.Entry, at: float) -> Status:
    match entry:
        case events.PhaseEntered(phase):
            return _after_phase(status, phase, at)
        case events.AttemptStarted():
            return _after_attempt(status, entry, at)
        case events.RankChanged():
            return _after_rank(status, entry)
        case events.Progress():
            return replace(status, progress=entry)
        case events.DataStaged(name=name):
            others = tuple(one for one in status.files.data if one.name != name)
            return _with_files(status, data=(*others, entry))
        case events.OutputsUploaded():
            return _with_files(status, outputs=entry)
        case events.OutputsCollected():
            return _with_files(status, collected=entry)
        case events.CodeFiles(node=node):
            of_others = tuple(one for one in status.files.code_files if one.node != node)
            return _with_files(status, code_files=(*of_others, entry))
        case events.RootCause():
            return replace(status, cause=entry)
        case events.CheckpointChanged():
            return _after_checkpoint(status, entry, at)
        case events.Warned():
            return _after_warning(status, entry)
        case events.ConditionChanged(type=kind):
            return status.with_condition(None if kind is None else entry.with_fields(since=at))
        case events.SupervisorRestarted():
            return status.with_condition(None)
        case events.QueueChanged():
            return _after_queue(status, entry)
        case events.NodeProvisioning(state=state):
            is_wanted = status.phase in (Phase.QUEUED, Phase.PROVISIONING) and state != "gone"
            return replace(status, waits_for=f"{entry.title}: {state}") if is_wanted else status
        case events.AttemptEnded():
            return _after_attempt_end(status, entry, at)
        case events.StopRequested():
            stopping = _supervised(status, stop_requested=True)
            return stopping if status.phase is Phase.UPLOADING else _enter(stopping, Phase.STOPPING, at)
        case events.RunEnding():
            return _after_ending(status, entry, at)
        case events.RunEnded():
            return _after_end(status, entry, at)
    return status


def _enter(status: Status, phase: Phase, time: float) -> Status:
    if phase == status.phase:
        return status
    # If the clock was set back, the new phase begins where the old one did, so that no phase has a negative duration.
    times = status.times
    time = max(time, times.phase_since)
    seconds = dict(times.phases)
    seconds[status.phase] = seconds.get(status.phase, 0.0) + time - times.phase_since
    times = replace(
        times,
        phase_since=time,
        phases=seconds,
        admission_seconds=times.admission_seconds_at(time),
        awaits_admission=False,
    )
    return replace(status, phase=phase, times=times, waits_for=None)


def _after_phase(status: Status, phase: Phase | None, at: float) -> Status:
    if phase is None or phase in _NOT_ENTERED or (status.phase is Phase.STOPPING and phase is not Phase.STOPPING):
        return status  # while a run is stopping, only an `end` event changes its phase
    status = _enter(status, phase, at)
    if status.attempts and phase in (Phase.TRAINING, Phase.CHECKPOINTING, Phase.STOPPING):
        status = _replace_attempt(status, phase=phase)
    return status


def _after_attempt(status: Status, entry: events.AttemptStarted, at: float) -> Status:
    members = entry.members or tuple(range(len(entry.nodes)))  # a damaged event may lack the members
    attempt = Attempt(
        entry.number, entry.world_size, Phase.STARTING, at, members=members, is_resume=entry.reason == "resume"
    )
    ranks = tuple(
        RankState(rank, node)
        for node, ranks_of_node in zip(members, entry.nodes, strict=False)
        for rank in ranks_of_node
    )
    status = replace(status, attempts=(*status.attempts, attempt), ranks=ranks, cause=None)
    status = _with_files(status, code_files=())
    return status if status.phase is Phase.STOPPING else _enter(status, Phase.STARTING, at)


def _after_rank(status: Status, entry: events.RankChanged) -> Status:
    known = {name: value for name in ("pid", "exit_code") if (value := getattr(entry, name)) is not None}
    ranks = tuple(replace(state, **known) if state.rank == entry.rank else state for state in status.ranks)
    return replace(status, ranks=ranks)


def _after_warning(status: Status, entry: events.Warned) -> Status:
    """Applies a warning. The warning may also count missing log lines, or be the reason why an attempt waits."""
    attempt = status.attempts[-1].number if status.attempts else 0
    if (lost := entry.dropped) is not None:  # Counts only grow, so the newest counts replace earlier ones.
        status = _with_dropped(status, Dropped(attempt, lost.rank, lost.bytes, lost.lines))
    for tag, num_lines in entry.missing.items():
        if (rank := events.rank_of(tag)) is not None:
            known = [old.lines for old in status.dropped if old.key == (attempt, rank, ROTATED)]
            status = _with_dropped(status, Dropped(attempt, rank, 0, sum(known) + num_lines, ROTATED))
    is_waiting = entry.waits and status.phase in _NOT_BEGUN
    return replace(status, waits_for=entry.message) if is_waiting else status


def _with_dropped(status: Status, new: Dropped) -> Status:
    others = [old for old in status.dropped if old.key != new.key]
    return replace(status, dropped=tuple(sorted([*others, new], key=lambda one: one.key)))


def _after_queue(status: Status, entry: events.QueueChanged) -> Status:
    """Applies a queue's report on an attempt that has not started, which replaces every earlier reason to wait."""
    if status.phase not in _NOT_BEGUN:
        return status
    if entry.state not in ("waiting", "requeued"):
        return replace(status, waits_for=None)
    times = replace(status.times, awaits_admission=entry.is_of_machine)
    return replace(status, waits_for=entry.waits_for, times=times)


def _after_checkpoint(status: Status, entry: events.CheckpointChanged, at: float) -> Status:
    newest, seen = status.checkpoint, entry.with_fields(at=at)
    match entry.action:
        case "refused" if newest is not None and newest.name == entry.name:
            # The newest checkpoint is damaged and will not be restored.
            return replace(status, checkpoint=newest.with_fields(refused=entry.reason or "damaged"))
        case "saved":
            return replace(status, checkpoint=seen, resume_from=None)
        case "restored":
            if not status.attempts or entry.source == "log":
                return status
            if newest is not None and newest.refused:
                status = replace(status, checkpoint=seen)
            return _replace_attempt(status, restored_step=entry.step)
    return status


def _after_attempt_end(status: Status, entry: events.AttemptEnded, at: float) -> Status:
    if not status.attempts or status.attempts[-1].ended_at is not None:
        return status
    status = _end_attempt(status, entry.phase or Phase.FAILED, entry, at)
    status = replace(status, restarts_left=status.restarts_left if entry.restarts_left is None else entry.restarts_left)
    return status if status.phase is Phase.STOPPING else _enter(status, Phase.RESTARTING, at)


def _after_resume(status: Status, entry: events.RunResumed, at: float) -> Status:
    """Continues an ended run. Restarts and the time limit are reset, because a user has checked the run.

    If its ranks had succeeded, only its outputs remain to be uploaded, unless the user requests something else.
    """
    ending = None if entry.nodes or entry.from_ else status.ending
    # The cause is cleared if only the upload remains, because no new attempt would clear it.
    cause = status.cause if ending is None else None
    status = replace(status, phase=Phase.IDLE, ending=ending, cause=cause)
    status = _enter(status, Phase.RESTARTING if ending is None else Phase.UPLOADING, at)
    times, machine = status.times, entry.machine or status.supervision.machine
    limited_from = times.phase_since - times.phases[Phase.IDLE] - times.admission_seconds
    status = _supervised(status, machine=machine, stop_requested=False)
    return replace(
        status,
        times=replace(times, ended_at=None, limited_from=limited_from),
        exit_code=None,
        restarts_left=entry.restarts,
        resume_from=entry.from_,
    )


def _after_ending(status: Status, entry: events.RunEnding, at: float) -> Status:
    if status.attempts and status.attempts[-1].ended_at is None:
        status = _end_attempt(status, entry.phase or Phase.FAILED, entry, at)
    return replace(_enter(status, Phase.UPLOADING, at), ending=entry)


def _after_end(status: Status, entry: events.RunEnded, at: float) -> Status:
    phase = entry.phase
    if phase is None or not phase.is_terminal:
        raise ValueError(f"a run cannot end as '{entry.to_json().get('phase')}'")
    if status.attempts and status.attempts[-1].ended_at is None:
        status = _end_attempt(status, phase, entry, at)
    status = _enter(status, phase, at)
    message = "the run was removed from the cluster, and cannot be resumed"
    removed = events.ConditionChanged(REMOVED, message, since=at)
    condition = removed if entry.reason == "removed" else None
    is_uploaded = phase is Phase.SUCCEEDED or status.ending is None or status.ending.phase is not Phase.SUCCEEDED
    return replace(
        status.with_condition(condition),
        times=replace(status.times, ended_at=status.times.phase_since),
        exit_code=entry.exit_code,
        ending=None if is_uploaded else status.ending,
    )


def _end_attempt(
    status: Status, phase: Phase, entry: events.AttemptEnded | events.RunEnding | events.RunEnded, at: float
) -> Status:
    """Ends the newest attempt. If its end was not observed, the time from `died_at` is idle."""
    died_at = entry.died_at
    if died_at is not None and status.phase is not Phase.STOPPING:
        status = _enter(status, Phase.IDLE, died_at)
    ended_at = max(at if died_at is None else died_at, status.attempts[-1].started_at)
    return _replace_attempt(status, phase=phase, ended_at=ended_at, reason=entry.reason)


def _replace_attempt(status: Status, **changes: Any) -> Status:
    return replace(status, attempts=(*status.attempts[:-1], replace(status.attempts[-1], **changes)))


def _supervised(status: Status, **changes: Any) -> Status:
    return replace(status, supervision=replace(status.supervision, **changes))


def _with_files(status: Status, **changes: Any) -> Status:
    return replace(status, files=replace(status.files, **changes))
