"""Prints views: text for a terminal, JSON or YAML for a program."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from windlass.cli.formatting import (
    Paint,
    columns_of,
    duration,
    fitted,
    fitting,
    harmless,
    painter,
    visible,
)
from windlass.cli.style import PHASE_COLOURS, interactive
from windlass.views.serialise import to_json

if TYPE_CHECKING:
    from windlass.runs.events import Event
    from windlass.runs.warnings import RunWarning
    from windlass.views.run import RunSummary

CUTS = (
    ("WAITS FOR", 24), ("NAME", 0), ("NOTE", 12), ("LABELS", 12),
    *((title, 0) for title in ("NOTE", "LABELS", "TIME", "USER", "RECORD", "HOST", "NAMESPACE", "TARGET", "CHECKPOINT",
                               "ATTEMPT", "AGE", "PODS", "HOSTS", "WAITS FOR", "PROGRESS")),
)  # fmt: skip
"""Columns of a list of runs that are shortened or removed on a narrow terminal, in this order, with their minimum
width. NAME may be removed because each run id begins with the name of its job."""
NAMED = 8
"""Maximum number of runs listed in a note."""


def emit(lines: Iterable[str], stream: IO[Any] | None = None) -> None:
    """Prints lines that may be coloured; replaces characters that the terminal cannot encode by `?`.

    On a terminal, long lines are wrapped between words. Lines may contain text of clusters, pods and files; therefore
    all escape sequences except colours are removed.
    """
    out = sys.stdout if stream is None else stream
    shown = list(lines)
    if not shown:
        return
    text = harmless("\n".join(shown))
    if interactive(out):
        text = fitted(text)
    encoding = getattr(out, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), file=out, color=True)


def print_data(view: Any, form: str, text: str | Iterable[str] | Callable[[Paint], Iterable[str]]) -> None:
    """Prints a view, or JSON data, as JSON or YAML, or else `text`, which may be a function of the painter."""
    if form == "json":
        click.echo(json.dumps(to_json(view)))
    elif form == "yaml":
        click.echo(to_yaml(to_json(view)), nl=False)
    elif lines := text(painter(sys.stdout)) if callable(text) else text:
        emit([lines] if isinstance(lines, str) else lines)


def to_yaml(data: Any) -> str:
    """Formats JSON data as YAML."""
    from windlass.spec.yamlwriter import block_lines

    return "\n".join([*block_lines(data), ""])


def print_csv(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Prints rows as CSV with exact numbers; control characters in texts are replaced."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (titles, *rows):
        writer.writerow([visible(cell) if isinstance(cell, str) else cell for cell in row])


def print_item(view: Any, form: str, text: str | Iterable[str] | Callable[[Paint], Iterable[str]]) -> None:
    """Prints one of several views: in JSON one object per line, in YAML one item of a list."""
    print_data([view] if form == "yaml" else view, form, text)


def print_detached(run_id: str, form: str, *, quiet: bool) -> None:
    """Prints the id of a detached run, and how to follow it."""
    words = "runs in the background; follow it: windlass logs -f"
    print_data({"id": run_id}, form, run_id if quiet else f"{run_id} {words} {run_id}")


def print_runs(runs: Sequence[RunSummary], form: str, *, hidden: int, quiet: bool) -> None:
    """Prints a list of runs; for stale states, a line on standard error for each reason."""
    if form != "table":
        print_data(runs, form, "")
    elif not runs:
        click.echo("No run yet. Start one: windlass run train.py", err=True)
    elif quiet:
        emit(run.id for run in runs)
    else:
        emit(run_rows(runs, time.time(), painter(sys.stdout), columns_of(sys.stdout)))
        emit([*stale_notes(runs), *condition_notes(runs)], sys.stderr)
        if hidden:
            click.echo(f"and {hidden} older: windlass ps --all", err=True)


def run_rows(runs: Sequence[RunSummary], now: float, paint: Paint, columns: int | None = None) -> list[str]:
    """Formats a table of runs in `columns` terminal columns; columns without any value are left out."""
    from windlass.cli.statustext import attempt_word

    shown: list[tuple[str, Callable[[RunSummary], str]]] = [
        ("ID", lambda run: run.id),
        ("NAME", lambda run: run.name),
        ("TARGET", lambda run: run.target),
        ("PHASE", lambda run: paint(run.phase, PHASE_COLOURS[run.phase])),
        ("PROGRESS", lambda run: _progress(run, now)),
        ("AGE", lambda run: duration(now - run.created_at)),
        ("TIME", lambda run: duration(run.elapsed(now))),
    ]
    if any(run.warnings for run in runs):
        shown.append(("WARNINGS", lambda run: warning_codes(run.warnings, paint)))
    if any(run.checkpoint is not None for run in runs):
        shown.append(("CHECKPOINT", lambda run: f"step {run.checkpoint.step or 0:,}" if run.checkpoint else "–"))
    if any(len(run.attempts) > 1 for run in runs):
        shown.append(("ATTEMPT", attempt_word))
    if not all(run.is_here for run in runs):
        shown.append(("HOST", lambda run: "here" if run.is_here else run.host or "–"))
    if len({run.user for run in runs}) > 1:
        shown.append(("USER", lambda run: run.user or "–"))
    if any(run.labels for run in runs):
        shown.append(("LABELS", lambda run: label_words(run.labels)))
    if any(run.note for run in runs):
        shown.append(("NOTE", lambda run: first_line(run.note)))
    if any(run.stale for run in runs):
        shown.append(
            ("AS OF", lambda run: paint(f"{duration(now - (run.as_of or now))} ago", "yellow") if run.stale else "now")
        )
    if any(run.waits_for for run in runs):
        shown.append(("WAITS FOR", lambda run: visible(run.waits_for or "–")))
    rows = ([cell(run) for _, cell in shown] for run in runs)
    return fitting([title for title, _ in shown], rows, CUTS, paint, columns)


def warning_codes(warnings: Sequence[RunWarning], paint: Paint) -> str:
    """Formats the first warning of a run by its code and the number of others: `ranks-alone +1`; `–` without
    warnings.
    """
    more = f" +{len(warnings) - 1}" if len(warnings) > 1 else ""
    return paint(visible(warnings[0].code) + more, "yellow") if warnings else "–"


def label_words(labels: Mapping[str, str]) -> str:
    """Formats labels: `team=vision sweep=lr`."""
    return visible(" ".join(f"{key}={value}" for key, value in labels.items())) or "–"


def first_line(note: str) -> str:
    """Returns the first line of a note, for a column."""
    return visible(note.partition("\n")[0]) or "–"


def _progress(run: RunSummary, now: float) -> str:
    from windlass.cli.statustext import advance_words

    head, facts = advance_words(run, now)
    names = ("loss ",) if head else ("epoch ", "loss ")
    loss = [fact for fact in facts if fact.startswith(names)]
    if run.phase.is_terminal:
        head = [word for word in head if "%" not in word]
    return "  ".join([*head, *([] if any("left" in word for word in head) else loss)]) or "–"


def stale_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Returns a line below a list of runs for each reason why states may be stale."""
    from windlass.cli.statustext import clock_time

    notes = []
    for stale in dict.fromkeys(run.stale for run in runs if run.stale):
        found = [run for run in runs if run.stale == stale]
        names = ", ".join(run.id for run in found[:NAMED]) + (" …" if len(found) > NAMED else "")
        states = "state of 1 run is" if len(found) == 1 else f"states of {len(found)} runs are"
        since = clock_time(min(run.as_of or 0.0 for run in found))
        notes.append(f"{visible(stale)}: the {states} as of {since} ({names})")
    return notes


ACTIONABLE: Final = ("JobUnknown", "ModelAway")
"""Conditions of ended runs that still need an action by the user."""


def condition_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Returns a line below a list of runs for each run with a condition, as `status` shows it. For ended runs, only
    conditions that need an action are listed.
    """
    return [
        f"{run.id}: {visible(run.condition.message or '')}"
        for run in runs
        if run.condition is not None
        and not run.stale
        and (not run.phase.is_terminal or run.condition.type in ACTIONABLE)
    ]


def print_event(event: Event, form: str, began_at: float) -> None:
    """Prints one event."""
    from windlass.cli.eventtext import event_line

    data = {"seq": event.seq, "time": event.time, "kind": event.kind, **event.data}
    print_item(data, form, lambda paint: [event_line(event, began_at, paint)])
    sys.stdout.flush()
