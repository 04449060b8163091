"""`metrics`: shows the metrics of a run, or exports them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, columns_of, count, fitting, metric_value, number, spans, tilde, visible
from windlass.cli.render import print_csv, print_data
from windlass.cli.style import phase_word
from windlass.views.metrics import COLUMNS, NODE, SOURCES, MetricCurve, Point, RunMetrics, long_columns

RESTARTS: Final = 5
"""Maximum number of restarts that are listed."""
CUTS: Final = (
    ("METRIC", 24),
    ("FIRST", 0),
    ("SOURCE", 0),
    ("METRIC", 16),
    ("HIGHEST", 0),
    ("LOWEST", 0),
    ("POINTS", 0),
)
RECORDED: Final = (
    "Windlass records values of windlass.train.report, progress in the log, TensorBoard event files, "
    "trainer_state.json, Lightning's metrics.csv and CSV files of Keras and Ultralytics: see docs/guides/curves.md"
)


@click.command()
@click.argument("run", required=False, shell_complete=options.complete_run)
@click.argument("names", nargs=-1, metavar="[METRIC…]", shell_complete=options.complete_metric)
@click.option("--source", type=click.Choice([*SOURCES, NODE]), help="Only values from this source.")
@click.option("--rank", type=options.WholeNumber(0), metavar="N", help="Only values of this rank.")
@click.option("--all", "-a", "every", is_flag=True, help="Show all sources and ranks of each metric, not only one.")
@click.option(
    "--to-tensorboard",
    "logdir",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the metrics as event files for TensorBoard instead.",
)
@options.on_cluster
@options.output_as("table", "json", "yaml", "csv")
def metrics(
    run: str | None, names: tuple[str, ...], source: str | None, rank: int | None, every: bool,
    logdir: Path | None, on: str | None, form: str,
) -> int:  # fmt: skip
    """Show the metrics of a run: first, last, lowest and highest value of each; -o csv and -o json have all values.

    METRIC is a name or a pattern: 'eval/*'. If several sources have a metric, the first of report, tensorboard,
    trainer, lightning, csv and log is shown, of the lowest rank; --source and --rank select others. The metrics of an
    active run are those recorded so far.

    \b
    Example:
      windlass metrics
      windlass metrics digits-7f3k2 loss 'eval/*'
      windlass metrics digits-7f3k2 loss -o csv > loss.csv
      windlass metrics digits-7f3k2 step_seconds   how long a step takes
      windlass metrics digits-7f3k2 --to-tensorboard logs
    """
    from windlass.actions.metrics import select_series, write_event_files
    from windlass.actions.runs import opened
    from windlass.cli.statustext import clock_time
    from windlass.views.metrics import run_metrics

    with opened(run, on) as (engine, run_id):
        shown, others = select_series(engine, run_id, names, source=source, rank=rank, every=every)
        state = engine.state(run_id, time.time())
        found = run_metrics(run_id, state.status.phase, shown, others=others)
    if state.stale:
        click.echo(visible(f"{state.stale}: the metrics are as of {clock_time(state.as_of)}"), err=True)
    if logdir is not None and shown:
        folders = write_event_files(logdir / run_id, shown)
        click.echo(
            f"wrote {count(folders, 'event file')} in {tilde(str(logdir / run_id))}: tensorboard --logdir {logdir}"
        )
    elif form == "csv":
        columns = long_columns(shown)
        print_csv(COLUMNS, zip(*columns.values(), strict=True))
    else:
        print_data(found, form, lambda paint: list(lines(found, paint)))
    return 0


def lines(found: RunMetrics, paint: Paint) -> Iterator[str]:
    """Yields the output lines of `windlass metrics`."""
    restarts = f"  {count(len(found.restarts), 'restart')}" if found.restarts else ""
    yield f"{paint(found.id, bold=True)}  {phase_word(found.phase, paint)}{restarts}"
    if not found.metrics and not found.measured:
        yield f"{found.id} has no metrics{'' if found.phase.is_terminal else ' yet'}. {RECORDED}"
        return
    if found.metrics:
        titles = ("METRIC", "LAST", "LOWEST", "HIGHEST", "FIRST", "POINTS", "SOURCE")
        yield from fitting(titles, map(_row, found.metrics), CUTS, paint, columns_of(sys.stdout))
    yield from _measured(found)
    for one in found.restarts[:RESTARTS]:
        steps = f": from step {_step(one.previous_step)} to {_step(one.step)}" if one.step is not None else ""
        yield paint(f"attempt {one.attempt} began{steps}", "yellow")
    if found.others:
        shown = count(len(found.others), "series", "series")
        yield paint(f"and {shown} of other sources and ranks: --source, --rank or --all", dim=True)


def _row(one: MetricCurve) -> list[str]:
    points = f"{one.count:,}" + (f" ({one.not_finite:,} not finite)" if one.not_finite else "")
    source = one.source + (f", rank {one.rank}" if one.rank else "")
    first = metric_value(one.first.value)
    return [visible(one.name), _at(one.last), _at(one.lowest), _at(one.highest), first, points, source]


def _at(point: Point | None) -> str:
    if point is None:
        return "–"
    return metric_value(point.value) + (f" @ {_step(point.step)}" if point.step is not None else "")


def _step(step: float | None) -> str:
    return "?" if step is None else number(step) if step == int(step) else f"{step:g}"


def _measured(found: RunMetrics) -> Iterator[str]:
    """Yields a line for each measured metric, with the rank that has the highest last value."""
    for name in dict.fromkeys(one.name for one in found.measured):
        by_rank = {one.rank: one.last.value for one in found.measured if one.name == name}
        numbers = {rank: value for rank, value in by_rank.items() if not isinstance(value, str)}
        if not numbers:
            continue
        worst = max(numbers, key=numbers.__getitem__)
        spread = f"; the highest is {metric_value(numbers[worst])} of rank {worst}" if len(numbers) > 1 else ""
        lowest = metric_value(min(numbers.values()))
        ranks = f"{'rank' if len(by_rank) == 1 else 'ranks'} {spans(by_rank)}"
        yield f"{visible(name)} of {ranks}: last {'from ' * (len(numbers) > 1)}{lowest}{spread}"
