"""`doctor`: checks this machine, line by line as each check is done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, count, painter, visible
from windlass.cli.render import emit, print_data

if TYPE_CHECKING:
    from windlass.engines.checks import Check

MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("fail", "red")}
NAME_WIDTH = 16


@click.command()
@options.output
def doctor(form: str) -> int:
    """Check this machine for what would fail or slow down a run, and say how to fix it.

    Ends with 1 where something would break every run; a warning concerns some runs.

    \b
    Example:
      windlass doctor
      windlass doctor -o json
    """
    from windlass.actions.targets import DEFAULT, find_target
    from windlass.engines import engine_class
    from windlass.runs.context import here
    from windlass.views.reports import DoctorReport

    paint = painter(sys.stdout)
    found = []
    context = here()
    target = find_target(DEFAULT, context)
    for check in engine_class(DEFAULT).check(target, context).checks:
        found.append(check)
        if form == "table":
            emit(check_lines(check, paint))
            sys.stdout.flush()
    report = DoctorReport(not any(check.level == "fail" for check in found), tuple(found))
    print_data(report, form, ["", sum_of(found)])
    return 0 if report.ok else 1


def check_lines(check: Check, paint: Paint) -> list[str]:
    """One check, with its fix on a second line."""
    word, colour = MARKS[check.level]
    line = f"{paint(word, colour, bold=check.level != 'ok')}  {check.name.ljust(NAME_WIDTH)} {visible(check.found)}"
    return [line, *([f"      {' ' * NAME_WIDTH} {paint('→', dim=True)} {visible(check.fix)}"] if check.fix else [])]


def sum_of(found: Sequence[Check]) -> str:
    """How many of the checks failed or warn."""
    levels = [check.level for check in found]
    counted = ((levels.count("fail"), "failure"), (levels.count("warn"), "warning"))
    return ", ".join(count(many, noun) for many, noun in counted if many) or "All checks passed."
