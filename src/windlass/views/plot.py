"""Converts series to a plot of curves, axes and ticks, which other modules draw. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from windlass.errors import UsageError
from windlass.runs.metrics import Series, thin
from windlass.views.metrics import restarts_of

UNITS: Final = (("h", 3600.0), ("min", 60.0))
"""Units of a time axis, with their seconds. A unit is used from 3 units on, and seconds below."""

LARGEST: Final = 1e300
"""Larger values are not drawn, because differences between them may overflow."""
SMALLEST: Final = 1e-290
"""Smallest length of an axis, and smallest value on a logarithmic one."""

XAxis = Literal["step", "time"]
Line = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PlottedSeries:
    """One series to draw."""

    run_id: str
    label: str
    """Text in the legend."""
    series: Series


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    title: str
    low: float
    high: float
    is_log: bool = False
    """Whether the axis is logarithmic; `low` is then positive."""

    def position(self, value: float) -> float:
        """Returns the position of a value on the axis: 0 at `low`, 1 at `high`."""
        if self.is_log:
            place = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, place))  # rounding may exceed the ends

    def ticks(self, most: int) -> dict[float, str]:
        """Returns at most about `most` round values on the axis with their labels."""
        if self.is_log and self.high / self.low >= 10:
            decades = range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-9) + 1)
            for factors in ((1, 2, 5), (1,)):
                found = [10.0**power * factor for power in decades for factor in factors]
                values = [one for one in found if self.low <= one * (1 + 1e-9) and one <= self.high * (1 + 1e-9)]
                if len(values) <= most:
                    break
            values = values[:: math.ceil(len(values) / most)]
        else:
            step = _round_step((self.high - self.low) / most)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            values = [index * step for index in range(first, last + 1)]
        digits = max(6, math.ceil(math.log10(max(map(abs, (self.low, self.high))) / (self.high - self.low))) + 2)
        return {value: f"{value:.{digits}g}" for value in values}


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a plot."""

    label: str
    lines: tuple[Line, ...]
    """Lines of connected points `(x, y)`. A restart, or a value that cannot be drawn, starts another line."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves with common axes."""

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    restarts: tuple[float, ...]
    """Positions of restarts on the x axis, in its unit."""


def plot_of(
    plotted: Sequence[PlottedSeries],
    *,
    x: XAxis = "step",
    is_log: bool = False,
    title: str = "",
    max_points: int = 2_000,
) -> Plot:
    """Returns the plot of series that are not empty; `title` is the title of the y axis.

    The x axis has steps, or the time since the first point of each run. Each curve is thinned to about `max_points`
    points, which keeps extremes. Raises UsageError if no point can be drawn.
    """
    starts: dict[str, float] = {}
    for one in plotted:
        starts[one.run_id] = min(starts.get(one.run_id, math.inf), one.series.times[0])
    seconds = max(one.series.times[-1] - starts[one.run_id] for one in plotted)
    unit, size = next(((name, size) for name, size in UNITS if seconds >= 3 * size), ("s", 1.0))
    curves, marks = [], set[float]()
    for one in plotted:
        series, start = thin(one.series, max_points), starts[one.run_id]
        times = [(time - start) / size for time in series.times]
        curves.append(Curve(one.label, tuple(_lines(series, series.steps if x == "step" else times, is_log=is_log))))
        for restart in restarts_of([series]):
            at = restart.step if x == "step" else (restart.time - start) / size
            marks |= set() if at is None else {at}
    points = [point for curve in curves for line in curve.lines for point in line]
    if not points:
        raise UsageError("no point can be drawn", _why_none(plotted, x, is_log=is_log))
    across = _axis("step" if x == "step" else f"time ({unit})", [at for at, _ in points])
    return Plot(
        across,
        _axis(title, [value for _, value in points], is_log=is_log),
        tuple(curves),
        tuple(sorted(at for at in marks if across.low <= at <= across.high)),
    )


def _lines(series: Series, places: Sequence[float | None], *, is_log: bool) -> Iterator[Line]:
    line: list[tuple[float, float]] = []
    attempt = None
    for at, value, number in zip(places, series.values, series.attempts, strict=True):
        is_drawn = at is not None and abs(at) < LARGEST and abs(value) < LARGEST and (value > SMALLEST or not is_log)
        if line and (number != attempt or not is_drawn):
            yield tuple(line)
            line = []
        attempt = number
        if is_drawn and at is not None:
            line.append((at, value))
    if line:
        yield tuple(line)


def _why_none(plotted: Sequence[PlottedSeries], x: XAxis, *, is_log: bool) -> str:
    if x == "step" and all(step is None for one in plotted for step in one.series.steps):
        return "the values have no steps: --x time"
    return "a logarithmic axis has only values above 0" if is_log else "no value is finite"


def _axis(title: str, values: Sequence[float], *, is_log: bool = False) -> Axis:
    low, high = min(values), max(values)
    if is_log and low == high:
        low, high = low / 2, high * 2
    elif high - low <= max(abs(low), abs(high)) * 1e-9 or high - low < SMALLEST:
        spread = max(abs(low) / 10, SMALLEST) if low else 1.0
        low, high = low - spread, high + spread
    return Axis(title, low, high, is_log)


def _round_step(step: float) -> float:
    """Returns the smallest of 1, 2, 5, 10, … that is not less than `step`."""
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * (1 - 1e-9))
