"""Reads and compares the metrics of runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from windlass.code.kept import kept_digest
from windlass.errors import UsageError
from windlass.views.comparison import Comparison, RunFacts, compare_runs
from windlass.views.metrics import NODE, chosen, named
from windlass.views.plot import PlottedSeries

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.runs.metrics import Series

MAX_RUNS: Final = 200
"""Maximum number of runs in one comparison or plot."""


def select_series(
    engine: Engine,
    run_id: str,
    names: Collection[str] = (),
    *,
    source: str | None = None,
    rank: int | None = None,
    every: bool = False,
) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
    """Returns the series of a run to show, and the other series of the same metrics; both empty for a run without
    metrics.

    `names` are metrics or patterns. One series of each metric is shown, as in `views.metrics.chosen`; with `every`, all
    series are shown. Raises NoSuchRun, UsageError for a metric, source or rank that the run does not have, EngineError,
    OSError.
    """
    engine.status(run_id)  # raises NoSuchRun for a removed run, whose missing folder would have no metrics
    if not (recorded := engine.metrics(run_id)):
        return (), ()
    series = named(recorded, names, run_id)
    matching = [one for one in series if source in (None, one.source) and rank in (None, one.rank)]
    if not matching:
        wanted = " ".join(
            [*([f"from {source}"] if source is not None else []), *([f"of rank {rank}"] if rank is not None else [])]
        )
        known = "; ".join(dict.fromkeys(f"{one.name} from {one.source} of rank {one.rank}" for one in series[:8]))
        raise UsageError(f"{run_id} has no metric {wanted}", f"it has {known}")
    shown = tuple(matching) if every else chosen(matching)
    keys = {one.key for one in shown}
    return shown, tuple(one for one in series if one.key not in keys)


def write_event_files(
    folder: Path,
    series: Iterable[Series],
    *,
    name: str = "windlass",
    after: Mapping[tuple[str, str, int], float] = MappingProxyType({}),
) -> int:
    """Writes series as event files of TensorBoard, and returns the number of files. Raises OSError.

    The first series of each metric is in a file of `folder`, others in a folder for their source and rank, because
    TensorBoard draws the points of one folder with the same name as one curve. The names of the files end with `name`.
    `after` has times, in Unix seconds, by key of a series: only later points are written, at the end of files that
    exist, and no files without points.
    """
    from windlass.runs.event_files import PREFIX, append_to_event_file, write_event_file

    files: dict[Path, dict[str, Series]] = {}
    for one in series:
        is_first = one.source != NODE and one.name not in files.get(folder, {})
        files.setdefault(folder if is_first else folder / f"{one.source}-{one.rank}", {})[one.name] = one
    if after:
        later = {
            place: [_later(one, after.get(one.key, 0.0)) for one in some.values()] for place, some in files.items()
        }
        files = {place: {one.name: one for one in some} for place, some in later.items() if any(map(len, some))}
    for place, found in files.items():
        place.mkdir(parents=True, exist_ok=True)
        write = append_to_event_file if after else write_event_file
        write(place / f"{PREFIX}{name}", found.values())
    return len(files)


def _later(one: Series, after: float) -> Series:
    """Returns the points of a series after a time in Unix seconds; points without a step have their number as step."""
    kept = [at for at, time in enumerate(one.times) if time > after]
    attempts = tuple(one.attempts[at] for at in kept)
    steps = tuple(at if one.steps[at] is None else one.steps[at] for at in kept)
    times, values = tuple(one.times[at] for at in kept), tuple(one.values[at] for at in kept)
    return replace(one, attempts=attempts, steps=steps, times=times, values=values)


def compare(runs: Iterable[tuple[Engine, str]], now: float) -> Comparison:
    """Compares runs at `now` (Unix seconds): their metrics, and differences in settings, code, data and environment.

    Raises NoSuchRun, UsageError for more than `MAX_RUNS` runs, EngineError, OSError.
    """
    runs = list(runs)
    require_few(runs)
    return compare_runs([_facts(engine, run_id) for engine, run_id in runs], now)


def series_to_plot(
    runs: Iterable[tuple[Engine, str]], name: str, *, source: str | None = None, rank: int | None = None
) -> tuple[list[PlottedSeries], list[str]]:
    """Returns the series of a metric, or of all metrics that match a pattern, and the runs that have none.

    Raises the errors of `select_series`, except that UsageError means that no run has the metric, or that there are
    more than `MAX_RUNS` runs.
    """
    runs = list(runs)
    require_few(runs)
    found: list[tuple[str, Series]] = []
    missing: dict[str, UsageError] = {}
    for engine, run_id in runs:
        try:
            shown, _ = select_series(engine, run_id, [name], source=source, rank=rank)
            if not shown:
                raise UsageError(f"{run_id} has no metrics", "windlass metrics lists what is recorded")
            found += [(run_id, one) for one in shown]
        except UsageError as error:
            missing[run_id] = error
    if not found:
        raise next(iter(missing.values()))
    has_names = len({one.name for _, one in found}) > 1
    has_ranks = len({one.rank for _, one in found}) > 1

    def label(run_id: str, one: Series) -> str:
        return " ".join([run_id, *([one.name] if has_names else []), *([f"rank {one.rank}"] if has_ranks else [])])

    return [PlottedSeries(run_id, label(run_id, one), one) for run_id, one in found], list(missing)


def require_few(runs: Sequence[object]) -> None:
    """Raises UsageError for more than `MAX_RUNS` runs."""
    if len(runs) > MAX_RUNS:
        raise UsageError(f"{len(runs)} runs are too many: at most {MAX_RUNS} are compared", "name fewer runs")


def _facts(engine: Engine, run_id: str) -> RunFacts:
    status = engine.status(run_id)
    digest = kept_digest(engine.store.run_dir(run_id))
    return RunFacts(status, engine.plan_of(run_id), engine.metrics(run_id), digest)
