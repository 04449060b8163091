"""A fake clock, backend and run for tests of the supervisor, without processes, threads or waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.clock import START, FakeClock

from windlass.errors import EngineError
from windlass.plan.plan import Plan, Policy
from windlass.runs.clock import Clock
from windlass.runs.events import Event, entry_of
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store
from windlass.supervise.backend import Attempt, Backend, Intent, Node, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.supervisor import Supervisor
from windlass.worker.protocol import (
    CollectionBegan,
    NodeEnded,
    NodeEvent,
    NodeStarted,
    RankFailure,
    WorkerFailed,
    event_of,
)

POLICY = Policy(
    timeout_seconds=None, grace_seconds=10.0, hang_seconds=None, max_restarts=0, restart_on=("failure",), min_nodes=1
)


class FakeNode(Node):
    """Node that reports events set by a test; `obeys` is the effect of each intent."""

    exit_code = 1

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path, clock: Clock) -> None:
        super().__init__(number, ranks, folder)
        self.clock = clock
        self.is_alive = True
        self.words = ""
        self.lost_why, self.lost_since = "", 0.0
        self.events: list[NodeEvent] = []
        self.sent: list[tuple[float, Intent]] = []
        """What it was sent, and how many seconds after the start."""
        self.obeys: dict[Intent, Callable[[], object]] = {
            Intent.STOP: lambda: self.end(-15, ended_by_us=True),
            Intent.STOP_NOW: lambda: self.end(-9, ended_by_us=True),
            Intent.KILL: self.die,
        }

    def report(self, kind: str, **data: Any) -> None:
        """Reports an event."""
        self.events.append(event_of({"kind": kind, "at": self.clock.time(), **data}))

    def begin(self) -> None:
        """Reports that the worker has started its ranks."""
        self.report("node", start="cold", pid=7, start_ticks=1, boot="")
        for rank in self.ranks:
            self.report("rank", rank=rank, pid=70 + rank)

    def end(self, *exit_codes: int, tail: str = "", ended_by_us: bool = False, **more: Any) -> None:
        """Reports the end of all ranks; a single exit code applies to all of them."""
        if not self.is_alive:
            return
        codes = exit_codes if len(exit_codes) == len(self.ranks) else exit_codes * len(self.ranks)
        now = self.clock.time()
        failures = [
            RankFailure(rank, code, now, tail, ended_by_us=ended_by_us, **more)
            for rank, code in zip(self.ranks, codes, strict=True)
            if code
        ]
        for rank, code in zip(self.ranks, codes, strict=True):
            self.report("rank", rank=rank, exit_code=code)
        if failures and not ended_by_us:
            self.report("failing", rank=failures[0].rank, waited=False)
        self.events.append(NodeEnded(now, tuple(failures), "stop" if ended_by_us else "itself"))
        self.is_alive = False

    def die(self) -> None:
        """Ends the node without reporting anything."""
        self.is_alive = False

    def updates(self) -> Iterator[NodeEvent]:
        events, self.events = self.events, []
        for event in events:
            if isinstance(event, NodeStarted):
                self.begun, self.pid = True, event.pid
            elif isinstance(event, NodeEnded):
                self.take_end(event.failures)
            elif isinstance(event, CollectionBegan):
                self.is_collecting = True
            elif isinstance(event, WorkerFailed):
                self.worker_failed = bool(event.message)
            yield event

    def lives(self) -> bool:
        return self.is_alive

    def send(self, intent: Intent) -> None:
        self.sent.append((self.clock.time() - START, intent))
        if self.is_alive and intent in self.obeys:
            self.obeys[intent]()

    def last_words(self) -> str:
        return self.words

    def why_lost(self) -> str:
        return self.lost_why

    def last_sign_of_life(self) -> float:
        return self.lost_since

    @property
    def intents(self) -> list[Intent]:
        """Intents that were sent to the node, without repetitions."""
        return list(dict.fromkeys(intent for _, intent in self.sent))


class FileNode(Node):
    """Node whose events are read from a file that a test writes."""

    exit_code = 1

    def lives(self) -> bool:
        return True

    def send(self, intent: Intent) -> None:
        """Does nothing, because the node has no process."""


class FakeAttempt(Attempt):
    nodes: tuple[FakeNode, ...]
    is_closed = False
    died_at = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waiting: dict[int, float] = {}
        """Nodes for which there is no capacity, and since when."""

    def without_capacity(self) -> dict[int, float]:
        return self.waiting

    def last_sign_of_life(self) -> float:
        return self.died_at

    def close(self) -> None:
        self.is_closed = True


class FakeBackend(Backend):
    """Target controlled by a test; `script` is called with each attempt that is started or adopted."""

    def __init__(self, procs_per_node: int = 1, *, outlives_supervisor: bool = False) -> None:
        self.procs_per_node = procs_per_node
        self.outlives_supervisor = outlives_supervisor
        self.script: Callable[[FakeAttempt], object] = lambda attempt: None
        self.lost_to_another = False
        self.alive = False
        self.away: set[int] = set()
        """Nodes that cannot be reached."""
        self.down: TargetUnavailable | None = None
        self.started: set[Path] = set()
        self.starts: list[EngineError] = []
        """What each start fails with, in order; then it succeeds."""
        self.admissions: list[bool | EngineError] = []
        """What each request for admission answers, in order; then it is given."""
        self.stagings: list[bool | EngineError] = []
        """What each request to stage the data answers, in order; then it is there."""
        self.uploads: list[bool | EngineError] = []
        """What each request to upload the outputs answers, in order; then they are there."""
        self.checks: list[EngineError | None] = []
        """What each look at the check of the outputs finds, in order."""
        self.with_outputs: tuple[int, ...] = ()
        """Nodes that keep outputs until they are collected."""
        self.collections: list[bool | EngineError] = []
        """What each request to collect them answers, in order; then that is over."""
        self.collected: list[tuple[int, ...]] = []
        self.holds: list[bool | EngineError] = []
        """What is known of the holder at each question, in order; then this supervisor is it."""
        self.cleaned_up: list[Phase] = []
        self.attempts: list[FakeAttempt] = []

    @property
    def is_lost_to_another(self) -> bool:
        return self.lost_to_another

    def hold(self) -> bool:
        answer = self.holds.pop(0) if self.holds else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def admit(self, record: Recorder, clock: Clock) -> bool:
        answer = self.admissions.pop(0) if self.admissions else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def stage(self, record: Recorder, clock: Clock) -> bool:
        answer = self.stagings.pop(0) if self.stagings else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def upload(self, record: Recorder, clock: Clock) -> bool:
        answer = self.uploads.pop(0) if self.uploads else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def check_outputs(self, record: Recorder, clock: Clock) -> None:
        if self.checks and (error := self.checks.pop(0)) is not None:
            raise error

    def nodes_with_outputs(self, record: Recorder) -> tuple[int, ...]:
        return self.with_outputs

    def collect(self, record: Recorder, nodes: Sequence[int], clock: Clock) -> bool:
        self.collected.append(tuple(nodes))
        answer = self.collections.pop(0) if self.collections else True
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def is_started(self, folder: Path) -> bool:
        return folder in self.started

    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> FakeAttempt:
        if self.starts:
            raise self.starts.pop(0)
        self.started.add(folder)
        return self.adopt(folder, number, members, clock)

    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> FakeAttempt:
        folder.mkdir(parents=True, exist_ok=True)
        procs = self.procs_per_node
        nodes = [
            FakeNode(member, tuple(range(place * procs, (place + 1) * procs)), folder, clock)
            for place, member in enumerate(members)
        ]
        self.attempts.append(FakeAttempt(folder, nodes))
        self.script(self.attempts[-1])
        return self.attempts[-1]

    def unreachable(self) -> set[int]:
        return self.away

    def trouble(self) -> TargetUnavailable | None:
        return self.down

    def lives(self) -> bool:
        return self.alive

    def prepare_end(self, record: Recorder) -> None:
        assert not record.status.phase.is_terminal

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        self.cleaned_up.append(record.writer.store.status(record.status.id).phase)


class FakeRun:
    """Run with its record, its backend and its clock."""

    def __init__(self, home: Path, *, nodes: int = 1, procs: int = 1, outlives: bool = False, **policy: Any) -> None:
        self.store = Store(home)
        self.clock = FakeClock()
        job = {"command": ["true"]}
        kept = POLICY.replace(**{"min_nodes": nodes, **policy})
        self.plan = Plan("r-1", "case", "bed", "fake", "out", nodes, procs, kept, job, (), ())
        self.backend = FakeBackend(procs, outlives_supervisor=outlives)
        self.writer: RunWriter = self.store.create(
            "r-1", name="case", target="bed", output_dir="out", plan=self.plan.to_text(), time=START, restarts=0
        )
        self.dir = self.store.run_dir("r-1")

    def supervisor(self) -> Supervisor:
        return Supervisor(self.writer, self.plan, self.dir, self.backend, self.clock)

    def run(self, script: Callable[[FakeAttempt], object] | None = None) -> Status:
        """Supervises the run until it ends."""
        self.backend.script = script or self.backend.script
        self.supervisor().run()
        return self.status

    def begin(self, at: float | None = START) -> None:
        """Records an attempt that another supervisor has started."""
        count, procs = self.plan.num_nodes, self.plan.procs_per_node
        nodes = [list(range(node * procs, (node + 1) * procs)) for node in range(count)]
        data = {"number": 1, "world_size": self.plan.world_size, "nodes": nodes, "members": list(range(count))}
        self.writer.append(entry_of("attempt", {**data, "reason": "first"}), at=at)
        self.backend.started.add(self.dir / "attempt-1")

    def close(self) -> None:
        self.writer.close()
        self.store.close()

    @property
    def node(self) -> FakeNode:
        """First node of the newest attempt."""
        return self.backend.attempts[-1].nodes[0]

    @property
    def status(self) -> Status:
        return self.store.status("r-1")

    @property
    def ends(self) -> list[tuple[str, str | None]]:
        """Returns how each attempt ended, and why."""
        return [(attempt.phase.value, attempt.reason) for attempt in self.status.attempts]

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.store.events("r-1") if event.kind == kind]

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events(kind)]

    def kinds(self, *wanted: str) -> list[str]:
        return [event.kind for event in self.store.events("r-1") if not wanted or event.kind in wanted]


def ends_with(code: int) -> Callable[[FakeAttempt], None]:
    """Returns a script in which the only node of an attempt starts and ends with this exit code."""

    def script(attempt: FakeAttempt) -> None:
        attempt.nodes[0].begin()
        attempt.nodes[0].end(code)

    return script
