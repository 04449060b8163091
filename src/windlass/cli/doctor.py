"""`doctor`: what of this machine would stand in a run's way, line by line as it is found."""

from __future__ import annotations

import dataclasses
import sys

import click

from windlass.cli import options
from windlass.cli.render import emit, print_data
from windlass.cli.words import count, painter

MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("fail", "red")}
NAME_WIDTH = 16


@click.command()
@options.output
def doctor(form: str) -> int:
    """Look at this machine and say what would stand in a run's way, with the fix.

    Ends with 1 where something would break every run; a warning concerns some runs.

    \b
    Example:
      windlass doctor
      windlass doctor -o json
    """
    from windlass.actions.doctor import checks
    from windlass.actions.edge import here

    paint = painter(sys.stdout)
    found = []
    for check in checks(here()):
        found.append(check)
        if form == "table":
            word, colour = MARKS[check.level]
            emit([f"{paint(word, colour, bold=check.level != 'ok')}  {check.name.ljust(NAME_WIDTH)} {check.found}"])
            if check.fix:
                emit([f"      {' ' * NAME_WIDTH} {paint('→', dim=True)} {check.fix}"])
            sys.stdout.flush()
    fails = sum(check.level == "fail" for check in found)
    warns = sum(check.level == "warn" for check in found)
    data = {"ok": fails == 0, "checks": [dataclasses.asdict(check) for check in found]}
    words = [count(many, noun) for many, noun in ((fails, "failure"), (warns, "warning")) if many]
    print_data(data, form, "\n" + (", ".join(words) or "All is well."))
    return 1 if fails else 0
