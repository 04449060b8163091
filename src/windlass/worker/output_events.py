"""Converts the output of a node's ranks to node events: progress, metrics, first steps, checkpoints, losses, dropped
log lines.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from selectors import BaseSelector
from typing import TYPE_CHECKING, Any

from windlass.worker.event_log import EventLog
from windlass.worker.metric_scans import MetricScans
from windlass.worker.metrics import MetricPoints
from windlass.worker.protocol import (
    CheckpointReported,
    Dropped,
    FirstStep,
    LossNotFinite,
    NodeSpec,
    NodeWarning,
    OutputBegan,
    ProgressMade,
)
from windlass.worker.ranks import Rank, Ranks
from windlass.worker.run_warnings import RunWarnings
from windlass.worker.values import ShapeError

if TYPE_CHECKING:
    from windlass.worker.metric_files import FilePoint

PROGRESS_SECONDS = 0.2
DROPPED_SECONDS = 30.0
"""Minimum seconds between two reports about dropped output of a rank."""


class OutputEvents:
    """Reports new output of a node's ranks as events, each only once."""

    def __init__(self, spec: NodeSpec, events: EventLog, ranks: Ranks, *, are_logs_read: bool) -> None:
        """`are_logs_read` is False if readers get the output through an echo, which never drops output."""
        self._spec = spec
        self._events = events
        self._ranks = ranks
        self._are_logs_read = are_logs_read
        self.warnings = RunWarnings(spec, events)
        self._has_output = False
        self._first_step_of: int | None = None
        """Rank whose first step was reported; None before. Other ranks' first steps are not reported."""
        self.metrics = MetricPoints(spec.world_size)
        """Points of the ranks' metrics; other readers of metrics on the node add theirs."""
        self._scans: MetricScans | None = None
        """Scans of the files with metrics; None on nodes that do not read them."""
        self.progress: dict[str, object] = {}
        """Newest progress that was reported."""
        self._progress_at = 0.0
        self._dropped: dict[int, tuple[float, int]] = {}
        """For each rank with dropped output: monotonic time of the last report, and the dropped bytes reported in
        it."""

    def take(self, rank: Rank, *, at_end: bool = False) -> None:
        """Reports new output of a rank. With `at_end`, reports uncertain first steps too."""
        capture = rank.capture
        for found in capture.take_checkpoints():
            self.report_checkpoint(rank.number, found)
        for change in capture.take_losses():
            self._events.add(LossNotFinite(time.time(), rank.number, more=change))
        for point in capture.take_points():
            self.metrics.add(rank.number, *point)
        if isinstance(step := capture.progress.get("step"), int):
            self.metrics.add_step(rank.number, step, time.time(), time.monotonic())
        if self._first_step_of in (None, rank.number):
            first = capture.take_first_steps(at_end=at_end)
            if first is not None:
                self._first_step_of = rank.number
                self._events.add(FirstStep(time.time(), rank.number, first))
                self.warnings.began(first, capture.progress)
        if capture.progress.get("loss") is not None:
            self.warnings.trains()
        if "epoch" in capture.progress and "step" not in capture.progress:
            self.warnings.began_epoch(capture.progress["epoch"])
        if capture.has_output and not self._has_output:
            self._has_output = True
            self._events.add(OutputBegan(time.time()))
        if self._are_logs_read:
            self._report_dropped(rank, at_once=at_end)

    def report_checkpoint(self, rank: int, found: Mapping[str, Any]) -> None:
        """Reports a checkpoint event of a rank, unless its fields are invalid."""
        self.warnings.restored(found)
        with contextlib.suppress(ShapeError):
            self._events.add(CheckpointReported.from_json({"at": time.time(), "rank": rank, **found}))

    def report_nothing_saved(self, saved: str) -> None:
        """Reports that no file matches the job's pattern for checkpoints: a restart would begin training anew.

        `saved` is the path of a training state that the script has saved elsewhere; empty if there is none.
        """
        request, since = self._spec.resume, self._spec.since
        if request is None or self._spec.ranks[0].rank != 0:
            return
        # imported here because it imports zipfile, which would slow the start of nodes
        from windlass.worker import resume

        try:
            if resume.candidates(request, since):
                return
            event = resume.missing(request, since)
            # Without any sign of training or saving, the rank may have failed before it could save.
            if self._first_step_of is not None or event["entries"] or saved:
                elsewhere = {"saved": saved} if saved else {}
                self.report_checkpoint(0, {**event, **elsewhere, "at_end": True})
        except OSError:
            pass  # the folder is unreadable; ranks that use the folder have logged an error

    def progress_due(self) -> float:
        """Returns the seconds until new progress is due to be reported; infinity without new progress or disk space."""
        if self._newest_progress() == self.progress or self._events.is_blocked:
            return float("inf")
        return self._progress_at + PROGRESS_SECONDS - time.monotonic()

    def report_progress(self, *, at_once: bool = False) -> None:
        """Reports new progress if it is due or `at_once`."""
        if not at_once and self.progress_due() > 0:
            return
        progress = self._newest_progress()
        if progress != self.progress:
            self.progress = progress
            self._progress_at = time.monotonic()
            self._events.add(ProgressMade(time.time(), progress))

    def read_files(self, selector: BaseSelector) -> None:
        """Begins to read the files into which the script writes metrics, on the node of rank 0 only.

        Nodes may share folders, and libraries write these files on rank 0.
        """
        spec = self._spec
        if spec.ranks[0].rank != 0:
            return

        def take(found: list[FilePoint]) -> None:
            for source, point in found:
                self.metrics.add(0, source, *point)

        def note(message: str) -> None:
            self._events.add(NodeWarning(time.time(), message))

        env, skipped = {**os.environ, **spec.env}, spec.collect.skip if spec.collect is not None else ()
        self._scans = MetricScans(env, spec.cwd, skipped, selector, take, note)

    def metrics_due(self) -> float:
        """Returns the seconds until points of metrics, or a scan of the files with metrics, are due."""
        if self._events.is_blocked:
            return float("inf")
        return min(self.metrics.due(time.monotonic()), self._scan_due())

    def _scan_due(self) -> float:
        """Returns the seconds until the next scan is due. None begins before all ranks have started, because a process
        with threads must not fork.
        """
        if self._scans is None or len(self._ranks) < len(self._spec.ranks):
            return float("inf")
        return self._scans.due()

    def report_metrics(self, *, at_once: bool = False, at_end: bool = False) -> None:
        """Reports points of metrics that are due; with `at_once`, all points. With `at_end`, also reads the files with
        metrics for the last time. Without disk space, points are lost at the end, because the node's last events need
        the reserve.
        """
        if at_end and self._scans is not None:
            self._scans.finish()
        elif self._scans is not None and self._scan_due() <= 0:
            self._scans.begin()
        at_once |= at_end
        if self._events.is_blocked:
            return
        for event in self.metrics.take(time.time(), time.monotonic(), at_once=at_once):
            if not self._events.is_blocked:
                self._events.add(event)

    def _newest_progress(self) -> dict[str, object]:
        reporting = [rank for rank in self._ranks if rank.capture.progress]
        if not reporting:
            return {}
        progress = {"rank": reporting[0].number, **reporting[0].capture.progress}
        rates = [rank.capture.progress.get("samples_per_second") for rank in reporting]
        known = [rate for rate in rates if isinstance(rate, (int, float))]
        if known:
            progress["samples_per_second"] = round(sum(known), 1)
        return progress

    def _report_dropped(self, rank: Rank, *, at_once: bool) -> None:
        """Reports how much output of a rank was dropped because the disk was full, if more was dropped since the last
        report.
        """
        num_bytes, num_lines = rank.capture.dropped_bytes, rank.capture.dropped_lines
        at, known = self._dropped.get(rank.number, (float("-inf"), 0))
        if num_bytes > known and (at_once or time.monotonic() - at >= DROPPED_SECONDS):
            self._dropped[rank.number] = (time.monotonic(), num_bytes)
            text = f"rank {rank.number}: no space left, {num_bytes} bytes ({num_lines} lines) of its log were not kept"
            self._events.add(NodeWarning(time.time(), text, dropped=Dropped(rank.number, num_bytes, num_lines)))
