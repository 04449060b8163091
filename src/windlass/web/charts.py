"""Builds the data of charts: curves of metrics, and the heat map of ranks over time."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.runs.metrics import FILE, MetricsReader, Series, as_json, parse_metrics, thin
from windlass.views.pages import Curve, HeatMap, HeatRow, MetricName, MetricsData
from windlass.web.site import Site
from windlass.worker.metrics import NODE, STEP_SECONDS

if TYPE_CHECKING:
    from windlass.runs.store import Store

Query = Mapping[str, str]

POINTS: Final = 1_000
"""Points of each curve."""
MAX_NAMES: Final = 500
MAX_RANKS: Final = 64
"""Maximum number of ranks of a metric, and of rows of the heat map."""
MAX_CURVES: Final = 16
COLUMNS: Final = 120
SLOWER: Final = 1.1
"""Ratio to the median above which a rank counts as a straggler."""


def why_missing(site: Site, store: Store, run_id: str, target: str) -> str:
    """Has the metrics of a run copied from its target, and returns why this machine has none yet; empty if it has."""
    why = site.targets.view(run_id, target)
    return "" if (store.run_dir(run_id) / FILE).exists() else why


def series_of(site: Site, store: Store, run_id: str) -> tuple[Series, ...]:
    """Returns the series of a run; of its file, only new lines are parsed. Raises OSError."""
    reader = site.metrics.get(run_id, None, lambda: MetricsReader(store.run_dir(run_id) / FILE))
    return reader.read()


def metrics_data(site: Site, run_id: str, given: Query) -> MetricsData:
    """Returns the names of the metrics of a run, or the curves of the metric `name` of the lowest ranks.

    Raises NoSuchRun, OSError.
    """
    with site.records.open() as store:
        status = store.status(run_id, with_progress=False)
        why = why_missing(site, store, run_id, status.target)
        began_at, series = status.times.created_at, series_of(site, store, run_id)
    name = given.get("name", "")
    found = sorted((one for one in series if one.name == name), key=lambda one: one.rank)[:MAX_CURVES]
    points = POINTS // max(1, len(found) // 4)
    curves = tuple(curve_of(run_id, one, points, began_at) for one in found)
    note = f"The metrics are not on this machine: {why}." if why else ""
    return MetricsData(run_id, began_at, () if name else _names(series), curves, note)


def _names(series: Sequence[Series]) -> tuple[MetricName, ...]:
    ranks: dict[tuple[str, str], list[int]] = {}
    for one in series:
        if (one.name, one.source) != (STEP_SECONDS, NODE):
            ranks.setdefault((one.name, one.source), []).append(one.rank)
    names = sorted(ranks, key=lambda key: (key[0] != "loss", "loss" not in key[0].lower(), key))
    return tuple(MetricName(*key, tuple(sorted(ranks[key])[:MAX_RANKS])) for key in names[:MAX_NAMES])


def curve_of(run_id: str, series: Series, points: int, began_at: float) -> Curve:
    """Returns a series as a curve of a chart, thinned to about `points` points; minima and maxima are kept."""
    one = thin(series, points)
    restarts = [at for at in range(1, len(one)) if one.attempts[at] != one.attempts[at - 1]]
    return Curve(
        run_id,
        one.name,
        one.source,
        one.rank,
        one.steps,
        tuple(round(time - began_at, 2) for time in one.times),
        tuple(as_json(_rounded(value)) for value in one.values),
        tuple(restarts),
        len(series),
        sum(not math.isfinite(value) for value in series.values),
    )


def _rounded(value: float) -> float:
    """Rounds to seven significant digits: more than a chart shows, and half the bytes in JSON."""
    return float(f"{value:.7g}")


def series_named(path: Path, name: str) -> tuple[Series, ...]:
    """Returns the series of one metric in a file of metrics, mostly without parsing others; empty without a file.

    Raises OSError.
    """
    wanted = json.dumps(name).encode()
    try:
        with open(path, "rb") as file:
            found = parse_metrics(line for line in file if wanted in line)
    except FileNotFoundError:
        return ()
    return tuple(one for one in found if one.name == name)


# -- heat map ---------------------------------------------------------------------------------------------------------


def heat_map(site: Site, run_id: str, given: Query) -> HeatMap:
    """Returns the heat map of a run: seconds per step of each rank over time. Raises NoSuchRun."""
    with site.records.open() as store:
        store.status(run_id, with_progress=False)  # raises NoSuchRun
        series = series_of(site, store, run_id)
    found = [one for one in series if (one.name, one.source) == (STEP_SECONDS, NODE) and len(one)]
    return heat_map_of(run_id, found)


def heat_map_of(run_id: str, series: Sequence[Series], columns: int = COLUMNS, rows: int = MAX_RANKS) -> HeatMap:
    """Returns the heat map of the series `step_seconds` of ranks, with at most `columns` columns and `rows` rows."""
    series = [one for one in series if any(True for _ in _finite(one))]
    if not series:
        return HeatMap(run_id, (), 0.0, (), 0.0, 0.0, 0.0, 0.0, None)
    columns = min(columns, max(map(len, series)))  # with more, most cells of a short run would be empty
    begin = min(one.times[0] for one in series)
    width = max(1e-3, max(one.times[-1] for one in series) - begin) / columns
    ranks = [_heat_row(one, begin, width, columns) for one in sorted(series, key=lambda one: one.rank)]
    middle = statistics.median(row.median for row in ranks)
    slowest = max(ranks, key=lambda row: row.median)
    shown = ranks
    if len(ranks) > rows:
        by_time = sorted(ranks, key=lambda row: -row.median)
        shown = sorted(by_time[: rows - 1], key=lambda row: row.rank or 0)
        shown.append(_together(by_time[rows - 1 :], columns))
    values = [value for row in shown for value in row.values if value is not None]
    return HeatMap(
        run_id,
        tuple(round(begin + column * width, 3) for column in range(columns)),
        width,
        tuple(shown),
        min(values),
        max(values),
        middle,
        min(row.median for row in ranks),
        slowest.rank if len(ranks) > 1 and slowest.median > SLOWER * middle else None,
    )


def _heat_row(series: Series, begin: float, width: float, columns: int) -> HeatRow:
    cells: list[list[float]] = [[] for _ in range(columns)]
    for at, value in _finite(series):
        cells[min(columns - 1, max(0, int((at - begin) / width)))].append(value)
    means = tuple(_rounded(statistics.fmean(cell)) if cell else None for cell in cells)
    return HeatRow(f"rank {series.rank}", series.rank, means, _median(means))


def _together(rows: Sequence[HeatRow], columns: int) -> HeatRow:
    by_column = ([row.values[column] for row in rows] for column in range(columns))
    values = tuple(_median(column) if any(value is not None for value in column) else None for column in by_column)
    return HeatRow(f"{len(rows)} other ranks", None, values, _median(values))


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return _rounded(statistics.median(known)) if known else 0.0


def _finite(series: Series) -> Iterator[tuple[float, float]]:
    return ((at, value) for at, value in zip(series.times, series.values, strict=True) if 0 <= value < float("inf"))
