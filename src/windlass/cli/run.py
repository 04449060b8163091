"""`plan`, `run`, `rerun` and `stop`: start and stop runs."""

from __future__ import annotations

import operator
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.formatting import count, duration, painter, visible
from windlass.cli.render import emit, print_data, print_detached
from windlass.errors import EngineError, NoSuchRun, UsageError

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan
    from windlass.runs.record import Status
    from windlass.runs.store import Store

FEW_NAMES: Final = 3
"""Maximum number of file names in a message."""
SCRIPT_BYTES: Final = 1 << 20
"""Bytes of a script that are read to find its options."""
FLAGS: Final = {
    "--dry-run": "windlass plan shows every step of the run, and starts nothing",
    "--image": "write --set image=IMAGE",
    "--json": "write -o json",
    "--nnodes": "write --nodes N",
    **dict.fromkeys(("--nproc-per-node", "--nproc_per_node"), "write --procs-per-node N"),
    "--num-nodes": "write --nodes N",
    "--region": "a target has the region: write --on TARGET",
    "--retries": "write --restarts N",
    "--retry": "write --restarts N",
    "--spot": "write --set sagemaker.spot=true; on a cluster, its node pools decide",
    "--target": "write --on TARGET",
    "--workers": "write --nodes N for machines, --procs-per-node N for processes on each",
    "-n": "write --nodes N",
    "-t": "write --timeout 2h",
}
"""Maps options of other tools to a hint with the equivalent in Windlass."""


def _meant(option: str) -> str:
    """Returns what to write instead of an option that Windlass does not have; empty if unknown."""
    if option in FLAGS or not option.startswith("--"):
        return FLAGS.get(option, "")
    from windlass.spec.schema import job_schema, job_settings

    field = option[2:].replace("-", "_")
    schema = job_schema()["properties"].get(field)
    if schema is None:
        return ""
    settings = [name for name in job_settings() if name == field or name.startswith(f"{field}.")]
    is_list = "array" in (schema.get("type"), *(one.get("type") for one in schema.get("anyOf", ())))
    few = [f"--set {name}=…" for name in settings if name != field or len(settings) == 1][:FEW_NAMES]
    ways = [f"{field}: in the job file", *(() if is_list else (" ".join(few),))]
    return f"{field} is a field of the job: write {' or '.join(ways)}"


def _is_of_script(script: str, option: str) -> bool:
    """Whether the script's text contains this option in quotes, as in `add_argument("--lr")`."""
    with suppress(OSError), open(script, "rb") as file:
        text = file.read(SCRIPT_BYTES)
        return any(quote + option.encode() + quote in text for quote in (b"'", b'"'))
    return False


class TakesRest(click.Command):
    """A command whose arguments after `--` belong to the script, or are a whole command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sets aside the words after the first `--`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta["rest"], args = args[at + 1 :], args[:at]
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if "rest" not in ctx.meta:
                self._explain(ctx, args, error)
            raise

    def _explain(self, ctx: click.Context, args: Sequence[str], error: click.UsageError) -> None:
        """Raises UsageError with the intended command line if options of the script are given without `--`."""
        ours, theirs, named = _split(self, ctx, args)
        option = theirs[0].partition("=")[0] if theirs else ""
        meant = _meant(option) if option and self.name in ("run", "plan", "rerun") else ""
        if meant and not (named and (_is_program(named) or _is_of_script(named, option))):
            raise UsageError(f"{ctx.command_path} has no {option}", meant) from error
        is_misspelled = isinstance(error, click.NoSuchOption) and _is_misspelled(error)
        if option and not named and not is_misspelled and self.name in ("run", "plan", "rerun", "resume"):
            hint = f"arguments of the script go last, after --: {ctx.command_path} … -- {option} …"
            raise UsageError(f"{ctx.command_path} does not take {option}", hint) from error
        if not theirs or not named:
            return
        message, what = f"{ctx.command_path} does not take {shlex.quote(theirs[0])}", "arguments of the script go"
        if self.name == "exec":
            what = "the command goes"
        elif self.name in ("run", "plan") and _is_program(named):
            at = args.index(named)
            message, what = f"{named} is neither a job file nor a script", "a command line goes"
            ours, theirs = list(args[:at]), list(args[at:])
        elif is_misspelled:
            return
        line = shlex.join([*ctx.command_path.split(), *ours, "--", *theirs])
        raise UsageError(message, f"{what} after --: {line}") from error


def _is_program(word: str) -> bool:
    """Whether the word, given as job or script, is a program in the PATH, such as `torchrun`."""
    return not Path(word).exists() and "." not in word and shutil.which(word) is not None


def _is_misspelled(error: click.NoSuchOption) -> bool:
    """Whether an unknown option abbreviates an option of Windlass, has its letters in another order, or has one letter
    more or less; from five letters on, also whether one letter is replaced.
    """
    name = error.option_name
    return any(
        # such as --node, --nodse and --nodez for --nodes; but scripts have short options such as --seq beside --set
        one.startswith(name)
        or len(set(one) ^ set(name)) < 2
        or (len(one) == len(name) > len("--four") and sum(map(operator.ne, one, name)) == 1)
        for one in error.possibilities or ()
    )


def _split(command: click.Command, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str], str]:
    """Splits a command line into Windlass's words, words of the script, and the script or run itself.

    If an unknown option precedes the script or run, the words of the script are only this option.
    """
    known = {name: one for one in command.get_params(ctx) if isinstance(one, click.Option) for name in one.opts}
    ours: list[str] = []
    theirs: list[str] = []
    named = ""
    words = deque(args)
    while words:
        word = words.popleft()
        option = known.get(word.partition("=")[0] if word.startswith("--") else word[:2])
        if option is not None and word.startswith("-"):
            ours.append(word)
            has_value = word in option.opts and not option.is_flag and not option.count
            ours += [words.popleft()] if has_value and words else []
        elif not named and word.startswith("-"):
            # The script's arguments follow the script, so an option before the script is unknown to Windlass.
            return ours, [word.partition("=")[0]], ""
        elif named:
            theirs.append(word)
        else:
            named = word
            ours.append(word)
    return ours, theirs, named


def _read(ctx: click.Context, /, job: str | None, given: dict[str, Any]) -> tuple[Any, str, Any]:
    """Reads the options of `plan` and `run`; returns the job, the name of the target, and the context."""
    from windlass.actions.jobs import read_job
    from windlass.runs.context import here

    context = here()
    on = given.pop("on")
    rest: Sequence[str] | None = ctx.meta.get("rest")
    with options.named_by_flag(given):
        ready = read_job(job, rest or (), options.overrides(**given), context, rest_given=rest is not None)
    return ready, on, context


@click.command(cls=TakesRest)
@options.job_arguments
@options.output_as("table", "json", "yaml", "manifest", "manifest-json", "request")
@options.verbose
@click.option(
    "--files",
    metavar="FOLDER",
    type=click.Path(),
    help="Write the files to upload to the store into this folder; with -o request or manifest.",
)
@click.pass_context
def plan(ctx: click.Context, /, job: str | None, form: str, verbose: int, files: str | None, **given: Any) -> int:
    """Show every step that a run would take; changes nothing.

    \b
    Example:
      windlass plan job.yaml --nodes 4
      windlass plan train.py --nodes 2 -v             every variable of every rank
      windlass plan -o json -- torchrun train.py
      windlass plan --on lab -o manifest > run.yaml   for kubectl apply
      windlass plan --on aws -o request --files up    for create-training-job
    """
    from windlass.actions.runs import make_plan

    # Other tools may apply a printed manifest or request, so its run id must be unique.
    to_look = form in ("table", "json", "yaml")
    made = make_plan(*_read(ctx, job, given), to_look=to_look)
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
@options.after
@options.output
@options.detached
@options.verbose
@click.pass_context
def run(
    ctx: click.Context,
    /,
    job: str | None,
    form: str,
    detach: bool,
    quiet: bool,
    verbose: int,
    after: tuple[str, ...],
    **given: Any,
) -> int:
    """Run a job and follow it until it ends.

    The run does not depend on the terminal: Ctrl-C asks whether to detach or to stop. Without a terminal, Ctrl-C
    detaches (exit code 130), and so does SIGTERM (101). Only `windlass stop` or choosing to stop ends the run. Exits
    with 0 if the run succeeded, 100 if it failed, 103 if it was stopped.

    \b
    Example:
      windlass run                                   job.yaml of this folder
      windlass run train.py --nodes 2 -- --epochs 5  a script and its arguments
      windlass run -- torchrun --nproc-per-node 2 train.py
      windlass run --detach -o json                  prints {"id": …}
      windlass run eval.yaml --after digits          waits for its success
    """
    from windlass.actions.runs import make_plan

    made = make_plan(*_read(ctx, job, given))
    return _start(made, form, detach=detach, quiet=quiet, verbose=verbose, after=after)


def _start(made: Plan, form: str, *, detach: bool, quiet: bool, verbose: int, after: Sequence[str]) -> int:
    """Submits a plan, to start after the runs `after`, and follows the run unless `detach`. Returns the exit code."""
    from windlass.actions.runs import after_runs, submit
    from windlass.engines import engine_class
    from windlass.runs.context import here

    made.require_runnable()
    if made.warnings and form == "table" and not quiet:
        from windlass.cli.plantext import note_lines

        emit(note_lines(made.warnings, painter(sys.stderr)), sys.stderr)
    context = here()
    with context.store() as store:  # opened late: an invalid job must not create a record
        engine = engine_class(made.engine).connect(store)
        try:
            status = submit(engine, after_runs(made, after, store, context), context)
            if detach:
                print_detached(status.id, form, quiet=quiet)
                return 0
            from windlass.cli.follow import follow

            return follow(status.id, engine, form=form, quiet=quiet, verbose=verbose)
        except KeyboardInterrupt:  # Ctrl-C before `follow` handles it; an incomplete submission is undone by now
            from windlass.cli.follow import in_background

            with suppress(NoSuchRun):
                emit(in_background(store.status(made.run_id).id), sys.stderr)
            raise


@click.command(cls=TakesRest)
@options.run_argument
@options.job_options
@options.after
@options.output
@options.detached
@options.verbose
@click.pass_context
def rerun(
    ctx: click.Context,
    /,
    run: str | None,
    form: str,
    detach: bool,
    quiet: bool,
    verbose: int,
    after: tuple[str, ...],
    **given: Any,
) -> int:
    """Start a new run with the recorded job of an earlier run; options and arguments after -- change the job.

    The current files of the code folder are used, and a line names those that differ from the earlier run. The earlier
    code is available with `windlass cp RUN:code FOLDER`.

    \b
    Example:
      windlass rerun digits-7f3k2
      windlass rerun digits-7f3k2 --nodes 4 --on lab -- --epochs 20
    """
    from windlass.actions import runs as actions
    from windlass.runs.context import here

    context = here()
    on = given.pop("on")
    with context.store() as store:
        engine, run_id = actions.find(run, store, context=context)
        with options.named_by_flag(given):
            fields = options.overrides(**given)
            again = actions.rerun_plan(engine, run_id, on, fields, ctx.meta.get("rest") or (), context)
        changed = actions.changed_code(engine, run_id, context)
    if changed and form == "table" and not quiet:
        click.echo(f"{code_line(run_id, changed)}; windlass cp {run_id}:code FOLDER has that", err=True)
    return _start(again, form, detach=detach, quiet=quiet, verbose=verbose, after=after)


def code_line(run_id: str, changed: Sequence[str]) -> str:
    """Returns a line with the code files that have changed since the earlier run."""
    names = ", ".join(changed[:FEW_NAMES]) + (" …" if len(changed) > FEW_NAMES else "")
    differ = "differs" if len(changed) == 1 else "differ"
    return f"{count(len(changed), 'file')} of the code {differ} from what {run_id} began with: {visible(names)}"


@click.command()
@options.runs_argument
@options.labelled("All unfinished runs with this label; may be repeated.")
@click.option("--now", is_flag=True, help="Send SIGKILL at once, without a grace period.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the runs have ended.")
@options.on_cluster
@options.output
def stop(runs: tuple[str, ...], labels: tuple[str, ...], now: bool, no_wait: bool, on: str | None, form: str) -> int:
    """Stop runs: SIGTERM to every rank, the job's grace period, then SIGKILL. Default: the newest run.

    
    Example:
      windlass stop digits-7f3k2
      windlass stop digits-7f3k2 digits-9x2mm --now
      windlass stop --label sweep=lr
    """
    from windlass.actions import runs as actions
    from windlass.runs.context import here

    options.require_named(runs[0] if runs else None, on, labels)
    context = here()
    with context.store() as store:
        found = actions.find_all(runs, labels, store, on, context, is_over=False)
        # Requests all stops before waiting for the first run to end, so that the grace periods overlap.
        stopped = [_request_stop(engine, run_id, form, now=now, no_wait=no_wait) for engine, run_id in found]
        for engine, run_id, grace, note in stopped:
            if grace is not None:
                actions.wait_stopped(engine, run_id, grace)
            from windlass.cli.statetext import print_end

            print_end(engine, run_id, form, note)
            if note and on is None and run_id not in runs and form == "table":
                _name_unfinished(store, engine.status(run_id).name, runs)
    return 0


def _name_unfinished(store: Store, job: str, named: Collection[str]) -> None:
    """Prints which other runs are unfinished, if the newest run was to be stopped and had ended already."""
    others = [one for one in store.statuses() if not one.phase.is_terminal and (one.name == job or not named)]
    ids = " ".join(one.id for one in others[:FEW_NAMES])
    if others:
        click.echo(f"{count(len(others), 'other run')} not ended: windlass stop {ids}", err=True)


def _request_stop(
    engine: Engine, run_id: str, form: str, *, now: bool, no_wait: bool
) -> tuple[Engine, str, float | None, str]:
    """Requests the stop of a run. Returns the engine, the run id, the grace period to wait for (None: do not wait), and
    a note to print.
    """
    from windlass.actions import runs

    before = engine.status(run_id)
    is_over = before.phase in engine.final_phases
    is_slow = now and not is_over and not engine.can_kill(run_id)
    now = now and not is_slow
    grace = 0.0 if now or is_over else engine.grace_seconds(run_id)
    left: list[str] = []
    if is_over:
        with suppress(EngineError):  # an unreachable target is reported by `engine.stop` below
            left = engine.still_running(run_id)
    engine.stop(run_id, now=now)
    if host := runs.supervised_elsewhere(engine.status(run_id), engine.store):
        click.echo(
            f"{run_id}: stop requested; its supervisor on {host} reads the request from the shared WINDLASS_HOME",
            err=True,
        )
        no_wait = True
    waits = not (is_over or no_wait)
    if waits and form == "table":
        is_recorded = engine.plan_of(run_id) is not None
        words = stopping(before, grace, now=now, is_slow=is_slow, is_recorded=is_recorded)
        click.echo(f"{run_id}: stopping; {words}", err=True)
    note = "it had ended already:" if is_over else ""
    if left:
        note = f"it had ended already by its record; {engine.stopped_words}: {', '.join(left)}"
    return engine, run_id, grace if waits else None, note


def stopping(before: Status, grace: float, *, now: bool, is_slow: bool, is_recorded: bool) -> str:
    """Describes the effect of a stop on a run; `before` is its status, with attempts only if `is_recorded`."""
    from windlass.runs.phase import Phase

    if before.phase is Phase.UPLOADING:
        first = "its outputs are uploaded first; --now does not wait for them"
        return "the upload of its outputs is ended" if now else first
    is_waiting = before.phase in (Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING) or not before.attempts
    if is_recorded and is_waiting and all(one.pid is None for one in before.ranks):
        return "no rank has started"
    slow = f": {before.target} has no faster stop" if is_slow else ""
    return (f"the ranks have {duration(grace)} to exit" if grace else "the ranks are killed") + slow
