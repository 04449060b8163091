"""Builds the comparison of runs: differing settings, and one metric of every run."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from windlass.actions.metrics import MAX_RUNS
from windlass.code.kept import kept_digest
from windlass.errors import NoSuchRun, UnsupportedVersion, UsageError
from windlass.runs.metrics import FILE, read_names
from windlass.views.comparison import Difference, RunFacts, compare_runs
from windlass.views.metrics import chosen
from windlass.views.pages import CompareData, ComparedRow, ComparePage, SettingRow
from windlass.views.serialise import view_of
from windlass.web.charts import POINTS, curve_of, series_named, why_missing
from windlass.web.files import state_of
from windlass.web.site import Site

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

    from windlass.runs.store import Store

MAX_SETTINGS: Final = 100
MAX_NAMES: Final = 500
MAX_VALUE: Final = 200
"""Maximum characters of a value or a note."""
DATA_POINTS: Final = 8_000
"""Maximum number of points of all curves together. It keeps the JSON for 200 runs below 200 kB."""


def ids_of(given: QueryParams) -> list[str]:
    """Returns the ids of the query `run`, each once. Raises UsageError for more than 200."""
    found = list(dict.fromkeys(one for one in given.getlist("run") if one))
    if len(found) > MAX_RUNS:
        raise UsageError(f"at most {MAX_RUNS} runs are compared; {len(found)} are named")
    return found


def compare_page(site: Site, given: QueryParams) -> ComparePage:
    """Returns the runs of the query side by side. Raises UsageError."""
    now, missing = site.now(), []
    found: list[RunFacts] = []
    names: dict[str, None] = {}
    absent: list[str] = []
    with site.records.open() as store:
        for run_id in ids_of(given):
            try:
                status, plan = store.status(run_id), store.plan(run_id)
            except (NoSuchRun, UnsupportedVersion):
                missing.append(run_id)
                continue
            # Summaries of all metrics are not shown here, and reading the metrics of 200 runs takes seconds.
            found.append(RunFacts(status, plan, (), kept_digest(store.run_dir(run_id))))
            with contextlib.suppress(OSError):
                names |= dict.fromkeys(_names(site, store, run_id))
            absent += filter(None, [why_missing(site, store, run_id, status.target)])
    runs = tuple(
        view_of(
            ComparedRow,
            one.status,
            one.status.times,
            seconds=(one.status.times.ended_at or now) - one.status.times.created_at,
            note=one.status.about.note[:MAX_VALUE],
        )
        for one in found
    )
    ordered = sorted(names, key=lambda name: (name != "loss", "loss" not in name.lower(), name))
    settings = tuple(map(_setting_row, compare_runs(found, now).differences[:MAX_SETTINGS]))
    note = "" if names else "None of these runs has metrics."
    if absent:
        note = f"The metrics of {len(absent)} of {len(runs)} runs are not on this machine: {absent[0]}."
    return ComparePage(runs, settings, tuple(ordered[:MAX_NAMES]), note, tuple(missing))


def _names(site: Site, store: Store, run_id: str) -> tuple[str, ...]:
    """Returns the names of the metrics of a run, read again only if its file has changed. Raises OSError."""
    path = store.run_dir(run_id) / FILE
    return site.metric_names.get(run_id, state_of(path), lambda: read_names(path))


def _setting_row(found: Difference) -> SettingRow:
    """Returns a property in which runs differ, with its values as text."""
    values = ("unknown" if at in found.unknown else _text(value) for at, value in enumerate(found.values))
    return SettingRow(found.kind, found.name, tuple(values))


def _text(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} …"


def compare_data(site: Site, given: QueryParams) -> CompareData:
    """Returns the metric `name` of each run of the query. Raises UsageError."""
    ids, name = ids_of(given), given.get("name", "")
    points = min(POINTS, max(8, DATA_POINTS // max(1, len(ids))))
    curves = []
    with site.records.open() as store:
        for run_id in ids:
            with contextlib.suppress(NoSuchRun, UnsupportedVersion, OSError):
                began_at = store.status(run_id, with_progress=False).times.created_at
                series = series_named(store.run_dir(run_id) / FILE, name)
                # the metrics that are measured of each rank have a curve for each
                curves += [curve_of(run_id, one, points, began_at) for one in chosen(series)[:1]]
    return CompareData(name, tuple(curves))
