"""Fetches the prices of a region from AWS: the price list (GetProducts) and the history of spot prices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any, Final

from windlass.errors import EngineError, MissingExtra
from windlass.pricing.charges import CHARGES, ON_DEMAND, QUERIES, charges_of, instance_price
from windlass.pricing.instances import instance_types
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.refreshed import RegionPrices
from windlass.pricing.table import EC2, embedded

PRICE_LIST_REGION: Final = "us-east-1"
"""Region whose endpoint serves the price list of all regions; only few regions have such an endpoint."""
SPOT_DAYS: Final = 7
PAGE: Final = 100
"""Maximum number of products in a response, and of types in a filter."""
SOURCE: Final = "AWS price list (GetProducts), Linux, on demand, without discounts"
SPOT_SOURCE: Final = f"EC2 DescribeSpotPriceHistory, Linux, all zones, {SPOT_DAYS} days"


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of boto3: `pricing`, and `ec2` of the requested region."""

    pricing: Any
    ec2: Any


@dataclass(frozen=True, slots=True)
class Fetched:
    """Prices of a region, and the charges without a price."""

    prices: RegionPrices
    missing: tuple[str, ...]
    """Charges for which the price list of the region has no price, or several prices."""
    problem: str = ""
    """Why spot prices are missing; empty if they were fetched."""


def connect(region: str) -> Clients:
    """Creates clients with the AWS credentials of this machine. Raises MissingExtra, EngineError."""
    if find_spec("boto3") is None:
        raise MissingExtra("prices are fetched by boto3", "pip install boto3")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(retries={"mode": "standard", "max_attempts": 6}, connect_timeout=10, read_timeout=60)
    try:
        return Clients(
            boto3.client("pricing", region_name=PRICE_LIST_REGION, config=config),
            boto3.client("ec2", region_name=region, config=config),
        )
    except (BotoCoreError, ValueError) as error:
        raise EngineError(f"AWS prices cannot be read in {region}: {error}", "aws configure list") from error


def fetch(region: str, clients: Clients, now: float) -> Fetched:
    """Fetches all prices of a region; `now` in Unix seconds. Raises EngineError if the price list fails or is empty."""
    date = datetime.fromtimestamp(now, UTC).date().isoformat()
    prices = dict(_figures(region, clients.pricing, date))
    if not any(name.startswith(EC2) for name in prices):
        raise EngineError(
            f"AWS lists no price of an EC2 instance in {region}", "write the region as us-east-1 or eu-central-1"
        )
    types = _spot_types(prices)
    spot, problem = _spot(region, clients.ec2, types, now, date)
    missing = tuple(name for name in CHARGES if name not in prices and embedded().charge(name, region) is None)
    return Fetched(RegionPrices(region, date, SOURCE, prices, spot), missing, problem)


def _figures(region: str, client: Any, date: str) -> Iterator[tuple[str, Price]]:
    """Yields names of charges with their prices; leaves out names with several different prices."""
    found: dict[str, Price] = {}
    several: set[str] = set()
    for name, price in _all_figures(region, client, date):
        if found.setdefault(name, price) != price:
            several.add(name)
    return ((name, price) for name, price in found.items() if name not in several)


def _all_figures(region: str, client: Any, date: str) -> Iterator[tuple[str, Price]]:
    for product in _products(client, "AmazonEC2", {**ON_DEMAND, "regionCode": region}.items()):
        if (one := instance_price(product, region, SOURCE, date)) is not None:
            yield EC2 + one[0], one[1]
    for query in QUERIES:
        for product in _products(client, query.service, [*query.filters, ("regionCode", region)]):
            yield from charges_of(query, product, region, SOURCE, date)


def _products(client: Any, service: str, filters: Iterable[tuple[str, str]]) -> Iterator[Mapping[str, Any]]:
    asked = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in filters]
    pages = client.get_paginator("get_products").paginate(
        ServiceCode=service, Filters=asked, FormatVersion="aws_v1", PaginationConfig={"PageSize": PAGE}
    )
    for page in _calls(pages, f"pricing:GetProducts of {service}"):
        for text in page.get("PriceList", []):
            product = json.loads(text)
            if isinstance(product, dict):
                yield product


def _spot_types(prices: Mapping[str, Price]) -> list[str]:
    """Returns instance types with an accelerator, and types in the embedded table: the history of all types has a
    hundred pages.
    """
    offered = {name.removeprefix(EC2) for name in prices if name.startswith(EC2)}
    wanted = {one.name for one in instance_types() if one.gpus or one.neuron_devices}
    return sorted(offered & (wanted | set(embedded().instance_types(PRICE_LIST_REGION))))


def _spot(region: str, client: Any, types: Sequence[str], now: float, date: str) -> tuple[dict[str, SpotRange], str]:
    """Returns the range of spot prices of each type, and an empty text; or no ranges, and the reason of a failure."""
    ends: dict[str, tuple[float, float]] = {}
    begin = datetime.fromtimestamp(now, UTC) - timedelta(days=SPOT_DAYS)
    try:
        for at in range(0, len(types), PAGE):
            pages = client.get_paginator("describe_spot_price_history").paginate(
                StartTime=begin,
                ProductDescriptions=["Linux/UNIX"],
                Filters=[{"Name": "instance-type", "Values": list(types[at : at + PAGE])}],
            )
            for page in _calls(pages, "ec2:DescribeSpotPriceHistory"):
                for one in page.get("SpotPriceHistory", []):
                    usd = float(one["SpotPrice"])
                    low, high = ends.get(one["InstanceType"], (usd, usd))
                    ends[one["InstanceType"]] = min(low, usd), max(high, usd)
    except EngineError as error:
        return {}, error.message
    return {
        name: SpotRange(
            Price(low, "hour", SPOT_SOURCE, date, region), Price(high, "hour", SPOT_SOURCE, date, region), SPOT_DAYS
        )
        for name, (low, high) in ends.items()
    }, ""


def _calls(pages: Iterable[dict[str, Any]], what: str) -> Iterator[dict[str, Any]]:
    """Yields the pages of a response. Raises EngineError for errors of botocore."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield from pages
    except ClientError as error:
        told = error.response.get("Error", {})
        code = told.get("Code", "")
        hint = (
            f"allow {what.partition(' ')[0]} to this login" if "AccessDenied" in code or "Unauthorized" in code else ""
        )
        raise EngineError(f"{what} was refused: {code}: {told.get('Message', '')}", hint) from error
    except BotoCoreError as error:
        raise EngineError(f"{what} failed: {error}", "log in to AWS, or check the network") from error
