"""Prints lists of runs of this machine or a target, without importing modules that format a single run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.actions import runs
from windlass.actions.targets import DEFAULT, remote_names
from windlass.cli.formatting import Paint, columns_of, count, duration, fitting, painter, visible
from windlass.cli.interrupts import Choice, Interrupts
from windlass.cli.render import CUTS, emit, first_line, label_words, print_data, print_item, print_runs, warning_codes
from windlass.cli.style import phase_word
from windlass.errors import NoSuchRun
from windlass.spec.labels import SERVICE_LABEL

if TYPE_CHECKING:
    from windlass.actions.listing import Filter
    from windlass.engines.values import RunState
    from windlass.runs.context import Context
    from windlass.runs.phase import Phase
    from windlass.runs.store import Store, UnreadableRun
    from windlass.views.cluster_runs import RunOnCluster
    from windlass.views.run import RunSummary

WATCH_SECONDS: Final = 0.5
MAX_UNREADABLE: Final = 5
"""Maximum number of runs of other versions that `windlass ps` lists without `--all`."""


def print_here(
    store: Store,
    context: Context,
    wanted: Filter,
    form: str,
    *,
    last: int | None,
    quiet: bool,
    watch: bool,
    order: Callable[[RunSummary], Any] | None = None,
) -> int:
    """Prints the runs of this machine; with `watch`, also a line for each change. Returns the exit code.

    Without a filter, `last` is how many of the newest runs are shown in addition to the unfinished ones; with a filter,
    the maximum number of runs. Runs are sorted by `order`, by default newest first.
    """

    def look() -> list[RunSummary]:
        found = runs.statuses(store, last=None if wanted else last)
        found = [one for one in found if wanted.matches(one)][: last if wanted else None]
        if not wanted and last is not None:
            found = [one for one in found if SERVICE_LABEL not in one.about.labels]
        return [
            summary_of(one.status, context.now(), is_here=store.host_elsewhere(one.status) is None, current=one)
            for one in runs.states(found, store, context.now())
        ]

    from windlass.views.run import summary_of

    if watch:
        return _watch_here(store, look, form)
    views = look() if order is None else sorted(look(), key=order)
    if wanted and not views and form == "table":
        click.echo("No run matches these filters. All runs: windlass ps --all", err=True)
        return 0
    hidden = 0 if last is None or wanted else store.count() - len(views)
    unreadable = store.unreadable()
    if views or not unreadable or form != "table":
        print_runs(views, form, hidden=hidden, quiet=quiet)
    if unreadable and not quiet:
        emit(unreadable_notes(unreadable, MAX_UNREADABLE if last is not None else None), sys.stderr)
    is_list = form == "table" and not quiet and not wanted
    if is_list and (up := _num_services(store, context)):
        click.echo(f"{count(up, 'service is', 'services are')} up: windlass services", err=True)
    if is_list and all(run.target == DEFAULT for run in views) and (names := remote_names(context)):
        on = names[0] if len(names) == 1 else "TARGET"
        click.echo(f"no run on {', '.join(names)} is shown; windlass ps --on {on} lists those there", err=True)
    return 0


def _num_services(store: Store, context: Context) -> int:
    """Returns the number of services that this machine has started and that have not ended, without asking targets."""
    from windlass.services.known import known_deployments

    here = sum(SERVICE_LABEL in one.about.labels for one in store.statuses(unfinished=True))
    if not (known := list(known_deployments(context.home))):
        return here
    from windlass.engines.deployments import HERE  # defines many classes: most lists of runs need none of them

    now = context.now()
    return here + sum(one.place != HERE and (one.ends_at is None or one.ends_at > now) for one in known)


def unreadable_notes(found: Sequence[UnreadableRun], most: int | None) -> Iterator[str]:
    """Yields a line for each run recorded by another version, at most `most`, and a line on how to remove such runs."""
    shown = found[:most]
    yield from (one.message for one in shown)
    others = f"; {len(found) - len(shown)} more: windlass ps --all" if len(found) > len(shown) else ""
    yield f"windlass rm {shown[0].id} removes such a record{others}"


def _watch_here(store: Store, look: Callable[[], list[RunSummary]], form: str) -> int:
    """Prints a line for each run, and for each change of a run, until Ctrl-C."""
    shown: dict[str, tuple[Phase, int]] = {}
    with Interrupts(can_ask=False) as interrupts:
        while interrupts.choice is not Choice.LEAVE:
            found = {run.id: run for run in look()}
            for run in reversed(list(found.values())):
                if (state := (run.phase, len(run.attempts))) != shown.get(run.id):
                    words = [run.id, phase_word(run.phase, painter(sys.stdout)), run.target]
                    words += [f"attempt {len(run.attempts)}"] if len(run.attempts) > 1 else []
                    print_item(run, form, "  ".join(words))
                    shown[run.id] = state
            # A run leaves the list if it is removed, is no longer among the newest, or no longer matches the filter.
            for gone in shown.keys() - found.keys():
                del shown[gone]
                if not _is_there(store, gone):
                    print_item({"id": gone, "removed": True}, form, f"{gone}  removed")
            sys.stdout.flush()
            interrupts.listen(WATCH_SECONDS)
    return interrupts.exit_code


def _is_there(store: Store, run_id: str) -> bool:
    """Whether the record of a run exists."""
    try:
        store.status(run_id)
    except NoSuchRun:
        return False
    return True


def print_list(found: Sequence[RunState], on: str, form: str, *, quiet: bool, everywhere: bool) -> None:
    """Prints the runs on a target."""
    from windlass.views.cluster_runs import on_cluster

    views = [on_cluster(state) for state in found]
    if quiet and form == "table":
        print_data((), form, [view.id for view in views])
    elif not views and form == "table":
        click.echo(f"No run on {on}. Start one: windlass run train.py --on {on}", err=True)
    else:
        columns = columns_of(sys.stdout)
        print_data(views, form, lambda paint: list_lines(views, time.time(), paint, columns, everywhere=everywhere))


def list_lines(
    found: Sequence[RunOnCluster], now: float, paint: Paint, columns: int | None = None, *, everywhere: bool = False
) -> list[str]:
    """Returns the output lines of `windlass ps --on`, for a terminal of `columns`."""
    shown: list[tuple[str, Callable[[RunOnCluster], str]]] = [
        ("ID", lambda run: run.id),
        ("NAME", lambda run: run.name),
    ]
    if everywhere:
        shown.append(("NAMESPACE", lambda run: run.namespace))
    shown += [
        ("PHASE", lambda run: phase_word(run.phase, paint)),
        ("PODS" if any(run.namespace for run in found) else "HOSTS", lambda run: f"{run.pods_ready}/{run.pods_total}"),
        ("ATTEMPT", lambda run: str(run.attempt or "–")),
        ("AGE", lambda run: duration(now - run.created_at)),
        ("RECORD", lambda run: "here" if run.kept == "here" else paint("another machine", dim=True)),
    ]
    if any(run.labels for run in found):
        shown.append(("LABELS", lambda run: label_words(run.labels)))
    if any(run.note for run in found):
        shown.append(("NOTE", lambda run: first_line(run.note)))
    if any(run.warnings for run in found):
        shown.append(("WARNINGS", lambda run: warning_codes(run.warnings, paint)))
    if any(run.waits_for for run in found):
        shown.append(("WAITS FOR", lambda run: visible(run.waits_for)))
    rows = ([cell(run) for _, cell in shown] for run in found)
    return fitting([title for title, _ in shown], rows, CUTS, paint, columns)
