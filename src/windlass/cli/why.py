"""`why`: explains a failure by one verdict, with its evidence and what to do."""

from __future__ import annotations

import click

from windlass.cli import options
from windlass.cli.render import print_data


@click.command()
@options.run_argument
@options.on_cluster
@options.output
@options.verbose
def why(run: str | None, on: str | None, form: str, verbose: int) -> int:
    """Explain why a run failed, was lost or hangs: one verdict, its evidence, and what to do.

    \b
    Example:
      windlass why                         the newest run
      windlass why digits-7 -o json    verdict (a stable code), evidence, fix, …
    """
    from windlass.actions.runs import opened
    from windlass.actions.why import report
    from windlass.cli.whytext import why_lines

    with opened(run, on) as (engine, run_id):
        found = report(run_id, engine)
    print_data(found, form, lambda paint: why_lines(found, paint, verbose=verbose))
    return 0
