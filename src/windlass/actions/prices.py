"""Lists the prices of instance types and services, and fetches prices from AWS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from windlass.errors import UsageError
from windlass.pricing.charges import CHARGES
from windlass.pricing.cluster import unknown
from windlass.pricing.instances import InstanceType, instance_type, instance_types, near_misses
from windlass.pricing.refreshed import FILE, load, write
from windlass.pricing.table import EC2, Table
from windlass.runs.context import Context
from windlass.views.prices import ChargeView, InstancePrice, PriceList, PricesUpdated, RegionUpdated

if TYPE_CHECKING:
    from windlass.pricing.fetch import Clients

DEFAULT_REGION: Final = "us-east-1"


def list_prices(asked: Sequence[str], region: str | None, context: Context) -> PriceList:
    """Returns prices in a region for the requested instance types or families; by default, for types with an
    accelerator and for services.

    Raises UsageError for an unknown type, StoreError.
    """
    where, table = region or default_region(context), load(context.home)
    if asked:
        named = [name for one in asked for name in _named(one)]
        return PriceList(where, tuple(_instance(name, where, table) for name in dict.fromkeys(named)), ())
    priced = set(table.instance_types(where))
    found = [one for one in instance_types() if one.name in priced and (one.gpus or one.neuron_devices)]
    found.sort(key=lambda one: (one.family, one.vcpus))
    charges = tuple(_charge(name, where, table) for name in CHARGES)
    return PriceList(where, tuple(_instance(one.name, where, table) for one in found), charges)


def update(
    regions: Sequence[str],
    context: Context,
    connect: Callable[[str], Clients] | None = None,
    on_region: Callable[[str], object] = lambda region: None,
) -> PricesUpdated:
    """Fetches the prices of regions from AWS, and stores them for all plans of this user.

    `on_region` is called before each region. Raises MissingExtra, EngineError, StoreError.
    """
    from windlass.pricing import fetch

    done = []
    for region in dict.fromkeys(regions or [default_region(context)]):
        on_region(region)
        fetched = fetch.fetch(region, (connect or fetch.connect)(region), context.now())
        write(context.home, fetched.prices, fetch.SPOT_SOURCE)
        figures = fetched.prices.figures
        instances = sum(name.startswith(EC2) for name in figures)
        done.append(
            RegionUpdated(
                region,
                fetched.prices.date,
                instances,
                len(figures) - instances,
                len(fetched.prices.spot),
                fetched.missing,
                fetched.problem,
            )
        )
    return PricesUpdated(str(context.home / FILE), tuple(done))


def default_region(context: Context) -> str:
    """Returns the region of the AWS login, as the AWS CLI finds it in the environment; else us-east-1."""
    environ = context.environ
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def _named(asked: str) -> list[str]:
    """Returns an instance type, or all types of a family such as `g5`. Raises UsageError."""
    if instance_type(asked) is not None:
        return [asked]
    if "." not in asked and (family := instance_types(f"{asked}.")):
        return [one.name for one in sorted(family, key=lambda one: one.vcpus)]
    hint = near_misses(asked) or "write for example g5.12xlarge, or g5 for all of its family"
    raise UsageError(f"{asked} is not an instance type that is known", hint)


def _instance(name: str, region: str, table: Table) -> InstancePrice:
    facts = instance_type(name)
    assert isinstance(facts, InstanceType)
    price, spot = table.on_demand(name, region), table.spot_range(name, region)
    why = "" if price is not None else unknown(EC2 + name, region)
    return InstancePrice(name, facts, price, spot, why)


def _charge(name: str, region: str, table: Table) -> ChargeView:
    price = table.charge(name, region)
    return ChargeView(name, CHARGES[name], price, "" if price is not None else unknown(name, region))
