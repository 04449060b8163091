"""`doctor`: checks this machine, or a cluster and its AWS account, and prints each check when it is done."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, count, painter, visible
from windlass.cli.render import emit, print_data

if TYPE_CHECKING:
    from windlass.actions.doctor import OfferedCheck
    from windlass.clusters.preflight.finding import Offer
    from windlass.engines.checks import Check

MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("fail", "red")}
NAME_WIDTH = 16
ROLE: Final = "arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+"


def complete_on(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes clusters of this user, Kubernetes targets, and files."""
    from windlass.actions.doctor import names
    from windlass.runs.context import here

    return options.or_file(names(here()), incomplete)


@click.command()
@click.option(
    "--on",
    metavar="CLUSTER",
    shell_complete=complete_on,
    help="Check a cluster and its account: a cluster file, the name of a cluster, or a target.",
)
@click.option(
    "--request", is_flag=True, help="Offer to request missing quotas and create missing associations; asks first."
)
@click.option(
    "--pod-role", metavar="ARN", default="", help="Role expected for pods, on a cluster not created by Windlass."
)
@click.option("-y", "--yes", is_flag=True, help="With --request: do not ask.")
@options.output
def doctor(on: str | None, request: bool, pod_role: str, yes: bool, form: str) -> int:
    """Check this machine for problems that would fail or slow down a run, and show how to fix them.

    With --on, check a cluster and its AWS account instead, also before the cluster exists: programs, identity,
    permissions, quotas, availability of instance types; and in the cluster operators, nodes, claims, S3, and the role
    and image of pods, with temporary pods. Changes nothing unless --request is given.

    Exits with 1 if a problem would break every run; a warning affects some runs. To check what a specific job needs
    from a target, use windlass check --on TARGET.

    \b
    Example:
      windlass doctor
      windlass doctor --on cluster.yaml --request
      windlass doctor --on vision -o json
    """
    from windlass.cli.interrupts import tidy
    from windlass.views.targets import DoctorReport

    _legal(on, request=request, pod_role=pod_role, yes=yes)
    paint = painter(sys.stdout)
    found: list[Check] = []
    offers: list[Offer] = []

    def show(check: Check) -> None:
        found.append(check)
        if form == "table":
            emit(check_lines(check, paint))
            sys.stdout.flush()

    with tidy():
        if on is None:
            for check in _of_machine():
                show(check)
        else:
            for one in _of_cluster(on, pod_role):
                show(one.check)
                offers += [one.offer] if one.offer is not None else []
        if request:
            for check in _requested(offers, yes=yes):
                show(check)
    report = DoctorReport(not any(check.level == "fail" for check in found), tuple(found))
    print_data(report, form, ["", sum_of(found)])
    return 0 if report.ok else 1


def _legal(on: str | None, *, request: bool, pod_role: str, yes: bool) -> None:
    import re

    if on is None and (request or pod_role or yes):
        raise click.UsageError("--request, --pod-role and --yes belong to --on CLUSTER")
    if pod_role and not re.fullmatch(ROLE, pod_role):
        raise click.UsageError(
            f"--pod-role {pod_role} is no ARN of a role, such as arn:aws:iam::123456789012:role/runs"
        )


def _of_machine() -> Iterable[Check]:
    from windlass.actions.targets import DEFAULT, find_target
    from windlass.engines import engine_class
    from windlass.runs.context import here

    context = here()
    return engine_class(DEFAULT).check(find_target(DEFAULT, context), context).checks


def _of_cluster(on: str, pod_role: str) -> Iterator[OfferedCheck]:
    from windlass.actions.doctor import doctor as examine
    from windlass.runs.context import here

    return examine(on, here(), lambda text: click.echo(f"{text} …", err=True), pod_role)


def _requested(offers: Iterable[Offer], *, yes: bool) -> Iterator[Check]:
    """Carries out the offered fixes that the user accepts, and yields the result of each as a check."""
    from windlass.actions.doctor import taken_up

    for offer in offers:
        if not yes and not sys.stdin.isatty():
            click.echo(f"{offer.question} There is no terminal to ask on; --yes agrees.", err=True)
        elif yes or click.confirm(offer.question, err=True):
            yield taken_up(offer)


def check_lines(check: Check, paint: Paint) -> list[str]:
    """Formats one check, with its fix on a second line."""
    word, colour = MARKS[check.level]
    line = f"{paint(word, colour, bold=check.level != 'ok')}  {check.name.ljust(NAME_WIDTH)} {visible(check.found)}"
    return [line, *([f"      {' ' * NAME_WIDTH} {paint('→', dim=True)} {visible(check.fix)}"] if check.fix else [])]


def sum_of(found: Sequence[Check]) -> str:
    """Returns the numbers of failures and warnings as text."""
    levels = [check.level for check in found]
    counted = ((levels.count("fail"), "failure"), (levels.count("warn"), "warning"))
    return ", ".join(count(many, noun) for many, noun in counted if many) or "All checks passed."
