"""Folds the events of a run into its status: the only place that decides a phase, a duration or an exit code."""

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
"""Phases that no `phase` event leads to."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of all workers."""

    number: int
    """1, 2, 3 … within the run."""
    world_size: int
    """Number of ranks."""
    phase: Phase
    started_at: float
    """Unix seconds."""
    ended_at: float | None = None
    """Unix seconds; null while it runs."""
    reason: str | None = None
    """Why it ended, if it did not succeed: `failure`, `preemption`, `node-loss`, `hang`, `resize`, `stop`, `timeout`,
    `upload`, `same-step-twice` or `same-error-twice`. Null while it runs."""
    restored_step: int | None = None
    """The step of the checkpoint that it continued from; null where none was restored."""
    members: tuple[int, ...] = ()
    """Numbers of the nodes that took part, which they keep for the whole run."""
    is_resume: bool = False
    """Whether it was started by `windlass resume`."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known of one rank of the newest attempt."""

    rank: int
    """Global number, from 0."""
    node: int
    """Number of its node."""
    pid: int | None = None
    """Process id on its node; null before it started."""
    exit_code: int | None = None
    """The process's exit code, −N for signal N; null while it runs."""


REMOVED: Final = "RemovedFromCluster"
"""Type of the condition of a run that another machine has removed from its cluster."""
SUPERVISOR_ABSENT: Final = "SupervisorAbsent"
"""Type of the condition of a run whose supervisor is a pod of its cluster that does not run."""
CLUSTER: Final = "cluster"
"""Value of `Status.supervisor` of a run whose supervisor is a pod of its cluster."""
ROTATED: Final = "rotated"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Output of one rank in one attempt that its log lacks."""

    attempt: int
    rank: int
    bytes: int
    """0 where only the lines were counted."""
    lines: int
    why: str = events.DISK_FULL
    """`disk-full`, or `rotated`: the kubelet removed the lines before a supervisor read them."""

    @property
    def key(self) -> tuple[int, int, str]:
        """Attempt, rank and reason, which have one entry together."""
        return self.attempt, self.rank, self.why


@dataclass(frozen=True, slots=True)
class Times:
    """When a run began and ended, and how its time was spent. Moments are Unix seconds."""

    created_at: float
    phase_since: float
    """When its phase began."""
    ended_at: float | None = None
    """None while the run goes on."""
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds in each phase that has ended; `Status.phases_at` includes the current one."""
    limited_from: float | None = None
    """From when on the job's time limit counts, had the run never been idle; None: from its beginning."""
    admission_seconds: float = 0.0
    """Seconds of waiting in queues of this machine; time limits do not count them."""
    awaits_admission: bool = False
    """Whether the run waits in a queue of this machine now."""

    def limited_seconds(self, now: float) -> float:
        """Seconds of the job's time limit that are used: idle time and the wait in queues of this machine do not count,
        and a resume starts at 0.
        """
        began_at = self.created_at if self.limited_from is None else self.limited_from
        return now - began_at - self.phases.get(Phase.IDLE, 0.0) - self.admission_seconds_at(now)

    def admission_seconds_at(self, now: float) -> float:
        """`admission_seconds` up to `now`."""
        return self.admission_seconds + (max(0.0, now - self.phase_since) if self.awaits_admission else 0.0)


@dataclass(frozen=True, slots=True)
class Supervision:
    """Who supervises a run, and what keeps it from being supervised."""

    machine: Machine | None = None
    """Where its supervisor, and on target `local` its ranks, were started; None where that is in the cluster."""
    supervisor: str = ""
    """`cluster` where its supervisor runs in the cluster; empty where it is a process of `machine`."""
    stop_requested: bool = False
    condition: events.ConditionChanged | None = None
    """What keeps the run from being supervised, though its workers may train on; None while nothing does."""


@dataclass(frozen=True, slots=True)
class Files:
    """The data that a run reads, and where the files are that it has written."""

    data: tuple[events.DataStaged, ...] = ()
    """The data sets that its ranks read, as far as they were staged."""
    outputs: events.OutputsUploaded | None = None
    """The newest upload of its outputs; None where none was."""
    collected: events.OutputsCollected | None = None
    """The newest outputs that its supervisor has collected from pods."""
    code_files: tuple[events.CodeFiles, ...] = ()
    """The new and changed files of the code folder, of each node of the newest attempt that has reported them, in the
    order of the reports."""


@dataclass(frozen=True, slots=True)
class About:
    """What people say of a run."""

    user: str = ""
    """The user who started it; empty where that is not known."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of its job."""
    note: str = ""
    """What its user has written about it."""


@dataclass(frozen=True, slots=True)
class Status:
    """A run as of its last event."""

    id: str
    name: str
    target: str
    phase: Phase
    times: Times
    output_dir: str
    exit_code: int | None = None
    """The exit code of the rank that failed first; None while the run goes on."""
    attempts: tuple[Attempt, ...] = ()
    ranks: tuple[RankState, ...] = ()
    progress: events.Progress = field(default_factory=events.Progress)
    """The newest progress."""
    cause: events.RootCause | None = None
    """The root cause of the newest failure."""
    checkpoint: events.CheckpointChanged | None = None
    """The newest checkpoint that was saved. If a restore found it damaged, `refused` has the reason until another one
    is restored or saved."""
    restarts_left: int | None = None
    """How many of the job's restarts are left; None for a run whose engine counts none."""
    resume_from: str | None = None
    """The checkpoint that `windlass resume RUN --from CHECKPOINT` named, until the run has saved one."""
    waits_for: str | None = None
    """Why the newest attempt has not begun, as its target reports it; None while nothing is reported."""
    supervision: Supervision = Supervision()
    dropped: tuple[Dropped, ...] = ()
    """Output that the logs lack, by attempt and rank; empty where they are complete."""
    last_seq: int = 0
    files: Files = Files()
    ending: events.RunEnding | None = None
    """How it ends once its outputs are uploaded or collected; None before that is decided. An ended run
    has it if its ranks succeeded and its outputs could not be uploaded."""
    about: About = About()
    warnings: tuple[RunWarning, ...] = ()
    """What did not end it and may spoil its result, in the order in which it was first seen."""

    @property
    def one_line(self) -> str:
        """`digits-7f3k2 training, step 90 of 500, loss 0.31`."""
        step, total, loss = self.progress.step, self.progress.total, self.progress.loss
        of = f" of {total}" if total is not None else ""
        facts = [f"step {step}{of}" if step is not None else "", self.waits_for or ""]
        facts += [f"loss {loss:.4g}" if isinstance(loss, int | float) else ""]
        return ", ".join([f"{self.id} {self.phase}", *filter(None, facts)])

    def __repr__(self) -> str:
        return f"<windlass.Status {self.one_line}>"

    def with_condition(self, condition: events.ConditionChanged | None) -> Status:
        """The same status with this condition."""
        return replace(self, supervision=replace(self.supervision, condition=condition))

    def with_note(self, note: str) -> Status:
        """The same status with this note of its user."""
        return replace(self, about=replace(self.about, note=note))

    def phases_at(self, now: float) -> dict[Phase, float]:
        """Seconds in each phase up to `now` (Unix seconds); they sum to the wall clock of the run."""
        seconds = dict(self.times.phases)
        if not self.phase.is_terminal:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + max(0.0, now - self.times.phase_since)
        return seconds


def created(event: Event) -> Status:
    """The status after the first event of a run. Raises ValueError for any other event."""
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
    """The status after all events, of which `created` is the first. Raises ValueError if it is not."""
    remaining = iter(history)
    first = next(remaining, None)
    if first is None:
        raise ValueError("a run without events has no status")
    status = created(first)
    for event in remaining:
        status = advance(status, event)
    return status


def advance(status: Status, event: Event) -> Status:
    """The status after one more event.

    Unknown kinds change nothing but `last_seq`; after the end, so does every kind but `resume`.
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
            return replace(status, progress=entry)  # without the progress of earlier attempts
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
    # A clock that is set back must not make a phase negative: the new phase then begins where the old one did.
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
        return status  # a run ends by `end` alone, and after a stop only the end follows
    status = _enter(status, phase, at)
    if status.attempts and phase in (Phase.TRAINING, Phase.CHECKPOINTING, Phase.STOPPING):
        status = _replace_attempt(status, phase=phase)
    return status


def _after_attempt(status: Status, entry: events.AttemptStarted, at: float) -> Status:
    attempt = Attempt(
        entry.number, entry.world_size, Phase.STARTING, at, members=entry.members, is_resume=entry.reason == "resume"
    )
    ranks = tuple(
        RankState(rank, node)
        for node, ranks_of_node in zip(entry.members or range(len(entry.nodes)), entry.nodes, strict=False)
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
    """A warning may count lines that a log lacks, and be what an attempt waits for."""
    attempt = status.attempts[-1].number if status.attempts else 0
    if (lost := entry.dropped) is not None:  # counts grow: the newest replace those before
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
    """What the queue reports of an attempt that has not begun replaces every earlier reason to wait."""
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
            # The newest checkpoint is damaged: the run does not continue from it.
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
    """An ended run continues: its restarts and its time limit are counted anew, since a user has looked at it.

    Where its ranks had succeeded, only its outputs are left to be uploaded, unless something else is requested.
    """
    ending = None if entry.nodes or entry.from_ else status.ending
    cause = status.cause if ending is None else None  # else no attempt begins, which would replace it
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
    """The newest attempt has ended. Where its end was not observed, the time from `died_at` on is idle."""
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
