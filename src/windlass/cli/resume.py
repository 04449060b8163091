"""`resume`: starts another attempt of a run that ended without success."""

from __future__ import annotations

import time
from typing import Any

import click

from windlass.cli import options
from windlass.cli.render import print_detached
from windlass.cli.run import TakesRest, code_line


@click.command(cls=TakesRest)
@options.run_argument
@click.option(
    "--from",
    "checkpoint",
    metavar="CHECKPOINT",
    shell_complete=options.complete_checkpoint,
    help="Checkpoint to resume from, by name, step or path. Default: the newest verified one.",
)
@options.resume_options
@click.option("--new-code", is_flag=True, help="Upload the current code folder; also done if the job is changed.")
@click.option("--detach", "-d", is_flag=True, help="Do not follow the run.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither logs nor state, only the end of the run.")
@options.on_cluster
@options.output
@options.verbose
@click.pass_context
def resume(
    ctx: click.Context,
    /,
    run: str | None,
    checkpoint: str | None,
    new_code: bool,
    detach: bool,
    quiet: bool,
    on: str | None,
    form: str,
    verbose: int,
    **given: Any,
) -> int:
    """Resume a run that failed, was stopped or was lost, and follow it as `windlass run` does.

    The run continues with another attempt from its newest checkpoint, and its restarts are counted from zero. Options
    and arguments after -- change its job. On this machine, the current files of the code folder are used; on a cluster,
    the code that was uploaded, unless the job is changed or --new-code is given. Exits with 0 if the run then succeeds,
    100 if it fails, 103 if it is stopped.

    \b
    Example:
      windlass resume digits-7f3k2
      windlass resume digits-7f3k2 --nodes 4
      windlass resume digits-7f3k2 --from step-00000120-a2f3c1
      windlass resume digits-7f3k2 --set resources.memory=64GiB -- --batch 16
    """
    from windlass.actions import runs
    from windlass.runs.context import here

    options.require_named(run, on)
    context = here()
    with runs.opened(run, on) as (engine, run_id):
        runs.require_record(engine, run_id, "resume")
        since, seq = time.time(), engine.store.status(run_id).last_seq
        # Compared before the resume, because the comparison needs the last attempt's report of changed files.
        changed = runs.changed_code(engine, run_id, context) if form == "table" and not quiet else []
        with options.named_by_flag(given):
            changes, more = options.overrides(**given), ctx.meta.get("rest") or ()
            runs.resume(run_id, engine, context, changes=changes, more=more, new_code=new_code, checkpoint=checkpoint)
        if changed:
            is_old = runs.has_sent_code(engine, run_id) and not (changes or more or new_code)
            which = "the code that was sent; --new-code sends this" if is_old else "the files of now"
            click.echo(f"{code_line(run_id, changed)}; the run continues with {which}", err=True)
        if detach:
            print_detached(run_id, form, quiet=quiet)
            return 0
        from windlass.cli.follow import follow

        return follow(run_id, engine, form=form, quiet=quiet, verbose=verbose, since_seq=seq, since=since)
