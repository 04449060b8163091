"""Prices of a region are fetched with boto3 from an emulated price list."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.fakeaws.pricing import PriceListServer, emulated_prices, fill, product

from windlass.errors import EngineError
from windlass.pricing.charges import CHARGES
from windlass.pricing.fetch import SPOT_DAYS, Fetched, fetch

REGION = "eu-central-1"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def server() -> Iterator[PriceListServer]:
    with emulated_prices() as plane:
        fill(plane, REGION, "EUC1-", NOW)
        yield plane


def fetched(server: PriceListServer) -> Fetched:
    return fetch(REGION, server.clients(REGION), NOW)


def amounts(server: PriceListServer) -> dict[str, tuple[float, str]]:
    return {name: (one.amount_usd, one.unit) for name, one in fetched(server).prices.figures.items()}


def test_emulated_prices_of_instances_are_those_of_linux_on_demand(server: PriceListServer) -> None:
    found = amounts(server)
    assert {name: usd for name, usd in found.items() if name.startswith("ec2.")} == {
        "ec2.g5.12xlarge": (7.09, "hour"),
        "ec2.p5.48xlarge": (60.5, "hour"),
        "ec2.m7i.large": (0.1197, "hour"),
    }


def test_emulated_prices_of_services_have_the_units_of_the_table(server: PriceListServer) -> None:
    found = amounts(server)
    services = {name: of for name, of in found.items() if not name.startswith("ec2.")}
    assert services == {
        "ebs.gp3": (0.0952, "GB-month"), "ebs.gp2": (0.119, "GB-month"), "ebs.gp3-iops": (0.006, "IOPS-month"),
        "ebs.gp3-throughput": (0.048, "MiBps-month"), "ebs.snapshot": (0.054, "GB-month"),
        "nat.gateway": (0.052, "hour"), "nat.data": (0.052, "GB"), "ipv4.address": (0.005, "hour"),
        "vpc-endpoint.zone": (0.012, "hour"), "elb.application": (0.027, "hour"), "elb.network": (0.028, "hour"),
        "efs.standard": (0.36, "GB-month"), "efs.infrequent-access": (0.027, "GB-month"),
        "efs.elastic-read": (0.04, "GB"), "efs.elastic-write": (0.07, "GB"),
        "fsx.scratch-2": (0.168, "GB-month"), "fsx.persistent-2-250": (0.252, "GB-month"),
        "eks.control-plane": (0.1, "hour"), "s3.standard": (0.0245, "GB-month"), "s3.writes": (0.0054, "1000 requests"),
        "ecr.storage": (0.1, "GB-month"), "logs.ingestion": (0.63, "GB"), "kms.key": (1.0, "month"),
    }  # fmt: skip
    assert set(services) <= set(CHARGES)


def test_emulated_charges_without_a_price_are_named(server: PriceListServer) -> None:
    missing = fetched(server).missing
    assert "fsx.persistent-2-1000" in missing
    assert "ebs.gp3" not in missing
    assert "eks.extended-support" not in missing  # the embedded table has one price for all regions


def test_emulated_charge_with_several_prices_has_none(server: PriceListServer) -> None:
    more = {"regionCode": REGION, "usagetype": "EUC1-NatGateway-Hours"}
    server.products.append(product("AmazonEC2", "NAT Gateway", "0.9", "Hrs", **more))
    assert "nat.gateway" not in amounts(server)
    assert "nat.gateway" in fetched(server).missing


def test_emulated_pages_are_all_read(server: PriceListServer) -> None:
    whole, asked = amounts(server), server.calls["GetProducts"]
    server.page = 1
    assert amounts(server) == whole
    assert server.calls["GetProducts"] > 2 * asked


def test_emulated_prices_have_source_date_and_region(server: PriceListServer) -> None:
    price = fetched(server).prices.figures["ec2.g5.12xlarge"]
    assert (price.date, price.region) == ("2026-12-01", REGION)
    assert "GetProducts" in price.source


def test_emulated_spot_prices_are_a_range_of_the_last_days(server: PriceListServer) -> None:
    server.page = 2
    spot = fetched(server).prices.spot
    assert set(spot) == {"g5.12xlarge"}
    one = spot["g5.12xlarge"]
    assert (one.low.amount_usd, one.high.amount_usd, one.days) == (1.9, 2.6, SPOT_DAYS)
    assert "DescribeSpotPriceHistory" in one.low.source


def test_emulated_other_prices_are_fetched_without_permission_for_spot_prices(server: PriceListServer) -> None:
    server.refused["DescribeSpotPriceHistory"] = ("UnauthorizedOperation", "You are not authorized")
    found = fetched(server)
    assert not found.prices.spot
    assert "ec2.g5.12xlarge" in found.prices.figures
    assert "UnauthorizedOperation" in found.problem


def test_emulated_refused_price_list_names_the_missing_permission(server: PriceListServer) -> None:
    server.refused["GetProducts"] = ("AccessDeniedException", "User: ada is not authorized")
    with pytest.raises(EngineError, match="GetProducts of AmazonEC2 was refused: AccessDeniedException") as refused:
        fetched(server)
    assert refused.value.hint == "allow pricing:GetProducts to this login"


def test_emulated_region_without_prices_is_an_error(server: PriceListServer) -> None:
    with pytest.raises(EngineError, match="no price of an EC2 instance in eu-centrl-1"):
        fetch("eu-centrl-1", server.clients(REGION), NOW)


def test_unreachable_price_list_is_an_error(server: PriceListServer) -> None:
    clients = server.clients(REGION)
    with emulated_prices() as gone:
        there = gone.clients(REGION)
    with pytest.raises(EngineError, match="pricing:GetProducts of AmazonEC2 failed"):
        fetch(REGION, there, NOW)
    assert fetch(REGION, clients, NOW).prices.figures
