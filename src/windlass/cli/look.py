"""`ps`, `status`, `logs` and `events`: what shows a run and changes nothing."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

from windlass.cli import options
from windlass.cli.render import print_event, print_status, print_statuses
from windlass.cli.style import coloured
from windlass.errors import RunNotFinished
from windlass.runs.record import EXIT_CODES


@click.command()
@click.option("--all", "-a", "every", is_flag=True, help="Every run, not only the unfinished and the newest.")
@click.option("--last", "-n", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest.")
@click.option("--quiet", "-q", is_flag=True, help="Only the ids.")
@click.option("--on", metavar="TARGET", help="All runs on this cluster, also those that another machine started.")
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="With --on: in all namespaces of the cluster.")
@click.option("--watch", "-w", is_flag=True, help="With --on: go on with a line for each change, until Ctrl-C.")
@options.output
def ps(
    every: bool, last: int, quiet: bool, on: str | None, everywhere: bool, watch: bool, form: str
) -> int:  # fmt: skip
    """List runs: the unfinished ones and the newest.

    \b
    Example:
      windlass ps
      windlass ps --all -o json
      windlass ps --on lab              what runs on a cluster, whoever started it
    """
    from windlass.actions.edge import here

    if on is not None:
        from windlass.actions.elsewhere import there
        from windlass.cli.elsewhere import print_list
        from windlass.cli.elsewhere import watch as watch_all

        if watch and (everywhere or quiet):
            raise click.UsageError("--watch shows one namespace, with what changes in it")
        with here().store() as store:
            if watch:
                return watch_all(on, store, here(), form)
            shown = there(on, store, here(), everywhere=everywhere)
        if click.get_current_context().get_parameter_source("last") is not ParameterSource.DEFAULT:
            shown = shown[:last]
        print_list(shown, on, form, quiet=quiet, everywhere=everywhere)
        return 0
    if everywhere or watch:
        raise click.UsageError(f"--{'watch' if watch else 'all-namespaces'} is of a cluster: name it by --on")
    with here().store() as store:
        from windlass.actions.current import views

        found = views(store, here().now(), last=None if every else last)
        hidden = 0 if every else store.count() - len(found)
    print_statuses(found, form, hidden=hidden, quiet=quiet)
    return 0


@click.command()
@options.run_argument
@click.option("--watch", "-w", is_flag=True, help="Follow it until it ends.")
@click.option("--exit-code", is_flag=True, help="End with the run's code: 0, 100, 103, or 101 while it goes on.")
@options.on_cluster
@options.output
@options.verbose
def status(run: str | None, watch: bool, exit_code: bool, on: str | None, form: str, verbose: int) -> int:
    """Show one run: its phase, progress, ranks, where its time went, and what broke first.

    \b
    Example:
      windlass status                      the newest run
      windlass status digits-7 -o json     a prefix of the id is enough
      windlass status -w --exit-code       wait for it, and end as it did
    """
    from windlass.actions import runs
    from windlass.actions.current import view
    from windlass.actions.edge import here

    code = 0
    with here().store() as store:
        if on is not None:
            from windlass.actions import elsewhere
            from windlass.cli.elsewhere import print_one
            from windlass.cli.elsewhere import watch as watch_there

            run, is_ours = elsewhere.find(run, on, store, here())
            if not is_ours:
                if watch and (code := watch_there(on, store, here(), form, run_id=run)):
                    return code
                there = elsewhere.one(run, on, here())
                print_one(there, form)
                return EXIT_CODES.get(there.seen.phase, RunNotFinished.exit_code) if exit_code else 0
        run_id = store.find(run)
        if watch and not runs.status(run_id, store).phase.is_terminal:
            from windlass.cli.follow import watch as watch_run

            code = watch_run(run_id, store, form=form)[1]
        shown = view(run_id, store, here().now())
        found = shown.status
        is_full = not found.phase.is_terminal and not store.reserve.has_room()
        print_status(
            found, store.plan(run_id), runs.ledger(run_id, store), form, verbose=verbose, view=shown, is_full=is_full
        )  # fmt: skip
    return EXIT_CODES.get(found.phase, RunNotFinished.exit_code) if exit_code else code


@click.command()
@options.run_argument
@click.option("--rank", "-r", "ranks", type=click.IntRange(0), multiple=True, help="Only this rank; may be repeated.")
@click.option("--attempt", type=click.IntRange(1), help="Only this attempt.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what arrives, until the run ends.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="10min", help="Only lines of the last 10min.")
@options.on_cluster
@options.debug
def logs(
    run: str | None, ranks: tuple[int, ...], attempt: int | None, follow: bool, tail: int | None, since: str | None,
    on: str | None,
) -> int:  # fmt: skip
    """Show what the ranks wrote, in the order of time; each line begins with its rank unless one rank is asked for.

    \b
    Example:
      windlass logs -f
      windlass logs digits-7f3k2 --rank 0 --tail 100
    """
    from windlass.actions import runs
    from windlass.actions.edge import here
    from windlass.cli.logs import write_logs

    edge = here()
    age = options.seconds(since, "--since", "write it as 30s, 10min or 2h") if since else None
    since_ns = None if age is None else int((edge.now() - age) * 1e9)
    with edge.store() as store:
        if on is not None:
            from windlass.actions import elsewhere
            from windlass.cli.hands import tidy

            run, is_ours = elsewhere.find(run, on, store, edge)
            if not is_ours:
                with tidy(), elsewhere.logs(run, on, edge, follow=follow) as (folder, is_all):
                    write_logs(
                        folder, sys.stdout.buffer, ranks=ranks, attempt=attempt, tail=tail, since_ns=since_ns,
                        is_over=is_all, terminal=coloured(sys.stdout),
                    )  # fmt: skip
                return 0
        run_id = store.find(run)
        engine = runs.engine_for(run_id, store)
        is_over = (lambda: engine.status(run_id).phase.is_terminal) if follow else None
        write_logs(
            store.run_dir(run_id), sys.stdout.buffer, ranks=ranks, attempt=attempt, tail=tail, since_ns=since_ns,
            is_over=is_over, terminal=coloured(sys.stdout),
        )  # fmt: skip
    return 0


@click.command()
@options.run_argument
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until the run ends.")
@options.output
def events(run: str | None, follow: bool, form: str) -> int:
    """Show what happened to a run, event by event.

    \b
    Example:
      windlass events digits-7f3k2
      windlass events -f -o json            one JSON object a line
    """
    from windlass.actions import runs
    from windlass.actions.edge import here

    with here().store() as store:
        run_id = store.find(run)
        began_at = store.status(run_id).created_at
        for event in runs.events(run_id, store, follow=follow):
            print_event(event, form, began_at)
    return 0
