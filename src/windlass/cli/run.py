"""`plan`, `run`, `stop` and `rm`: what begins and ends a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from windlass.cli import options
from windlass.cli.formatting import duration, painter
from windlass.cli.render import emit, print_data, print_detached
from windlass.errors import EngineError


class TakesRest(click.Command):
    """A command whose arguments after `--` belong to the script, or are a whole command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set aside what follows the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["rest"], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


def _read(ctx: click.Context, /, job: str | None, given: dict[str, Any]) -> tuple[Any, str, Any]:
    """The ready job, the target's name and the context, from the options of `plan` and `run`."""
    from windlass.actions.jobs import read_job
    from windlass.runs.context import here

    context = here()
    on = given.pop("on")
    rest: Sequence[str] | None = ctx.meta.get("rest")
    ready = read_job(job, rest or (), options.overrides(**given), context, rest_given=rest is not None)
    return ready, on, context


@click.command(cls=TakesRest)
@options.job_arguments
@options.plan_output
@options.verbose
@click.option(
    "--files",
    metavar="FOLDER",
    type=click.Path(),
    help="Write what the store of SageMaker has to have; with -o request or manifest.",
)
@click.pass_context
def plan(
    ctx: click.Context, /, job: str | None, form: str, verbose: int, files: str | None, **given: Any
) -> int:  # fmt: skip
    """Show every step that a run would take; touches nothing.

    \b
    Example:
      windlass plan job.yaml --nodes 4
      windlass plan train.py --nodes 2 -v            with every variable of every rank
      windlass plan -o json -- torchrun train.py
      windlass plan --on lab -o manifest > run.yaml  objects for kubectl apply, without a supervisor
      windlass plan --on aws -o request --files up   for aws sagemaker create-training-job --cli-input-json
    """
    from windlass.actions.runs import make_plan

    made = make_plan(*_read(ctx, job, given))
    if form.startswith("manifest"):
        from windlass.cli.manifesttext import print_manifests

        return print_manifests(made, as_list=form == "manifest-json", files=files)
    if form == "request":
        from windlass.cli.manifesttext import print_request

        return print_request(made, files)
    if files is not None:
        raise click.UsageError("--files belongs to -o request and -o manifest")
    from windlass.cli.plantext import plan_lines

    print_data(made, form, lambda paint: plan_lines(made, paint, verbose=verbose))
    return 2 if any(note.blocks for note in made.notes) else 0


@click.command(cls=TakesRest)
@options.job_arguments
@options.output
@click.option("--detach", "-d", is_flag=True, help="Return at once; the run goes on.")
@click.option("--quiet", "-q", is_flag=True, help="Do not show what the ranks write; with --detach, print only the id.")
@options.verbose
@click.pass_context
def run(
    ctx: click.Context, /, job: str | None, form: str, detach: bool, quiet: bool, verbose: int, **given: Any
) -> int:  # fmt: skip
    """Run a job and follow it until it ends.

    The run belongs to no terminal: Ctrl-C asks whether to detach or to stop, and without a terminal it detaches (code
    130), as SIGTERM does (code 101). Only `windlass stop` and a clear answer end a run. Ends with 0 if the run
    succeeded, 100 if it failed, 103 if it was stopped.

    \b
    Example:
      windlass run                                        job.yaml of this folder
      windlass run train.py --nodes 2 -- --epochs 5       a script and its arguments
      windlass run -- torchrun --nproc-per-node 2 train.py
      windlass run --detach -o json                       prints {"id": …}
    """
    from windlass.actions.runs import make_plan
    from windlass.engines import engine_class
    from windlass.runs.context import here

    context = here()
    made = make_plan(*_read(ctx, job, given))
    made.require_runnable()
    if made.warnings and form == "table" and not quiet:
        from windlass.cli.plantext import note_lines

        emit(note_lines(made.warnings, painter(sys.stderr)), sys.stderr)
    with context.store() as store:  # not before the job is known to be valid
        engine = engine_class(made.engine).connect(store)
        status = engine.submit(made)
        if detach:
            print_detached(status.id, form, quiet=quiet)
            return 0
        from windlass.cli.follow import follow

        return follow(status.id, engine, form=form, quiet=quiet, verbose=verbose)


@click.command()
@options.run_argument
@click.option("--now", is_flag=True, help="SIGKILL at once, without the grace period.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the run has ended.")
@options.on_cluster
@options.output
def stop(run: str | None, now: bool, no_wait: bool, on: str | None, form: str) -> int:
    """End a run: SIGTERM to every rank, the job's grace period, then SIGKILL.

    \b
    Example:
      windlass stop digits-7f3k2
      windlass stop --now
    """
    from windlass.actions import runs

    options.require_named(run, on)
    with runs.opened(run, on) as (engine, run_id):
        before = engine.status(run_id)
        is_over = before.phase in engine.final_phases
        grace = 0.0 if now or is_over else engine.grace_seconds(run_id)
        left: list[str] = []
        if is_over:
            with suppress(EngineError):  # a target that does not answer is asked again by the stop itself
                left = engine.left_running(run_id)
        engine.stop(run_id, now=now)
        if host := runs.supervised_elsewhere(engine.status(run_id), engine.store):
            click.echo(f"{run_id}: stop requested; its supervisor on {host} reads the request from the shared home",
                       err=True)  # fmt: skip
            no_wait = True
        if not (is_over or no_wait):
            if form == "table":
                patience = f"the ranks have {duration(grace)} to exit" if grace else "the ranks are killed"
                if not before.attempts:
                    patience = "no rank has started"
                click.echo(f"{run_id}: stopping; {patience}", err=True)
            runs.wait_stopped(engine, run_id, grace)
        note = "it had ended already:" if is_over else ""
        if left:
            note = f"it had ended already by its record; pods that still ran were deleted: {', '.join(left)}"
        from windlass.cli.statetext import print_end

        print_end(engine, run_id, form, note)
    return 0


@click.command()
@options.run_arguments
@click.option("--force", "-f", is_flag=True, help="Stop it first where it has not ended; remove its checkpoints too.")
@options.on_cluster
@options.output
def rm(runs: tuple[str, ...], force: bool, on: str | None, form: str) -> int:
    """Remove ended runs with their logs and the results inside their folders.

    Refused, unless forced: a run that goes on, and one that failed, was stopped or was lost and whose folder holds the
    only checkpoint from which it could be resumed.

    \b
    Example:
      windlass rm digits-7f3k2 digits-9x2mm
      windlass rm --force $(windlass ps -q)
    """
    from windlass.actions import runs as actions
    from windlass.runs.context import here

    context = here()
    with context.store() as store:
        # All names are looked up, and all runs checked, before the first is removed.
        found = [actions.find(run, store, on, context) for run in runs]
        for engine, run_id in found:
            (actions.require_here if force else actions.require_removable)(engine, run_id)
        for engine, run_id in found:
            if force:
                engine.stop(run_id, now=True)
                actions.wait_stopped(engine, run_id, 0)
            engine.delete(run_id)
        ids = [run_id for _, run_id in found]
        print_data({"removed": ids}, form, "\n".join(f"{run_id} removed" for run_id in ids))
    return 0
