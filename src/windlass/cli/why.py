"""`why`: the cause of a failure in one verdict, with its evidence and what to do."""

from __future__ import annotations

import sys

import click

from windlass.cli import options
from windlass.cli.render import print_data
from windlass.cli.words import painter


@click.command()
@options.run_argument
@options.output
@options.verbose
def why(run: str | None, form: str, verbose: int) -> int:
    """Say why a run failed, was lost or hangs: one verdict, what speaks for it, and what to do.

    \b
    Example:
      windlass why                         the newest run
      windlass why digits-7 -o json        verdict (a stable code), summary, rank, evidence, fix, others
    """
    from windlass.actions import runs
    from windlass.actions.edge import here
    from windlass.actions.why import why as find_out
    from windlass.cli.whytext import why_lines

    with here().store() as store:
        status, diagnosis = find_out(run, store)
        restarts = runs.restarts(status.id, store)
    lines = why_lines(status, diagnosis, restarts, painter(sys.stdout), verbose=verbose) if form == "table" else ()
    data = {"id": status.id, "phase": status.phase.value, **diagnosis.to_json()}
    missing = None if status.checkpoint_missing is None else dict(status.checkpoint_missing)
    told = {"restarts": [restart.to_json() for restart in restarts], "checkpoint_missing": missing}
    print_data({**data, **told}, form, lines)
    return 0
