"""Messages between supervisor and node worker: a node spec to the worker, node events back.

A node event is a line of JSON in the events file of its node (`node-K.events`), or in the log of its pod. The file is
the channel: a supervisor may be killed and replaced, and nothing is lost. `runs/node_events.py` reads it.

Field names are those of the JSON data. `VERSION` changes when a worker of another version would misread a spec.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Optional

from windlass.worker.values import ShapeError, Value

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_NOW_SIGNAL = signal.SIGUSR1
STACKS_SIGNAL = signal.SIGUSR2
"""The signal at which a node worker dumps the stacks of all live ranks."""
NODE_TAG = "n"
"""Tag of a pod's log lines with events of the node; those of a rank have its number."""
POD = "w"
"""Of lines of the pod's own process."""
ATTEMPT = "a"
"""Of lines between two attempts."""
GRACE_OVER = "grace-over"
"""Code of the warning that ranks had not exited when their grace period ended, and were killed."""
OUTPUTS_INCOMPLETE = "outputs-incomplete"
"""Code of the warning that files which ranks wrote to their output are not in that of the run."""
OF_ANOTHER_NODE = "is there already, of another node"
MORE_GRACE = "raise grace: above the longest step, evaluation and save included"
"""Its fix, unless the ranks ignore the signal."""
VERSION = 1
Environment = Mapping[str, str]
EMPTY: Mapping[str, Any] = {}
"""Default of fields; never changed."""
NODE_VARIABLES = ("WINDLASS_NODE_RANK", "NODE_RANK", "GROUP_RANK")
"""Variables of a rank that number its node."""


# -- node spec --------------------------------------------------------------------------------------------------------


class RankSpec(Value):
    """One process of the script."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Environment
    """Overrides that of the node."""


class NetworkSpec(Value):
    """A network namespace that a node enters before it starts its ranks."""

    namespace: str
    """Path of the namespace file."""
    host: str
    """The node's host name, one of `hosts`."""
    hosts: Environment
    """The address of each host by name."""


class LauncherSpec(Value):
    """The external launcher (mpirun, sshd) that starts rank proxies in place of ranks."""

    name: str
    argv: tuple[str, ...]
    index: str
    """The variable by which a rank proxy knows which of the node's ranks it stands for."""
    end_seconds: float
    """How long the launcher may take to end after its ranks have succeeded; one that `serves` ends with mpirun."""
    env: Environment = EMPTY
    networks: Mapping[str, NetworkSpec] = EMPTY
    """By host name, where mpirun of one node starts ranks in the networks of several."""
    port: Optional[int] = None
    """Where the launcher reaches the `peers`: it is not started before all of them listen."""
    peers: tuple[str, ...] = ()
    serves: bool = False
    """Whether it is a server, which ends only at a stop."""
    guest_of: str = ""
    """Path of the spec that rank proxies are given, where it is not the node's own."""


class ResumeSpec(Value):
    """How a script that saves checkpoints for itself resumes: see `worker/resume.py`."""

    find: str
    """Pattern of its checkpoints."""
    words: tuple[str, ...]
    """Arguments that make the script resume; `{path}` stands for the checkpoint."""
    folder: str
    """Where the pattern begins."""
    code: str
    own: tuple[str, ...]
    """Folders of the run: checkpoints elsewhere may be another run's."""
    named: str = ""
    """The checkpoint that the user asked for, by name or path."""
    named_at: float = 0.0
    """When the user asked for it, in unix seconds."""


class CollectSpec(Value):
    """Which files of the code folder are results: see `worker/collect.py`."""

    patterns: tuple[str, ...] = ()
    """Patterns of the files that are copied to the output; the others are listed."""
    skip: tuple[str, ...] = ()
    """Folders of Windlass, which may lie in the code folder."""
    is_shared: bool = False
    """Whether all nodes have the same code folder."""
    since: float = 0.0
    """When the code folder was complete, in unix seconds; set at the start."""


class NoticeSpec(Value):
    """Where a worker polls for preemption notices of its machine: see `worker/preemption_notice.py`."""

    endpoint: str
    poll_seconds: float
    known: tuple[tuple[str, ...], ...] = ()
    """Action and time of the notices that the run has acted on."""


class HeartbeatSpec(Value):
    """How the nodes of an attempt find out which of them can be reached: see `worker/heartbeat.py`."""

    id: str
    """Of the attempt: beats of another one do not count."""
    node: int
    address: str
    peers: Environment
    """The address of each other node by number."""
    port: int = 29399
    """Below the ports that a kernel assigns, and those at which ranks meet."""
    interval_seconds: float = 0.5
    patience_seconds: float = 3.0
    start_patience_seconds: float = 30.0


class NodeSpec(Value):
    """All that one node of one attempt needs; made by `plan/compose.py` alone."""

    node: int
    """Number of the node in the run; the same in all attempts."""
    script: str
    worker_python: str
    cwd: str
    env: Environment
    """On top of the environment that the worker was started in."""
    ranks: tuple[RankSpec, ...]
    grace_seconds: float
    warm: tuple[str, ...] = ()
    """Modules that the warm process must have imported; empty where ranks start cold."""
    known_at_start: tuple[str, ...] = ()
    """Variables that only an attempt, or the worker, can set."""
    progress: Optional[str] = None
    """Pattern of the script's progress lines."""
    stay_seconds: float = 0.0
    """How long a pod whose ranks failed waits for the next attempt."""
    setup: str = ""
    """Shell script that runs once on a machine before the ranks: see `worker/setup_step.py`."""
    outputs_max: int = 0
    """Bytes that the outputs of a pod may have to be kept until the supervisor has them; 0: they are not."""
    resume: Optional[ResumeSpec] = None
    collect: Optional[CollectSpec] = None
    notices: Optional[NoticeSpec] = None
    heartbeat: Optional[HeartbeatSpec] = None
    network: Optional[NetworkSpec] = None
    launch: Optional[LauncherSpec] = None
    folder: str = ""
    """The folder of the attempt, where the files of the node and its ranks lie."""
    since: float = 0.0
    """When the run began, in unix seconds: older checkpoints outside of its folders are another run's."""
    found: tuple[Mapping[str, Any], ...] = ()
    """What the search for a checkpoint found, to be reported; see `worker/resume.py`."""
    attempt: int = 1
    """Number of the attempt."""
    world_size: int = 1
    """Ranks of the attempt, on all nodes."""
    held_port: Optional[int] = None
    """The port at which the ranks meet, where the supervisor holds it for them."""

    def path(self, kind: str) -> str:
        """Path of one of the node's files: `json` (this spec), `events`, `out` and others."""
        return os.path.join(self.folder, f"node-{self.node}.{kind}")

    def node_env(self, number: str = "") -> dict[str, str]:
        """The environment of a process that is of the node and of none of its ranks, on top of the worker's own.

        `number` is that of the node, where one worker has the ranks of several.
        """
        own = next((one.env for one in self.ranks if one.env.get(NODE_VARIABLES[0]) == number), self.ranks[0].env)
        return {**self.env, **{name: own[name] for name in NODE_VARIABLES if name in own}}

    def to_json(self) -> dict[str, Any]:
        """The spec as JSON data."""
        return {"version": VERSION, **super().to_json()}

    @classmethod
    def from_json(cls, data: Any) -> NodeSpec:
        """Read `to_json` back. Raises ShapeError."""
        if isinstance(data, Mapping) and data.get("version") != VERSION:
            raise ShapeError(f"node spec of version {data.get('version')}; this worker reads {VERSION}")
        return super().from_json(data)

    def write(self) -> None:
        """Write the spec into the node's own file. Raises OSError."""
        with open(self.path("json"), "w") as file:
            json.dump(self.to_json(), file)


def read_spec(path: str) -> NodeSpec:
    """The spec in a file. Raises OSError, ShapeError."""
    with open(path) as file:
        return NodeSpec.from_json(json.load(file))


def pack(attempt: int, specs: Mapping[int, NodeSpec]) -> bytes:
    """The specs of an attempt's nodes by place, compressed; variables that all of them share are written once."""
    import gzip  # only pods travel with it

    nodes = {str(place): spec.to_json() for place, spec in specs.items()}
    first, *others = [spec.env for spec in specs.values()]
    common = {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}
    for data in nodes.values():
        data["env"] = {name: value for name, value in data["env"].items() if name not in common}
    whole = {"attempt": attempt, "common": {"env": common}, "nodes": nodes}
    return gzip.compress(json.dumps(whole).encode(), mtime=0)


def unpack(data: bytes, only: Optional[int] = None) -> tuple[int, dict[int, NodeSpec]]:
    """The attempt, and the specs by place, or that of one place, of what `pack` gave. Raises ValueError, OSError."""
    import gzip

    whole = json.loads(gzip.decompress(data))
    common = whole["common"]["env"]
    nodes = whole["nodes"] if only is None else {str(only): whole["nodes"][str(only)]}
    specs = {int(place): NodeSpec.from_json(node) for place, node in nodes.items()}
    return whole["attempt"], {place: spec.replace(env={**common, **spec.env}) for place, spec in specs.items()}


# -- node events ------------------------------------------------------------------------------------------------------


class NodeEvent(Value):
    """What a node reports."""

    kind: ClassVar[str]
    at: float
    """Unix seconds."""

    def data(self) -> dict[str, Any]:
        """What the event carries, as the record of the run keeps it."""
        found = super().to_json()
        del found["at"]
        return found

    def to_json(self) -> dict[str, Any]:
        """The event as JSON data."""
        return {"kind": self.kind, **super().to_json()}


class NodeStarted(NodeEvent):
    """The first event of a node: which process its worker is."""

    kind = "node"
    pid: int
    start_ticks: int
    boot: str
    start: str
    """`cold` or `warm`."""


class RankChanged(NodeEvent):
    """A rank has started (`pid`) or ended (`exit_code`, −N for signal N)."""

    kind = "rank"
    rank: int
    pid: Optional[int] = None
    exit_code: Optional[int] = None


class OutputBegan(NodeEvent):
    """The first output of any rank of the node."""

    kind = "output"


class ProgressMade(NodeEvent):
    """The newest progress of the lowest rank that reports any."""

    kind = "progress"
    progress: Mapping[str, Any]
    """`samples_per_second` is the sum over the node's ranks."""


class FirstStep(NodeEvent):
    """The first step that a rank reported."""

    kind = "first-step"
    rank: int
    more: Mapping[str, Any] = EMPTY
    """`step`, and `every`: how many steps to the next report."""


CheckpointAction = Literal["saved", "restored", "refused", "failed", "skipped", "missing", "none-verified"]


class CheckpointReported(NodeEvent):
    """A rank has saved or restored a checkpoint, or could not."""

    kind = "checkpoint"
    action: CheckpointAction
    rank: Optional[int] = None
    step: Optional[int] = None
    name: Optional[str] = None
    source: Optional[str] = None
    """`log` where it was read from the script's output; `found` where it was named to the script to resume from."""
    more: Mapping[str, Any] = EMPTY
    """What else is known: bytes, seconds, reason, …"""


class LossNotFinite(NodeEvent):
    """The loss of a rank is no longer finite."""

    kind = "loss"
    rank: int
    more: Mapping[str, Any] = EMPTY
    """`loss` and `step`; `last`: those of the last one that was finite."""


class PeersUnreachable(NodeEvent):
    """The other nodes whose heartbeat has not arrived for some seconds; again whenever that changes."""

    kind = "unreachable"
    nodes: tuple[int, ...]


class RankFailing(NodeEvent):
    """A rank has failed, and the others of the node are being ended."""

    kind = "failing"
    rank: Optional[int] = None
    waited: bool = False
    """Whether its last output reports a timeout in a collective."""


class RanksAtWork(NodeEvent):
    """The ranks that still work, as on a save, while their node is being ended; sent again when that changes."""

    kind = "at-work"
    ranks: tuple[int, ...]


class PreemptionNotice(NodeEvent):
    """Preemption notice of the machine."""

    kind = "notice"
    source: str
    """`imds`, `sigterm` or `queue`."""
    action: str
    more: Mapping[str, Any] = EMPTY
    time: Optional[str] = None
    """When, as the source writes it."""


class Dropped(Value):
    """What the log of a rank lacks since the disk was full."""

    rank: int
    bytes: int
    lines: int


class NodeWarning(NodeEvent):
    """A warning for the user; the run continues."""

    kind = "warning"
    message: str
    more: Mapping[str, Any] = EMPTY
    code: Optional[str] = None
    """Of a warning of the run; see `runs/warnings.py`."""
    missing: Optional[Mapping[str, int]] = None
    """By writer, lines that were rotated away before they were read."""
    dropped: Optional[Dropped] = None
    fix: str = ""
    ranks: tuple[int, ...] = ()


class FileSize(Value):
    """A file of the code folder."""

    path: str
    bytes: int


class SavedState(Value):
    """A file that is a saved state by its name, not verified. Another run in the same folder may have written it."""

    path: str
    """In the code folder, else from the root."""
    bytes: int
    at: float
    """When it was written, in unix seconds."""


class CollectionBegan(NodeEvent):
    """All ranks have ended; files of the code folder are copied to the output, which may take long."""

    kind = "collecting"
    files: int
    bytes: int


class CodeFiles(NodeEvent):
    """The files of the code folder that are new or changed since the run began."""

    kind = "code-files"
    folder: str
    copied: int = 0
    """Files that are in the output too."""
    copied_bytes: int = 0
    left: int = 0
    """Files that are only in the code folder."""
    left_bytes: int = 0
    largest: tuple[FileSize, ...] = ()
    """Of these, at most ten."""
    is_cut: bool = False
    """Whether the time to list them was over before all were found."""
    problems: tuple[str, ...] = ()
    """Why wanted files are not copied."""
    save: Optional[SavedState] = None
    """The newest saved state, in the code folder or in those of the run; None for none."""
    has_none: bool = False
    """Whether no file is wanted, though the job names some and all ranks of the node have succeeded."""


class RankStack(Value):
    """Where a live rank is."""

    rank: int
    state: str
    """Of its process: `S`, `R`, `D`, …"""
    stack: str
    """As the rank printed it; empty where it did not answer."""
    flight: Optional[Mapping[str, Any]] = None
    """Its last collectives, where torch has recorded them."""


class StacksTaken(NodeEvent):
    """The stacks of the node's live ranks, on request, or since one timed out in a collective."""

    kind = "hang"
    ranks: tuple[RankStack, ...]


class RanksAlone(NodeEvent):
    """No rank of the node has ever reached another one: each trains alone."""

    kind = "alone"
    ranks: tuple[int, ...]


class RankFailure(Value):
    """How a rank failed: what `worker/root_cause.py` needs of it."""

    rank: int
    exit_code: int
    at: float
    """When its process ended, in unix seconds."""
    tail: str
    """The end of its output."""
    traceback_at: Optional[float] = None
    """When it marked its failure, else when its traceback began to arrive."""
    ended_by_us: bool = False
    """Whether the worker or the supervisor ended it."""
    marked: bool = False
    """Whether it marked its failure itself."""
    not_started: bool = False
    """Whether its node was ended before it could start it."""
    of_launcher: bool = False
    """Whether `tail` is the output of an external launcher."""
    by_exit: bool = False
    """Whether its script called `sys.exit`: an exception in its output was handled, perhaps long before."""


class Listener(Value):
    """A process that listens on a TCP port."""

    port: int
    pid: Optional[int] = None
    """None for a process of another user."""
    group: int = 0
    """Its process group; 0 where it is not known."""
    name: str = ""


class FileSystem(Value):
    """The space of a file system."""

    mount: str
    bytes: int
    free_bytes: int
    files: int
    """How many files it can hold; 0 where it has no limit."""
    free_files: int


class DamagedFile(Value):
    """A file that is not whole."""

    path: str
    problem: str


class HostReport(Value):
    """What a node worker read of its machine after a rank had failed. Counts start when the worker started."""

    oom_kills_of_group: Optional[int] = None
    """Processes of its control group that the kernel killed for lack of memory; None where that cannot be read."""
    oom_kills_of_machine: Optional[int] = None
    """The same for the whole machine."""
    oom_record: str = ""
    """The line of the kernel about one of the ranks."""
    memory_limit_bytes: Optional[int] = None
    """The memory limit of its control group; None where there is none."""
    free_bytes: Mapping[str, int] = EMPTY
    """Free space, by folder of the run."""
    shm_bytes: int = 0
    """Size of /dev/shm."""
    shm_free_bytes: Optional[int] = None
    """Free space of /dev/shm; None where there is none."""
    without_space: tuple[FileSystem, ...] = ()
    """The full file systems, if the rank found no space."""
    damaged_files: tuple[DamagedFile, ...] = ()
    """Damaged files of the kind that the rank failed to load."""
    listeners: tuple[Listener, ...] = ()
    """Who listened, if the rank found a port in use."""
    held_port: Optional[int] = None
    """The port of the process group, where the supervisor holds it for the ranks."""


class NodeEnded(NodeEvent):
    """The last event of a node: all its ranks have ended."""

    kind = "end"
    failures: tuple[RankFailure, ...]
    ended_by: str = "itself"
    """`itself`, `failure` or `stop`."""
    host: Optional[HostReport] = None
    """Of its machine, if ranks failed."""
    flights: Mapping[str, Mapping[str, Any]] = EMPTY
    """The last collectives of its ranks, by rank, if ranks failed; see `worker/flight_recorder.py`."""
    alone: tuple[int, ...] = ()
    """Ranks that ended without ever having reached another one."""
    outputs: int = 0
    """Bytes of outputs that the pod keeps for the supervisor, at least 1 where there are any; 0: it keeps none."""


class RootCause(Value):
    """What failed first in an attempt, as `worker/root_cause.py` reads it once, after the end of the attempt."""

    summary: str
    rank: Optional[int] = None
    """The rank that failed first; None where no rank is the cause."""
    exit_code: Optional[int] = None
    """Of its process; −N for signal N."""
    signal: Optional[str] = None
    """The signal that ended its process: `SIGKILL`."""
    traceback: str = ""
    victims: tuple[int, ...] = ()
    """Ranks that failed because this one did."""
    at: Optional[float] = None
    """Unix seconds."""
    node_lost: Optional[int] = None
    """The node whose loss it is."""
    blames_peer: bool = False
    """Whether its error names another rank, which failed without reporting anything."""
    transient: bool = False
    """Whether its error may be gone in another attempt: one of the network, of a service, of a device or of space."""
    node: Optional[int] = None
    """The node of that rank."""
    failure: str = ""
    """How that rank failed: `exception`, `signal` or `exit-code`; empty where no rank is the cause."""
    code: Optional[int] = None
    """The exit code of the process that failed, where a launcher or a shell reports that of its child; −N for signal
    N."""
    host: Optional[HostReport] = None
    """What its node read of its machine; None where the node has not reported its end."""


class WorkerFailed(NodeEvent):
    """The worker of a host of SageMaker ends without having ended its ranks: nothing of this node follows."""

    kind = "worker-failed"
    message: str = ""
    """Why; empty where it was told to end."""


class LinesCounted(NodeEvent):
    """How many lines a pod has written so far, by tag: see `worker/pod.py`."""

    kind = "count"
    lines: Mapping[str, int]
    attempt: int
    before: tuple[str, ...] = ()
    """The marks of the events of earlier attempts in the pod: a reader may have seen no other."""


EVENTS: Mapping[str, type[NodeEvent]] = {
    event.kind: event
    for event in (
        NodeStarted, RankChanged, OutputBegan, ProgressMade, FirstStep, CheckpointReported, LossNotFinite,
        PeersUnreachable, RankFailing, RanksAtWork, PreemptionNotice, NodeWarning, StacksTaken, RanksAlone, NodeEnded,
        LinesCounted, WorkerFailed, CollectionBegan, CodeFiles,
    )
}  # fmt: skip


def event_of(data: Mapping[str, Any]) -> NodeEvent:
    """The event that JSON data stands for. Raises ShapeError."""
    kind = EVENTS.get(str(data.get("kind")))
    if kind is None:
        raise ShapeError(f"no kind of node event: {data.get('kind')}")
    return kind.from_json({name: value for name, value in data.items() if name != "kind"})
