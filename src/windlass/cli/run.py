"""`plan`, `run`, `stop` and `rm`: what begins and ends a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from windlass.cli import options
from windlass.cli.render import emit, print_data, print_plan, print_status
from windlass.cli.words import duration, painter


class TakesRest(click.Command):
    """A command whose arguments after `--` belong to the script, or are a whole command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set aside what stands after the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["rest"], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


def _read(ctx: click.Context, /, job: str | None, given: dict[str, Any]) -> tuple[Any, str, Any]:
    """The ready job, the target's name and the edge, from the options of `plan` and `run`."""
    from windlass.actions.edge import here
    from windlass.actions.jobs import read_job

    edge = here()
    on = given.pop("on")
    rest: Sequence[str] | None = ctx.meta.get("rest")
    ready = read_job(job, rest or (), options.overrides(**given), edge, rest_given=rest is not None)
    return ready, on, edge


@click.command(cls=TakesRest)
@options.job_arguments
@options.plan_output
@options.verbose
@click.pass_context
def plan(ctx: click.Context, /, job: str | None, form: str, verbose: int, **given: Any) -> int:
    """Show every step that a run would take; touches nothing.

    \b
    Example:
      windlass plan job.yaml --nodes 4
      windlass plan train.py --nodes 2 -v            with every variable of every rank
      windlass plan -o json -- torchrun train.py
      windlass plan --on lab -o manifest > run.yaml  objects that kubectl apply makes, and nobody has to keep
    """
    from windlass.actions.runs import make_plan

    made = make_plan(*_read(ctx, job, given))
    if form.startswith("manifest"):
        from windlass.cli.manifesttext import print_manifests

        return print_manifests(made, as_list=form == "manifest-json")
    print_plan(made, form, verbose=verbose)
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

    The run belongs to no terminal: Ctrl-C asks whether to detach or to stop, and where nobody can be asked it detaches
    (code 130), as SIGTERM does (code 101). Only `windlass stop` and a clear answer end a run. Ends with 0 if the run
    succeeded, 100 if it failed, 103 if it was stopped.

    \b
    Example:
      windlass run                                        job.yaml of this folder
      windlass run train.py --nodes 2 -- --epochs 5       a script and its arguments
      windlass run -- torchrun --nproc-per-node 2 train.py
      windlass run --detach -o json                       prints {"id": …}
    """
    from windlass.actions.edge import here
    from windlass.actions.runs import expected, make_plan, submit

    edge = here()
    with ExitStack() as open_:
        with expected(given["on"], edge):
            made = make_plan(*_read(ctx, job, given))
            made.require_runnable()
            if made.warnings and form == "table" and not quiet:
                from windlass.cli.plantext import note_lines

                emit(note_lines(made.warnings, painter(sys.stderr)), sys.stderr)
            store = open_.enter_context(edge.store())  # not before the job is known to be good
            status = submit(made, store)
        if detach:
            said = status.id if quiet else f"{status.id} goes on by itself: windlass logs -f {status.id}"
            print_data({"id": status.id}, form, said)
            return 0
        from windlass.cli.follow import follow

        return follow(status.id, store, form=form, quiet=quiet, verbose=verbose)


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
    from windlass.actions.edge import here

    with here().store() as store:
        if on is not None:
            from windlass.actions import elsewhere

            if run is None:  # whose it is that is the newest there, nobody can be sure of
                raise click.UsageError("with --on, name the run")
            run, is_ours = elsewhere.find(run, on, store, here())
            if not is_ours:
                from windlass.cli.elsewhere import stop as stop_there

                return stop_there(run, on, here(), now=now, wait=not no_wait, form=form)
        run_id = store.find(run)
        plan = store.plan(run_id)
        grace = 0 if now else plan["policy"].get("grace_seconds", 0)
        over = runs.status(run_id, store).phase.is_terminal
        left = runs.left_running(run_id, store) if over else []
        runs.stop(run_id, store, now=now)
        if host := runs.stops_elsewhere(run_id, store):
            click.echo(f"{run_id}: stop requested; its supervisor on {host} reads the request from the shared home",
                       err=True)  # fmt: skip
            no_wait = True
        if not (over or no_wait) and form == "table":
            say_stopping(run_id, grace)
        status = runs.status(run_id, store) if no_wait else runs.wait_stopped(run_id, store, grace)
        if form == "table":
            from windlass.cli.statustext import summary_lines

            had = ["it had ended already:"] if over else []
            if left:
                had = [f"it had ended already by its record; pods that still ran were deleted: {', '.join(left)}"]
            emit([*had, *summary_lines(status, runs.ledger(run_id, store), time.time(), painter(sys.stdout))])
        else:
            print_status(status, plan, runs.ledger(run_id, store), form)
    return 0


def say_stopping(run_id: str, grace_seconds: float) -> None:
    """A line on what happens now."""
    patience = f"the ranks have {duration(grace_seconds)} to leave" if grace_seconds else "the ranks are killed"
    click.echo(f"{run_id}: stopping; {patience}", err=True)


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
    from windlass.actions import elsewhere
    from windlass.actions import runs as actions
    from windlass.actions.edge import here

    with here().store() as store:
        # All names are looked up before the first is removed.
        found = [(store.find(run), True) if on is None else elsewhere.find(run, on, store, here()) for run in runs]
        for run_id, is_ours in found:
            if is_ours and force:
                actions.require_here(run_id, store)
            elif force:
                continue
            elif is_ours:
                actions.require_removable(actions.status(run_id, store), store)
            else:
                elsewhere.require_removable(run_id, str(on), here())
        for run_id, is_ours in found:
            if not is_ours:
                elsewhere.remove(run_id, str(on), here(), force=force)
                continue
            if force:
                actions.stop(run_id, store, now=True)
                actions.wait_stopped(run_id, store, 0)
            actions.remove(run_id, store, force=True)
        ids = [run_id for run_id, _ in found]
        print_data({"removed": ids}, form, "\n".join(f"{run_id} removed" for run_id in ids))
    return 0
