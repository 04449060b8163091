"""Backend of a supervisor: how one target starts, stops and observes the nodes of a run."""

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
"""Of the output of a worker, from its end."""


class TargetUnavailable(EngineError):
    """The target is unavailable for now: the request was not refused, and may be repeated."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind
        """The type of the run's condition meanwhile: `LoginFailed`, `ClusterUnreachable`, `HolderUnknown`."""


class HeldElsewhere(EngineError):
    """Another supervisor holds the run: this one must not write, start or delete anything of it."""


class NotAdmitted(EngineError):
    """The run will never be admitted: it ends as stopped, with this reason."""


class Intent(enum.Enum):
    """A request of the supervisor to a node. The value is the signal by which a node worker receives it."""

    STOP = signal.SIGTERM
    """End the ranks: SIGTERM, the job's grace period, SIGKILL."""
    STOP_NOW = STOP_NOW_SIGNAL
    """End the ranks without a grace period."""
    DUMP_STACKS = STACKS_SIGNAL
    """Report the stack of each rank."""
    KILL = signal.SIGKILL
    """End the node with all its processes."""


class Node(ABC):
    """One node of an attempt: its state, from the events in its events file, and what the target can do with it.

    A supervisor that takes over reads the file from the beginning, so nothing is lost.
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
        """What its worker has read of its machine, if a rank has failed."""
        self.alone: tuple[int, ...] = ()
        """Its ranks that trained without ever reaching another."""
        self.outputs = 0
        """Bytes of outputs that it keeps until they are collected."""
        self.ended = False
        """Whether it has reported its end."""
        self.is_collecting = False
        """Whether all of its ranks have ended, and it copies files of the code folder to the output."""
        self.lost = False
        """Whether it ended without reporting that."""
        self.begun = False
        """Whether its worker has reported anything."""
        self.worker_failed = False
        """Whether its worker has reported that it failed."""
        self.not_started = False
        """Whether it was ended because the attempt was, before its worker had reported anything."""
        self._offset = 0
        self._partial = b""
        self._deduplicator = EventDeduplicator()

    @property
    def num_ignored(self) -> int:
        """Lines of its events that were not its own."""
        return self._deduplicator.num_ignored

    @property
    def over(self) -> bool:
        """Whether it will report nothing more."""
        return self.ended or self.lost

    def path(self, kind: str) -> Path:
        """One of its files: `events`, `out` and what else its engine keeps."""
        return self.folder / f"node-{self.number}.{kind}"

    def updates(self) -> Iterator[NodeEvent]:
        """What it has reported since the last call."""
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
        """How many bytes of its events may be read now; −1 for all."""
        return -1

    def take_end(self, failures: Sequence[RankFailure]) -> None:
        """Take how its ranks failed, of the event that it has ended; empty where none did."""
        self.ended, self.failures = True, list(failures)

    def last_words(self) -> str:
        """The output of the worker itself, which is empty unless it crashed."""
        return read_text(self.path("out")).strip()[-QUOTED_CHARS:]

    # -- what a target adds --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def exit_code(self) -> int:
        """How it ended, where it ended without reporting."""

    @abstractmethod
    def lives(self) -> bool:
        """Whether it may report more than `updates` can read now."""

    @abstractmethod
    def send(self, intent: Intent) -> None:
        """Send it an intent, if it is alive; does not wait for the effect."""

    def sweep(self) -> None:
        """End what has outlived its worker."""

    def last_sign_of_life(self) -> float:
        """When it ended, or else last wrote something, in unix seconds; 0 where that is not known."""
        return 0.0

    def why_lost(self) -> str:
        """Why it was lost, in a line, where its exit code does not show that."""
        return ""


class Attempt:
    """All nodes of one attempt."""

    nodes: tuple[Node, ...]
    ended_by_target: str | None = None
    """`preemption` where a queue took the nodes back, `stop` where that is for good, `timeout` where the target
    enforced the job's time limit."""

    evicted: frozenset[int] = frozenset()
    """Numbers of the nodes that the target has taken away on purpose, such as to drain a machine: a preemption that
    uses up none of the job's restarts."""
    why_ended = ""
    """Why the target has ended it, where the target says so."""
    has_failed_after_ranks = False
    """Whether it has failed though all ranks have succeeded: the target has not what they have written."""
    report_lag_seconds = 0.0
    """How late a signal may reach a node, and its report of what the ranks do then the supervisor."""
    output_lag_seconds = 0.0
    """How late it may be known that a rank has written something."""

    def __init__(self, folder: Path, nodes: Sequence[Node], warnings: Sequence[str] = ()) -> None:
        self.folder = folder
        """In the folder of the run: logs, events and specs of the nodes."""
        self.nodes = tuple(nodes)
        """By place."""
        self.warnings = tuple(warnings)
        """Deviations from the request at its start."""

    @property
    def num_staged(self) -> int:
        """How many of its nodes report which phase of their start they are in, where any do: one may for all."""
        return len(self.nodes)

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""
        return all(node.over for node in self.nodes)

    def live_nodes(self) -> list[Node]:
        """Nodes that have not ended."""
        return [node for node in self.nodes if not node.over]

    def training_nodes(self) -> list[Node]:
        """Nodes that have not ended, and whose ranks have not either, as far as is known."""
        return [node for node in self.live_nodes() if not node.is_collecting]

    def send(self, intent: Intent) -> None:
        """Send an intent to every live node."""
        for node in self.live_nodes():
            node.send(intent)

    def kill(self, nodes: Sequence[Node] | None = None) -> None:
        """End these nodes, every live one by default, with all that they have started."""
        for node in self.live_nodes() if nodes is None else nodes:
            node.send(Intent.KILL)
            node.sweep()

    def failures(self) -> list[RankFailure]:
        """The failed ranks of all nodes."""
        return [failure for node in self.nodes for failure in node.failures]

    def last_sign_of_life(self) -> float:
        """When any of its nodes last wrote something, in unix seconds; 0 where none has."""
        return 0.0

    def without_capacity(self) -> Mapping[int, float]:
        """The nodes for which the target has no capacity now, each with since when, in unix seconds."""
        return {}

    def close(self) -> None:
        """It has ended: release its resources."""


class Backend(ABC):
    """The target of one run. The defaults are those of a target that only one supervisor can use and that never fails.

    Methods that raise EngineError raise TargetUnavailable where the same may be requested again.
    """

    outlives_supervisor = False
    """Whether nodes keep running when the machine of the supervisor shuts down."""
    removal_hint = ""
    """How the user removes what `remove` could not."""

    # -- around a supervisor: used by the commands of an engine -------------------------------------------------------

    def remove(self) -> None:
        """Remove what the run has made outside of its folder. Raises EngineError."""

    def held_elsewhere(self) -> str:
        """The other supervisor that holds the run, where one request shows it; empty for none."""
        return ""

    def lives(self) -> bool:
        """Whether any node of the run may still be running, where nodes outlive their supervisor."""
        return False

    def close(self) -> None:
        """Release connections."""

    # -- the holder
    # -----------------------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Acquire the run for this supervisor; False while another one may still hold it.

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
        """Start the nodes of an attempt; each wakes `clock` when it reports something. Raises EngineError, OSError."""

    @abstractmethod
    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        """The attempt that another supervisor has started. Raises EngineError."""

    def admit(self, record: Recorder, clock: Clock) -> bool:
        """Have the target admit the next attempt of the run; returns whether it has. Called again until it has.

        Raises NotAdmitted where it never will.
        """
        return True

    def stage(self, record: Recorder, clock: Clock) -> bool:
        """Bring the data of the run to where its ranks read it; returns whether it is there. Called again until it is.

        Raises EngineError where it cannot be brought, OSError.
        """
        return True

    def requested_at(self, number: int) -> float | None:
        """When the nodes of an attempt that is about to begin were requested, in unix seconds; None: not yet."""
        return None

    def is_started(self, folder: Path) -> bool | None:
        """Whether the recorded attempt with this folder was started; else it may be started again.

        None where that is not known, since the target does not answer: starting it again must not start it twice.
        """
        return True

    def unreachable(self) -> set[int]:
        """Nodes that are known not to be reachable now."""
        return set()

    def trouble(self) -> TargetUnavailable | None:
        """Why the attempt cannot be observed now; None while it can."""
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    uploads_outputs = False
    """Whether the outputs of the run are uploaded before its end is recorded."""

    def upload(self, record: Recorder, clock: Clock) -> bool:
        """Upload the outputs of the run; returns whether they are there. Called again until they are.

        Raises EngineError where they cannot be uploaded, OSError.
        """
        return True

    def upload_at_checkpoint(self, record: Recorder, clock: Clock) -> None:
        """Upload the outputs that are there, where the job wants that while it trains and a checkpoint was recorded.

        Called now and then; never waits, and raises nothing of the target.
        """

    def check_outputs(self, record: Recorder, clock: Clock) -> None:
        """Find out, while the ranks train, whether the outputs can be uploaded. Called now and then; never waits.

        Raises TransferRefused where they cannot be.
        """

    def nodes_with_outputs(self, record: Recorder) -> tuple[int, ...]:
        """The nodes of the last attempt that keep outputs until they are collected, before the end is recorded."""
        return ()

    def collect(self, record: Recorder, nodes: Sequence[int], clock: Clock) -> bool:
        """Collect the outputs of these nodes; returns whether that is over. Called again until it is.

        What cannot be collected is recorded as a warning.
        """
        return True

    def prepare_end(self, record: Recorder) -> None:
        """The end is about to be recorded: remove what outlives attempts, as far as that is quick and cannot fail."""

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """The end is recorded: remove the rest, and record what could not be removed.

        Tries again for a bounded time if `is_patient`, else once.
        """

    def watch_node_deletion(self, store: Store) -> None:
        """The supervisor has released the run: record when the nodes provisioned for it are deleted."""


MakeBackend = Callable[[Plan, Path], Backend]
"""Makes the backend of a run, from its plan and its folder."""
