"""`compare`: shows runs side by side, with their metrics and in what they differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

from windlass.cli import options
from windlass.cli.formatting import (
    Paint,
    columns_of,
    cut,
    duration,
    fitting,
    metric_value,
    titled,
    visible,
    width_of,
)
from windlass.cli.render import print_csv, print_data
from windlass.views.comparison import Comparison, Difference
from windlass.views.metrics import MetricSummary, Point, better

SIDE_BY_SIDE: Final = 4
"""Maximum number of runs that have a column each; more runs have a row each."""
NARROW: Final = 14
"""Width to which columns are shortened before any of them is removed."""
DIGEST_CHARS: Final = 12


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table: a property, with its value for each run."""

    title: str
    cells: tuple[str, ...]
    cut: int
    """When the column is removed from a narrow terminal: those with the highest number first; 0 for never."""


@click.command()
@options.runs_argument
@options.labelled("Also compare all runs with this label; may be repeated.")
@options.on_cluster
@options.output_as("table", "json", "yaml", "csv")
def compare(runs: tuple[str, ...], labels: tuple[str, ...], on: str | None, form: str) -> int:
    """Compare up to 200 runs: their metrics, and in what their arguments, settings, code, data and environment differ.

    Shows the last and the best value of each metric. Which value is the best follows from the name: the lowest for
    loss, error, perplexity and wer, the highest for accuracy, f1, auc, map, bleu, reward and score; for other names,
    both the lowest and the highest are shown. Equal settings are not shown.

    \b
    Example:
      windlass compare lr-3 lr-4
      windlass compare --label sweep=lr
      windlass compare --label sweep=lr -o csv > sweep.csv
    """
    from windlass.actions.metrics import compare as compare_runs
    from windlass.actions.runs import find_all
    from windlass.runs.context import here

    if len(runs) < 2 and not labels:
        raise click.UsageError("name two runs or more, or give --label")
    context = here()
    with context.store() as store:
        found = compare_runs(find_all(runs, labels, store, on, context), context.now())
    if form == "csv":
        columns = _columns(found, exact=True)
        print_csv([one.title for one in columns], zip(*(one.cells for one in columns), strict=True))
    else:
        print_data(found, form, lambda paint: lines(found, paint, columns_of(sys.stdout)))
    return 0


def lines(found: Comparison, paint: Paint, width: int | None) -> list[str]:
    """Returns the output lines of `windlass compare` for a terminal of `width` columns; None for no limit."""
    columns = _columns(found)
    equal = (
        [] if found.differences else [paint("no known difference in settings, code, data and environment", dim=True)]
    )
    if len(found.runs) <= SIDE_BY_SIDE:
        head, *rows = [[one.title, *one.cells] for one in columns]
        rows = [[cut(cell, NARROW * 2) for cell in row] for row in rows]
        widths = [max(map(width_of, cells)) for cells in zip(head, *rows, strict=True)]
        if width is None or sum(widths) + 2 * len(widths) <= width:
            return [*titled(head, rows, paint), *equal]
    order = sorted(columns[1:], key=lambda one: -one.cut)
    cuts = [*((one.title, NARROW) for one in order), *((one.title, 0) for one in order if one.cut)]
    by_run = zip(*(one.cells for one in columns), strict=True)
    return [*fitting([one.title for one in columns], by_run, cuts, paint, width), *equal]


def _columns(found: Comparison, *, exact: bool = False) -> list[_Column]:
    """Returns the columns of the table, with numbers in full if `exact`."""
    runs = found.runs
    columns = [
        _Column("RUN", tuple(run.id for run in runs), 0),
        _Column("PHASE", tuple(run.phase for run in runs), 1),
        _Column(
            "SECONDS" if exact else "TIME",
            tuple(f"{run.seconds}" if exact else duration(run.seconds) for run in runs),
            500,
        ),
    ]
    settings = [one for one in found.differences if one.kind in ("argument", "env", "setting")]
    origins = [one for one in found.differences if one not in settings]
    columns += [_Column(_title(one), _cells(one, exact=exact), 100 + at) for at, one in enumerate(settings)]
    for at, name in enumerate(found.metrics):
        columns += _of_metric(name, [run.metrics.get(name) for run in runs], at, exact=exact)
    return [*columns, *(_Column(_title(one), _cells(one, exact=exact), 900 + at) for at, one in enumerate(origins))]


def _of_metric(name: str, found: Sequence[MetricSummary | None], at: int, *, exact: bool) -> list[_Column]:
    def column(title: str, points: Sequence[Point | None], cut: int) -> _Column:
        return _Column(f"{title} {visible(name)}", tuple(_value(point, exact=exact) for point in points), cut)

    last = [None if one is None else one.last for one in found]
    if better(name):
        best = [None if one is None else one.best for one in found]
        return [column("last", last, 300 + at), column("best", best, 200 + at)]
    if all(one is None or one.lowest == one.highest for one in found):
        return [column("last", last, 600 + at)]
    lowest = [None if one is None else one.lowest for one in found]
    highest = [None if one is None else one.highest for one in found]
    return [column("last", last, 600 + at), column("min", lowest, 700 + at), column("max", highest, 700 + at)]


def _value(point: Point | None, *, exact: bool) -> str:
    if point is None:
        return "" if exact else "–"
    return str(point.value) if exact else metric_value(point.value)


def _title(one: Difference) -> str:
    return visible(one.name if one.kind in ("argument", "setting") else f"{one.kind} {one.name}")


def _cells(one: Difference, *, exact: bool) -> tuple[str, ...]:
    is_digest = one.kind == "data" or one.name in ("digest", "commit")
    return tuple(
        "unknown"
        if at in one.unknown
        else ("" if exact else "–")
        if value is None
        else _text(value)[: DIGEST_CHARS if is_digest and not exact else None]
        for at, value in enumerate(one.values)
    )


def _text(value: object) -> str:
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
