"""`doctor`: what of this machine would stand in a run's way, line by line as it is found."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli import options
from windlass.cli.render import emit, print_data
from windlass.cli.words import Paint, count, painter, visible

if TYPE_CHECKING:
    from windlass.engines.checking import Check

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
            emit(check_lines(check, paint))
            sys.stdout.flush()
    fails = sum(check.level == "fail" for check in found)
    data = {"ok": fails == 0, "checks": [dataclasses.asdict(check) for check in found]}
    print_data(data, form, ["", sum_of(found)])
    return 1 if fails else 0


def check_lines(check: Check, paint: Paint) -> list[str]:
    """One check for a person."""
    word, colour = MARKS[check.level]
    line = f"{paint(word, colour, bold=check.level != 'ok')}  {check.name.ljust(NAME_WIDTH)} {visible(check.found)}"
    return [line, *([f"      {' ' * NAME_WIDTH} {paint('→', dim=True)} {visible(check.fix)}"] if check.fix else [])]


def sum_of(found: Sequence[Check]) -> str:
    """How many of the checks are not well."""
    levels = [check.level for check in found]
    counted = ((levels.count("fail"), "failure"), (levels.count("warn"), "warning"))
    return ", ".join(count(many, noun) for many, noun in counted if many) or "All is well."
