"""`warm ls` and `warm stop`: the processes from which ranks are forked."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from windlass.cli import options
from windlass.cli.render import print_data
from windlass.cli.words import duration, painter, table


@click.group()
def warm() -> None:
    """See and end warm processes: they have imported what scripts import, and ranks are forked from them.

    They begin by themselves and end after 15 minutes without a start, when packages change, or here.

    \b
    Example:
      windlass warm ls
      windlass warm stop
    """


@warm.command()
@options.output
def ls(form: str) -> int:
    """List warm processes, and what was found to be unsafe to fork.

    \b
    Example:
      windlass warm ls
      windlass warm ls -o json
    """
    from windlass.actions.edge import here
    from windlass.actions.warm import list_warm

    found = list_warm(here())
    if not found and form == "table":
        click.echo("No warm process. The next run of a script that imports torch begins one.", err=True)
    else:
        print_data(found, form, _table(found, time.time()) if form == "table" else "")
    return 0


@warm.command()
@click.argument("name", required=False)
@options.output
def stop(name: str | None, form: str) -> int:
    """End one warm process, or all. Runs go on; the next one begins a new process.

    \b
    Example:
      windlass warm stop
      windlass warm stop 3f9a1c20b7de
    """
    from windlass.actions.edge import here
    from windlass.actions.warm import stop_warm

    stopped = stop_warm(here(), name)
    print_data({"stopped": stopped}, form, [f"{each} stopped" for each in stopped] or ["nothing to stop"])
    return 0


def _table(found: list[dict[str, Any]], now: float) -> list[str]:
    paint = painter(sys.stdout)
    rows = [[paint(title, dim=True) for title in ("NAME", "STATE", "PID", "MEMORY", "STARTS", "AGE", "MODULES")]]
    for one in found:
        memory = f"{one['resident_bytes'] / 2**20:.0f} MiB" if "resident_bytes" in one else "–"
        rows.append([
            one["name"],
            one["state"],
            str(one.get("pid", "–")),
            memory,
            str(one.get("forks", "–")),
            duration(now - one["started_at"]) if "started_at" in one else "–",
            one["why"] if "why" in one else " ".join(one.get("modules", ())),
        ])  # fmt: skip
    return table(rows)
