"""What was seen of a run, as plain values: the record, the last words of each rank, and facts of the machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.runs.record import Event, Phase, Status


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank of the newest attempt."""

    rank: int
    node: int = 0
    exit_code: int | None = None
    """−N for signal N; None while it runs, or where nobody saw it end."""
    ended_at: float | None = None
    ended_by_us: bool = False
    """Whether it was told to end since another rank had failed, or since the run was to end."""
    head: str = ""
    """The first 4 KiB that it wrote."""
    tail: str = ""
    """The last 64 KiB that it wrote, without the stacks that we asked for."""
    last_output_at: float | None = None
    """Unix seconds; None for a rank that has not written anything."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One node of the newest attempt."""

    node: int
    words: str = ""
    """What its worker itself wrote: nothing, unless it broke."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the worker saw of its machine when ranks had failed; see `worker/evidence.py`. With `flights`: the last
    collectives of its ranks, by rank; see `worker/flight.py`."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no rank wrote anything, and where each rank was then."""

    seconds: float
    reason: str
    """Why stacks were taken: `silence` (the job's `hang`), `timeout` or `stop`."""
    at: float
    """Unix seconds."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """Stacks of all threads of each rank, as faulthandler writes them; empty where none could be had."""
    states: Mapping[int, str] = field(default_factory=dict)
    """State of each rank's process, as the kernel says it: `S`, `R`, `D`, `T`."""
    flights: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """The last collectives of the ranks that have recorded them; see `worker/flight.py`."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod of one node of the newest attempt."""

    node: int
    name: str = ""
    """Empty where none was made yet."""
    state: str = "missing"
    """`missing`, `queued` (no machine), `pulling` (its image and volumes are brought), `running`, `ended` or `gone`."""
    reason: str = ""
    """In the cluster's word, why it waits or has ended: `Unschedulable`, `ImagePullBackOff`, `OOMKilled`."""
    message: str = ""
    """The cluster's own sentence on that."""
    machine: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectSaid:
    """What a cluster says of one object of the newest attempt: its job, a pod, a claim."""

    kind: str
    name: str
    reason: str
    """`FailedCreate`, `FailedMount`, `ProvisioningFailed`, `Deleted`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """A node of a cluster, as far as placing pods goes."""

    name: str
    is_ready: bool = True
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What pods can have of it in all, as the cluster writes amounts: `{"memory": "16Gi"}`."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who has a part of a queue's quota."""

    name: str
    """`Job b/other-1`: with its namespace where that is another."""
    amount: str
    """What it has of what is short, as the cluster writes amounts; empty where that is not known."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """What Kueue makes of the newest attempt."""

    state: str
    """`waiting`, `requeued` (after it was admitted once), `admitted`, `evicted` or `finished`."""
    reason: str = ""
    """In Kueue's word, why it waits or was evicted: `WaitingForQuota`, `Preempted`. Of versions that say only `Pending`
    the word that newer ones would say; empty where there is no Workload to ask."""
    message: str = ""
    """Kueue's own sentence on that."""
    queue: str = ""
    """The LocalQueue that the job names."""
    cluster_queue: str = ""
    """Where the quota is; empty where the LocalQueue may not be read."""
    workload: str = ""
    priority: int = 0
    position: int | None = None
    """Which one it is of those that wait; from 1. None where it does not wait, or they may not be listed."""
    num_waiting: int = 0
    scope: str = ""
    """Among which it was counted: `ClusterQueue gpus`, or `namespace a` where no more may be read."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """What all its pods together ask for: `{"cpu": "800m"}`."""
    lacking: Sequence[str] = ()
    """The resources of which there is too little: `nvidia.com/gpu`."""
    quota: Sequence[str] = ()
    """A line for each part of the quota that is short; empty where the ClusterQueue may not be read."""
    holders: Sequence[Holder] = ()
    """Who has it, the most first; as far as they may be seen."""
    queues: Sequence[str] | None = None
    """LocalQueues of the namespace; None where they may not be listed."""
    by: str = ""
    """For whom it was preempted: `Job b/urgent-1`, or what Kueue says of it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no machine can come for a pod of the run from one place."""

    kind: str
    """`type` (of instances), `label`, `taint`, `small` (too little of a resource), `limit`, `capacity` (the cloud has
    none left) or `unready` (what makes the machines does not work)."""
    message: str


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A NodePool of Karpenter, as far as the pods of the run go."""

    name: str
    types: Sequence[str] = ()
    """Instance types that may serve the pods, as far as the pool names any, and their sizes are known not to be too
    small; empty where it names none."""
    named: Sequence[str] = ()
    """All instance types that it names."""
    besides: Sequence[str] = ()
    """Of these, the ones that may be large enough, but for the type that the job asks for."""
    capacity_types: Sequence[str] = ()
    """`spot`, `on-demand`, `reserved`; empty is any."""
    others: Sequence[str] = ()
    """What else it asks of machines, as text: `karpenter.k8s.aws/instance-family in g5, g6`."""
    refusals: Sequence[Refusal] = ()
    """Why it cannot make a machine for such a pod; empty where nothing is known against it."""


@dataclass(frozen=True, slots=True)
class ComingSeen:
    """A machine that was asked for the pods of the run: a NodeClaim of Karpenter, or a node group that grows."""

    name: str
    pool: str = ""
    state: str = "asked"
    """`asked`, `launched` (the cloud has given one), `registered` (it is in the cluster), `initialized` (pods may go
    there) or `gone`."""
    instance_type: str = ""
    zone: str = ""
    capacity_type: str = ""
    machine: str = ""
    """The name of its node; empty before it has one."""
    reason: str = ""
    """Why it is no further, in the word of whoever makes it: `NodeNotReady`, `LaunchFailed`."""
    message: str = ""
    seconds: float = 0.0
    """For how long it has been so when it was looked at; of one that is gone, 0."""


@dataclass(frozen=True, slots=True)
class ScalingSeen:
    """What makes machines for the cluster, and what it does for the pods of the newest attempt that wait for one."""

    pools: Sequence[PoolSeen] | None = None
    """None where there are none, or they may not be listed."""
    coming: Sequence[ComingSeen] = ()
    has_room: bool = False
    """Whether a machine that is there would be large enough, and of the kind, were it free."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The newest attempt in its cluster: as it is there now, and what is gone as the record knows it."""

    pods: Sequence[PodSeen] = ()
    said: Sequence[ObjectSaid] = ()
    machines: Sequence[MachineSeen] = ()
    """Empty where they may not be listed."""
    is_suspended: bool = False
    """Whether a queue holds the job back."""
    queue: QueueSeen | None = None
    """What the queue says, now or when it was last seen; None where no queue has to do with the attempt."""
    unreachable: str = ""
    """Why the cluster could not be asked now."""
    scaling: ScalingSeen | None = None
    """None where nothing is known to make machines, or no pod waits for one."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything that a diagnosis rests on."""

    status: Status
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The recorded plan, as JSON data."""
    events: Sequence[Event] = ()
    ranks: Sequence[RankSeen] = ()
    nodes: Sequence[NodeSeen] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of this machine, now: `booted_at` (Unix seconds), `keeper_words` (what the supervisor wrote, if it broke),
    `environment` (`kind` and `prefix` of what the script's packages are managed with; see `engines/local/observe.py`),
    `flights` (by rank, the last collectives as NCCL's watchdog wrote them; each names its `path`)."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Lines of the script that stacks and tracebacks name, by `file:line`."""
    near: Mapping[str, str] = field(default_factory=dict)
    """For a file or module that was not found: what is there instead."""
    cluster: ClusterSeen | None = None
    """None where the run takes place in no cluster."""

    @property
    def code_dir(self) -> str:
        """The job's folder; empty where the plan names none."""
        return str(
            next((step["request"].get("cwd", "") for step in self.plan.get("steps", ()) if step["kind"] == "node"), "")
        )

    @property
    def python(self) -> str:
        """The script's interpreter; empty for a program."""
        for step in self.plan.get("steps", ()):
            for rank in step["request"].get("ranks", ()):
                argv = rank.get("argv") or [""]
                return str(argv[0]) if len(argv) > 1 and argv[1].endswith("worker/rank.py") else ""
        return ""

    def silence(self) -> Silence | None:
        """The newest silence of the newest attempt; what several nodes said of it taken together."""
        found: list[Event] = []
        for event in self.events:
            if event.kind == "attempt":
                found.clear()
            elif event.kind == "hang":
                found.append(event)
        if not found:
            return None
        since = found[-1].data.get("since")
        same = [event for event in found if event.data.get("since") == since]
        ranks = [rank for event in same for rank in event.data["ranks"]]
        return Silence(
            seconds=float(same[-1].data["seconds"]),
            reason="silence" if any(e.data["reason"] == "silence" for e in same) else str(same[-1].data["reason"]),
            at=same[-1].time,
            stacks={rank["rank"]: rank.get("stack", "") for rank in ranks},
            states={rank["rank"]: rank.get("state", "") for rank in ranks},
            flights={rank["rank"]: rank["flight"] for rank in ranks if rank.get("flight")},
        )

    def flights(self) -> dict[int, Mapping[str, Any]]:
        """The last collectives of each rank, as it, or else NCCL's watchdog, has written them down most lately."""
        silence = self.silence()
        told = [
            self.facts.get("flights"),
            silence and silence.flights,
            *(node.facts.get("flights") for node in self.nodes),
        ]
        found: dict[int, Mapping[str, Any]] = {}
        for flights in told:
            for rank, flight in (flights or {}).items():
                if float(flight.get("at", 0)) >= float(found.get(int(rank), {}).get("at", 0)):
                    found[int(rank)] = flight
        return found

    def went_on_after(self, silence: Silence) -> bool:
        """Whether a rank wrote something after that silence: it was no hang."""
        outputs = [seen.last_output_at for seen in self.ranks if seen.last_output_at is not None]
        return self.status.phase is Phase.SUCCEEDED or any(at > silence.at + 0.05 for at in outputs)
