"""`warm ls`, `stop`, `off` and `on`: manage the warm processes from which ranks are forked."""

from __future__ import annotations

import time
from typing import Any

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, duration, titled
from windlass.cli.render import print_data


@click.group()
def warm() -> None:
    """List and stop warm processes, which have imported the modules of scripts and from which ranks are forked.

    The first run that needs a warm process starts it. The process exits after 15 minutes without use, when packages
    change, or by `windlass warm stop`. `windlass warm off` disables warm processes.

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
        print_data(found, form, lambda paint: _table(found, time.time(), paint))
    return 0


@warm.command()
@click.argument("name", required=False)
@options.output
def stop(name: str | None, form: str) -> int:
    """Stop one warm process, or all. Runs continue; the next run starts a new process.

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


@warm.command(short_help="Stop and disable warm processes.")
def off() -> int:
    """Stop all warm processes and start no new ones for this user until `windlass warm on`.

    \b
    Example:
      windlass warm off
    """
    return _switch(on=False)


@warm.command()
def on() -> int:
    """Let runs use warm processes again.

    \b
    Example:
      windlass warm on
    """
    return _switch(on=True)


def _switch(*, on: bool) -> int:
    from windlass.engines import engine_class
    from windlass.runs.context import here

    engine_class("local").switch_warm(here().home, on=on)
    click.echo(f"warm starts are {'on' if on else 'off: all ranks start cold'}")
    return 0


def _table(found: list[dict[str, Any]], now: float, paint: Paint) -> list[str]:
    rows = [
        [
            one["name"],
            one["state"],
            str(one.get("pid", "–")),
            f"{one['resident_bytes'] / 2**20:.0f} MiB" if "resident_bytes" in one else "–",
            str(one.get("forks", "–")),
            duration(now - one["started_at"]) if "started_at" in one else "–",
            _modules(one),
        ]
        for one in found
    ]
    return titled(("NAME", "STATE", "PID", "MEMORY", "STARTS", "AGE", "MODULES"), rows, paint)


def _modules(one: dict[str, Any]) -> str:
    """Formats the modules of a warm process: imported ones, ones left to the scripts, and ones still being tried."""
    if "why" in one:
        return str(one["why"])
    parts = [" ".join(one.get("imported", one.get("modules", ())))]
    parts += [f"without {why}" for why in one.get("left_out", ())]
    parts += [f"tries {' '.join(one['trying'])}"] if one.get("trying") else []
    parts += [f"for this environment only: {one['reads_all']} reads all of it"] if one.get("reads_all") else []
    return "; ".join(part for part in parts if part)
