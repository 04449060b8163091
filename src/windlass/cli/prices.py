"""`prices`: lists prices of AWS instance types and services, and fetches the prices of a region."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import options
from windlass.cli.formatting import Paint, columns_of, count, fitting, size, titled, visible
from windlass.cli.render import print_data

if TYPE_CHECKING:
    from windlass.views.prices import InstancePrice, PriceList, PricesUpdated

UNKNOWN = "unknown"
NOTHING = "–"


def _complete_type(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Completes an instance type: first its family, such as `g5`, then its size."""
    from windlass.pricing.instances import instance_types

    found = instance_types(incomplete)
    return [one.name for one in found] if "." in incomplete else list(dict.fromkeys(one.family for one in found))


@click.group()
def prices() -> None:
    """List and update AWS list prices, each with its date: instances, volumes, file systems, networks.

    \b
    Example:
      windlass prices list g5.12xlarge p5.48xlarge --region us-east-1
      windlass prices update --region eu-central-1
    """


@prices.command("list", short_help="List prices and facts of instance types.")
@click.argument("types", nargs=-1, metavar="[TYPE]…", shell_complete=_complete_type)
@click.option("--region", metavar="REGION", help="AWS region. Default: the configured one, else us-east-1.")
@options.output
def list_(types: tuple[str, ...], region: str | None, form: str) -> int:
    """List prices and facts of instance types, or families such as `g5`. Default: types with GPUs, and services.

    A price without a source is shown as unknown. SageMaker's prices (`ml.*`) are not included.

    \b
    Example:
      windlass prices list g5 --region us-east-1
      windlass prices list -o json
    """
    from windlass.actions import prices as actions
    from windlass.runs.context import here

    found = actions.list_prices(types, region, here())
    print_data(found, form, lambda paint: list_lines(found, paint))
    return 0


@prices.command(short_help="Fetch prices of a region from AWS.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="REGION",
    help="AWS region; may be repeated. Default: the configured one, else us-east-1.",
)
@options.output
def update(regions: tuple[str, ...], form: str) -> int:
    """Fetch the prices of a region from AWS, for plans and estimates of this user; newer prices replace older ones.

    The login needs pricing:GetProducts, and ec2:DescribeSpotPriceHistory for the range of spot prices.

    \b
    Example:
      windlass prices update --region us-east-1 --region eu-central-1
    """
    from windlass.actions import prices as actions
    from windlass.runs.context import here

    done = actions.update(
        regions, here(), on_region=lambda region: click.echo(f"fetching prices of {visible(region)} …", err=True)
    )
    print_data(done, form, lambda paint: updated_lines(done, paint))
    return 0


def list_lines(found: PriceList, paint: Paint) -> list[str]:
    """Returns the output lines of `prices list`: instance types, then other prices, then the sources."""
    blocks = []
    if found.instances:
        blocks.append(list(_instance_lines(found.instances, paint)))
    if found.charges:
        rows = [
            [one.name, UNKNOWN, NOTHING, NOTHING, one.what]
            if (price := one.price) is None
            else [one.name, f"{price.amount_usd:.10g}", price.unit, price.date, one.what]
            for one in found.charges
        ]
        blocks.append(titled(["CHARGE", "USD", "FOR", "AS OF", "WHAT"], rows, paint))
    blocks.append([paint(line, dim=True) for line in _notes(found)])
    return [line for at, block in enumerate(blocks) for line in ([""] if at else []) + block]


def _instance_lines(instances: Iterable[InstancePrice], paint: Paint) -> Iterator[str]:
    titles = ["TYPE", "VCPUS", "MEMORY", "ACCELERATORS", "GBIT/S", "EFA", "NVME", "USD/H", "SPOT USD/H", "AS OF"]
    cuts = [(title, 0) for title in ("NVME", "EFA", "GBIT/S", "VCPUS", "MEMORY")]
    yield from fitting(titles, [_row(one) for one in instances], cuts, paint, columns_of(sys.stdout))


def _row(one: InstancePrice) -> list[str]:
    price, spot, facts = one.on_demand, one.spot, one.facts
    devices = NOTHING
    if facts.gpus:
        devices = f"{facts.gpus} × {facts.gpu_model} {size(facts.gpu_memory_mib << 20)}"
    elif facts.neuron_devices:
        devices = f"{facts.neuron_devices} × {facts.neuron_model}"
    return [
        one.type,
        str(facts.vcpus),
        size(facts.memory_mib << 20),
        devices,
        NOTHING if facts.network_gbps is None else f"{facts.network_gbps:g}",
        str(facts.efa_interfaces or NOTHING),
        f"{facts.nvme_gb:,} GB" if facts.nvme_gb else NOTHING,
        UNKNOWN if price is None else f"{price.amount_usd:.10g}",
        UNKNOWN if spot is None else f"{spot.low.amount_usd:.6g} – {spot.high.amount_usd:.6g}",
        NOTHING if price is None else price.date,
    ]


def _notes(found: PriceList) -> list[str]:
    """Returns lines with region and kind of the prices, their sources, and what to do about unknown prices."""
    priced = [*(one.on_demand for one in found.instances), *(one.price for one in found.charges)]
    sources = dict.fromkeys(f"{one.date}: {one.source}" for one in priced if one is not None)
    ranges = [one.spot for one in found.instances if one.spot is not None]
    spot = dict.fromkeys(f"{one.low.date}: {one.low.source}" for one in ranges)
    reasons = dict.fromkeys([*(one.unknown for one in found.instances), *(one.unknown for one in found.charges)])
    command = f"windlass prices update --region {found.region}"
    head = f"List prices in {found.region}, without discounts, taxes and free tiers."
    notes = [f"{head} Sources:" if sources or spot else head, *sources, *spot]
    notes += [reason for reason in reasons if reason and command not in reason]
    if any(command in reason for reason in reasons) or any(one.spot is None for one in found.instances):
        notes.append(f"What is unknown is fetched by: {command}")
    return notes


def updated_lines(done: PricesUpdated, paint: Paint) -> list[str]:
    """Returns the output lines of `prices update`: the number of prices, and unknown prices, of each region."""
    lines = []
    for one in done.regions:
        spot = f", {one.num_spot} spot" if one.num_spot else ""
        lines.append(
            f"{one.region}: {count(one.num_instances, 'instance type')}, {count(one.num_charges, 'other price')}{spot}"
        )
        if one.problem:
            lines.append(paint(f"  no spot prices: {visible(one.problem)}", "yellow"))
        if one.missing:
            lines.append(paint(f"  still unknown: {', '.join(one.missing)}", "yellow"))
    return [*lines, f"written to {done.path}"]
