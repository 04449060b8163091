"""Three clusters cost the sums worked out by hand from list prices of us-east-1; a month has 730 hours."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.pricing.cluster import Estimate, Item, estimate
from windlass.pricing.items import items_of
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.table import Table, embedded
from windlass.spec.cluster import Cluster

DISK_MIB_PER_SECOND = 600


def priced(table: Table | None = None, **spec: Any) -> Estimate:
    cluster = Cluster.model_validate({"name": "vision", "region": "us-east-1", **spec})
    items = items_of(cluster, disk_mib_per_second=DISK_MIB_PER_SECOND)
    return estimate(items, cluster.region, table or embedded())


SMALLEST = (
    0.10 * 730  # control plane: 73.00
    + 0.045 * 730  # one NAT gateway: 32.85
    + 0.005 * 730  # its public address: 3.65
    + 4.00  # KMS keys
    + 2 * 0.1008 * 730  # two m7i.large: 147.168
    + 2 * 50 * 0.08  # their disks of 50 GiB: 8.00
)  # 268.668
TEAM = (
    0.10 * 730  # control plane: 73.00
    + 3 * 0.045 * 730  # a NAT gateway in each of three zones: 98.55
    + 3 * 0.005 * 730  # their public addresses: 10.95
    + 5.00  # KMS keys
    + 3 * 0.192 * 730  # three m5.xlarge: 420.48
    + 3 * 100 * 0.08  # their disks of 100 GiB: 24.00
    + 1200 * 0.14  # FSx for Lustre, scratch, 1200 GiB: 168.00
)  # 799.98
TEAM_A10G = (
    4 * 5.672  # four g5.12xlarge: 22.688
    + (4 * 200 * 0.08 + 4 * (600 - 125) * 0.04) / 730  # disks of 200 GiB at 600 MiB/s: (64 + 76) / 730 = 0.1918
)  # 22.8798 an hour
LARGE = (
    0.10 * 730  # control plane: 73.00
    + 0.045 * 730  # one NAT gateway: 32.85
    + 0.005 * 730  # its public address: 3.65
    + 5.00  # KMS keys
    + 2 * 0.1008 * 730  # two m7i.large: 147.168
    + 2 * 50 * 0.08  # their disks: 8.00
    + 4800 * 0.145  # FSx for Lustre, persistent, 4800 GiB at 125 MB/s for each TiB: 696.00
    + 1 * 55.04 * 730  # one p5.48xlarge that always runs: 40179.20
    + 1 * 500 * 0.08  # its disk of 500 GiB: 40.00
    + 1 * (600 - 125) * 0.04  # its throughput: 19.00
)  # 41203.868
LARGE_H100 = 8 * 55.04 + (8 * 500 * 0.08 + 8 * (600 - 125) * 0.04) / 730  # 440.32 + 472 / 730 = 440.9666 an hour


def test_smallest_cluster_costs_the_sum_worked_out_by_hand() -> None:
    found = priced()
    assert pytest.approx(268.67, abs=0.01) == SMALLEST
    assert found.base_month_usd == pytest.approx(SMALLEST, rel=0.1)
    assert found.base_month_usd == pytest.approx(SMALLEST, abs=0.01)  # the same prices, equal to the cent
    assert (found.pools, found.unknown) == ((), ())


def test_team_cluster_costs_the_sum_worked_out_by_hand() -> None:
    found = priced(
        network={"nat": "per-zone"},
        system={"instances": ["m5.xlarge"], "min": 3, "max": 6, "disk": "100GiB"},
        gpus=[{"name": "a10g", "instances": ["g5.12xlarge"], "max": 4}],
        storage={"efs": True, "fsx": True},
    )
    assert pytest.approx(799.98, abs=0.01) == TEAM
    assert found.base_month_usd == pytest.approx(TEAM, rel=0.1)
    [pool] = found.pools
    assert pool.name == "a10g"
    assert pool.per_hour_usd == pytest.approx(TEAM_A10G, rel=0.1)
    assert pool.per_hour_usd == pytest.approx(22.8798, abs=0.0001)


def test_large_cluster_costs_the_sum_worked_out_by_hand() -> None:
    found = priced(
        gpus=[
            {
                "name": "h100",
                "instances": ["p5.48xlarge"],
                "provision": "node-group",
                "min": 1,
                "max": 8,
                "disk": "500GiB",
            }
        ],
        storage={"fsx": {"size": "4800GiB", "deployment": "persistent-2"}},
    )
    assert pytest.approx(41203.87, abs=0.01) == LARGE
    assert found.base_month_usd == pytest.approx(LARGE, rel=0.1)
    assert found.pools[0].per_hour_usd == pytest.approx(LARGE_H100, rel=0.1)


def test_existing_keys_are_paid_for_by_their_owner() -> None:
    keys = {purpose: f"arn:aws:kms:us-east-1:123456789012:key/{purpose}-1" for purpose in ("secrets", "registry")}
    assert priced(encryption=keys).base_month_usd == pytest.approx(SMALLEST - 2, abs=0.01)


def test_pool_of_several_types_costs_as_if_all_nodes_had_the_most_expensive_one() -> None:
    def cost(*instances: str, **more: str) -> Estimate:
        return priced(gpus=[{"name": "a10g", "instances": instances, "max": 4, **more}])

    mixed, [most] = cost("g5.xlarge", "g5.12xlarge", "g5.2xlarge"), cost("g5.12xlarge").pools
    assert mixed.pools[0].per_hour_usd == most.per_hour_usd
    assert mixed.pools[0].rows[0].what == "4 nodes of pool a10g (most expensive of g5.xlarge, g5.12xlarge, g5.2xlarge)"
    [unknown] = cost("g5.xlarge", "g9.xlarge").pools
    assert unknown.per_hour_usd is None
    assert unknown.rows[0].unknown.startswith("no price of g9.xlarge in us-east-1 is known")


def test_charges_by_use_have_a_price_but_no_cost() -> None:
    rows = {row.what: row for row in priced(storage={"efs": True}).rows}
    efs = rows["EFS"]
    assert efs.is_by_use
    assert efs.price is not None
    assert (efs.price.amount_usd, efs.per_month_usd, efs.unknown) == (0.3, None, "")
    assert rows["data through NAT"].is_by_use
    assert not rows["EKS control plane"].is_by_use


def test_efs_with_bursting_throughput_bills_no_reads() -> None:
    rows = [row.what for row in priced(storage={"efs": {"throughput": "bursting"}}).rows]
    assert "EFS" in rows
    assert "reads of EFS" not in rows


def test_items_without_a_price_are_named_and_not_summed() -> None:
    found = priced(storage={"fsx": {"deployment": "persistent-2", "throughput": 1000}})
    assert found.unknown == ("FSx for Lustre, 1200 GiB",)
    [row] = [row for row in found.rows if row.unknown]
    assert (row.price, row.per_month_usd) == (None, None)
    assert row.unknown.endswith("run: windlass prices update --region us-east-1")
    assert found.base_month_usd == pytest.approx(SMALLEST + 1)  # the key of file systems


def test_other_regions_have_only_the_prices_valid_everywhere() -> None:
    found = priced(region="eu-central-1", gpus=[{"name": "a10g", "instances": ["g5.xlarge"]}])
    assert found.base_month_usd == pytest.approx(0.10 * 730 + 0.005 * 730 + 4)
    assert found.pools[0].per_hour_usd is None
    assert "2 system nodes (m7i.large)" in found.unknown


def test_spot_price_is_unknown_until_fetched_and_then_the_highest_is_used() -> None:
    spec: dict[str, Any] = {"gpus": [{"name": "spot", "instances": ["g5.xlarge"], "capacity": "spot", "max": 2}]}
    [pool] = priced(**spec).pools
    assert pool.per_hour_usd is None
    assert pool.rows[0].unknown.startswith("no spot price of g5.xlarge in us-east-1 is known")
    ends = [Price(usd, "hour", "a test", "2026-11-01", "us-east-1") for usd in (0.3, 0.5)]
    fetched = embedded().merged(Table(spot={("us-east-1", "g5.xlarge"): SpotRange(ends[0], ends[1], 7)}))
    [pool] = priced(fetched, **spec).pools
    assert pool.per_hour_usd == pytest.approx(2 * 0.5 + (2 * 200 * 0.08 + 2 * 475 * 0.04) / 730)


def test_a_capacity_block_is_paid_in_advance() -> None:
    pool = {
        "name": "block",
        "instances": ["p5.48xlarge"],
        "provision": "node-group",
        "capacity": "capacity-block",
        "zone": "us-east-1a",
        "reservation": "cr-0123456789abcdef0",
    }
    [cost] = priced(gpus=[pool]).pools
    assert cost.per_hour_usd is None
    assert cost.rows[0].unknown == "a capacity block is paid for when it is bought"
    assert not cost.rows[0].is_by_use


def test_explicit_zones_determine_the_number_of_gateways() -> None:
    found = priced(network={"nat": "per-zone"}, zones=["us-east-1a", "us-east-1b"])
    assert "2 NAT gateways" in [row.what for row in found.rows]
    assert "2 public IPv4 addresses" in [row.what for row in found.rows]


def test_single_items_found_by_an_audit_can_be_priced() -> None:
    items = [Item("volume vol-1, 200 GiB", "ebs.gp3", 200), Item("NAT gateway", "nat.gateway", 1)]
    found = estimate(items, "us-east-1", embedded())
    assert [row.per_month_usd for row in found.rows] == [pytest.approx(16.0), pytest.approx(32.85)]
    assert found.dates == ("2026-06-01", "2026-11-25")
    assert estimate([], "us-east-1", embedded()) == Estimate((), 0.0, (), (), ())


def test_endpoints_are_priced_in_place_of_gateways() -> None:
    rows = {row.what: row for row in priced(network={"nat": "none"}, components=[]).rows}
    endpoints = rows["6 interface endpoints in 3 zones"]
    assert endpoints.per_month_usd == pytest.approx(6 * 3 * 0.01 * 730)
    assert rows["data through interface endpoints"].is_by_use
    assert not any("NAT" in name or "IPv4" in name for name in rows)


def test_an_existing_vpc_bills_nothing_for_its_network() -> None:
    found = priced(network={"vpc": "vpc-0a", "subnets": ["subnet-0a", "subnet-0b"]})
    assert not any(word in row.what for row in found.rows for word in ("NAT", "IPv4", "endpoint"))
