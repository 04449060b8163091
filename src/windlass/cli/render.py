"""Prints plans, statuses, lists of runs and events: lines for a person, JSON or YAML for a program."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from windlass.cli.style import PHASE_COLOURS
from windlass.cli.words import duration, harmless, number, painter, table
from windlass.runs.ledger import Ledger, ledger_to_json
from windlass.runs.record import Event, Status, status_to_json

if TYPE_CHECKING:
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


def print_status(status: Status, plan: Mapping[str, Any], ledger: Ledger, form: str, *, verbose: int = 0) -> None:
    """Print one run. `plan` is its recorded plan's JSON."""
    from windlass.cli.statustext import network_of, status_lines

    now = time.time()
    lines = status_lines(status, plan, ledger, now, painter(sys.stdout), verbose=verbose) if form == "table" else ()
    network = network_of(plan)
    data = {**status_to_json(status, now), "ledger": ledger_to_json(ledger)}
    print_data({**data, **({"network": network} if network else {})}, form, lines)


def print_statuses(statuses: list[Status], form: str, *, hidden: int, quiet: bool) -> None:
    """Print a list of runs."""
    now = time.time()
    if form != "table":
        data = [{name: value for name, value in status_to_json(s, now).items() if name != "attempts"} for s in statuses]
        print_data(data, form, "")
        return
    if quiet:
        print_data((), form, [status.id for status in statuses] if statuses else "")
        return
    if not statuses:
        click.echo("No run yet. Start one: windlass run train.py", err=True)
        return
    emit(_table_of_runs(statuses, now))
    if hidden:
        click.echo(f"and {hidden} older: windlass ps --all", err=True)


def _table_of_runs(statuses: list[Status], now: float) -> list[str]:
    from windlass.cli.statustext import advance_of, attempt_word, elapsed

    paint = painter(sys.stdout)
    titles = ["ID", "NAME", "TARGET", "PHASE", "PROGRESS", "AGE", "TIME"]
    # Columns of what most runs have none of are there only where one has.
    restarted = any(len(status.attempts) > 1 for status in statuses)
    saved = any(status.checkpoint is not None for status in statuses)
    titles += [title for title, is_there in (("SAVED", saved), ("ATTEMPT", restarted)) if is_there]
    rows = [[paint(title, dim=True) for title in titles]]
    for status in statuses:
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
