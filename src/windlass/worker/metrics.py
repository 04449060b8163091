"""Collects the points of metrics of a node's ranks, and returns them as node events of bounded size and number."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from windlass.worker.protocol import MetricsReported
from windlass.worker.values import json_safe

FLUSH_SECONDS = 2.0
"""Seconds between two flushes."""
MAX_POINTS = 200
"""Maximum points of a series in one flush. More points are thinned; minima and maxima are kept."""
FULL_POINTS, LATE_POINTS = 10_000, 10
"""After `FULL_POINTS` points, a series is flushed late: less often, and with at most about `LATE_POINTS` points."""
FULL_POINTS_OF_NODE = 200_000
"""Number of points of all series of a node after which all of them are flushed late. The metrics file of a run has no
more points, and a supervisor stores all events of a node, possibly in a pod with a disk of 1 GiB."""
LATE_SHARE, MAX_LATE_SECONDS = 0.01, 60.0
"""Pause between two late flushes: as a share of the age of the series, and its maximum in seconds."""
LATE_SERIES = 40
"""Number of series above which this pause grows in proportion, so that a node reports at most some 20 MB a day."""
MAX_EVENT_BYTES = 8 << 10
"""Maximum length of an event in JSON."""
ALL_RANKS = 16
"""Largest number of ranks whose values are all kept. In larger jobs, only the values of rank 0 and those that Windlass
measures (`NODE`) are kept."""
MAX_SERIES = 1_000
"""Maximum number of series of a node; points of further series are not kept."""
NAME_CHARS = 200
STEP_SECONDS = "step_seconds"
"""Name of the series with the mean seconds per step of a rank, which Windlass measures."""
MIN_STEP_WINDOW, STEP_WINDOW_SHARE = 5.0, 0.01
"""Seconds over which the mean is taken: a share of the age of the attempt, and its minimum. A run of a week then has
hundreds of points."""
NODE = "node"
_HEAD_BYTES = 200


class _Columns:
    """Points of a series that were not flushed yet."""

    def __init__(self) -> None:
        self.points: list[tuple[float | None, float, Any]] = []
        """Step, Unix seconds and value of each point."""
        self.num_taken = 0
        self.began_at = self.taken_at = -math.inf
        """Monotonic times of the first and the newest flush."""

    def is_due(self, now: float, num_series: int) -> bool:
        """Whether the next late flush of the series is due."""
        pause = min(MAX_LATE_SECONDS, LATE_SHARE * (now - self.began_at))
        return now - self.taken_at >= pause * max(1.0, num_series / LATE_SERIES)

    def take(self, now: float, *, is_late: bool) -> list[tuple[float | None, float, Any]]:
        """Returns the points, thinned, and removes them."""
        points = thinned(self.points, LATE_POINTS if is_late else MAX_POINTS)
        self.began_at = now if self.num_taken == 0 else self.began_at
        self.num_taken, self.taken_at, self.points = self.num_taken + len(points), now, []
        return points


class MetricPoints:
    """Points of the metrics of a node's ranks in one attempt."""

    def __init__(self, world_size: int) -> None:
        """`world_size` is the number of ranks of the job; with more than `ALL_RANKS`, fewer series are kept."""
        self._world_size = world_size
        self._series: dict[tuple[int, str, str], _Columns] = {}
        self._num_taken = 0
        self._seq = 0
        self._flushed_at = -math.inf
        self._has_points = False
        self._steps: dict[int, tuple[int, float, int, float, float]] = {}
        """For each rank: step and monotonic time of the beginning of its window, and of its newest step, and the Unix
        seconds of the latter."""
        self._first_step_at: float | None = None

    def add(self, rank: int, source: str, name: str, step: float | None, time: float, value: float | str) -> None:
        """Adds a point. `time` is Unix seconds; NaN and infinities may be given as "nan", "inf" and "-inf".

        A step that is NaN or infinite counts as None.
        """
        if self._world_size > ALL_RANKS and rank != 0 and source != NODE:
            return
        key = (rank, source, name[:NAME_CHARS])
        columns = self._series.get(key)
        if columns is None:
            if len(self._series) >= MAX_SERIES:
                return
            columns = self._series[key] = _Columns()
        if step is not None and not abs(step) < math.inf:
            step = None  # such as an empty cell that pandas wrote as nan
        columns.points.append((step, round(time, 3), json_safe(value)))
        self._has_points = True
        if len(columns.points) >= 10 * MAX_POINTS:
            columns.points = thinned(columns.points, MAX_POINTS)

    def add_step(self, rank: int, step: int, time: float, now: float) -> None:
        """Adds a step that a rank has reached at `time`, in Unix seconds; `now` is the monotonic time. At the end of
        each window, adds the rank's mean seconds per step.
        """
        if self._first_step_at is None:
            self._first_step_at = now
        begun, begun_at, last, _, _ = self._steps.get(rank, (step, now, step, now, time))
        if step < last:  # the steps of an epoch begin anew
            begun, begun_at = step, now
        self._steps[rank] = (begun, begun_at, step, now, time)
        if now - begun_at >= max(MIN_STEP_WINDOW, STEP_WINDOW_SHARE * (now - self._first_step_at)):
            self._end_window(rank)

    def due(self, now: float) -> float:
        """Returns the seconds from the monotonic time `now` until the next flush; infinity without points."""
        return FLUSH_SECONDS - (now - self._flushed_at) if self._has_points else math.inf

    def take(self, time: float, now: float, *, at_once: bool = False) -> list[MetricsReported]:
        """Returns the events that are due at the monotonic time `now`; with `at_once`, with all points. `time` is the
        time of the events in Unix seconds.
        """
        if at_once:
            self._end_windows()
        elif self.due(now) > 0:
            return []
        self._flushed_at, self._has_points = now, False
        batches: list[tuple[int, dict[str, Any]]] = []
        for key, columns in self._series.items():
            is_late = columns.num_taken >= FULL_POINTS or self._num_taken >= FULL_POINTS_OF_NODE
            if columns.points and (at_once or not is_late or columns.is_due(now, len(self._series))):
                points = columns.take(now, is_late=is_late)
                self._num_taken += len(points)
                batches += _batches(key, points)
            self._has_points |= bool(columns.points)
        return self._events(time, batches)

    def _events(self, time: float, batches: list[tuple[int, dict[str, Any]]]) -> list[MetricsReported]:
        events: list[MetricsReported] = []
        left: list[dict[str, Any]] = []
        used = _HEAD_BYTES
        for num_bytes, batch in [*batches, (MAX_EVENT_BYTES, {})]:
            if left and used + num_bytes + 2 > MAX_EVENT_BYTES:
                self._seq += 1
                events.append(MetricsReported(time, self._seq, tuple(left)))
                left, used = [], _HEAD_BYTES
            left.append(batch)
            used += num_bytes + 2
        return events

    def _end_window(self, rank: int) -> None:
        begun, begun_at, step, now, time = self._steps[rank]
        if step > begun:
            self._steps[rank] = (step, now, step, now, time)
            self.add(rank, NODE, STEP_SECONDS, step, time, round((now - begun_at) / (step - begun), 6))

    def _end_windows(self) -> None:
        """Ends the windows of ranks without a mean, so that an attempt shorter than one window also has a mean."""
        for rank in self._steps:
            if (rank, NODE, STEP_SECONDS) not in self._series:
                self._end_window(rank)


def thinned(points: list[tuple[float | None, float, Any]], most: int) -> list[tuple[float | None, float, Any]]:
    """Returns at most about `most` points, which keep the extremes."""
    if len(points) <= most:
        return points
    width = math.ceil(len(points) / max(1, most // 4))
    values = [math.nan if isinstance(value, str) else value for _, _, value in points]
    return [points[index] for index in kept_points(values, width)]


def kept_points(values: Sequence[float], width: int) -> list[int]:
    """Returns the indexes of the first, last, lowest, highest and first non-finite one of each `width` values."""
    kept: set[int] = set()
    for at in range(0, len(values), width):
        part = range(at, min(at + width, len(values)))
        finite = [index for index in part if abs(values[index]) < math.inf]  # an integer may be too large for a float
        kept.update((part[0], part[-1]))
        if finite:
            kept.update((min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)))
        if len(finite) < len(part):
            kept.add(next(index for index in part if not abs(values[index]) < math.inf))
    return sorted(kept)


def _batches(
    key: tuple[int, str, str], points: list[tuple[float | None, float, Any]]
) -> list[tuple[int, dict[str, Any]]]:
    """Returns points as batches that fit into an event, each with its length in JSON."""
    rank, source, name = key
    steps, times, values = (list(column) for column in zip(*points))  # noqa: B905 - `strict` came with Python 3.10
    batch = {"rank": rank, "source": source, "name": name, "steps": steps, "times": times, "values": values}
    num_bytes = len(json.dumps(batch))
    if num_bytes + _HEAD_BYTES + 2 <= MAX_EVENT_BYTES or len(points) == 1:
        return [(num_bytes, batch)]
    half = len(points) // 2
    return _batches(key, points[:half]) + _batches(key, points[half:])
