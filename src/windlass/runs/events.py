"""Events of a run's record: one typed class for each kind, with conversion from and to JSON.

On a cluster, other users can change the object that stores a run's events, and a disk may damage a record. A damaged
event must not hide the others: a missing field, or one of another type, is read as its default. `to_json` of an event
that was read returns all data that was read, such as numbers that a script has reported as text.
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
RECORD_VERSION: Final = 5
"""Version of the JSON of statuses and events; plans have a separate version. Runs recorded in another version cannot be
read. Every change to a field of `Status`, its parts or an event must increment this number."""
EMPTY: Final[Json] = {}
"""Default of mapping fields; never modified."""
REMOVED_BEFORE: Final = "was removed before it was known to have succeeded"
"""Why a run started with `--after` can no longer start: the other run was removed."""
DISK_FULL: Final = "disk-full"
"""Reason for missing log lines: the disk was full when the lines were written."""
FOR_SLOTS: Final = "WaitingForSlots"
FOR_RUN: Final = "WaitingForRun"
"""Reasons for which a run waits in a queue of this machine."""
MODEL_AWAY: Final = "model-away"
"""Code of the warning that the files written by the ranks exist only at the target."""


class Entry(Value):
    """Data of one kind of event, or a part of it.

    A new entry is serialized with the fields that it was given, an entry from the record exactly as it was read.
    """

    kind: ClassVar[str] = ""
    """Name of the kind in the record; empty for parts of events."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.__dict__[_GIVEN] = (*list(self._defaults)[: len(args)], *fields)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parses an entry and keeps `data` for `to_json`. Raises ShapeError only if `data` is not an object."""
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
        """Returns the entry as JSON data of the record."""
        if (read := self.__dict__.get(_READ)) is not None:
            return dict(read)
        return {name.rstrip("_"): value for name, value in super().to_json().items()}

    def with_fields(self, **fields: Any) -> Self:
        """Returns a copy with these fields changed; unknown fields of the record are kept."""
        return type(self).from_json({**self.to_json(), **fields})

    def event(self, seq: int, time: float) -> Event:
        """Returns an event with this entry."""
        return Event(seq, time, self.kind, self.to_json())

    def _given(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.__dict__[name]) for name in self.__dict__[_GIVEN])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self._defaults)


_READ: Final = " as read"
"""Attribute with the data that an entry was read from; no field can have this name."""
_GIVEN: Final = " given"
"""Attribute with the names of the fields that an entry was created with."""


def _read(hint: Any, value: Any) -> Any:
    found = read_as(hint, value)
    if isinstance(found, float) and not math.isfinite(found) and hint is not Any:
        raise ShapeError("expected a finite number")
    return found


def _zero(hint: Any) -> Any:
    """Returns the zero value of the field's type, for a required field that is missing in the record."""
    if hint is Any or NoneType in get_args(hint):
        return None
    return (get_origin(hint) or hint)()


class Machine(Entry):
    """The machine of a supervisor, as recorded with each run."""

    id: str
    """Machine id, which survives a reboot."""
    host: str
    """Host name, for messages."""
    boot: str
    """Boot id. Containers with the same boot id share the kernel, and with it process ids and locks."""

    def keeps(self, run: Machine) -> bool:
        """Whether a run recorded on machine `run` belongs to this machine."""
        if run.id == self.id:
            return True
        # A machine named by `$WINDLASS_MACHINE` has no boot id.
        return run.boot == self.boot if self.boot else run.host == self.host


class Created(Entry):
    """The record of the run was created; nothing has started yet."""

    kind = "created"
    id: str
    name: str
    target: str
    output_dir: str
    """Folder for the script's results."""
    restarts: int | None = None
    """Number of restarts that the job allows."""
    machine: Machine | None = None
    """Machine of the supervisor; None if the supervisor runs in the cluster."""
    user: str = ""
    """User who started the run, by the name on the machine that submitted it."""
    supervisor: str = ""
    """Place of the supervisor: `cluster`, or empty for a process of `machine`."""
    labels: Mapping[str, str] = EMPTY
    """Labels of the job."""
    version: int = 0
    """Version of the record: `RECORD_VERSION` of the Windlass that started the run."""


class PhaseEntered(Entry):
    """The run entered another phase."""

    kind = "phase"
    phase: Phase | None
    """The phase; None if it cannot be read."""


class AttemptStarted(Entry):
    """All workers of an attempt were started."""

    kind = "attempt"
    number: int
    """Number of the attempt, counted from 1 within the run."""
    world_size: int
    nodes: tuple[tuple[int, ...], ...] = ()
    """Ranks of each node."""
    members: tuple[int, ...] = ()
    """Run-wide number of each entry in `nodes`, constant over all attempts."""
    reason: str | None = None
    """Reason for the attempt: `first`, `resume`, or why the previous attempt ended."""


class NodeAddress(Entry):
    """Address of a node with a separate network."""

    node: int
    host: str
    namespace: str
    """Name of the node's network namespace, for `ip netns exec`."""
    address: str


class NetworkCreated(Entry):
    """Each node got its own network namespace and address."""

    kind = "network"
    interface: str
    rate: str | None
    """Rate limit of each link, such as `100mbit`; None without a limit."""
    nodes: tuple[NodeAddress, ...]


class NodeStarted(Entry):
    """The worker of a node started."""

    kind = "node"
    node: int
    pid: int | None = None
    start_ticks: int | None = None
    """Start time of the process in clock ticks (field 22 of `/proc/PID/stat`). Identifies the process together with
    `pid`."""
    start: str = ""
    """Kind of start: `warm` if the ranks were forked from a warm process, otherwise `cold`."""


class RankChanged(Entry):
    """A rank started or ended."""

    kind = "rank"
    rank: int
    pid: int | None = None
    exit_code: int | None = None
    """Exit code, −N for signal N; None while the rank runs."""


class DataStaged(Entry):
    """A data set was staged where the ranks read it."""

    kind = "data"
    name: str
    source: str
    digest: str
    """Digest of the names, sizes and contents of the files; equal sets have equal digests everywhere."""
    files: int = 0
    bytes: int = 0
    moved: int = 0
    """Bytes that were fetched; the rest was cached."""


class OutputsUploaded(Entry):
    """The outputs of the run were uploaded to the job's destination."""

    kind = "outputs"
    destination: str
    digest: str
    """Digest of the names, sizes and contents of the files, in the format of data sets."""
    files: int = 0
    bytes: int = 0
    moved: int = 0
    """Bytes that were uploaded; the rest was already at the destination."""


class OutputsCollected(Entry):
    """The supervisor fetched the outputs from the pods of the last attempt."""

    kind = "collected"
    nodes: tuple[int, ...]
    """Nodes whose outputs were fetched. Other nodes had no outputs, or their outputs are lost."""
    digest: str
    """SHA-256 of the names and contents of all files; see `worker/outputs.py`."""
    files: int = 0
    """Number of files and links."""
    bytes: int = 0


class CollectionBegan(Entry):
    """The ranks of a node ended, and files of the code folder are being copied to the output."""

    kind = "collecting"
    node: int
    files: int = 0
    bytes: int = 0


class CodeFiles(Entry):
    """Files in a node's code folder that are new or changed since the run began, at the end of an attempt."""

    kind = "code-files"
    node: int
    folder: str
    copied: int = 0
    """Number of files that were copied to the output because they match the job's `outputs.collect`."""
    copied_bytes: int = 0
    left: int = 0
    """Number of files that exist only in the code folder."""
    left_bytes: int = 0
    largest: tuple[FileSize, ...] = ()
    """Largest files that exist only in the code folder, at most ten."""
    is_cut: bool = False
    """Whether the time limit for listing ended before all files were found."""
    problems: tuple[str, ...] = ()
    """Why files named by the job's `outputs.collect` were not copied."""
    save: SavedState | None = None
    """Newest saved state, in the code folder or the run's folders, that `windlass.train` did not write."""
    has_none: bool = False
    """Whether no file matches the job's patterns although all ranks of the node succeeded."""


class Progress(Entry):
    """Newest progress of the script; only reported fields are set."""

    kind = "progress"
    step: int | None = None
    total: int | None = None
    """Number of steps in total."""
    epoch: float | None = None
    loss: Any = None
    """Loss as a number, or `nan` and `inf` as text."""
    rate: float | None = None
    """Steps per second."""
    samples_per_second: float | None = None
    percent: float | None = None
    eta_seconds: float | None = None
    message: str = ""
    metrics: Json = EMPTY
    at: float | None = None
    """Time of the report in Unix seconds."""
    rank: int | None = None
    """Rank that reported; None if unknown."""
    waits_for: str = ""
    """Process that holds the lock of the data set while the run waits for it."""


class CheckpointChanged(Entry):
    """A checkpoint was saved, restored or refused, or none was found."""

    kind = "checkpoint"
    action: str
    """What happened to the checkpoint: `saved`, `restored`, `refused`, `none-verified`, `missing`, `failed` or
    `skipped`."""
    step: int | None = None
    name: str = ""
    bytes: int | None = None
    seconds: float | None = None
    """Duration of the save in seconds."""
    blocked_at: float | None = None
    """When the training thread began to wait for the save, in Unix seconds."""
    blocked_seconds: float | None = None
    reason: str = ""
    """Why the checkpoint was refused, skipped or not saved."""
    source: str = ""
    """Source of a restore. `log`: the script logged that it resumed by itself. `found`: Windlass found the script's own
    checkpoint by `checkpoint.find` and passed it to the script."""
    line: str = ""
    """Line that the script logged about the restore."""
    epoch: float | None = None
    find: str = ""
    """Pattern of the job's `checkpoint.find` that matched nothing."""
    folder: str = ""
    """Folder that was searched for the pattern."""
    near: tuple[str, ...] = ()
    """Names in the folder that are most similar to the pattern."""
    entries: int = 0
    """Number of all names in the folder."""
    older: int = 0
    """Number of matches that are older than the run."""
    absent: bool = False
    """Whether the searched folder does not exist."""
    saved: str = ""
    """Newest saved state in another folder than the one searched, if known."""
    at_end: bool = False
    """Whether the search took place after an attempt rather than before one."""
    at: float | None = None
    """When the checkpoint was saved or restored, in Unix seconds; set in a status."""
    refused: str = ""
    """Why a restore found the checkpoint damaged; set in a status."""


class FirstStep(Entry):
    """First step that a rank of an attempt reported."""

    kind = "first-step"
    step: int | None
    rank: int | None = None
    every: int | None = None
    """Number of steps to the next report."""


class LossNotFinite(Entry):
    """The training loss of a rank became NaN or infinite."""

    kind = "loss"
    rank: int
    loss: str
    """The loss as text: `nan`, `inf` or `-inf`."""
    step: int | None = None
    last: Progress | None = None
    """Last report with a finite loss: its `loss` and `step`."""


class CaughtUp(Entry):
    """An attempt reached the highest step of the earlier attempts again."""

    kind = "caught-up"
    step: int


class RootCause(protocol.RootCause, Entry):
    """First failure of an attempt, as recorded."""

    kind = "cause"

    @classmethod
    def of(cls, found: protocol.RootCause, **known: Any) -> Self:
        """Creates the recorded form of a root cause; `known` are further fields."""
        always = {"signal": None, "traceback": "", "victims": ()}
        return cls(**{**always, **dict(found._given()), **known})


class RankStack(Entry):
    """Stack of a rank that wrote no output."""

    rank: int
    state: str = ""
    stack: str = ""
    flight: Any = None
    """torch's flight recorder of the rank's collectives, if it is enabled."""


class HangDetected(Entry):
    """The ranks of a node wrote no output for too long, and their stacks were dumped."""

    kind = "hang"
    ranks: tuple[RankStack, ...]
    seconds: float = 0.0
    """Seconds since the last output of the node's ranks."""
    node: int | None = None
    since: float | None = None
    """Start of the silence in Unix seconds."""
    reason: str = "silence"
    """Why stacks were dumped: `silence`, or the reason for ending a quiet attempt, `failure`, `stop` or `timeout`."""


class HangEnded(Entry):
    """A rank wrote again after a hang was detected."""

    kind = "hang-end"
    seconds: float = 0.0
    since: float | None = None
    at: float | None = None


class PreemptionNotice(Entry):
    """The platform announced that it will take a node away."""

    kind = "notice"
    source: str
    """Source of the notice: `imds` (instance metadata), `sigterm` or `queue`."""
    action: str = ""
    """Announced action: `terminate`, `stop`, `rebalance` or `evict`."""
    time: str = ""
    """Time of the notice, in the format of its source."""


class QueueChanged(Entry):
    """The queue of a cluster (Kueue) or of this machine admitted or evicted an attempt, or reported why it waits."""

    kind = "queue"
    state: str
    """New state in the queue: `waiting`, `requeued`, `admitted`, `evicted` or `finished`."""
    queue: str = ""
    cluster_queue: str = ""
    workload: str = ""
    reason: str = ""
    message: str = ""
    by: str = ""
    """Kueue Workload in whose favour Kueue preempted the attempt; empty if unknown."""

    @property
    def queue_name(self) -> str:
        """Name of the queue, for messages."""
        return f"queue {self.queue}" if self.queue else "a queue of the cluster"

    @property
    def is_of_machine(self) -> bool:
        """Whether the run waits in a queue of this machine, with no objects on any target."""
        return self.state == "waiting" and self.reason in (FOR_SLOTS, FOR_RUN)

    @property
    def waits_for(self) -> str:
        """Describes the run, workload or slots that this run waits for."""
        if self.is_of_machine:
            of_run = self.message.removeprefix("it starts after ")
            return of_run if self.reason == FOR_RUN else f"slots of {self.queue}: {self.message}"
        return ": ".join(part for part in (self.queue_name, self.reason, self.message) if part)


class NodeProvisioning(Entry):
    """Provisioning progress of a node requested for the run."""

    kind = "machine"
    name: str
    state: str
    """New state of the node: `asked`, `launched`, `registered`, `initialized`, `gone`, or `kept` if its deletion is no
    longer watched."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""
    machine: str = ""
    """Name of the cluster's node."""
    reason: str = ""
    message: str = ""
    left: int | None = None
    """Number of nodes provisioned for the run that still exist."""

    @property
    def title(self) -> str:
        """Describes the node, for example `node g5.12xlarge (spot, us-east-1a) of gpus`."""
        how = ", ".join(part for part in (self.capacity_type, self.zone) if part)
        title = f"node {self.instance_type or self.name}" + (f" ({how})" if how else "")
        return title + (f" of {self.pool}" if self.pool else "")


class NodeLost(Entry):
    """A node no longer responds."""

    kind = "lost-node"
    node: int
    why: str = ""
    since: float | None = None
    """Last sign of life in Unix seconds; null if unknown."""


class NodeNotStarted(Entry):
    """An attempt ended before this node started. The node neither failed nor was lost."""

    kind = "not-started"
    node: int
    why: str = ""


class NodeBack(Entry):
    """A lost node can be used again."""

    kind = "node-back"
    node: int


class NodeObserved(Entry):
    """A restarted supervisor found a node running."""

    kind = "observed"
    node: int


class PodsReused(Entry):
    """An attempt starts in existing pods that were created for earlier attempts."""

    kind = "pods"
    attempt: int
    made_for: int
    """Earlier attempt for which most pods were created; this attempt if all pods are new."""
    pods: tuple[tuple[int, int], ...] = ()
    """For each node's pod: the attempt for which it was created, and its number in that attempt; empty if all were
    created for one attempt."""


class ShutdownBegun(Entry):
    """The supervisor began to end an attempt. Signals that nodes receive afterwards are not preemptions."""

    kind = "shutdown"
    reason: str
    """Reason for the shutdown, as in `AttemptEnded.reason`."""


class AttemptEnded(Entry):
    """An attempt ended, and the run continues."""

    kind = "attempt-end"
    phase: Phase | None
    """How the attempt ended: `failed`, `preempted` or `stopped`."""
    reason: str | None = None
    step: int | None = None
    """Highest known step."""
    restarts_left: int | None = None
    wait_seconds: float | None = None
    """Back-off before the next attempt in seconds."""
    died_at: float | None = None
    """Last sign of life of an attempt whose end was not observed, in Unix seconds."""


class StopRequested(Entry):
    """A user, a machine or a cluster requested the end of the run."""

    kind = "stop"
    reason: str = "asked"
    """Origin of the request: `asked` or `SIGTERM`; for a run on a cluster also `elsewhere`, `removed` or `queue`."""
    now: bool = False
    """Whether the ranks get no grace period."""


class SupervisorRestarted(Entry):
    """Another supervisor took over the run."""

    kind = "adopted"
    crash: str | None = None
    """Why the previous supervisor crashed."""
    crashed_at: float | None = None
    observed_until: float | None = None
    """When the previous supervisor last recorded anything about the pods, in Unix seconds."""


class ConditionChanged(Entry):
    """A condition that prevents supervision of the run began or ended. The workers may train meanwhile."""

    kind = "condition"
    type: str | None
    """Type of the condition, listed in `docs/concepts/record.md`; None if the condition has ended."""
    message: str = ""
    since: float | None = None
    """Start of the condition in Unix seconds; set in a status."""
    log: tuple[str, ...] = ()
    """Last log lines of an absent supervisor; set in a status."""
    fix: str = ""
    """How to fix the condition."""


class OutputDropped(Entry):
    """Output missing in the log of a rank so far in an attempt."""

    rank: int
    bytes: int
    lines: int


class Warned(Entry):
    """A condition that does not end the run, but that the user should see."""

    kind = "warning"
    message: str
    code: str = ""
    """Code of a warning that is kept in the status, see `runs/warnings.py`; empty for an event only."""
    waits: bool = False
    """Whether the condition prevents an attempt from starting."""
    pod: Json | None = None
    """Facts about the affected pod: node, name, state, reason, message, machine, exit_code."""
    object: Json | None = None
    """Affected cluster object: kind, name, reason, message."""
    dropped: OutputDropped | None = None
    missing: Json = EMPTY
    """Number of lines that the kubelet removed before they were read, by tag of a pod's log."""
    fix: str = ""
    """How to fix the condition."""
    ranks: tuple[int, ...] = ()
    """Affected ranks; empty if all are affected, or no particular rank."""


class RunResumed(Entry):
    """An ended run was resumed."""

    kind = "resume"
    reason: str = ""
    machine: Machine | None = None
    restarts: int | None = None
    """Restarts that the job allows from now on."""
    nodes: int | None = None
    """Number of nodes, if the resume changed it."""
    from_: str | None = None
    """Checkpoint that the user requested."""


class RunEnding(Entry):
    """No further attempt follows. The run ends with this result once its outputs are uploaded or fetched."""

    kind = "ending"
    phase: Phase | None
    exit_code: int | None = None
    reason: str | None = None
    step: int | None = None
    died_at: float | None = None
    nodes: tuple[int, ...] = ()
    """Nodes whose pods keep outputs until they are fetched."""


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
    """Name of the secret that contains the webhook's address."""
    error: str = ""
    """Why the webhook did not accept the message; empty if it did."""


class Unknown(Entry):
    """An event of an unknown kind."""


KINDS: Final = {kind.kind: kind for kind in Entry.__subclasses__() if kind.kind}
"""Kinds of events, by name in the record."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. Events are appended and never changed."""

    seq: int
    """Sequence number within the run, from 1."""
    time: float
    """Time of the event in Unix seconds, by the clock of the machine that observed it."""
    kind: str
    """Name of the kind; `docs/concepts/record.md` lists all."""
    data: Json = field(default_factory=dict)
    """Data of the event as JSON."""

    @property
    def entry(self) -> Entry:
        """Data of the event as a typed entry."""
        return entry_of(self.kind, self.data)


def rank_of(tag: str) -> int | None:
    """Returns the rank of log lines with this tag; None for lines of the node itself."""
    return int(tag) if tag.isascii() and tag.isdigit() and len(tag) < 10 else None


def entries(events: Iterable[Event], kind: type[E]) -> Iterator[E]:
    """Yields the entries of all events of one kind, in order."""
    return (kind.from_json(event.data) for event in events if event.kind == kind.kind)


def of_newest_attempt(events: Iterable[Event]) -> list[Event]:
    """Returns the events since the start of the newest attempt; all events if no attempt was started."""
    found: list[Event] = []
    for event in events:
        if event.kind == AttemptStarted.kind:
            found.clear()
        found.append(event)
    return found


def entry_of(kind: str, data: Json) -> Entry:
    """Parses the data of an event of this kind."""
    return KINDS.get(kind, Unknown).from_json(data)
