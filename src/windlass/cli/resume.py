"""`resume`: goes on with a run that has ended without success."""

from __future__ import annotations

import time

import click

from windlass.cli import options
from windlass.cli.render import print_data


def _complete_checkpoint(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return options.checkpoint_names(ctx.params.get("run"), incomplete)


@click.command()
@options.run_argument
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Go on with this many nodes.")
@click.option("--from", "checkpoint", metavar="CHECKPOINT", shell_complete=_complete_checkpoint,
              help="Go on from this one: its name, its step or a path. Default: the newest verified one.")  # fmt: skip
@click.option("--detach", "-d", is_flag=True, help="Do not follow it.")
@click.option("--quiet", "-q", is_flag=True, help="Neither logs nor state, only the end.")
@options.output
@options.verbose
def resume(
    run: str | None, nodes: int | None, checkpoint: str | None, detach: bool, quiet: bool, form: str, verbose: int
) -> int:
    """Go on with a run that failed, was stopped or was lost, and follow it as `windlass run` does.

    The same run gets another attempt, with its code, its arguments and its checkpoints as they are now, and its
    restarts are counted anew. Ends with 0 if it then succeeds, 100 if it fails, 103 if it is stopped.

    \b
    Example:
      windlass resume digits-7f3k2
      windlass resume digits-7f3k2 --nodes 4
      windlass resume digits-7f3k2 --from step-00000120-a2f3c1
    """
    from windlass.actions import checkpoints, runs
    from windlass.actions.edge import here

    with here().store() as store:
        run_id = store.find(run)
        if checkpoint is not None:
            checkpoint = checkpoints.to_resume_from(checkpoints.look(run_id, store), checkpoint)
        since, seq = time.time(), store.status(run_id).last_seq
        runs.resume(run_id, store, nodes=nodes, checkpoint=checkpoint)
        if detach:
            said = run_id if quiet else f"{run_id} goes on by itself: windlass logs -f {run_id}"
            print_data({"id": run_id}, form, said)
            return 0
        from windlass.cli.follow import follow

        return follow(run_id, store, form=form, quiet=quiet, verbose=verbose, since_seq=seq, since=since)
