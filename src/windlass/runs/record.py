"""Folds the events of a run into its status: the only place where a phase, a duration or an exit code is decided."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from windlass.runs.machine import Machine, machine_of

Json = Mapping[str, Any]


class Phase(enum.StrEnum):
    """Where a run is. Every second of a run falls in exactly one phase; the last four end it.

    Two are none that a run is in: `idle` is the time in which nothing of it was there (it had ended and was resumed, or
    its machine was down), and `preempted` is how an attempt ends that had to leave its machine.
    """

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    PULLING = "pulling"
    STAGING = "staging"
    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    IDLE = "idle"
    PREEMPTED = "preempted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to the run of itself; it may be resumed."""
        return self in TERMINAL


TERMINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})

_NOT_BEGUN: Final = frozenset({Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING})

_NOT_ENTERED: Final = TERMINAL | {Phase.IDLE, Phase.PREEMPTED}
"""What no `phase` event can bring a run into."""

EXIT_CODES: Final[Mapping[Phase, int]] = {Phase.SUCCEEDED: 0, Phase.FAILED: 100, Phase.STOPPED: 103, Phase.LOST: 100}
"""What the command that waited for a run exits with; `exit_code` of a status is the script's own."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a run. Events are only ever appended."""

    seq: int
    """1, 2, 3 … within the run."""
    time: float
    """Unix seconds, by the clock of the machine that saw it."""
    kind: str
    """`created`, `phase`, `attempt`, `node`, `rank`, `progress`, `checkpoint`, `cause`, `attempt-end`, `end` and more:
    `docs/concepts/record.md` has all."""
    data: Json = field(default_factory=dict)
    """What the kind carries; see `docs/concepts/record.md`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of all workers."""

    number: int
    world_size: int
    phase: Phase
    started_at: float
    ended_at: float | None = None
    reason: str | None = None
    """Why it ended, where it did not succeed: `failure`, `preemption`, `node-loss`, `hang`, `resize`, `stop`, `timeout`
    or `same-step-twice`. None while it goes on, and in records from before there were reasons."""
    restored_step: int | None = None
    """The step of the checkpoint from which it went on; None where none was restored."""
    members: tuple[int, ...] = ()
    """The nodes that took part, by the numbers that they keep for the whole run; empty in older records."""
    is_resume: bool = False
    """Whether it was begun by `windlass resume`."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What is known of one rank of the newest attempt."""

    rank: int
    node: int
    pid: int | None = None
    exit_code: int | None = None
    """The process's exit code, −N for signal N; None while it runs."""


DISK_FULL: Final = "disk-full"
ROTATED: Final = "rotated"
"""Why a log lacks lines."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Output of one rank in one attempt that its log lacks."""

    attempt: int
    rank: int
    num_bytes: int
    """0 where only the lines were counted."""
    num_lines: int
    why: str = DISK_FULL
    """`disk-full`, or `rotated`: the kubelet removed the lines before a supervisor read them."""


@dataclass(frozen=True, slots=True)
class Status:
    """A run as of its last event."""

    id: str
    name: str
    target: str
    phase: Phase
    created_at: float
    phase_since: float
    output_dir: str
    exit_code: int | None = None
    """The script's exit code, of the rank that is the first cause; None while the run goes on."""
    ended_at: float | None = None
    attempts: tuple[Attempt, ...] = ()
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds in each phase that has ended; see `phases_at` for the one that goes on."""
    ranks: tuple[RankState, ...] = ()
    progress: Json = field(default_factory=dict)
    """The newest progress of the run: step, total, epoch, loss, rate, samples_per_second,
    percent, eta_seconds, metrics, whichever the script said."""
    cause: Json | None = None
    """The first cause of the newest failure: rank, summary, exit_code, signal, traceback, victims."""
    checkpoint: Json | None = None
    """The newest checkpoint that was saved: step, name, bytes and what else its event carries, and `at`; `refused` has
    the reason where a restore found it damaged, until another one is restored or saved."""
    restarts_left: int | None = None
    """How many of the job's restarts are left; None in records of older versions, before one was used."""
    resume_from: str | None = None
    """The checkpoint that the run was resumed from by name, until it has saved one of its own."""
    limited_from: float | None = None
    """From when on the job's time limit counts, had the run never been idle; None: from its beginning."""
    checkpoint_missing: Json | None = None
    """That nothing matches the job's `checkpoint.find`, and what is there instead, as its event says; None once a
    checkpoint was restored or saved."""
    waits_for: str | None = None
    """What keeps the newest attempt from beginning, in the words of its target; None while nothing does."""
    machine: Machine | None = None
    """Where its supervisor, and on target `local` its ranks, were started; None in records of older versions."""
    dropped: tuple[Dropped, ...] = ()
    """What the logs lack, by attempt and rank; empty where they are complete."""
    stop_requested: bool = False
    condition: Json | None = None
    """What keeps the run from being supervised, though it may train on: `type`, `message` and `since` (Unix seconds);
    None while nothing does. Types are in `docs/concepts/record.md`."""
    last_seq: int = 0

    def limited_seconds(self, now: float) -> float:
        """What of the job's time limit is used: idle time is not, and whoever resumes a run gives it all of it anew."""
        began_at = self.created_at if self.limited_from is None else self.limited_from
        return now - began_at - self.phases.get(Phase.IDLE, 0.0)

    def phases_at(self, now: float) -> dict[Phase, float]:
        """Seconds in each phase up to `now` (Unix seconds); they sum to the wall clock of the run."""
        seconds = dict(self.phases)
        if not self.phase.is_terminal:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + max(0.0, now - self.phase_since)
        return seconds


def created(event: Event) -> Status:
    """The status that the first event of a run makes. Raises ValueError for any other event."""
    if event.kind != "created":
        raise ValueError(f"a run begins with 'created', not with '{event.kind}'")
    data = event.data
    return Status(
        id=data["id"],
        name=data["name"],
        target=data["target"],
        phase=Phase.QUEUED,
        created_at=event.time,
        phase_since=event.time,
        output_dir=data["output_dir"],
        restarts_left=data.get("restarts"),
        machine=machine_of(data.get("machine")),
        last_seq=event.seq,
    )


def fold(events: Iterable[Event]) -> Status:
    """The status after all `events`, which begin with `created`. Raises ValueError if they do not."""
    remaining = iter(events)
    first = next(remaining, None)
    if first is None:
        raise ValueError("a run without events has no status")
    status = created(first)
    for event in remaining:
        status = advance(status, event)
    return status


def advance(status: Status, event: Event) -> Status:
    """The status after one more event. Unknown kinds change nothing but `last_seq`, nor does after the end any but
    `resume`."""
    if event.seq <= status.last_seq:
        return status
    change = None if status.phase.is_terminal and event.kind != "resume" else _CHANGES.get(event.kind)
    after = change(status, event) if change else status
    return replace(after, last_seq=event.seq)


def _enter(status: Status, phase: Phase, time: float) -> Status:
    if phase == status.phase:
        return status
    # A clock that steps back must not make a phase negative: the new phase then begins where the old one did.
    time = max(time, status.phase_since)
    seconds = dict(status.phases)
    seconds[status.phase] = seconds.get(status.phase, 0.0) + time - status.phase_since
    return replace(status, phase=phase, phase_since=time, phases=seconds, waits_for=None)


def _on_phase(status: Status, event: Event) -> Status:
    phase = Phase(event.data["phase"])
    if phase in _NOT_ENTERED or (status.phase is Phase.STOPPING and phase is not Phase.STOPPING):
        return status  # runs end by `end` alone, and nothing but the end follows a stop
    status = _enter(status, phase, event.time)
    if status.attempts and phase in (Phase.TRAINING, Phase.CHECKPOINTING, Phase.STOPPING):
        status = _replace_attempt(status, phase=phase)
    return status


def _on_attempt(status: Status, event: Event) -> Status:
    data = event.data
    nodes, members = data.get("nodes", ()), tuple(data.get("members", ()))
    attempt = Attempt(
        data["number"],
        data["world_size"],
        Phase.STARTING,
        event.time,
        members=members,
        is_resume=data.get("reason") == "resume",
    )
    ranks = tuple(
        RankState(rank, node)
        for node, ranks_of_node in zip(members or range(len(nodes)), nodes, strict=False)
        for rank in ranks_of_node
    )
    status = replace(status, attempts=(*status.attempts, attempt), ranks=ranks, cause=None)
    return status if status.phase is Phase.STOPPING else _enter(status, Phase.STARTING, event.time)


def _on_rank(status: Status, event: Event) -> Status:
    data = event.data
    known = {"pid": data["pid"]} if "pid" in data else {}
    if "exit_code" in data:
        known["exit_code"] = data["exit_code"]
    ranks = tuple(replace(state, **known) if state.rank == data["rank"] else state for state in status.ranks)
    return replace(status, ranks=ranks)


def _on_progress(status: Status, event: Event) -> Status:
    return replace(status, progress={**status.progress, **event.data})


def _on_cause(status: Status, event: Event) -> Status:
    return replace(status, cause=event.data)


def _on_warning(status: Status, event: Event) -> Status:
    """Of a node that cannot be brought yet, why; of a rank's log, what it lacks."""
    data = event.data
    if "dropped" in data:
        status = _drop(status, data["dropped"])
    for tag, num_lines in data.get("missing", {}).items():
        if tag.isdigit():  # other lines are of the node, not of a rank
            status = _add_rotated(status, int(tag), num_lines)
    is_waiting = data.get("waits") and status.phase in _NOT_BEGUN
    return replace(status, waits_for=data["message"]) if is_waiting else status


def _on_condition(status: Status, event: Event) -> Status:
    """What keeps the run from being supervised; without a type, nothing does any more."""
    is_over = event.data.get("type") is None
    return replace(status, condition=None if is_over else {"since": event.time, **event.data})


def _on_adopted(status: Status, _event: Event) -> Status:
    return replace(status, condition=None)


def _drop(status: Status, data: Json) -> Status:
    """The counts of an attempt grow: the newest ones replace those before."""
    attempt = status.attempts[-1].number if status.attempts else 0
    new = Dropped(attempt, data["rank"], data["bytes"], data["lines"])
    return _with_dropped(status, new)


def _add_rotated(status: Status, rank: int, num_lines: int) -> Status:
    attempt = status.attempts[-1].number if status.attempts else 0
    known = [old.num_lines for old in status.dropped if (old.attempt, old.rank, old.why) == (attempt, rank, ROTATED)]
    return _with_dropped(status, Dropped(attempt, rank, 0, sum(known) + num_lines, ROTATED))


def _with_dropped(status: Status, new: Dropped) -> Status:
    others = [old for old in status.dropped if (old.attempt, old.rank, old.why) != (new.attempt, new.rank, new.why)]
    return replace(status, dropped=tuple(sorted([*others, new], key=lambda one: (one.attempt, one.rank, one.why))))


def _on_queue(status: Status, event: Event) -> Status:
    """What a queue says of an attempt that has not begun is newer than what anybody else has said of it."""
    if status.phase not in _NOT_BEGUN:
        return status
    data = event.data
    if data["state"] not in ("waiting", "requeued"):
        return replace(status, waits_for=None)
    words = [f"queue {data['queue']}" if data.get("queue") else "a queue of the cluster"]
    words += [data[name] for name in ("reason", "message") if data.get(name)]
    return replace(status, waits_for=": ".join(words))


def _on_machine(status: Status, event: Event) -> Status:
    """How far a machine is that an attempt waits for."""
    if status.phase not in (Phase.QUEUED, Phase.PROVISIONING) or event.data["state"] == "gone":
        return status
    return replace(status, waits_for=f"{machine_name(event.data)}: {event.data['state']}")


def machine_name(data: Json) -> str:
    """A machine of an event `machine`, for a person: `machine g5.12xlarge (spot, bed-a) of gpus`."""
    how = ", ".join(str(data[name]) for name in ("capacity_type", "zone") if data.get(name))
    kind = str(data.get("instance_type") or data["name"])
    return f"machine {kind}" + (f" ({how})" if how else "") + (f" of {data['pool']}" if data.get("pool") else "")


def _on_checkpoint(status: Status, event: Event) -> Status:
    action = event.data.get("action")
    if action == "missing":
        return replace(status, checkpoint_missing=event.data)
    if action in ("saved", "restored"):
        status = replace(status, checkpoint_missing=None)
    if action == "saved":
        return replace(status, checkpoint={**event.data, "at": event.time}, resume_from=None)
    if action == "refused":
        return _without_refused(status, event)
    if action == "restored" and status.attempts and event.data.get("source") != "log":
        if status.checkpoint is not None and status.checkpoint.get("refused"):
            status = replace(status, checkpoint={**event.data, "at": event.time})
        return _replace_attempt(status, restored_step=event.data.get("step"))
    return status


def _without_refused(status: Status, event: Event) -> Status:
    """The newest checkpoint was found damaged: it is not what the run goes on from."""
    if status.checkpoint is None or status.checkpoint.get("name") != event.data.get("name"):
        return status
    return replace(status, checkpoint={**status.checkpoint, "refused": str(event.data.get("reason") or "damaged")})


def _on_attempt_end(status: Status, event: Event) -> Status:
    if not status.attempts or status.attempts[-1].ended_at is not None:
        return status
    data = event.data
    status = _end_attempt(status, Phase(data["phase"]), event)
    status = replace(status, restarts_left=data.get("restarts_left", status.restarts_left))
    return status if status.phase is Phase.STOPPING else _enter(status, Phase.RESTARTING, event.time)


def _on_resume(status: Status, event: Event) -> Status:
    """A run that has ended goes on. Its restarts and its time are counted anew: somebody has looked at it."""
    if not status.phase.is_terminal:
        return status
    status = _enter(replace(status, phase=Phase.IDLE), Phase.RESTARTING, event.time)
    return replace(
        status, ended_at=None, exit_code=None, stop_requested=False, restarts_left=event.data.get("restarts"),
        resume_from=event.data.get("from"), machine=machine_of(event.data.get("machine")) or status.machine,
        limited_from=status.phase_since - status.phases[Phase.IDLE],
    )  # fmt: skip


def _on_stop(status: Status, event: Event) -> Status:
    return _enter(replace(status, stop_requested=True), Phase.STOPPING, event.time)


def _on_end(status: Status, event: Event) -> Status:
    phase = Phase(event.data["phase"])
    if not phase.is_terminal:
        raise ValueError(f"a run cannot end as '{phase}'")
    if status.attempts and status.attempts[-1].ended_at is None:
        status = _end_attempt(status, phase, event)
    status = _enter(status, phase, event.time)
    return replace(status, ended_at=status.phase_since, exit_code=event.data.get("exit_code"), condition=None)


def _end_attempt(status: Status, phase: Phase, event: Event) -> Status:
    """The newest attempt has ended; where nobody saw it, `died_at` says when, and what follows is idle."""
    died_at = event.data.get("died_at")
    if died_at is not None:
        status = _enter(status, Phase.IDLE, died_at) if status.phase is not Phase.STOPPING else status
    ended_at = max(event.time if died_at is None else died_at, status.attempts[-1].started_at)
    return _replace_attempt(status, phase=phase, ended_at=ended_at, reason=event.data.get("reason"))


def _replace_attempt(status: Status, **changes: Any) -> Status:
    return replace(status, attempts=(*status.attempts[:-1], replace(status.attempts[-1], **changes)))


_CHANGES: Final = {
    "phase": _on_phase,
    "attempt": _on_attempt,
    "rank": _on_rank,
    "progress": _on_progress,
    "warning": _on_warning,
    "condition": _on_condition,
    "adopted": _on_adopted,
    "queue": _on_queue,
    "machine": _on_machine,
    "checkpoint": _on_checkpoint,
    "cause": _on_cause,
    "attempt-end": _on_attempt_end,
    "stop": _on_stop,
    "resume": _on_resume,
    "end": _on_end,
}


def status_to_json(status: Status, now: float) -> dict[str, Any]:
    """The public form of a status, as `status -o json` prints it; `phases` includes the running phase up to `now`."""
    return {
        "id": status.id,
        "name": status.name,
        "target": status.target,
        "host": status.machine.host if status.machine is not None else None,
        "phase": status.phase.value,
        "exit_code": status.exit_code,
        "created_at": status.created_at,
        "ended_at": status.ended_at,
        "attempts": [
            {
                "number": attempt.number,
                "world_size": attempt.world_size,
                "phase": attempt.phase.value,
                "started_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "reason": attempt.reason,
                "restored_step": attempt.restored_step,
                "members": list(attempt.members),
            }
            for attempt in status.attempts
        ],
        "phases": {phase.value: round(seconds, 3) for phase, seconds in status.phases_at(now).items()},
        "ranks": [
            {"rank": state.rank, "node": state.node, "pid": state.pid, "exit_code": state.exit_code}
            for state in status.ranks
        ],
        "progress": dict(status.progress),
        "cause": dict(status.cause) if status.cause is not None else None,
        "checkpoint": dict(status.checkpoint) if status.checkpoint is not None else None,
        "checkpoint_missing": dict(status.checkpoint_missing) if status.checkpoint_missing is not None else None,
        "restarts_left": status.restarts_left,
        "waits_for": status.waits_for,
        "condition": dict(status.condition) if status.condition is not None else None,
        "logs_dropped": [
            {"attempt": one.attempt, "rank": one.rank, "bytes": one.num_bytes, "lines": one.num_lines, "why": one.why}
            for one in status.dropped
        ],
        "output_dir": status.output_dir,
    }
