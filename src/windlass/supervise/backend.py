"""Backend of a supervisor: the interface by which it starts, stops and observes the nodes of a run on one target."""

from __future__ import annotations

import enum
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.clock import Clock
from windlass.runs.events import Warned
from windlass.runs.node_events import EventDeduplicator
from windlass.runs.store import Store
from windlass.supervise.recorder import Recorder
from windlass.worker.process import read_text
from windlass.worker.protocol import (
    STACKS_SIGNAL,
    STOP_NOW_SIGNAL,
    CodeFiles,
    CollectionBegan,
    HostReport,
    NodeEnded,
    NodeEvent,
    NodeStarted,
    RankFailure,
    RanksAlone,
    WorkerFailed,
)

QUOTED_CHARS: Final = 4000
"""Maximum number of characters quoted from the end of a worker's output."""


class TargetUnavailable(EngineError):
    """The target is temporarily unavailable. The request was not refused and may be repeated."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
        """Condition type to record during the outage: `LoginFailed`, `ClusterUnreachable` or `HolderUnknown`."""


class HeldElsewhere(EngineError):
    """Another supervisor holds the run. This supervisor must not record, start or delete anything of the run."""


class NotAdmitted(EngineError):
    """The run will never be admitted, and ends as stopped. The error text is the reason."""


class Intent(enum.Enum):
    """Request of the supervisor to a node. The value is the signal that carries the request to the node's worker."""

    STOP = signal.SIGTERM
    """End the ranks: SIGTERM, the job's grace period, SIGKILL."""
    STOP_NOW = STOP_NOW_SIGNAL
    """End the ranks without a grace period."""
    DUMP_STACKS = STACKS_SIGNAL
    """Report the stack of each rank."""
    KILL = signal.SIGKILL
    """Kill the node with all its processes."""


class Node(ABC):
    """One node of an attempt: its state, read from its events file, and the operations of the target on it.

    A supervisor that adopts the run reads the file from the beginning, so that no event is lost.
    """

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path) -> None:
        self.number = number
        self.ranks = ranks
        self.folder = folder
        self.pid: int | None = None
        self.start_ticks = 0
        self.boot = ""
        self.failures: list[RankFailure] = []
        self.host: HostReport | None = None
        """Facts that the node's worker read from its host after a rank had failed."""
        self.alone: tuple[int, ...] = ()
        """Ranks of the node that trained without ever connecting to another rank."""
        self.outputs = 0
        """Bytes of outputs that the node keeps until they are fetched."""
        self.ended = False
        """Whether the node has reported its end."""
        self.is_collecting = False
        """Whether the node is copying files of the code folder to the output, after all its ranks have ended."""
        self.lost = False
        """Whether the node ended without reporting an end."""
        self.begun = False
        """Whether the node's worker has reported any event."""
        self.worker_failed = False
        """Whether the node's worker has reported that it failed."""
        self.not_started = False
        """Whether the attempt ended before the node's worker reported any event."""
        self._offset = 0
        self._partial = b""
        self._deduplicator = EventDeduplicator()

    @property
    def num_ignored(self) -> int:
        """Number of lines in the events file that are not events of this node."""
        return self._deduplicator.num_ignored

    @property
    def over(self) -> bool:
        """Whether no more events of the node can arrive."""
        return self.ended or self.lost

    def path(self, kind: str) -> Path:
        """Returns the path of a file of the node: `events`, `out`, or a file of its engine."""
        return self.folder / f"node-{self.number}.{kind}"

    def updates(self) -> Iterator[NodeEvent]:
        """Yields the events reported since the last call."""
        try:
            with open(self.path("events"), "rb") as file:
                file.seek(self._offset)
                data = file.read(self._num_readable())
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = self._deduplicator.take(line)
            if event is None:
                continue
            if isinstance(event, NodeStarted):
                self.begun = True
                self.pid, self.start_ticks, self.boot = event.pid, event.start_ticks, event.boot
            elif isinstance(event, NodeEnded):
                self.take_end(event.failures)
                self.host, self.alone, self.outputs = event.host, event.alone, event.outputs
            elif isinstance(event, RanksAlone):
                self.alone = event.ranks
            elif isinstance(event, CollectionBegan):
                self.is_collecting = True
            elif isinstance(event, CodeFiles):
                self.is_collecting = False
            elif isinstance(event, WorkerFailed):
                self.worker_failed = bool(event.message)
            yield event

    def _num_readable(self) -> int:
        """Returns how many bytes of the events file may be read now; −1 for all."""
        return -1

    def take_end(self, failures: Sequence[RankFailure]) -> None:
        """Stores how ranks failed, from the event of the node's end; empty if none failed."""
        self.ended, self.failures = True, list(failures)

    def last_words(self) -> str:
        """Returns the output of the worker itself, which is empty unless it crashed."""
        return read_text(self.path("out")).strip()[-QUOTED_CHARS:]

    # -- overridden by targets -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def exit_code(self) -> int:
        """Returns the exit code of a node that ended without reporting."""

    @abstractmethod
    def lives(self) -> bool:
        """Whether the node may still report events that `updates` cannot read yet."""

    @abstractmethod
    def send(self, intent: Intent) -> None:
        """Sends an intent to the node if it is alive. Does not wait for the effect."""

    def sweep(self) -> None:
        """Kills processes that have outlived the worker."""

    def last_sign_of_life(self) -> float:
        """Returns when the node ended, or last wrote anything, in Unix seconds; 0 if unknown."""
        return 0.0

    def why_lost(self) -> str:
        """Returns why the node was lost, in one line, if its exit code does not show it."""
        return ""


class Attempt:
    """All nodes of one attempt on a target."""

    nodes: tuple[Node, ...]
    ended_by_target: str | None = None
    """Why the target ended the attempt: `preemption` if a queue took the nodes back, `stop` if permanently, `timeout`
    at the job's time limit; None if it did not."""

    evicted: frozenset[int] = frozenset()
    """Numbers of the nodes in a planned eviction, for example to drain a node. A planned eviction uses up no
    restart."""
    why_ended = ""
    """The target's own reason for ending the attempt; empty if it gave none."""
    has_failed_after_ranks = False
    """Whether the attempt failed although all ranks succeeded, because the target did not save their outputs."""
    report_lag_seconds = 0.0
    """Maximum delay between a signal to a node and the supervisor's receipt of its report."""
    output_lag_seconds = 0.0
    """Maximum delay until the supervisor can see a rank's output."""

    def __init__(self, folder: Path, nodes: Sequence[Node], warnings: Sequence[Warned] = ()) -> None:
        self.folder = folder
        """Folder of the attempt in the folder of the run: logs, events and specs of the nodes."""
        self.nodes = tuple(nodes)
        """Nodes of the attempt in order; the index is the node's place in the attempt."""
        self.warnings = tuple(warnings)
        """Warnings about differences between the request and the attempt as started."""

    @property
    def num_staged(self) -> int:
        """Number of nodes from which start phases are expected. One node may report for all."""
        return len(self.nodes)

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""
        return all(node.over for node in self.nodes)

    def live_nodes(self) -> list[Node]:
        """Returns the nodes that have not ended."""
        return [node for node in self.nodes if not node.over]

    def training_nodes(self) -> list[Node]:
        """Returns the nodes that have not ended and whose ranks are not known to have ended."""
        return [node for node in self.live_nodes() if not node.is_collecting]

    def send(self, intent: Intent) -> None:
        """Sends an intent to every live node."""
        for node in self.live_nodes():
            node.send(intent)

    def kill(self, nodes: Sequence[Node] | None = None) -> None:
        """Kills these nodes, by default every live one, with all processes that they have started."""
        for node in self.live_nodes() if nodes is None else nodes:
            node.send(Intent.KILL)
            node.sweep()

    def failures(self) -> list[RankFailure]:
        """Returns the failed ranks of all nodes."""
        return [failure for node in self.nodes for failure in node.failures]

    def last_sign_of_life(self) -> float:
        """Returns when the nodes last wrote anything, in Unix seconds; 0 if no node did."""
        return 0.0

    def without_capacity(self) -> Mapping[int, float]:
        """Returns the nodes for which the target has no capacity, each with the start of the shortage in Unix
        seconds.
        """
        return {}

    def close(self) -> None:
        """Releases the resources of the ended attempt."""


class Backend(ABC):
    """Operations on the target of one run. The default methods are for a target that never fails and that only one
    supervisor can use.

    Methods that raise EngineError raise its subclass TargetUnavailable if the same request may succeed later.
    """

    outlives_supervisor = False
    """Whether nodes keep running when the supervisor's machine shuts down."""
    removal_hint = ""
    """Command by which the user removes objects that `remove` could not delete."""

    # -- used by the commands of an engine -------------------------------------------------------------------

    def remove(self) -> None:
        """Removes everything that the run has created outside of its folder. Raises EngineError."""

    def held_elsewhere(self) -> str:
        """Returns the name of another supervisor that holds the run, found by one request; empty if no other does."""
        return ""

    def lives(self) -> bool:
        """Whether any node of the run may still be running, on targets whose nodes outlive their supervisor."""
        return False

    def close(self) -> None:
        """Closes connections."""

    # -- ownership -------------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Acquires the run for this supervisor. Returns False while another supervisor may still hold it.

        Raises TargetUnavailable, HeldElsewhere.
        """
        return True

    @property
    def is_lost_to_another(self) -> bool:
        """Whether another supervisor has acquired the run since `hold`."""
        return False

    # -- attempts -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        """Starts the nodes of an attempt. Each wakes `clock` when it reports an event. Raises EngineError, OSError."""

    @abstractmethod
    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        """Returns the attempt that another supervisor has started. Raises EngineError."""

    def admit(self, record: Recorder, clock: Clock) -> bool:
        """Requests admission of the run's next attempt. Returns whether it is admitted; called repeatedly until then.

        Raises NotAdmitted if the attempt never will be admitted.
        """
        return True

    def stage(self, record: Recorder, clock: Clock) -> bool:
        """Stages the data of the run where its ranks read it. Returns whether staging is complete; the supervisor
        repeats the call until then.

        Raises EngineError if the data cannot be staged, and OSError.
        """
        return True

    def requested_at(self, number: int) -> float | None:
        """Returns when nodes were requested for an attempt that is about to start, in Unix seconds; None without a
        request.
        """
        return None

    def is_started(self, folder: Path) -> bool | None:
        """Whether the recorded attempt with this folder was started. If not, the attempt may be started again.

        None if that is unknown because the target does not answer; starting the attempt twice must be avoided.
        """
        return True

    def unreachable(self) -> set[int]:
        """Returns the nodes that are currently known to be unreachable."""
        return set()

    def trouble(self) -> TargetUnavailable | None:
        """Returns why the attempt cannot be observed at present; None if it can be."""
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    uploads_outputs = False
    """Whether the outputs of the run are uploaded before its end is recorded."""

    def upload(self, record: Recorder, clock: Clock) -> bool:
        """Uploads the outputs of the run. Returns whether the upload is complete; the supervisor repeats the call until
        then.

        Raises EngineError if the outputs cannot be uploaded, and OSError.
        """
        return True

    def upload_at_checkpoint(self, record: Recorder, clock: Clock) -> None:
        """Uploads the existing outputs after a recorded checkpoint, if the job requests uploads during training.

        Called periodically; never waits, and raises no errors of the target.
        """

    def check_outputs(self, record: Recorder, clock: Clock) -> None:
        """Checks during training whether the outputs can be uploaded. Called periodically; never waits.

        Raises TransferRefused if the outputs cannot be uploaded.
        """

    def nodes_with_outputs(self, record: Recorder) -> tuple[int, ...]:
        """Returns the nodes of the last attempt whose outputs must be fetched before the end is recorded."""
        return ()

    def collect(self, record: Recorder, nodes: Sequence[int], clock: Clock) -> bool:
        """Fetches the outputs of these nodes. Returns whether fetching has finished; the supervisor repeats the call
        until then.

        Outputs that cannot be fetched are recorded as a warning.
        """
        return True

    def prepare_end(self, record: Recorder) -> None:
        """Removes objects that outlive attempts, just before the end is recorded. Skips removals that are slow or may
        fail.
        """

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """Removes the remaining objects after the end is recorded, and records those that could not be removed.

        Retries for a bounded time if `is_patient`; otherwise tries once.
        """

    def watch_node_deletion(self, store: Store) -> None:
        """Records when the nodes provisioned for the run are deleted, after the supervisor has released the run."""


MakeBackend = Callable[[Plan, Path], Backend]
"""Function that creates the backend of a run from its plan and its folder."""
