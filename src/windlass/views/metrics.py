"""Chooses and summarises the metrics of a run: output of `windlass metrics`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias

from windlass.errors import UsageError, near
from windlass.runs.metrics import Series, as_json
from windlass.runs.phase import Phase
from windlass.views.serialise import view_of

SOURCES: Final = ("report", "tensorboard", "trainer", "lightning", "csv", "log")
"""Sources of metrics. If several sources have a metric, the first one in this order is shown."""
NODE: Final = "node"
"""Source of the values that Windlass measures on each rank, such as `step_seconds`. They are shown for all ranks."""
LOWEST: Final = frozenset(["loss", "error", "err", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse"])
"""Words in the names of metrics whose lowest value is the best."""
HIGHEST: Final = frozenset(
    ["acc", "accuracy", "precision", "recall", "f1", "auc", "map", "iou", "bleu", "rouge", "reward", "return", "score"]
)
"""Words in the names of metrics whose highest value is the best."""
NAMED: Final = 20
"""Maximum number of metrics that an error lists."""

Cell: TypeAlias = str | float | int | None
"""A value in a column of metrics."""
Direction = Literal["lowest", "highest"]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric."""

    step: float | None
    """Step of the value; null if the source has no steps."""
    time: float
    """Time of the value in Unix seconds."""
    value: float | str
    """The value: a number, or `nan`, `inf` or `-inf`."""


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """Summary of one metric over all of its points."""

    name: str
    source: str
    """Source of the values: `report`, `tensorboard`, `trainer`, `lightning`, `csv`, `log`, or `node` for values that
    Windlass measures."""
    rank: int
    """Rank that reported the values."""
    count: int
    """Number of points."""
    not_finite: int
    """Number of points whose value is NaN or infinite."""
    first: Point
    last: Point
    lowest: Point | None
    """Point with the lowest finite value; null if no value is finite."""
    highest: Point | None
    """Point with the highest finite value; null if no value is finite."""
    better: Direction | None
    """Whether the `lowest` or the `highest` value is the best, by a word in the name, such as `loss` or `accuracy`;
    null if the name has no such word."""

    @property
    def best(self) -> Point | None:
        """The best point; None if it is unknown which value is better, or if no value is finite."""
        return {"lowest": self.lowest, "highest": self.highest, None: None}[self.better]


@dataclass(frozen=True, slots=True)
class MetricCurve(MetricSummary):
    """Summary and points of one metric. All columns have the same length."""

    attempts: tuple[int, ...]
    """Attempt of each point, from 1."""
    steps: tuple[float | None, ...]
    """Step of each point; null if the source has no steps."""
    times: tuple[float, ...]
    """Time of each point in Unix seconds."""
    values: tuple[float | str, ...]
    """Values: numbers, or `nan`, `inf` or `-inf`."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start of a later attempt in the metrics of a run; its steps may be lower than those before."""

    attempt: int
    """Number of the attempt that began."""
    step: float | None
    """First step of the attempt; null if the source has no steps."""
    previous_step: float | None
    """Last step of the attempt before; null if the source has no steps."""
    time: float
    """Time of the first point of the attempt in Unix seconds."""


@dataclass(frozen=True, slots=True)
class SeriesId:
    """Identity of one series of a run."""

    name: str
    source: str
    rank: int


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of a run."""

    id: str
    phase: Phase
    """Phase of the run; the metrics of an active run are those recorded so far."""
    metrics: tuple[MetricCurve, ...]
    """The shown series of each metric, sorted by name."""
    measured: tuple[MetricCurve, ...]
    """Series that Windlass measures, by rank: `step_seconds`, the mean seconds of a step."""
    restarts: tuple[Restart, ...]
    """Restarts, by attempt."""
    others: tuple[SeriesId, ...]
    """Series that are not shown, because another source or a lower rank has the metric."""


def run_metrics(run_id: str, phase: Phase, series: Sequence[Series], *, others: Sequence[Series] = ()) -> RunMetrics:
    """Builds the view of a run's metrics from the shown series and the series that are not shown."""
    curves = tuple(map(curve_of, series))
    return RunMetrics(
        run_id,
        phase,
        tuple(curve for curve in curves if curve.source != NODE),
        tuple(curve for curve in curves if curve.source == NODE),
        restarts_of(series),
        tuple(SeriesId(*one.key) for one in others),
    )


def chosen(series: Iterable[Series]) -> tuple[Series, ...]:
    """Returns the series to show, sorted by name: one for each metric, and those of all ranks for measured values.

    If several series have the name of a metric, the source is chosen in the order of `SOURCES`, then the lowest rank.
    """
    order = {name: at for at, name in enumerate(SOURCES)}
    found: dict[tuple[str, int], Series] = {}
    for one in sorted(series, key=lambda one: (one.name, order.get(one.source, len(order)), one.rank)):
        found.setdefault((one.name, one.rank if one.source == NODE else -1), one)
    return tuple(found.values())


def named(series: Sequence[Series], names: Collection[str], of: str) -> tuple[Series, ...]:
    """Returns the series whose name is in `names` or matches a pattern in `names` (`eval/*`); all without names.

    Raises UsageError for a name that matches no series of `of`, such as the id of a run.
    """
    known = list(dict.fromkeys(one.name for one in series))
    for name in names:
        if not any(_matches(one, name) for one in known):
            listed = ", ".join(known[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
            hint = "; ".join(filter(None, (near(name, known), f"known are {listed}" if known else "")))
            raise UsageError(f"{of} has no metric '{name}'", hint)
    return tuple(one for one in series if not names or any(_matches(one.name, name) for name in names))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def curve_of(series: Series) -> MetricCurve:
    """Returns the curve of a series that is not empty."""
    return view_of(
        MetricCurve,
        summary_of(series),
        attempts=series.attempts,
        steps=series.steps,
        times=series.times,
        values=tuple(map(as_json, series.values)),
    )


def summary_of(series: Series) -> MetricSummary:
    """Returns the summary of a series that is not empty."""
    finite = [at for at, value in enumerate(series.values) if math.isfinite(value)]

    def point(at: int) -> Point:
        return Point(series.steps[at], series.times[at], as_json(series.values[at]))

    def extreme(choose: Callable[..., int]) -> Point | None:
        return point(choose(finite, key=series.values.__getitem__)) if finite else None

    return MetricSummary(
        *series.key,
        count=len(series),
        not_finite=len(series) - len(finite),
        first=point(0),
        last=point(-1),
        lowest=extreme(min),
        highest=extreme(max),
        better=better(series.name),
    )


def better(name: str) -> Direction | None:
    """Returns whether the lowest or the highest value of a metric is the best, by the words of its name.

    Words end at any character other than letters and digits, and digits at the end of a word do not count: `mAP50` is
    `map`. Returns None for a name without a known word, or with words of both kinds.
    """
    parts = re.split(r"[^a-z0-9]+", name.lower())
    words = {*parts, *(part.rstrip("0123456789") for part in parts)}
    if bool(words & LOWEST) == bool(words & HIGHEST):
        return None
    return "lowest" if words & LOWEST else "highest"


def restarts_of(series: Iterable[Series]) -> tuple[Restart, ...]:
    """Returns the restarts that are visible in the series of one run. Each restart has the steps of the series with its
    earliest point.
    """
    found: dict[int, Restart] = {}
    for one in series:
        for at in range(1, len(one)):
            if (attempt := one.attempts[at]) <= one.attempts[at - 1]:
                continue
            restart = Restart(attempt, one.steps[at], one.steps[at - 1], one.times[at])
            if attempt not in found or restart.time < found[attempt].time:
                found[attempt] = restart
    return tuple(found[attempt] for attempt in sorted(found))


def long_columns(series: Iterable[Series]) -> dict[str, list[Cell]]:
    """Returns the points of series as columns of equal length: metric, source, rank, attempt, step, time and value."""
    names: list[Cell] = []
    sources: list[Cell] = []
    ranks: list[Cell] = []
    attempts: list[Cell] = []
    steps: list[Cell] = []
    times: list[Cell] = []
    values: list[Cell] = []
    for one in series:
        names += [one.name] * len(one)
        sources += [one.source] * len(one)
        ranks += [one.rank] * len(one)
        attempts += one.attempts
        steps += one.steps
        times += one.times
        values += one.values
    return dict(zip(COLUMNS, (names, sources, ranks, attempts, steps, times, values), strict=True))


COLUMNS: Final = ("metric", "source", "rank", "attempt", "step", "time", "value")
"""Columns of metrics in long form: one row for each point."""
