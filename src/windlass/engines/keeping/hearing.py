"""Turns what the nodes of an attempt tell into events of the run's record; the same for whoever plays the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from windlass.engines.keeping.ground import Node
from windlass.engines.keeping.recording import BEGINNING, LIVE_PHASES, Recording
from windlass.runs.record import Phase

Event = Mapping[str, Any]
"""What a node tells: its `kind`, `at` in unix seconds, and what the kind carries."""
PROGRESS_EVENT_SHARE: Final = 0.01
"""Progress goes into the history at intervals of this share of the run's age: a long run has hundreds of them."""

REPLAY_SECONDS: Final = 60.0
"""Progress that is older when it is heard is of the time before a take-up: only what the history has of it matters."""


class Hearing:
    """Hears the nodes of one attempt. What asks for a decision is left to those who can end the attempt."""

    def __init__(self, record: Recording, progress: ProgressOfNodes) -> None:
        self._record = record
        self._progress = progress
        self._stages: dict[int, Phase] = {}
        """How far each node has been brought, by number; of nodes that have to be brought first."""
        self._kinds: dict[str, Callable[[Node, Event], None]] = {
            "node": self._node, "rank": self._rank, "output": self._output, "progress": self._of_progress,
            "checkpoint": self._checkpoint, "first-step": self._first_step, "warning": self._as_it_is,
            "loss": self._as_it_is, "queue": self._as_it_is, "machine": self._as_it_is, "stage": self._stage,
            "alive": self._alive,
        }  # fmt: skip

    def hear(self, node: Node, event: Event) -> bool:
        """Write down what a node tells; gives False for what is not of these kinds. Raises StoreError."""
        hear = self._kinds.get(event["kind"])
        if hear is not None:
            hear(node, event)
        return hear is not None

    def _node(self, node: Node, event: Event) -> None:
        data = {"node": node.number, "start": event["start"], "pid": node.pid, "start_ticks": node.start_ticks}
        self._record.once("node", data, at=event["at"])

    def _rank(self, _node: Node, event: Event) -> None:
        known = next((state for state in self._record.status.ranks if state.rank == event["rank"]), None)
        if known is None:
            return  # the attempt has no such rank
        if ("pid" in event and known.pid is None) or ("exit_code" in event and known.exit_code is None):
            self._record.note("rank", carried(event), at=event["at"])

    def _output(self, _node: Node, event: Event) -> None:
        if self._record.status.phase in BEGINNING:
            self._record.enter(Phase.TRAINING, at=event["at"])

    def _stage(self, node: Node, event: Event) -> None:
        """The attempt is as far as the node that is least far."""
        self._stages[node.number] = Phase(event["stage"])
        self._record.begin_in(min(self._stages.values(), key=BEGINNING.index), at=event["at"])

    def _alive(self, node: Node, event: Event) -> None:
        """Of interest to a second supervisor: the attempt has lived through the time without one."""
        if self._record.history.take_ups:
            self._record.note("observed", {"node": node.number}, at=event["at"])

    def _of_progress(self, node: Node, event: Event) -> None:
        self._progress.take(node.number, event["progress"], at=event["at"])

    def _checkpoint(self, node: Node, event: Event) -> None:
        """Each rank logs that it was restored, and so may a script that Windlass has told where to go on from."""
        if event.get("source") != "log" or self._record.history.now.is_news_of_restore(event):
            self._as_it_is(node, event)

    def _first_step(self, node: Node, event: Event) -> None:
        if self._record.history.now.first_step_of in (None, event["rank"]):
            self._as_it_is(node, event)

    def _as_it_is(self, _node: Node, event: Event) -> None:
        self._record.once(event["kind"], carried(event), at=event["at"])


class ProgressOfNodes:
    """One progress of what several nodes tell: their rates add up, all else is the lowest node's that tells any."""

    def __init__(self, record: Recording, num_nodes: int) -> None:
        self._record = record
        self._num_nodes = num_nodes
        self._newest = dict(record.status.progress)
        self._next_event_at = 0.0
        self._rates: dict[int, float] = {}
        self._steps_from = num_nodes
        """The lowest node that has told a step: the run's progress is that of its lowest rank that tells any."""

    def begin(self) -> None:
        """A new attempt: its nodes have reported nothing, and its first progress becomes an event."""
        self._newest.clear()
        self._next_event_at = 0.0
        self._rates.clear()
        self._steps_from = self._num_nodes

    def take(self, node: int, progress: Mapping[str, Any], *, at: float) -> None:
        """What a node tells, at `at`; in the record once it is due. Raises StoreError."""
        record = self._record
        told = self._of_run(node, progress)
        self._newest = {**self._newest, **told, "at": at}
        if isinstance(told.get("step"), int) and record.history.reach(told["step"]):
            record.note("caught-up", {"step": record.history.highest}, at=at)
        if record.is_told(at):
            return
        record.enter(LIVE_PHASES.get(str(progress.get("phase", "training")), Phase.TRAINING), at=at)
        is_due = at >= self._next_event_at
        if is_due or time.time() - at < REPLAY_SECONDS:
            record.writer.set_progress(self._newest)
        if is_due:
            self._next_event_at = at + max(1.0, PROGRESS_EVENT_SHARE * (at - record.status.created_at))
            record.note("progress", self._newest, at=at)

    def _of_run(self, node: int, progress: Mapping[str, Any]) -> dict[str, Any]:
        """What of a node's progress is the run's."""
        told = {name: value for name, value in progress.items() if name != "phase"}
        rate = told.get("samples_per_second")
        if isinstance(rate, int | float):  # a script may report "inf"
            self._rates[node] = rate
            told["samples_per_second"] = round(sum(self._rates.values()), 1)
        if "step" in told:
            self._steps_from = min(self._steps_from, node)
        if node > self._steps_from:
            return {name: told[name] for name in ("samples_per_second",) if name in told}
        return told


def carried(event: Event) -> dict[str, Any]:
    """What an event of a node carries."""
    return {name: value for name, value in event.items() if name not in ("kind", "at")}
