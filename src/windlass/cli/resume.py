"""`resume`: gives a run that ended without success another attempt."""

from __future__ import annotations

import time

import click

from windlass.cli import options
from windlass.cli.render import print_detached


@click.command()
@options.run_argument
@click.option("--nodes", type=options.WholeNumber(1), metavar="N", help="Number of nodes.")
@click.option("--from", "checkpoint", metavar="CHECKPOINT", shell_complete=options.complete_checkpoint,
              help="Checkpoint: its name, step or path. Default: the newest verified one.")  # fmt: skip
@click.option("--detach", "-d", is_flag=True, help="Do not follow it.")
@click.option("--quiet", "-q", is_flag=True, help="Neither logs nor state, only the end.")
@options.on_cluster
@options.output
@options.verbose
def resume(
    run: str | None, nodes: int | None, checkpoint: str | None, detach: bool, quiet: bool, on: str | None, form: str,
    verbose: int,
) -> int:  # fmt: skip
    """Resume a run that failed, was stopped or was lost, and follow it as `windlass run` does.

    The same run gets another attempt, with its code, its arguments and its checkpoints as they are now, and its
    restarts are counted anew. Ends with 0 if it then succeeds, 100 if it fails, 103 if it is stopped.

    \b
    Example:
      windlass resume digits-7f3k2
      windlass resume digits-7f3k2 --nodes 4
      windlass resume digits-7f3k2 --from step-00000120-a2f3c1
    """
    from windlass.actions import runs
    from windlass.runs.context import here

    options.require_named(run, on)
    with runs.opened(run, on) as (engine, run_id):
        since, seq = time.time(), engine.store.status(run_id).last_seq
        runs.resume(run_id, engine, here(), nodes=nodes, checkpoint=checkpoint)
        if detach:
            print_detached(run_id, form, quiet=quiet)
            return 0
        from windlass.cli.follow import follow

        return follow(run_id, engine, form=form, quiet=quiet, verbose=verbose, since_seq=seq, since=since)
