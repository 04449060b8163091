"""Messages between supervisor and node worker: the supervisor sends a node spec, the worker sends node events.

A node event is a line of JSON in the events file of its node (`node-K.events`), or in the log of its pod. Events are
kept in the file, so none are lost if the supervisor is killed and replaced. `runs/node_events.py` reads them.

JSON keys are the field names. `VERSION` must change if older workers would misread a new spec.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Optional

from windlass.worker.values import ShapeError, Value

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_NOW_SIGNAL = signal.SIGUSR1
STACKS_SIGNAL = signal.SIGUSR2
"""Signal at which a node worker dumps the stacks of all live ranks."""
NODE_TAG = "n"
"""Tag of log lines with node events; a rank's lines are tagged with its number."""
POD = "w"
"""Tag of log lines from Windlass's own processes in the pod."""
ATTEMPT = "a"
"""Tag of log lines that separate attempts."""
GRACE_OVER = "grace-over"
"""Code of the warning that ranks were killed because they outlived their grace period."""
OUTPUTS_INCOMPLETE = "outputs-incomplete"
"""Code of the warning that the outputs of the run lack files that ranks have written."""
OF_ANOTHER_NODE = "already exists, written by another node"
MORE_GRACE = "raise grace: above the longest step, evaluation and save included"
"""Suggested fix in the warning GRACE_OVER, unless the ranks ignore SIGTERM."""
VERSION = 1
Environment = Mapping[str, str]
EMPTY: Mapping[str, Any] = {}
"""Default of mapping fields; must not be modified."""
INDEX_RECORD = struct.Struct("<QQ")
"""Record in the index of a rank's log: Unix time in nanoseconds, and the length of the log at that time in bytes."""
TRACEBACK = "Traceback (most recent call last)"
"""First line of a traceback of Python, without the colon."""
FAILURE_GRACE_SECONDS = 3.0
"""Grace period of ranks that wait for a failed rank; ranks that are still saving get the job's grace period."""
NODE_VARIABLES = ("WINDLASS_NODE_RANK", "NODE_RANK", "GROUP_RANK")
"""Environment variables of a rank that contain the number of its node."""


# -- node spec --------------------------------------------------------------------------------------------------------


class RankSpec(Value):
    """One rank of a node: its command line and environment."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Environment
    """Environment variables of the rank, which override those of the node."""


class NetworkSpec(Value):
    """A network namespace that a node enters before it starts its ranks."""

    namespace: str
    """Path of the namespace file."""
    host: str
    """Host name of the node, one of `hosts`."""
    hosts: Environment
    """Addresses of the hosts, by name."""


class LauncherSpec(Value):
    """External launcher (mpirun, sshd) that starts rank proxies in place of ranks."""

    name: str
    argv: tuple[str, ...]
    index: str
    """Name of the environment variable with a rank proxy's index among the ranks of its node."""
    end_seconds: float
    """Seconds within which the launcher must exit after its ranks succeeded; unlimited if it `serves`."""
    env: Environment = EMPTY
    networks: Mapping[str, NetworkSpec] = EMPTY
    """Network namespaces by host name, if the mpirun of one node starts the ranks of several nodes."""
    port: Optional[int] = None
    """Port at which the launcher connects to its `peers`. The launcher is started once all peers listen on this
    port."""
    peers: tuple[str, ...] = ()
    serves: bool = False
    """Whether the launcher is a server, such as sshd, that runs until it is stopped."""
    proxy_spec: str = ""
    """Path of the node spec that is passed to rank proxies; empty for the spec of this node."""


class ResumeSpec(Value):
    """How a script that saves its own checkpoints is resumed; see `worker/resume.py`."""

    find: str
    """Glob pattern for the paths of the script's checkpoints."""
    words: tuple[str, ...]
    """Arguments that make the script resume; `{path}` is replaced by the checkpoint."""
    folder: str
    """Folder to which the pattern is relative."""
    code: str
    own: tuple[str, ...]
    """Folders that belong to this run; checkpoints in other folders may belong to other runs."""
    named: str = ""
    """Checkpoint requested by the user, by name or path."""
    named_at: float = 0.0
    """Unix seconds at which the user requested the checkpoint."""


class CollectSpec(Value):
    """Which files in the code folder are results of the run; used by `worker/collect.py`."""

    patterns: tuple[str, ...] = ()
    """Patterns of files that are copied to the outputs; other new files are only listed."""
    skip: tuple[str, ...] = ()
    """Windlass's own folders, which are skipped if they are inside the code folder."""
    is_shared: bool = False
    """Whether all nodes share one code folder."""
    since: float = 0.0
    """Unix seconds at which the code folder was unpacked; 0 for the start of the run."""


class NoticeSpec(Value):
    """How a worker polls for preemption notices of its machine; see `worker/preemption_notice.py`."""

    endpoint: str
    poll_seconds: float
    known: tuple[tuple[str, ...], ...] = ()
    """Notices that the run has already handled, each as action and time."""


class HeartbeatSpec(Value):
    """Heartbeats between the nodes of an attempt; see `worker/heartbeat.py`."""

    id: str
    """Id of the attempt; heartbeats of other attempts are ignored."""
    node: int
    address: str
    peers: Environment
    """Addresses of the other nodes, by node number."""
    port: int = 29399
    """UDP port of the heartbeats, below the kernel's ephemeral ports and the rendezvous ports of ranks."""
    interval_seconds: float = 0.5
    patience_seconds: float = 3.0
    start_patience_seconds: float = 30.0


class NodeSpec(Value):
    """Complete description of one node of one attempt; created only by `plan/compose.py`."""

    node: int
    """Number of the node in the run; the same in all attempts."""
    script: str
    worker_python: str
    cwd: str
    env: Environment
    """Environment variables added to those with which the worker was started."""
    ranks: tuple[RankSpec, ...]
    grace_seconds: float
    warm: tuple[str, ...] = ()
    """Modules that the warm process must have imported; empty if ranks are started as new processes."""
    known_at_start: tuple[str, ...] = ()
    """Names of environment variables whose values are only known when an attempt or its worker starts."""
    progress: Optional[str] = None
    """Regular expression for the script's progress lines."""
    reuse_wait_seconds: float = 0.0
    """Seconds that a pod whose ranks failed waits for the next attempt."""
    setup: str = ""
    """Shell script that runs once on each machine before the ranks; see `worker/setup_step.py`."""
    outputs_max: int = 0
    """Maximum bytes of outputs that a pod keeps until the supervisor has fetched them; 0 if it keeps none."""
    resume: Optional[ResumeSpec] = None
    collect: Optional[CollectSpec] = None
    notices: Optional[NoticeSpec] = None
    heartbeat: Optional[HeartbeatSpec] = None
    network: Optional[NetworkSpec] = None
    launch: Optional[LauncherSpec] = None
    folder: str = ""
    """Folder of the attempt, with the files of the node and its ranks."""
    since: float = 0.0
    """Unix seconds at which the run began; older checkpoints outside the run's folders belong to other runs."""
    found: tuple[Mapping[str, Any], ...] = ()
    """Checkpoint events from the search for a checkpoint to resume from; the node reports them."""
    attempt: int = 1
    """Number of the attempt, from 1."""
    world_size: int = 1
    """Number of ranks of the attempt, on all nodes."""
    reserved_port: Optional[int] = None
    """Rendezvous port of the ranks, if the supervisor has reserved it."""

    def path(self, kind: str) -> str:
        """Returns the path of the node's file of a kind: `json` (this spec), `events`, `out` or another."""
        return os.path.join(self.folder, f"node-{self.node}.{kind}")

    def node_env(self, number: str = "") -> dict[str, str]:
        """Returns the variables that a process other than a rank gets in addition to the worker's environment.

        `number` selects a node, if one worker runs the ranks of several nodes.
        """
        own = next((one.env for one in self.ranks if one.env.get(NODE_VARIABLES[0]) == number), self.ranks[0].env)
        return {**self.env, **{name: own[name] for name in NODE_VARIABLES if name in own}}

    def to_json(self) -> dict[str, Any]:
        """Returns the spec as JSON data."""
        return {"version": VERSION, **super().to_json()}

    @classmethod
    def from_json(cls, data: Any) -> NodeSpec:
        """Creates a spec from JSON data. Raises ShapeError."""
        if isinstance(data, Mapping) and data.get("version") != VERSION:
            raise ShapeError(f"node spec of version {data.get('version')}; this worker reads {VERSION}")
        return super().from_json(data)

    def write(self) -> None:
        """Writes the spec to the node's `json` file. Raises OSError."""
        with open(self.path("json"), "w") as file:
            json.dump(self.to_json(), file)


def read_spec(path: str) -> NodeSpec:
    """Reads a node spec from a file. Raises OSError, ShapeError."""
    with open(path) as file:
        return NodeSpec.from_json(json.load(file))


MAX_UNPACKED_BYTES = 256 << 20
"""Limit for the node specs of an attempt: an object of a cluster may be changed by others, and unpack to gigabytes."""


def pack(attempt: int, specs: Mapping[int, NodeSpec]) -> bytes:
    """Compresses the node specs of an attempt, keyed by pod index. Variables that all nodes share are written once."""
    import gzip  # imported here because only pods need it

    nodes = {str(place): spec.to_json() for place, spec in specs.items()}
    first, *others = [spec.env for spec in specs.values()]
    common = {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}
    for data in nodes.values():
        data["env"] = {name: value for name, value in data["env"].items() if name not in common}
    whole = {"attempt": attempt, "common": {"env": common}, "nodes": nodes}
    return gzip.compress(json.dumps(whole).encode(), mtime=0)


def unpack(data: bytes, only: Optional[int] = None) -> tuple[int, dict[int, NodeSpec]]:
    """Decompresses the result of `pack`. Returns the attempt number and the specs by pod index; with `only`, just the
    spec of that pod.

    Raises ValueError, and KeyError if there is no such index.
    """
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"the node specs cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError("the node specs are incomplete, or too large")
    whole = json.loads(text)
    common = whole["common"]["env"]
    nodes = whole["nodes"] if only is None else {str(only): whole["nodes"][str(only)]}
    specs = {int(place): NodeSpec.from_json(node) for place, node in nodes.items()}
    return whole["attempt"], {place: spec.replace(env={**common, **spec.env}) for place, spec in specs.items()}


# -- node events ------------------------------------------------------------------------------------------------------


class NodeEvent(Value):
    """Event reported by a node."""

    kind: ClassVar[str]
    at: float
    """Time of the event in Unix seconds."""

    def data(self) -> dict[str, Any]:
        """Returns the fields of the event as stored in the record of the run."""
        found = super().to_json()
        del found["at"]
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the event as JSON data."""
        return {"kind": self.kind, **super().to_json()}


class NodeStarted(NodeEvent):
    """First event of a node, which identifies its worker process."""

    kind = "node"
    pid: int
    start_ticks: int
    boot: str
    start: str
    """How ranks are started: `cold` or `warm`."""


class RankChanged(NodeEvent):
    """A rank has started (`pid`) or ended (`exit_code`, −N for signal N)."""

    kind = "rank"
    rank: int
    pid: Optional[int] = None
    exit_code: Optional[int] = None


class OutputBegan(NodeEvent):
    """The first rank of the node has printed something."""

    kind = "output"


class ProgressMade(NodeEvent):
    """Newest progress of the lowest-numbered rank that reports progress."""

    kind = "progress"
    progress: Mapping[str, Any]
    """Progress of one rank, except that `samples_per_second` is the sum over the node's ranks."""


class MetricsReported(NodeEvent):
    """New values of metrics of a node's ranks."""

    kind = "metrics"
    seq: int
    """Number of this event in the attempt of the node, from 1 on."""
    series: tuple[Mapping[str, Any], ...]
    """For each metric: `rank`, `source`, `name`, and the columns `steps`, `times` (Unix seconds) and `values`, where
    "nan", "inf" and "-inf" stand for numbers that JSON lacks."""


class FirstStep(NodeEvent):
    """First training step that a rank reported."""

    kind = "first-step"
    rank: int
    more: Mapping[str, Any] = EMPTY
    """`step`, and `every`: the number of steps until the next report."""


CheckpointAction = Literal["saved", "restored", "refused", "failed", "skipped", "missing", "none-verified"]


class CheckpointReported(NodeEvent):
    """A rank has saved or restored a checkpoint, or failed to."""

    kind = "checkpoint"
    action: CheckpointAction
    rank: Optional[int] = None
    step: Optional[int] = None
    name: Optional[str] = None
    source: Optional[str] = None
    """`log` if read from the script's output; `found` if Windlass passed the checkpoint to the script to resume
    from."""
    more: Mapping[str, Any] = EMPTY
    """Further details, such as bytes, seconds or the reason."""


class LossNotFinite(NodeEvent):
    """The loss of a rank has become NaN or infinite."""

    kind = "loss"
    rank: int
    more: Mapping[str, Any] = EMPTY
    """Fields `loss` and `step`, and `last`: the last finite loss with its step."""


class PeersUnreachable(NodeEvent):
    """Heartbeats of some other nodes have not arrived for seconds; reported again when the set of nodes changes."""

    kind = "unreachable"
    nodes: tuple[int, ...]


class RankFailing(NodeEvent):
    """A rank has failed, and the other ranks of the node are being ended."""

    kind = "failing"
    rank: Optional[int] = None
    waited: bool = False
    """Whether the rank's last output reports a timeout in a collective."""


class RanksAtWork(NodeEvent):
    """Ranks still work, for example on a save, while their node is being ended; reported again when the set of ranks
    changes.
    """

    kind = "at-work"
    ranks: tuple[int, ...]


class PreemptionNotice(NodeEvent):
    """Preemption notice of the machine."""

    kind = "notice"
    source: str
    """Origin of the notice: `imds`, `sigterm` or `queue`."""
    action: str
    more: Mapping[str, Any] = EMPTY
    time: Optional[str] = None
    """Time of the preemption, as written by the source."""


class Dropped(Value):
    """Amount of a rank's output that is missing in its log because the disk was full."""

    rank: int
    bytes: int
    lines: int


class NodeWarning(NodeEvent):
    """A warning for the user; the run continues."""

    kind = "warning"
    message: str
    more: Mapping[str, Any] = EMPTY
    code: Optional[str] = None
    """Code of a warning about the run; see `runs/warnings.py`."""
    missing: Optional[Mapping[str, int]] = None
    """Numbers of log lines, by writer, that were deleted by log rotation before they were read."""
    dropped: Optional[Dropped] = None
    fix: str = ""
    ranks: tuple[int, ...] = ()


class FileSize(Value):
    """A file of the code folder, with its size."""

    path: str
    bytes: int


class SavedState(Value):
    """A file whose name looks like a saved training state; not verified. Another run in the same folder may have
    written it.
    """

    path: str
    """Path relative to the code folder if the file is in it, else an absolute path."""
    bytes: int
    at: float
    """Modification time in Unix seconds."""


class CollectionBegan(NodeEvent):
    """All ranks have ended, and files of the code folder are being copied to the outputs, which may take long."""

    kind = "collecting"
    files: int
    bytes: int


class CodeFiles(NodeEvent):
    """Files of the code folder that are new or changed since the run began."""

    kind = "code-files"
    folder: str
    copied: int = 0
    """Number of files that were copied to the outputs."""
    copied_bytes: int = 0
    left: int = 0
    """Number of files that are only in the code folder."""
    left_bytes: int = 0
    largest: tuple[FileSize, ...] = ()
    """Largest files that were not copied, at most ten."""
    is_cut: bool = False
    """Whether listing was stopped by its time limit."""
    problems: tuple[str, ...] = ()
    """Reasons for which requested files could not be copied."""
    save: Optional[SavedState] = None
    """Newest saved state in the code folder or the folders of the run; None if there is none."""
    has_none: bool = False
    """Whether no file matches the job's patterns although all ranks of the node have succeeded."""


class RankStack(Value):
    """Stack of a live rank."""

    rank: int
    state: str
    """State of the rank's process: `S`, `R`, `D`, …"""
    stack: str
    """Stack as printed by the rank; empty if the rank did not respond."""
    flight: Optional[Mapping[str, Any]] = None
    """Last collectives of the rank; None if torch has recorded none."""


class StacksTaken(NodeEvent):
    """Stacks of the node's live ranks, taken on request or after a rank timed out in a collective."""

    kind = "hang"
    ranks: tuple[RankStack, ...]


class RanksAlone(NodeEvent):
    """No rank of the node has ever connected to another rank: each trains alone."""

    kind = "alone"
    ranks: tuple[int, ...]


class RankFailure(Value):
    """How a rank failed, with the evidence that `worker/root_cause.py` needs."""

    rank: int
    exit_code: int
    at: float
    """Unix seconds at which the rank's process ended."""
    tail: str
    """End of the rank's output."""
    traceback_at: Optional[float] = None
    """Unix seconds at which the rank marked its failure; without a mark, when its traceback began to arrive."""
    ended_by_us: bool = False
    """Whether the worker or the supervisor ended the rank."""
    marked: bool = False
    """Whether the rank marked its failure itself."""
    not_started: bool = False
    """Whether the node was ended before it could start the rank."""
    of_launcher: bool = False
    """Whether `tail` is the output of an external launcher."""
    by_exit: bool = False
    """Whether the script called `sys.exit`; exceptions in its output were then handled, perhaps long before."""


class Listener(Value):
    """A process that listens on a TCP port."""

    port: int
    pid: Optional[int] = None
    """Process id; None for a process of another user."""
    group: int = 0
    """Process group; 0 if unknown."""
    name: str = ""


class FileSystem(Value):
    """Size and free space of a file system."""

    mount: str
    bytes: int
    free_bytes: int
    files: int
    """Maximum number of files; 0 if unlimited."""
    free_files: int


class DamagedFile(Value):
    """A damaged file, and how it is damaged."""

    path: str
    problem: str


class HostReport(Value):
    """Facts about a host, read by its node worker after a rank had failed. Counters count from the start of
    the worker.
    """

    oom_kills_of_group: Optional[int] = None
    """Processes OOM-killed in the worker's control group; None if the counter cannot be read."""
    oom_kills_of_machine: Optional[int] = None
    """Processes OOM-killed on the whole machine; None if the counter cannot be read."""
    oom_record: str = ""
    """Kernel log line about the OOM kill of a rank; empty if there is none."""
    memory_limit_bytes: Optional[int] = None
    """Memory limit of the worker's control group in bytes; None if unlimited."""
    free_bytes: Mapping[str, int] = EMPTY
    """Free bytes of the file system of each folder."""
    shm_bytes: int = 0
    """Size of /dev/shm in bytes."""
    shm_free_bytes: Optional[int] = None
    """Free bytes of /dev/shm; None if it does not exist."""
    without_space: tuple[FileSystem, ...] = ()
    """Full file systems, if the rank failed for lack of disk space."""
    damaged_files: tuple[DamagedFile, ...] = ()
    """Damaged files of the kind that the rank failed to load."""
    listeners: tuple[Listener, ...] = ()
    """Listening processes; empty unless the rank found a port in use."""
    reserved_port: Optional[int] = None
    """Port of the process group, if the supervisor has reserved it for the ranks."""


class NodeEnded(NodeEvent):
    """Last event of a node: all its ranks have ended."""

    kind = "end"
    failures: tuple[RankFailure, ...]
    ended_by: str = "itself"
    """What ended the ranks: `itself`, `failure` or `stop`."""
    host: Optional[HostReport] = None
    """Facts about the host, if ranks failed."""
    flights: Mapping[str, Mapping[str, Any]] = EMPTY
    """Last collectives of the node's ranks, by rank, if ranks failed; see `worker/flight_recorder.py`."""
    alone: tuple[int, ...] = ()
    """Ranks that ended without ever having connected to another rank."""
    outputs: int = 0
    """Bytes of outputs that the pod keeps for the supervisor, at least 1 if there are files; 0 if it keeps none."""


class RootCause(Value):
    """First failure of an attempt, as determined by `worker/root_cause.py` after the end of the attempt."""

    summary: str
    rank: Optional[int] = None
    """Rank that failed first; None if no rank is the cause."""
    exit_code: Optional[int] = None
    """Exit code of the rank's process; −N for signal N."""
    signal: Optional[str] = None
    """Name of the signal that ended the rank's process, such as `SIGKILL`."""
    traceback: str = ""
    victims: tuple[int, ...] = ()
    """Ranks that failed because `rank` failed."""
    at: Optional[float] = None
    """Unix seconds at which the failure began."""
    node_lost: Optional[int] = None
    """Number of the lost node if its loss is the cause; None for another cause."""
    blames_peer: bool = False
    """Whether the error reports a lost connection to another rank, which itself reported nothing."""
    transient: bool = False
    """Whether a new attempt may succeed, as after an error of the network, a service, a device or disk space."""
    node: Optional[int] = None
    """Number of the node that ran the rank."""
    failure: str = ""
    """How the rank failed: `exception`, `signal` or `exit-code`; empty if no rank is the cause."""
    code: Optional[int] = None
    """Exit code of the process that failed; −N for signal N. If a launcher or shell reports the exit code of its child,
    this differs from `exit_code`."""
    host: Optional[HostReport] = None
    """Facts about the host of the node; None if the node has not reported its end."""


class WorkerFailed(NodeEvent):
    """The worker on a SageMaker host exits without having ended its ranks; no further event of this node follows."""

    kind = "worker-failed"
    message: str = ""
    """Reason for the exit; empty if the worker was asked to end."""


class LinesCounted(NodeEvent):
    """Number of lines that a pod has written so far, by tag; see `worker/pod_log.py`."""

    kind = "count"
    lines: Mapping[str, int]
    attempt: int
    before: tuple[str, ...] = ()
    """Tokens of earlier attempts in this pod; a reader may have missed their events."""


EVENTS: Mapping[str, type[NodeEvent]] = {
    event.kind: event
    for event in (
        NodeStarted, RankChanged, OutputBegan, ProgressMade, MetricsReported, FirstStep, CheckpointReported,
        LossNotFinite, PeersUnreachable, RankFailing, RanksAtWork, PreemptionNotice, NodeWarning, StacksTaken,
        RanksAlone, NodeEnded, LinesCounted, WorkerFailed, CollectionBegan, CodeFiles,
    )
}  # fmt: skip


def event_of(data: Mapping[str, Any]) -> NodeEvent:
    """Creates the node event described by JSON data. Raises ShapeError."""
    kind = EVENTS.get(str(data.get("kind")))
    if kind is None:
        raise ShapeError(f"unknown kind of node event: {data.get('kind')}")
    return kind.from_json({name: value for name, value in data.items() if name != "kind"})
