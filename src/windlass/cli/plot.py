"""`plot`: draws metrics of runs in the terminal, or as an SVG file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final, cast

import click

from windlass.cli import options
from windlass.cli.braille import draw
from windlass.cli.formatting import columns_of, painter, tilde, visible
from windlass.cli.render import emit
from windlass.cli.style import coloured
from windlass.views.metrics import NODE, SOURCES
from windlass.views.plot import XAxis, plot_of

WIDTH: Final = 80
"""Columns of a plot that is not written to a terminal."""
ROWS: Final = 16
"""Maximum number of lines between title and x axis."""
SVG_POINTS: Final = 2_000
"""Maximum number of points of each curve in an SVG file."""
NAMED: Final = 5
"""Maximum number of runs that a note lists."""


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN…] METRIC", shell_complete=options.complete_run_or_metric)
@options.labelled("Also draw all runs with this label; may be repeated.")
@click.option("--x", "across", type=click.Choice(["step", "time"]), default="step", show_default=True, help="X axis.")
@click.option("--log", "is_log", is_flag=True, help="Logarithmic y axis.")
@click.option("--svg", metavar="FILE", type=click.Path(dir_okay=False), help="Write an SVG file instead.")
@click.option("--source", type=click.Choice([*SOURCES, NODE]), help="Only values from this source.")
@click.option("--rank", type=options.WholeNumber(0), metavar="N", help="Only values of this rank.")
@options.on_cluster
@options.debug
def plot(
    words: tuple[str, ...], labels: tuple[str, ...], across: str, is_log: bool, svg: str | None, source: str | None,
    rank: int | None, on: str | None,
) -> int:  # fmt: skip
    """Draw a metric of up to 200 runs in the terminal, or with --svg as a file. Default: the newest run.

    METRIC is a name or a pattern, such as '*loss', which draws several metrics on the same axes. Each run has a colour,
    or without colours a letter. Restarts are marked.

    \b
    Example:
      windlass plot loss
      windlass plot lr-3 lr-4 loss --log
      windlass plot --label sweep=lr 'eval/*' --x time --svg eval.svg
    """
    from windlass.actions.metrics import series_to_plot
    from windlass.actions.runs import find_all
    from windlass.runs.context import here

    if not words:
        raise click.UsageError("name the metric: windlass plot [RUN…] METRIC")
    *runs, name = words
    context = here()
    with context.store() as store:
        found, missing = series_to_plot(find_all(runs, labels, store, on, context), name, source=source, rank=rank)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        context.say(f"without {visible(name)}: {', '.join(missing[:NAMED])}{more}")
    title = ", ".join(dict.fromkeys(one.series.name for one in found))
    width = columns_of(sys.stdout) or WIDTH
    drawn = plot_of(
        found, x=cast("XAxis", across), is_log=is_log, title=title, max_points=8 * width if svg is None else SVG_POINTS
    )
    if svg is not None:
        from windlass.views.svg import to_svg

        Path(svg).write_text(to_svg(drawn), encoding="utf-8")
        click.echo(f"wrote {tilde(svg)}")
        return 0
    rows = max(6, min(ROWS, shutil.get_terminal_size((WIDTH, ROWS + 8)).lines - 6))
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    letters = ascii_only or (not coloured(sys.stdout) and len(drawn.curves) > 1)
    emit(draw(drawn, width, rows, painter(sys.stdout), letters=letters, ascii_only=ascii_only))
    return 0
