"""`warm ls` and `warm stop`: the warm processes from which ranks are forked."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from windlass.cli import options
from windlass.cli.formatting import duration, painter, titled
from windlass.cli.render import print_data


@click.group()
def warm() -> None:
    """List and stop warm processes, which have imported what scripts import; ranks are forked from them.

    The first run that needs one starts it. It ends after 15 minutes without a start, when packages change, or by
    `windlass warm stop`.

    \b
    Example:
      windlass warm ls
      windlass warm stop
    """


@warm.command()
@options.output
def ls(form: str) -> int:
    """List warm processes, and environments that are unsafe to fork.

    \b
    Example:
      windlass warm ls
      windlass warm ls -o json
    """
    from windlass.engines import engine_class
    from windlass.runs.context import here

    found = engine_class("local").list_warm(here().home)
    if not found and form == "table":
        click.echo("No warm process. The next run of a script that imports torch starts one.", err=True)
    else:
        print_data(found, form, _table(found, time.time()) if form == "table" else "")
    return 0


@warm.command()
@click.argument("name", required=False)
@options.output
def stop(name: str | None, form: str) -> int:
    """Stop one warm process, or all. Runs continue; the next run starts a new one.

    \b
    Example:
      windlass warm stop
      windlass warm stop 3f9a1c20b7de
    """
    from windlass.engines import engine_class
    from windlass.runs.context import here

    stopped = engine_class("local").stop_warm(here().home, name)
    print_data({"stopped": stopped}, form, [f"{each} stopped" for each in stopped] or ["nothing to stop"])
    return 0


def _table(found: list[dict[str, Any]], now: float) -> list[str]:
    paint = painter(sys.stdout)
    rows = [
        [
            one["name"],
            one["state"],
            str(one.get("pid", "–")),
            f"{one['resident_bytes'] / 2**20:.0f} MiB" if "resident_bytes" in one else "–",
            str(one.get("forks", "–")),
            duration(now - one["started_at"]) if "started_at" in one else "–",
            one["why"] if "why" in one else " ".join(one.get("modules", ())),
        ]
        for one in found
    ]
    return titled(("NAME", "STATE", "PID", "MEMORY", "STARTS", "AGE", "MODULES"), rows, paint)
