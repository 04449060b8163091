"""`ps`, `status`, `logs` and `events`: read-only commands that show runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from windlass.cli import options
from windlass.cli.render import print_event
from windlass.cli.style import coloured
from windlass.errors import RunNotFinished
from windlass.runs.phase import EXIT_CODES, Phase

if TYPE_CHECKING:
    from windlass.runs.events import Event
    from windlass.views.run import RunSummary

PHASES: Final = [one.value for one in Phase]
SORTS: Final[dict[str, Callable[[RunSummary], Any]]] = {
    "name": lambda run: (run.name, -run.created_at),
    "phase": lambda run: (PHASES.index(run.phase), -run.created_at),
    "age": lambda run: run.created_at,
    "time": lambda run: -run.elapsed(time.time()),
}
"""Sort keys of `ps --sort`: `age` puts the oldest first, `time` the longest, `phase` queued runs before ended ones."""


@click.command()
@click.option("--all", "-a", "every", is_flag=True, help="Show all runs, not only unfinished and newest ones.")
@click.option(
    "--last", "-n", type=options.WholeNumber(1), default=20, show_default=True, help="Number of newest runs to show."
)
@click.option("--quiet", "-q", is_flag=True, help="Print only ids.")
@click.option(
    "--on",
    metavar="TARGET",
    shell_complete=options.complete_targets,
    help="Show all runs on this cluster, including those started from other machines.",
)
@click.option(
    "--all-namespaces", "-A", "everywhere", is_flag=True, help="With --on: show all namespaces of the cluster."
)
@click.option("--watch", "-w", is_flag=True, help="Print a line for each change, until Ctrl-C.")
@click.option("--name", metavar="PATTERN", default="", help="Only runs of jobs of this name: digits or 'digits*'.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice(PHASES),
    metavar="PHASE",
    help="Only runs in this phase: starting, training, failed, …",
)
@click.option("--label", "-l", "labels", multiple=True, metavar="KEY[=VALUE]", help="Only runs with this label.")
@click.option("--since", metavar="2d", help="Only runs started within the last 2d.")
@click.option("--sort", type=click.Choice(list(SORTS)), help="Sort by this column. Default: newest first.")
@options.output
@click.argument("words", nargs=-1, metavar="")
def ps(
    words: tuple[str, ...], every: bool, last: int, quiet: bool, on: str | None, everywhere: bool, watch: bool,
    name: str, phases: tuple[str, ...], labels: tuple[str, ...], since: str | None, sort: str | None, form: str,
) -> int:  # fmt: skip
    """List runs: the unfinished ones and the newest. --name, --phase, --label and --since narrow the list.

    \b
    Example:
      windlass ps
      windlass ps --all -o json
      windlass ps --phase failed --label team=vision --since 2d
      windlass ps --on lab              what runs on a cluster, from any machine
    """
    from windlass.actions import runs
    from windlass.actions.listing import Filter, labels_in
    from windlass.runs.context import here

    if words:
        raise click.UsageError(f"ps takes no run: windlass ps --name {words[0]}, or windlass status {words[0]}")
    if on is None and everywhere:
        raise click.UsageError("--all-namespaces needs --on TARGET")
    if sort and (watch or on is not None):
        raise click.UsageError("--sort orders the runs of this machine, as they are now")
    if watch and (everywhere or quiet):
        raise click.UsageError("--watch shows the changes of one namespace, with their phases")
    context = here()
    after = context.now() - options.seconds(since, "--since", "write it as 12h or 2d") if since else 0.0
    wanted = Filter(name, frozenset(map(Phase, phases)), labels_in(labels), since=after)
    with context.store() as store:
        if on is None:
            from windlass.cli.listtext import print_here

            order = SORTS[sort] if sort else None
            return print_here(
                store, context, wanted, form, last=None if every else last, quiet=quiet, watch=watch, order=order
            )
        engine = runs.connect(on, store, context)
        if watch:
            from windlass.cli.statetext import watch_runs

            return watch_runs(engine, on, form, wanted=wanted)
        listed = [one for one in engine.list(is_everywhere=everywhere) if wanted.matches(one.status)]
    from windlass.cli.listtext import print_list

    if click.get_current_context().get_parameter_source("last") is not ParameterSource.DEFAULT:
        listed = listed[:last]
    print_list(listed, on, form, quiet=quiet, everywhere=everywhere)
    return 0


@click.command()
@options.run_argument
@click.option("--watch", "-w", is_flag=True, help="Follow the run until it ends.")
@click.option("--exit-code", is_flag=True, help="Exit with the run's code: 0, 100, 103, or 101 while it is active.")
@options.on_cluster
@options.output
@options.verbose
def status(run: str | None, watch: bool, exit_code: bool, on: str | None, form: str, verbose: int) -> int:
    """Show one run: its phase, progress, ranks, time accounting, and root cause of a failure.

    \b
    Example:
      windlass status                      the newest run
      windlass status digits-7 -o json     a prefix of the id is enough
      windlass status digits               the newest run of the job of this name
      windlass status -w --exit-code       wait for it, and exit with its code
    """
    from windlass.actions.runs import opened
    from windlass.cli.statetext import print_state

    code = 0
    with opened(run, on) as (engine, run_id):
        if watch and not engine.status(run_id).phase.is_terminal:
            if engine.plan_of(run_id) is not None:
                from windlass.cli.follow import watch as watch_run

                code = watch_run(run_id, engine, form=form)
            else:  # this machine has no record of the run
                from windlass.cli.statetext import watch_runs

                code = watch_runs(engine, str(on), form, run_id)
                if code:
                    return code
        state = engine.state(run_id, time.time())
        print_state(engine, state, form, verbose=verbose)
    phase = state.status.phase
    return EXIT_CODES.get(phase, RunNotFinished.exit_code) if exit_code else code


@click.command()
@options.runs_argument
@options.labelled("All runs with this label; may be repeated.")
@click.option(
    "--rank", "-r", "ranks", type=options.WholeNumber(0), multiple=True, help="Only this rank; may be repeated."
)
@click.option("--attempt", type=options.WholeNumber(1), help="Only this attempt.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the run ends.")
@click.option("--tail", "-n", type=options.WholeNumber(0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="10min", help="Only lines of the last 10min.")
@click.option("--grep", "-g", metavar="PATTERN", help="Only lines that match this regular expression.")
@click.option("--timestamps", "-t", is_flag=True, help="Print the time before each line, in UTC.")
@options.on_cluster
@options.output_as("table", "json")
def logs(
    runs: tuple[str, ...],
    labels: tuple[str, ...],
    ranks: tuple[int, ...],
    attempt: int | None,
    follow: bool,
    tail: int | None,
    since: str | None,
    grep: str | None,
    timestamps: bool,
    on: str | None,
    form: str,
) -> int:
    """Show the output of ranks in order of time; each line starts with its rank unless a single rank is selected.

    Several runs are shown one after the other, each below its id. With --grep, --tail counts matching lines; with -f
    as well, all lines.

    \b
    Example:
      windlass logs -f
      windlass logs digits-7f3k2 --rank 0 --tail 100
      windlass logs --grep 'loss|error' --timestamps
      windlass logs --label sweep=lr --tail 1
      windlass logs -o json                 JSON lines: time, rank, text
    """
    from windlass.actions.runs import find_all
    from windlass.cli.interrupts import tidy
    from windlass.cli.logs import write_logs
    from windlass.runs.context import here

    age = options.seconds(since, "--since", "write it as 30s, 10min or 2h") if since else None
    since_ns = None if age is None else int((time.time() - age) * 1e9)
    pattern = options.pattern(grep) if grep is not None else None
    context, out = here(), sys.stdout.buffer
    with context.store() as store:
        found = find_all(runs, labels, store, on, context)
        if len(found) > 1 and (follow or form == "json"):
            raise click.UsageError(f"{'-f' if follow else '-o json'} takes one run, found {len(found)}")
        for number, (engine, run_id) in enumerate(found):
            if len(found) > 1:
                out.write(b"\n" * (number > 0) + f"==> {run_id} <==\n".encode())
            with tidy(), engine.logs(run_id, follow=follow) as (folder, is_over):
                write_logs(
                    folder,
                    out,
                    ranks=ranks,
                    attempt=attempt,
                    tail=tail,
                    since_ns=since_ns,
                    is_over=is_over,
                    terminal=coloured(sys.stdout),
                    pattern=pattern,
                    stamped=timestamps,
                    as_json=form == "json",
                )
    return 0


@click.command()
@options.run_argument
@click.option("--follow", "-f", is_flag=True, help="Print new events until the run ends.")
@options.on_cluster
@options.output
def events(run: str | None, follow: bool, on: str | None, form: str) -> int:
    """Show the events of a run.

    \b
    Example:
      windlass events digits-7f3k2
      windlass events -f -o json            one JSON object a line
    """
    from windlass.actions.runs import opened

    with opened(run, on) as (engine, run_id):
        began_at = engine.status(run_id).times.created_at
        found: Iterable[Event] = engine.events(run_id, follow=follow)
        if form == "table" and not follow:  # nodes may report late, so events are sorted by time
            found = sorted(found, key=lambda event: event.time)
        for event in found:
            print_event(event, form, began_at)
    return 0
