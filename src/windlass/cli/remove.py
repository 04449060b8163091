"""`rm`, `prune` and `du`: remove ended runs, and show their disk usage."""

from __future__ import annotations

from typing import Final

import click

from windlass.actions.prune import RESULTS
from windlass.cli import options
from windlass.cli.formatting import Paint, count, duration, size, titled, visible
from windlass.cli.render import print_data
from windlass.cli.style import phase_word
from windlass.runs.phase import TERMINAL, Phase
from windlass.views.disk import DiskUse, PrunedRuns

LARGEST: Final = 10
"""Maximum number of runs shown by `du`."""
WORTH_BYTES: Final = 1 << 20
"""Minimum size in bytes of a folder that `du` lists."""
ENDED_PHASES: Final = tuple(phase.value for phase in Phase if phase in TERMINAL)


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN…", shell_complete=options.complete_run)
@options.labelled("All ended runs with this label, with --force all; may be repeated.")
@click.option("--force", "-f", is_flag=True, help="Stop active runs first, and remove checkpoints too.")
@options.on_cluster
@options.output
def rm(runs: tuple[str, ...], labels: tuple[str, ...], force: bool, on: str | None, form: str) -> int:
    """Remove ended runs with their logs and the results inside their folders.

    Refused without --force: an active run; a run that a queued run waits for (--after); and a failed, stopped or lost
    run whose folder contains its only checkpoint, or outputs that could not be uploaded. For a run recorded by another
    version of Windlass, only the record on this machine is removed.

    \b
    Example:
      windlass rm digits-7f3k2 digits-9x2mm
      windlass rm --label sweep=lr
      windlass rm --force $(windlass ps -q)
    """
    from windlass.actions import runs as actions
    from windlass.runs.context import here

    if not runs and not labels:
        raise click.UsageError("Missing argument 'RUN…', or --label KEY=VALUE")
    context = here()
    with context.store() as store:
        # All runs are resolved and checked before the first run is removed.
        unreadable = [] if on is not None else actions.unreadable_ids(runs, store)
        found = [actions.find_by_id(run, store, on) for run in runs if run not in unreadable]
        if labels:
            labelled = actions.find_all((), labels, store, on, context, is_over=None if force else True)
            found = list({run_id: (engine, run_id) for engine, run_id in [*found, *labelled]}.values())
        for engine, run_id in found:
            if force:
                actions.require_here(engine, run_id)
            else:
                actions.require_removable(engine, run_id, on)
        for engine, run_id in found:
            if force:
                engine.stop(run_id, now=True)
                actions.wait_stopped(engine, run_id, 0)
            engine.delete(run_id)
        for run_id in unreadable:
            store.delete(run_id)
            click.echo(f"{run_id}: only its record was removed; objects on its target may be left", err=True)
        ids = [*(run_id for _, run_id in found), *unreadable]
        print_data({"removed": ids}, form, "\n".join(f"{run_id} removed" for run_id in ids))
    return 0


@click.command()
@click.option("--older-than", required=True, metavar="30d", help="Only runs that ended longer ago than this.")
@click.option(
    "--phase", "phases", multiple=True, type=click.Choice(ENDED_PHASES), help="Only runs that ended in this phase."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; remove nothing.")
@click.option("--results", "with_results", is_flag=True, help="Also remove runs with results in their folders.")
@click.option("--force", "-f", is_flag=True, help="Also remove the only checkpoints of runs that did not succeed.")
@options.output
def prune(older_than: str, phases: tuple[str, ...], dry_run: bool, with_results: bool, force: bool, form: str) -> int:
    """Remove the runs of this machine that ended long ago, with their logs.

    A run with results in its folder, such as a model, is kept unless --results is given. Kept without --force: a
    failed, stopped or lost run whose folder contains its only checkpoint, or outputs that could not be uploaded.

    \b
    Example:
      windlass prune --older-than 30d --dry-run
      windlass prune --older-than 12h --phase failed --phase stopped
    """
    from windlass.actions import prune as actions
    from windlass.runs.context import here

    context = here()
    age = options.seconds(older_than, "--older-than", "write it as 12h, 30d or 8w")
    with context.store() as store:
        found = actions.prune(
            store,
            context.now() - age,
            frozenset(map(Phase, phases)),
            now=context.now(),
            force=force,
            is_dry=dry_run,
            with_results=with_results,
        )
    print_data(found, form, lambda paint: _prune_lines(found, paint))
    return 0


def _prune_lines(found: PrunedRuns, paint: Paint) -> list[str]:
    rows = [
        [
            run.id,
            phase_word(run.phase, paint),
            f"{duration(run.age_seconds)} ago",
            size(run.bytes),
            count(run.result_files, "file") if run.result_files else "–",
            visible(run.kept_for),
        ]
        for run in (*found.removed, *found.kept)
    ]
    titles = ["ID", "PHASE", "ENDED", "SIZE", "RESULTS", *(["KEPT FOR"] if found.kept else [])]
    rows = [row[: len(titles)] for row in rows]
    lines = titled(titles, rows, paint) if rows else []
    verb = "would be removed" if found.is_dry else "removed"
    freed = f", {size(sum(run.bytes for run in found.removed))}" if found.removed else ""
    words = [f"{count(len(found.removed), 'run')} {verb}{freed}"]
    ways = ["--results"] if any(run.kept_for == RESULTS for run in found.kept) else []
    ways += ["windlass resume RUN, or --force"] if any(run.kept_for != RESULTS for run in found.kept) else []
    words += [f"{len(found.kept)} kept: {', '.join(ways)} removes them"] if found.kept else []
    return [*lines, "; ".join(words)]


@click.command()
@click.option("--all", "-a", "every", is_flag=True, help="Show all runs, not only the largest.")
@options.output
def du(every: bool, form: str) -> int:
    """Show the disk usage of runs and data sets on this machine, the largest first.

    \b
    Example:
      windlass du
      windlass du --all -o json
    """
    from windlass.actions.disk import disk_use
    from windlass.runs.context import here

    with here().store() as store:
        found = disk_use(store)
    print_data(found, form, lambda paint: _disk_lines(found, paint, None if every else LARGEST))
    return 0


def _disk_lines(found: DiskUse, paint: Paint, most: int | None) -> list[str]:
    shown = found.runs[:most]
    rows = [
        [
            run.id,
            phase_word(run.phase, paint),
            size(run.bytes),
            size(run.result_bytes) if run.result_files else "–",
            size(run.checkpoint_bytes) if run.checkpoint_bytes else "–",
        ]
        for run in shown
    ]
    lines = titled(["ID", "PHASE", "SIZE", "RESULTS", "CHECKPOINTS"], rows, paint) if rows else []
    if hidden := len(found.runs) - len(shown):
        lines.append(f"and {hidden} smaller: windlass du --all")
    others = [f"{name} {size(num_bytes)}" for name, num_bytes in found.others.items() if num_bytes >= WORTH_BYTES]
    lines += [f"beside runs: {' · '.join(others)}"] if others else []
    return [*lines, f"{size(found.bytes)} in {visible(found.home)}"]
