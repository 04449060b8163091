"""Prints the runs on a target; imports nothing that only the text of one run needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli.formatting import Paint, duration, titled, visible
from windlass.cli.render import print_data
from windlass.cli.style import phase_word
from windlass.views.cluster import RunOnCluster, on_cluster

if TYPE_CHECKING:
    from windlass.engines.base import RunState


def print_list(found: Sequence[RunState], on: str, form: str, *, quiet: bool, everywhere: bool) -> None:
    """Print the runs on a target."""
    views = [on_cluster(state) for state in found]
    if quiet and form == "table":
        print_data((), form, [view.id for view in views])
    elif not views and form == "table":
        click.echo(f"No run on {on}. Start one: windlass run train.py --on {on}", err=True)
    else:
        print_data(views, form, lambda paint: list_lines(views, time.time(), paint, everywhere=everywhere))


def list_lines(found: Sequence[RunOnCluster], now: float, paint: Paint, *, everywhere: bool = False) -> list[str]:
    """What `windlass ps --on` shows."""
    waits = any(run.waits_for for run in found)
    titles = ["ID", "NAME", *(["NAMESPACE"] if everywhere else []), "PHASE", "PODS", "ATTEMPT", "AGE", "RECORD"]
    rows = [
        [
            run.id,
            run.name,
            *([run.namespace] if everywhere else []),
            phase_word(run.phase, paint),
            f"{run.pods_ready}/{run.pods_total}",
            str(run.attempt or "–"),
            duration(now - run.created_at),
            "here" if run.kept == "here" else paint("another machine", dim=True),
            *([visible(run.waits_for)] if waits else []),
        ]
        for run in found
    ]
    return titled([*titles, *(["WAITS FOR"] if waits else [])], rows, paint)
