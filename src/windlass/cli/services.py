"""`services` and `close`: list what is up on all targets, and end it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, columns_of, duration, fitting, price, visible
from windlass.cli.render import print_data

if TYPE_CHECKING:
    from windlass.views.services import ClosedService, ServiceList, ServiceView

COLOURS: Final = {"ready": "green", "failed": "red", "unknown": "yellow"}
CUTS: Final = (("RUN", 0), ("OWNER", 0), ("UP FOR", 0), ("REPLICAS", 0), ("LAST REQUEST", 0))


@click.command()
@click.option("--on", metavar="TARGET", shell_complete=options.complete_targets, help="Only services of this target.")
@options.output
def services(on: str | None, form: str) -> int:
    """List what is up on all targets and bills: TensorBoard, notebooks and deployments of models.

    A target that does not answer is named, because services may be up there; the exit code is then 1. Deployments
    without a request for 24 hours are marked as unused.

    \b
    Example:
      windlass services
      windlass services --on lab -o json
    """
    from windlass.actions.all_services import list_all
    from windlass.runs.context import here

    context = here()
    found = list_all(context, on)
    print_data(found, form, lambda paint: list_lines(found, context.now(), paint))
    return 1 if found.unanswered else 0


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--on", metavar="TARGET", shell_complete=options.complete_targets, help="Target of the service.")
@click.option("--forget", is_flag=True, help="Only forget a deployment whose target is gone: the target is not asked.")
@options.output
def close(names: tuple[str, ...], on: str | None, forget: bool, form: str) -> int:
    """End services, and wait until nothing of them is left: TensorBoard, notebooks and deployments.

    --forget removes what this machine remembers of a deployment, for a target that no longer exists. If the target does
    exist, the deployment may still be up there and bill.

    \b
    Example:
      windlass close tensorboard-7f3k2
      windlass undeploy digits --on aws      the same command
    """
    from windlass.actions.all_services import close as close_service
    from windlass.actions.all_services import forget_deployment
    from windlass.errors import WindlassError, error_line
    from windlass.runs.context import here

    context = here()
    closed: list[ClosedService] = []
    errors: list[WindlassError] = []
    for name in names:
        try:
            if forget:
                closed.append(forget_deployment(name, on, context))
            else:
                closed.append(close_service(name, on, context, lambda line: click.echo(visible(line), err=True)))
        except WindlassError as error:  # the others bill too
            errors.append(error)
    if closed or not errors:
        lines = forgotten_lines if forget else closed_lines
        print_data(closed, form, lambda _paint: [line for one in closed for line in lines(one)])
    for one in errors[:-1]:
        click.echo(visible(error_line(one)), err=True)
    if errors:
        raise errors[-1]
    return 0


def list_lines(found: ServiceList, now: float, paint: Paint) -> Iterator[str]:
    """Yields the lines of `windlass services`."""
    if found.services:
        titles = ("NAME", "KIND", "TARGET", "STATE", "PRICE/H", "ENDS", "LAST REQUEST", "REPLICAS", "OWNER", "RUN")
        yield from fitting(
            titles, (_row(one, now, paint) for one in found.services), CUTS, paint, columns_of(sys.stdout)
        )
    elif not found.unanswered:
        yield "nothing is up"
    for one in found.services:
        if one.address:
            yield f"{one.name}: public at https://{visible(one.address)}"
        if one.cause:
            yield f"{one.name}: {visible(one.cause)}"
        if one.is_unused and one.last_request_at is not None:
            yield f"{one.name}: no request for {duration(now - one.last_request_at)}: windlass close {one.name}"
    for target in found.unanswered:
        yield paint(f"{target.target} did not answer, services may be up there: {visible(target.reason)}", "yellow")


def _row(one: ServiceView, now: float, paint: Paint) -> list[str]:
    ends = "never" if one.ends_at is None and one.phase != "unknown" else "unknown"
    if one.ends_at is not None:
        ends = f"in {duration(max(0.0, one.ends_at - now))}"
    return [
        paint(one.name, bold=True),
        one.kind,
        one.target,
        paint(one.phase, COLOURS.get(one.phase)),
        "unknown" if one.price_per_hour is None else price(one.price_per_hour, one.currency),
        ends,
        "unknown" if one.last_request_at is None else f"{duration(max(0.0, now - one.last_request_at))} ago",
        f"{one.ready_replicas}/{one.replicas}" if one.replicas else "–",
        visible(one.owner) or "–",
        one.run or "–",
    ]


def forgotten_lines(found: ClosedService) -> Iterator[str]:
    """Yields the line after a deployment was forgotten."""
    yield f"{found.name} on {found.target} is forgotten; it may still be up there"


def closed_lines(found: ClosedService) -> Iterator[str]:
    """Yields the lines after a service was ended."""
    removed = f": removed {', '.join(found.removed)}" if found.removed else ""
    yield f"{found.name} on {found.target} has ended{removed}"
