"""Prints plans, statuses, lists of runs and events: lines for a person, JSON or YAML for a program."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from windlass.cli.style import PHASE_COLOURS
from windlass.cli.words import duration, harmless, number, painter, table
from windlass.runs.ledger import Ledger, ledger_to_json
from windlass.runs.machine import this_machine
from windlass.runs.record import Event, Status, status_to_json

if TYPE_CHECKING:
    from windlass.actions.current import View
    from windlass.plan.plan import Plan


def emit(lines: Iterable[str], stream: IO[Any] | None = None) -> None:
    """Print lines that are coloured already, or not; what a terminal of an odd encoding lacks becomes `?`.

    Names and messages of clusters, pods and files stand in them: no other escape sequence reaches the terminal.
    """
    out = sys.stdout if stream is None else stream
    text = harmless("\n".join(lines))
    encoding = getattr(out, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), file=out, color=True)


def print_data(data: Any, form: str, text: str | Iterable[str]) -> None:
    """Print `data` as JSON or YAML, or else `text`."""
    if form == "json":
        click.echo(json.dumps(data))
    elif form == "yaml":
        click.echo(to_yaml(data), nl=False)
    elif text:
        emit([text] if isinstance(text, str) else text)


def to_yaml(data: Any) -> str:
    """JSON data as YAML."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(json.loads(json.dumps(data)), out)
    return out.getvalue()


def print_plan(plan: Plan, form: str, *, verbose: int = 0) -> None:
    """Print a plan."""
    from windlass.cli.plantext import plan_lines

    print_data(plan.to_json(), form, plan_lines(plan, painter(sys.stdout), verbose=verbose) if form == "table" else "")


def print_status(
    status: Status, plan: Mapping[str, Any], ledger: Ledger, form: str, *, verbose: int = 0, view: View | None = None,
    is_full: bool = False,
) -> None:  # fmt: skip
    """Print one run.

    `plan` is its recorded plan's JSON; `view` says how true the status is now; `is_full` if the disk under the record
    is full.
    """
    from windlass.cli.statustext import network_of, stale_lines, status_lines

    now = time.time()
    host = status.machine.host if status.machine and not this_machine(os.environ).keeps(status.machine) else ""
    paint = painter(sys.stdout)
    lines: list[str] = []
    if form == "table":
        lines = status_lines(status, plan, ledger, now, paint, verbose=verbose, host=host, is_full=is_full)
    if view is not None and view.stale:
        lines[1:1] = stale_lines(view.stale, view.as_of, now, paint)
    network = network_of(plan)
    data = {**status_to_json(status, now), **(view.to_json() if view else {}), "ledger": ledger_to_json(ledger)}
    print_data({**data, **({"network": network} if network else {})}, form, lines)


def print_statuses(views: list[View], form: str, *, hidden: int, quiet: bool) -> None:
    """Print a list of runs; where states of some may be old, a line on standard error for each reason."""
    now = time.time()
    statuses = [view.status for view in views]
    if form != "table":
        every = [{**status_to_json(view.status, now), **view.to_json()} for view in views]
        print_data([{name: one[name] for name in one if name != "attempts"} for one in every], form, "")
        return
    if quiet:
        print_data((), form, [status.id for status in statuses] if statuses else "")
        return
    if not statuses:
        click.echo("No run yet. Start one: windlass run train.py", err=True)
        return
    as_of = [f"{duration(now - view.as_of)} ago" if view.stale else "now" for view in views]
    emit(_table_of_runs(statuses, now, as_of))
    from windlass.cli.statustext import stale_notes

    emit(stale_notes(views), sys.stderr)
    if hidden:
        click.echo(f"and {hidden} older: windlass ps --all", err=True)


def _table_of_runs(statuses: list[Status], now: float, as_of: Sequence[str] = ()) -> list[str]:
    from windlass.cli.statustext import advance_of, attempt_word, elapsed

    paint = painter(sys.stdout)
    titles = ["ID", "NAME", "TARGET", "PHASE", "PROGRESS", "AGE", "TIME"]
    # Columns of what most runs have none of are there only where one has.
    here = this_machine(os.environ)
    hosts = {status.id: status.machine.host for status in statuses if status.machine and not here.keeps(status.machine)}
    restarted = any(len(status.attempts) > 1 for status in statuses)
    saved = any(status.checkpoint is not None for status in statuses)
    is_old = any(word != "now" for word in as_of)
    of_some = (("SAVED", saved), ("ATTEMPT", restarted), ("HOST", bool(hosts)), ("AS OF", is_old))
    titles += [title for title, is_there in of_some if is_there]
    rows = [[paint(title, dim=True) for title in titles]]
    for status, word in zip(statuses, as_of or ["now"] * len(statuses), strict=True):
        progress = []
        if (advance := advance_of(status, now)) is not None:
            progress = [advance.steps] if advance.steps else []
            if advance.share is not None and not status.phase.is_terminal:
                progress.append(f"{advance.share:.0%}")
            if advance.left_seconds is not None:
                progress.append(f"{duration(advance.left_seconds)} left")
            elif "loss" in status.progress:
                progress.append(f"loss {number(status.progress['loss'])}")
        rows.append([
            status.id,
            status.name,
            status.target,
            paint(status.phase.value, PHASE_COLOURS[status.phase.value]),
            "  ".join(progress) or "–",
            duration(now - status.created_at),
            duration(elapsed(status, now)),
            *([f"step {status.checkpoint['step']:,}" if status.checkpoint else "–"] if saved else []),
            *([attempt_word(status)] if restarted else []),
            *([hosts.get(status.id, "here")] if hosts else []),
            *([paint(word, "yellow") if word != "now" else word] if is_old else []),
        ])  # fmt: skip
    return table(rows)


def print_event(event: Event, form: str, began_at: float) -> None:
    """Print one event; as JSON one object a line, as YAML one item of a list."""
    data = {"seq": event.seq, "time": event.time, "kind": event.kind, **event.data}
    if form == "table":
        from windlass.cli.eventtext import event_line

        emit([event_line(event, began_at, painter(sys.stdout))])
    else:
        print_data([data] if form == "yaml" else data, form, "")
    sys.stdout.flush()
