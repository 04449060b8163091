"""Backend of the fake engine: nodes whose ranks are threads of this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.compat import override
from windlass.engines.fake.rank import FakeRank, Play, RankThread
from windlass.plan.compose import AttemptFacts, Rendezvous, compose
from windlass.plan.environment import consecutive_ports
from windlass.plan.plan import Plan
from windlass.plan.steps import FolderStep
from windlass.runs.clock import Clock
from windlass.supervise.backend import Attempt, Backend, Intent, Node
from windlass.supervise.recorder import Recorder
from windlass.worker.logfile import LogFile
from windlass.worker.metrics import MetricPoints
from windlass.worker.protocol import (
    NodeEnded,
    NodeEvent,
    NodeSpec,
    OutputBegan,
    ProgressMade,
    RankChanged,
    RankFailing,
    StacksTaken,
    event_of,
)
from windlass.worker.resume import add_resume_arguments

MASTER_ADDR: Final = "127.0.0.1"
FIRST_PORT: Final = 29500


class ThreadClock(Clock):
    """The real time, for a supervisor that only threads wake."""

    def __init__(self) -> None:
        super().__init__()
        self._woken = threading.Event()

    @override
    def wait(self, seconds: float) -> None:
        self._woken.wait(max(0.0, seconds))
        self._woken.clear()

    @override
    def wake(self) -> None:
        self._woken.set()


class FakeNode(Node):
    """One node. An adopted node has no threads, because threads end with their process."""

    exit_code = -signal.SIGKILL

    def __init__(self, spec: NodeSpec, folder: Path, clock: Clock) -> None:
        super().__init__(spec.node, tuple(rank.rank for rank in spec.ranks), folder)
        self.begun = True
        self._spec = spec
        self._clock = clock
        self._kill_at = float("inf")
        self._threads: list[RankThread] = []
        self._progress: dict[str, Any] = {}
        self._metrics = MetricPoints(spec.world_size)
        self._found = list(spec.found)
        self._spoke = self._is_failing = self._is_asked_for_stacks = False

    def start(self, play: Play) -> None:
        """Starts the ranks of the node. Raises OSError."""
        for spec in self._spec.ranks:
            log = LogFile(str(self.folder), spec.rank, self._spec.progress)
            rank = FakeRank(self._spec, spec, log, self._clock.wake)
            self._threads.append(RankThread(rank, log, play, self._clock.wake))

    @override
    def lives(self) -> bool:
        return any(thread.exit_code is None for thread in self._threads)

    @override
    def send(self, intent: Intent) -> None:
        if intent is Intent.DUMP_STACKS:
            self._is_asked_for_stacks = True
            self._clock.wake()
            return
        if intent is Intent.STOP:
            self._kill_at = min(self._kill_at, self._clock.monotonic() + self._spec.grace_seconds)
        for thread in self._threads:
            thread.send(signal.SIGTERM if intent is Intent.STOP else signal.SIGKILL)

    def updates(self) -> Iterator[NodeEvent]:
        """Yields the events of the threads since the last call; there is no events file."""
        if self._clock.monotonic() >= self._kill_at:
            self.send(Intent.KILL)
        is_over = not self.lives()  # read before the output, so that the output of ended ranks is complete
        ended = [thread for thread in self._threads if thread.exit_code is not None and not thread.reported]
        yield from self._output(self._clock.time())
        yield from self._metrics.take(self._clock.time(), self._clock.monotonic(), at_once=is_over)
        if self._is_asked_for_stacks:
            self._is_asked_for_stacks = False
            yield StacksTaken(self._clock.time(), ())  # no stacks: threads wait in code of this engine
        for thread in ended:
            thread.reported = True
            yield RankChanged(thread.ended_at, thread.rank.rank, exit_code=thread.exit_code)
            if thread.exit_code and not self._is_failing:
                self._is_failing = True
                yield RankFailing(thread.ended_at, thread.rank.rank)
        if self._threads and is_over:
            self.take_end([thread.failure() for thread in self._threads if thread.exit_code])
            yield NodeEnded(self._clock.time(), tuple(self.failures))

    def _output(self, now: float) -> Iterator[NodeEvent]:
        found, self._found = self._found, []
        for event in found:
            yield event_of({"kind": "checkpoint", "at": now, "rank": self.ranks[0], **event})
        if not self._spoke and any(thread.log.has_output for thread in self._threads):
            self._spoke = True
            yield OutputBegan(now)
        reported = [dict(thread.log.progress) for thread in self._threads if thread.log.progress]
        rates = [one["samples_per_second"] for one in reported if "samples_per_second" in one]
        newest = {**(reported or [{}])[0], **({"samples_per_second": sum(rates)} if rates else {})}  # type: ignore[arg-type]
        if newest != self._progress:
            self._progress = newest
            yield ProgressMade(now, newest)
        for thread in self._threads:
            for event in thread.rank.take_checkpoints():
                yield event_of({"kind": "checkpoint", "at": now, "rank": thread.rank.rank, **event})
            for point in thread.rank.take_points():
                self._metrics.add(thread.rank.rank, *point)


class FakeBackend(Backend):
    """This process, for one run."""

    def __init__(self, plan: Plan, play: Play) -> None:
        self._plan = plan
        self._play = play

    @override
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        for made in self._plan.every(FolderStep):
            for path in (made.path, made.checkpoints):
                Path(path).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        here = (MASTER_ADDR,) * len(members)
        launcher, procs = self._plan.nodes.launcher, self._plan.procs_per_node
        distinct = consecutive_ports(launcher, 1, len(members) * procs, number)  # all nodes share one address
        meet = Rendezvous(MASTER_ADDR, FIRST_PORT + number, here, distinct)
        asked = record.history.continuation(record.status)
        facts = AttemptFacts(number, str(folder), meet, record.status.times.created_at, continuation=asked)
        try:
            specs = add_resume_arguments(compose(self._plan.nodes, members, facts))
        except ValueError as error:
            raise OSError(str(error)) from error
        nodes = [FakeNode(spec, folder, clock) for spec in specs]
        for node in nodes:
            node.start(self._play)
        return Attempt(folder, nodes)

    @override
    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        return Attempt(folder, [FakeNode(spec, folder, clock) for spec in compose(self._plan.nodes, members)])
