"""Event ingestion: converts node events to events of the run's record, in the same way for every backend."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from windlass.runs import events
from windlass.runs.metrics import MetricsFile
from windlass.runs.node_events import RankSeen, Reported, StageReached
from windlass.runs.phase import Phase
from windlass.runs.warnings import is_finite_again
from windlass.supervise.backend import Node
from windlass.supervise.recorder import BEGINNING, LIVE_PHASES, Recorder
from windlass.worker.protocol import (
    CheckpointReported,
    CodeFiles,
    CollectionBegan,
    FirstStep,
    LossNotFinite,
    MetricsReported,
    NodeEvent,
    NodeStarted,
    NodeWarning,
    OutputBegan,
    ProgressMade,
    RankChanged,
)

PROGRESS_EVENT_SHARE: Final = 0.01
"""Interval between recorded progress events as a share of the run's age, so that a long run has hundreds of them."""
RECORDED: Final = (CheckpointReported, FirstStep, LossNotFinite, NodeWarning)
"""Events that are recorded unchanged."""


class EventIngestion:
    """Records those node events of one attempt on which `AttemptMonitor` does not act."""

    def __init__(
        self, record: Recorder, progress: RunProgress, num_staged: int = 0, metrics: MetricsFile | None = None
    ) -> None:
        """`num_staged` is the number of nodes that report their start phase, on targets that provision nodes.

        `metrics` keeps the points that nodes report; without it, points are not kept.
        """
        self._record = record
        self._progress = progress
        self._num_staged = num_staged
        self._metrics = metrics
        self._has_output = False
        self._stages: dict[int, Phase] = {}
        """Start phase of each node by its number, on targets that provision nodes."""

    def take(self, node: Node, event: NodeEvent) -> None:
        """Records an event. Raises StoreError."""
        if isinstance(event, NodeStarted):
            self._record.once(events.NodeStarted(node.number, event.pid, event.start_ticks, event.start), at=event.at)
        elif isinstance(event, RankChanged):
            self._rank(event)
        elif isinstance(event, OutputBegan):
            self._has_output = True
            if self._stages:
                self._stages[node.number] = Phase.STARTING
            self._train(event.at)
        elif isinstance(event, ProgressMade):
            self._progress.take(node.number, event.progress, at=event.at)
        elif isinstance(event, MetricsReported) and self._metrics is not None:
            # On a full disk points are lost: training and its record go first.
            with contextlib.suppress(OSError):
                attempt = self._record.status.attempts[-1].number
                self._metrics.append(attempt, node.number, event.seq, event.series)
        elif isinstance(event, StageReached):
            # The phase of the attempt is that of the node with the least progress.
            self._stages[node.number] = Phase(event.stage)
            self._record.begin_in(min(self._stages.values(), key=BEGINNING.index), at=event.at)
            if self._has_output:
                self._train(event.at)
        elif isinstance(event, RankSeen):
            # After an adoption, this event proves that the attempt was alive without a supervisor.
            if self._record.history.take_ups:
                self._record.note(events.NodeObserved(node.number), at=event.at)
        elif isinstance(event, Reported):
            self._record.once(event.entry, at=event.at)
        elif isinstance(event, (CollectionBegan, CodeFiles)):
            self._record.once(events.entry_of(event.kind, {"node": node.number, **event.data()}), at=event.at)
        elif isinstance(event, RECORDED) and self._is_new(event):
            self._record.once(events.entry_of(event.kind, event.data()), at=event.at)

    def _train(self, at: float) -> None:
        """Enters the training phase at a rank's first output, unless the attempt still waits for a node."""
        are_all_there = len(self._stages) >= self._num_staged and set(self._stages.values()) <= {Phase.STARTING}
        if self._record.status.phase in BEGINNING and (are_all_there or not self._stages):
            self._record.enter(Phase.TRAINING, at=at)

    def save_progress(self) -> None:
        """Writes the newest progress, once for a batch of events, because an adoption reads many. Raises StoreError."""
        self._progress.save()

    def _rank(self, event: RankChanged) -> None:
        known = next((state for state in self._record.status.ranks if state.rank == event.rank), None)
        if known is None:
            return
        if (event.pid is not None and known.pid is None) or (event.exit_code is not None and known.exit_code is None):
            self._record.note(events.entry_of(event.kind, event.data()), at=event.at)

    def _is_new(self, event: NodeEvent) -> bool:
        """Whether to record an event that several ranks of the attempt may report."""
        now = self._record.history.now
        if isinstance(event, CheckpointReported):
            # Every rank logs a restore, even of a checkpoint that Windlass has passed to the script.
            return event.source != "log" or now.is_new_restore(event.step)
        if isinstance(event, FirstStep):
            return now.first_step_of in (None, event.rank)
        return True


class RunProgress:
    """Progress of a run, computed from its nodes' progress. Rates are summed; other fields come from the lowest node
    that reports any.
    """

    def __init__(self, record: Recorder, num_nodes: int) -> None:
        self._record = record
        self._num_nodes = num_nodes
        self._newest = record.status.progress.to_json()
        self._is_unsaved = False
        self._next_event_at = 0.0
        self._rates: dict[int, float] = {}
        self._steps_from = num_nodes
        """Lowest-numbered node that has reported a step."""

    def begin(self) -> None:
        """Starts a new attempt without any node's progress. Its first progress becomes an event."""
        self._newest = {}  # the old object is not cleared, because another thread may still write it to the cluster
        self._next_event_at = 0.0
        self._rates.clear()
        self._steps_from = self._num_nodes

    def take(self, node: int, progress: Mapping[str, Any], *, at: float) -> None:
        """Adds progress that a node reported at `at`, and records an event if one is due. Raises StoreError."""
        record = self._record
        reported = self._of_run(node, progress)
        # Nodes are read in turn, but the time must not decrease: a machine that copies the record keeps the progress
        # with the later time.
        last = self._newest.get("at")
        self._newest = {**self._newest, **reported, "at": max(at, last) if isinstance(last, int | float) else at}
        step, lost = reported.get("step"), record.history.highest
        if isinstance(step, int) and record.history.reach(step) and lost is not None:
            record.note(events.CaughtUp(lost), at=at)
        if record.is_recorded(at):
            return
        record.enter(LIVE_PHASES.get(str(progress.get("phase", "training")), Phase.TRAINING), at=at)
        self._is_unsaved = True
        newest = events.Progress.from_json(self._newest)
        if at >= self._next_event_at or is_finite_again(record.status, newest):
            self._next_event_at = at + max(1.0, PROGRESS_EVENT_SHARE * (at - record.status.times.created_at))
            record.note(newest, at=at)

    def save(self) -> None:
        """Writes progress reported since the last call. Raises StoreError."""
        if self._is_unsaved:
            self._is_unsaved = False
            self._record.writer.set_progress(self._newest)

    def _of_run(self, node: int, progress: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the part of a node's progress that counts for the run."""
        reported = {name: value for name, value in progress.items() if name != "phase"}
        rate = reported.get("samples_per_second")
        if isinstance(rate, int | float):  # a script may report the text "inf"
            self._rates[node] = rate
            reported["samples_per_second"] = round(sum(self._rates.values()), 1)
        if "step" in reported:
            self._steps_from = min(self._steps_from, node)
        if node > self._steps_from:
            return {name: reported[name] for name in ("samples_per_second",) if name in reported}
        return reported
