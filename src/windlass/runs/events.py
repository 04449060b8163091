"""The events of a run's record: one typed value for each kind, read from and written as JSON.

Events of a run in a cluster are read from an object that others can change, and a disk may damage a record. Such an
event must not hide the others: a field that is missing or of another type reads as its default. `to_json` of an event
that was read gives back all that was read, such as numbers that a script has reported as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, Final, Self, TypeVar, get_args, get_origin, get_type_hints

from windlass.runs.phase import Phase
from windlass.worker import protocol
from windlass.worker.protocol import FileSize, SavedState
from windlass.worker.values import REQUIRED, ShapeError, Value, read_as

Json = Mapping[str, Any]
E = TypeVar("E", bound="Entry")
RECORD_VERSION: Final = 4
"""Version of the JSON of statuses and events; plans have a version of their own. A run that was recorded in another one
is not read. A change of a field of `Status`, of a part of it or of an event needs the next number."""
EMPTY: Final[Json] = {}
"""Default of fields; never changed."""
REMOVED_BEFORE: Final = "was removed before it was known to have succeeded"
"""Of the run after which another one was to start (`--after`): why that one does not."""
DISK_FULL: Final = "disk-full"
"""Why a log lacks lines: the disk was full when they were written."""
FOR_SLOTS: Final = "WaitingForSlots"
FOR_RUN: Final = "WaitingForRun"
"""Reasons for which a run waits in a queue of this machine."""
MODEL_AWAY: Final = "model-away"
"""Code of the warning that what the ranks have written is at the target alone."""


class Entry(Value):
    """What one kind of event carries, or a part of it.

    A new one is written with the fields that it was given, one of the record as it was read.
    """

    kind: ClassVar[str] = ""
    """Name of the kind in the record; empty for parts of events."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.__dict__[_GIVEN] = (*list(self._defaults)[: len(args)], *fields)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read an entry; `data` is kept for `to_json`. Raises ShapeError only for data that is no object."""
        if not isinstance(data, Mapping):
            raise ShapeError(f"expected an object, not {type(data).__name__}")
        hints = cls._hints = cls._hints or get_type_hints(cls)
        known: dict[str, Any] = {}
        for name, default in cls._defaults.items():
            if (key := name.rstrip("_")) in data:
                try:
                    known[name] = _read(hints[name], data[key])
                    continue
                except ShapeError:
                    pass
            if default is REQUIRED:
                known[name] = _zero(hints[name])
        found = cls(**known)
        found.__dict__[_READ] = data
        return found

    def to_json(self) -> dict[str, Any]:
        """As it stands in the record."""
        if (read := self.__dict__.get(_READ)) is not None:
            return dict(read)
        return {name.rstrip("_"): value for name, value in super().to_json().items()}

    def with_fields(self, **fields: Any) -> Self:
        """The same entry with these fields, and with what the record has of it beside its fields."""
        return type(self).from_json({**self.to_json(), **fields})

    def event(self, seq: int, time: float) -> Event:
        """An event that carries this."""
        return Event(seq, time, self.kind, self.to_json())

    def _given(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.__dict__[name]) for name in self.__dict__[_GIVEN])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self._defaults)


_READ: Final = " as read"
"""Where an entry keeps the data that it was read from; no field can have this name."""
_GIVEN: Final = " given"
"""Where it keeps the names of the fields that it was made with."""


def _read(hint: Any, value: Any) -> Any:
    found = read_as(hint, value)
    if isinstance(found, float) and not math.isfinite(found) and hint is not Any:
        raise ShapeError("expected a finite number")
    return found


def _zero(hint: Any) -> Any:
    """The value of a field without a default that the record lacks."""
    if hint is Any or NoneType in get_args(hint):
        return None
    return (get_origin(hint) or hint)()


class Machine(Entry):
    """One machine, as recorded with each run that it supervises."""

    id: str
    """The same after a reboot."""
    host: str
    """Its host name, for messages."""
    boot: str
    """Names the boot: containers that share it share the kernel, and with it process ids and locks."""

    def keeps(self, run: Machine) -> bool:
        """Whether a run that was recorded on machine `run` belongs here."""
        if run.id == self.id:
            return True
        return run.boot == self.boot if self.boot else run.host == self.host  # one that the user has named has no boot


class Created(Entry):
    """The run was written down; nothing is started yet."""

    kind = "created"
    id: str
    name: str
    target: str
    output_dir: str
    """Where the script writes its results."""
    restarts: int | None = None
    """How many restarts the job allows."""
    machine: Machine | None = None
    """Where the supervisor runs; None where that is in the cluster."""
    user: str = ""
    """The user who started the run, as the machine that submitted it names them."""
    supervisor: str = ""
    """`cluster` where the supervisor runs in the cluster; empty where it is a process of `machine`."""
    labels: Mapping[str, str] = EMPTY
    """Those of the job."""
    version: int = 0
    """Version of the record, `RECORD_VERSION` of the Windlass that started the run."""


class PhaseEntered(Entry):
    """The run is in another phase."""

    kind = "phase"
    phase: Phase | None
    """None where it cannot be read."""


class AttemptStarted(Entry):
    """All workers are started."""

    kind = "attempt"
    number: int
    """1, 2, 3 … within the run."""
    world_size: int
    nodes: tuple[tuple[int, ...], ...] = ()
    """The ranks of each node."""
    members: tuple[int, ...] = ()
    """The number of each of these nodes, which it keeps for the whole run."""
    reason: str | None = None
    """`first`, `resume`, or why the attempt before ended."""


class NodeAddress(Entry):
    """A node with a network of its own."""

    node: int
    host: str
    namespace: str
    """Name of its network namespace, for `ip netns exec`."""
    address: str


class NetworkCreated(Entry):
    """Each node has a network namespace and an address."""

    kind = "network"
    interface: str
    rate: str | None
    """Limit of each link, as `100mbit`; None without one."""
    nodes: tuple[NodeAddress, ...]


class NodeStarted(Entry):
    """The worker of a node runs."""

    kind = "node"
    node: int
    pid: int | None = None
    start_ticks: int | None = None
    """With `pid`, identifies the process: field 22 of `/proc/PID/stat`."""
    start: str = ""
    """`cold` or `warm`."""


class RankChanged(Entry):
    """A rank started, or ended."""

    kind = "rank"
    rank: int
    pid: int | None = None
    exit_code: int | None = None
    """−N for signal N; None while it runs."""


class DataStaged(Entry):
    """A data set is where the ranks read it."""

    kind = "data"
    name: str
    source: str
    digest: str
    """Of the names, sizes and contents of its files; equal sets have equal digests anywhere."""
    files: int = 0
    bytes: int = 0
    moved: int = 0
    """Bytes that were fetched for it; the others were there."""


class OutputsUploaded(Entry):
    """The outputs of the run are where its job wants them."""

    kind = "outputs"
    destination: str
    digest: str
    """Of the names, sizes and contents of the files, as that of a data set."""
    files: int = 0
    bytes: int = 0
    moved: int = 0
    """Bytes that were uploaded; the others were there."""


class OutputsCollected(Entry):
    """The outputs of the pods of the last attempt are with its supervisor."""

    kind = "collected"
    nodes: tuple[int, ...]
    """Whose outputs; those of other nodes were none, or are lost."""
    digest: str
    """SHA-256 of the names and contents of all files, see `worker/outputs.py`."""
    files: int = 0
    """Files and links."""
    bytes: int = 0


class CollectionBegan(Entry):
    """The ranks of a node have ended, and files of the code folder are copied to the output."""

    kind = "collecting"
    node: int
    files: int = 0
    bytes: int = 0


class CodeFiles(Entry):
    """The files of the code folder of a node that are new or changed since the run began, at the end of an attempt."""

    kind = "code-files"
    node: int
    folder: str
    copied: int = 0
    """Files that are in the output too, as the job's `outputs.collect` names them."""
    copied_bytes: int = 0
    left: int = 0
    """Files that are only in the code folder."""
    left_bytes: int = 0
    largest: tuple[FileSize, ...] = ()
    """Of these, at most ten."""
    is_cut: bool = False
    """Whether the time to list them was over before all were found."""
    problems: tuple[str, ...] = ()
    """Why files are not copied that the job names."""
    save: SavedState | None = None
    """The newest saved state that is no checkpoint of windlass.train, in the code folder or in those of the run."""
    has_none: bool = False
    """Whether nothing is what the job names, though all ranks of the node have succeeded."""


class Progress(Entry):
    """What the script reported last: each field is there if the script reported it."""

    kind = "progress"
    step: int | None = None
    total: int | None = None
    """The last step."""
    epoch: float | None = None
    loss: Any = None
    """A number, or `nan` and `inf` as text."""
    rate: float | None = None
    """Steps a second."""
    samples_per_second: float | None = None
    percent: float | None = None
    eta_seconds: float | None = None
    message: str = ""
    metrics: Json = EMPTY
    at: float | None = None
    """Unix seconds."""
    rank: int | None = None
    """The rank whose report it is; None where it is not known."""
    waits_for: str = ""
    """The process that has the lock of the data, while the run waits for it."""


class CheckpointChanged(Entry):
    """A checkpoint was saved, restored or refused, or none was found."""

    kind = "checkpoint"
    action: str
    """`saved`, `restored`, `refused`, `none-verified`, `missing`, `failed` or `skipped`."""
    step: int | None = None
    name: str = ""
    bytes: int | None = None
    seconds: float | None = None
    """How long the save took."""
    blocked_at: float | None = None
    """From when the training thread waited for the save, in Unix seconds."""
    blocked_seconds: float | None = None
    reason: str = ""
    """Why it was refused, skipped or could not be saved."""
    source: str = ""
    """`log` where the script has logged that it resumed by itself; `found` where its own checkpoint was found by the
    job's `checkpoint.find` and named to it."""
    line: str = ""
    """What it has logged."""
    epoch: float | None = None
    find: str = ""
    """The job's `checkpoint.find`, which nothing matches."""
    folder: str = ""
    """Where that was looked for."""
    near: tuple[str, ...] = ()
    """Names there that are most like it."""
    entries: int = 0
    """How many names there are in all."""
    older: int = 0
    """How many match and are older than the run."""
    absent: bool = False
    """Whether that folder does not exist."""
    saved: str = ""
    """The newest saved state elsewhere, as far as it is known."""
    at_end: bool = False
    """Whether it was looked for after an attempt, and not before one."""
    at: float | None = None
    """When it was saved or restored, in Unix seconds; set in a status."""
    refused: str = ""
    """Why a restore found it damaged; set in a status."""


class FirstStep(Entry):
    """The first step that a rank of an attempt reported."""

    kind = "first-step"
    step: int | None
    rank: int | None = None
    every: int | None = None
    """How many steps it was to the next report."""


class LossNotFinite(Entry):
    """The loss of a rank is no longer finite."""

    kind = "loss"
    rank: int
    loss: str
    """`nan`, `inf` or `-inf`."""
    step: int | None = None
    last: Progress | None = None
    """`loss` and `step` of the last report with a finite loss."""


class CaughtUp(Entry):
    """Steps that were lost have been trained again."""

    kind = "caught-up"
    step: int


class RootCause(protocol.RootCause, Entry):
    """What failed first in an attempt, as it is recorded."""

    kind = "cause"

    @classmethod
    def of(cls, found: protocol.RootCause, **known: Any) -> Self:
        """The cause that was found, with what else is `known` of it."""
        always = {"signal": None, "traceback": "", "victims": ()}
        return cls(**{**always, **dict(found._given()), **known})


class RankStack(Entry):
    """Where a rank was while it wrote nothing."""

    rank: int
    state: str = ""
    stack: str = ""
    flight: Any = None
    """torch's record of the rank's collectives, where it keeps one."""


class HangDetected(Entry):
    """The ranks of a node wrote nothing for too long; their stacks were taken."""

    kind = "hang"
    ranks: tuple[RankStack, ...]
    seconds: float = 0.0
    """Without output."""
    node: int | None = None
    since: float | None = None
    """Unix seconds."""
    reason: str = "silence"
    """`silence`, or why a quiet attempt was ended: `failure`, `stop` or `timeout`."""


class HangEnded(Entry):
    """A rank wrote again after a hang was detected."""

    kind = "hang-end"
    seconds: float = 0.0
    since: float | None = None
    at: float | None = None


class PreemptionNotice(Entry):
    """A preemption notice: the platform will take a node away."""

    kind = "notice"
    source: str
    """`imds`, `sigterm` or `queue`."""
    action: str = ""
    """`terminate`, `stop`, `rebalance` or `evict`."""
    time: str = ""
    """As the source gives it."""


class QueueChanged(Entry):
    """The queue of a cluster (Kueue) or of this machine admitted or evicted an attempt, or reports why it waits."""

    kind = "queue"
    state: str
    """`waiting`, `requeued`, `admitted`, `evicted` or `finished`."""
    queue: str = ""
    cluster_queue: str = ""
    workload: str = ""
    reason: str = ""
    message: str = ""
    by: str = ""
    """For which workload it was preempted."""

    @property
    def queue_name(self) -> str:
        """The queue, for a message."""
        return f"queue {self.queue}" if self.queue else "a queue of the cluster"

    @property
    def is_of_machine(self) -> bool:
        """Whether the run waits on this machine, with nothing of it on any target."""
        return self.state == "waiting" and self.reason in (FOR_SLOTS, FOR_RUN)

    @property
    def waits_for(self) -> str:
        """What a run waits for by this report."""
        if self.is_of_machine:
            of_run = self.message.removeprefix("it starts after ")
            return of_run if self.reason == FOR_RUN else f"slots of {self.queue}: {self.message}"
        return ": ".join(part for part in (self.queue_name, self.reason, self.message) if part)


class NodeProvisioning(Entry):
    """How far a node is that was requested for the run."""

    kind = "machine"
    name: str
    state: str
    """`asked`, `launched`, `registered`, `initialized`, `gone`, or `kept` where its deletion is no longer watched."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""
    machine: str = ""
    """The cluster's node."""
    reason: str = ""
    message: str = ""
    left: int | None = None
    """How many nodes that were provisioned for the run are left."""

    @property
    def title(self) -> str:
        """`node g5.12xlarge (spot, us-east-1a) of gpus`."""
        how = ", ".join(part for part in (self.capacity_type, self.zone) if part)
        title = f"node {self.instance_type or self.name}" + (f" ({how})" if how else "")
        return title + (f" of {self.pool}" if self.pool else "")


class NodeLost(Entry):
    """A node no longer answers."""

    kind = "lost-node"
    node: int
    why: str = ""
    since: float | None = None
    """Its last sign of life, in Unix seconds; null where it is not known."""


class NodeNotStarted(Entry):
    """An attempt ended before this node started: it neither failed nor was lost."""

    kind = "not-started"
    node: int
    why: str = ""


class NodeBack(Entry):
    """A node that was lost can be used again."""

    kind = "node-back"
    node: int


class NodeObserved(Entry):
    """A node was found running by a restarted supervisor."""

    kind = "observed"
    node: int


class PodsReused(Entry):
    """An attempt begins in pods that were made for earlier ones."""

    kind = "pods"
    attempt: int
    made_for: int
    """The earlier attempt of most of them; the attempt itself where none can be reused, and all pods are new."""
    pods: tuple[tuple[int, int], ...] = ()
    """For each of its pods, in the order of the nodes, the attempt for which it was made, and its number among those;
    empty where all were made for one attempt."""


class ShutdownBegun(Entry):
    """The supervisor ends an attempt: what its nodes are signalled from now on is no preemption."""

    kind = "shutdown"
    reason: str
    """As that of `AttemptEnded`."""


class AttemptEnded(Entry):
    """An attempt ended and the run did not."""

    kind = "attempt-end"
    phase: Phase | None
    """`failed`, `preempted` or `stopped`."""
    reason: str | None = None
    step: int | None = None
    """The highest that is known."""
    restarts_left: int | None = None
    wait_seconds: float | None = None
    """Back-off before the next attempt."""
    died_at: float | None = None
    """Last sign of life of an attempt whose end was not observed, in Unix seconds."""


class StopRequested(Entry):
    """The run is to end."""

    kind = "stop"
    reason: str = "asked"
    """`asked`, `SIGTERM`, or of a run on a cluster `elsewhere`, `removed` and `queue`."""
    now: bool = False
    """Whether without a grace period."""


class SupervisorRestarted(Entry):
    """Another supervisor took over the run."""

    kind = "adopted"
    crash: str | None = None
    """Why the supervisor before it crashed."""
    crashed_at: float | None = None
    observed_until: float | None = None
    """When the supervisor before it last recorded anything of the pods, in Unix seconds."""


class ConditionChanged(Entry):
    """What keeps the run from being supervised, though its workers may train on."""

    kind = "condition"
    type: str | None
    """None: nothing does any more. `docs/concepts/record.md` lists the types."""
    message: str = ""
    since: float | None = None
    """Unix seconds; set in a status."""
    log: tuple[str, ...] = ()
    """The last log lines of a supervisor that does not run; set in a status."""
    fix: str = ""
    """What to try."""


class OutputDropped(Entry):
    """How much the log of a rank lacks so far in an attempt."""

    rank: int
    bytes: int
    lines: int


class Warned(Entry):
    """Something to know that does not end the run."""

    kind = "warning"
    message: str
    code: str = ""
    """Of a warning of the run, which its status keeps; see `runs/warnings.py`. Empty where it is an event alone."""
    waits: bool = False
    """Whether an attempt cannot begin for it."""
    pod: Json | None = None
    """The pod it is about: node, name, state, reason, message, machine, exit_code."""
    object: Json | None = None
    """The cluster's object it is about: kind, name, reason, message."""
    dropped: OutputDropped | None = None
    missing: Json = EMPTY
    """Lines that the kubelet removed before they were read, by tag of a pod's log."""
    fix: str = ""
    """What to do about it."""
    ranks: tuple[int, ...] = ()
    """The ranks that it concerns; empty where it concerns none or all."""


class RunResumed(Entry):
    """An ended run continues."""

    kind = "resume"
    reason: str = ""
    machine: Machine | None = None
    restarts: int | None = None
    """How many restarts it has, counted anew."""
    nodes: int | None = None
    """The number of nodes, where another one was requested."""
    from_: str | None = None
    """The checkpoint that was requested."""


class RunEnding(Entry):
    """No attempt follows: the run ends as here once its outputs are uploaded, or collected from its pods."""

    kind = "ending"
    phase: Phase | None
    exit_code: int | None = None
    reason: str | None = None
    step: int | None = None
    died_at: float | None = None
    nodes: tuple[int, ...] = ()
    """The nodes whose pods keep outputs until they are collected."""


class RunEnded(Entry):
    """The run ended."""

    kind = "end"
    phase: Phase | None
    exit_code: int | None = None
    reason: str | None = None
    step: int | None = None
    died_at: float | None = None


class Notified(Entry):
    """The end of the run was sent to its webhook."""

    kind = "notified"
    secret: str
    """Name of the secret with its address."""
    error: str = ""
    """Why it was not taken; empty where it was."""


class Unknown(Entry):
    """An event of a kind that is not known."""


KINDS: Final = {kind.kind: kind for kind in Entry.__subclasses__() if kind.kind}
"""Every kind of event, by its name in the record."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a run. Events are only ever appended."""

    seq: int
    """1, 2, 3 … within the run."""
    time: float
    """Unix seconds, by the clock of the machine that saw it."""
    kind: str
    """`docs/concepts/record.md` lists all."""
    data: Json = field(default_factory=dict)
    """What the kind carries, as JSON."""

    @property
    def entry(self) -> Entry:
        """What it carries, typed."""
        return entry_of(self.kind, self.data)


def rank_of(tag: str) -> int | None:
    """The rank of the lines of a pod's log with this tag; None for lines of the node itself."""
    return int(tag) if tag.isascii() and tag.isdigit() and len(tag) < 10 else None


def entries(events: Iterable[Event], kind: type[E]) -> Iterator[E]:
    """What the events of one kind carry, in order."""
    return (kind.from_json(event.data) for event in events if event.kind == kind.kind)


def of_newest_attempt(events: Iterable[Event]) -> list[Event]:
    """The events of a run from the start of its newest attempt on; all of them, where none was started."""
    found: list[Event] = []
    for event in events:
        if event.kind == AttemptStarted.kind:
            found.clear()
        found.append(event)
    return found


def entry_of(kind: str, data: Json) -> Entry:
    """What an event of this kind carries, typed."""
    return KINDS.get(kind, Unknown).from_json(data)
