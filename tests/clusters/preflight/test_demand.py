"""Each instance type counts against the right quota, and the vCPUs of a cluster are added up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from windlass.clusters.preflight.demand import demands, quota_of
from windlass.clusters.preflight.quotas import used_by_others
from windlass.pricing.instances import instance_types
from windlass.spec.cluster import Cluster


def cluster(*pools: dict[str, Any], **fields: Any) -> Cluster:
    return Cluster.model_validate({"name": "vision", "region": "us-east-1", "gpus": list(pools), **fields})


@pytest.mark.parametrize(
    ("name", "is_spot", "code"),
    [
        ("g5.12xlarge", False, "L-DB2E81BA"),
        ("gr6.4xlarge", False, "L-DB2E81BA"),
        ("vt1.3xlarge", True, "L-3819A6DF"),
        ("p4d.24xlarge", False, "L-417A185B"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5.48xlarge", True, "L-C4BD4855"),
        ("p6-b200.48xlarge", False, "L-417A185B"),
        ("p6-b200.48xlarge", True, None),
        ("dl1.24xlarge", False, "L-6E869C2A"),
        ("d3.xlarge", False, "L-1216C47A"),
        ("trn1.32xlarge", False, "L-2C3B7624"),
        ("inf2.xlarge", True, "L-B5D1601B"),
        ("m7i.large", False, "L-1216C47A"),
        ("im4gn.large", False, "L-1216C47A"),
        ("u7i-6tb.112xlarge", False, "L-43DA4232"),
        ("mac2.metal", False, None),
    ],
)
def test_each_family_has_its_quota(name: str, is_spot: bool, code: str | None) -> None:
    found = quota_of(name, is_spot=is_spot)
    assert (found.code if found else None) == code


def test_every_accelerated_type_has_an_on_demand_quota() -> None:
    accelerated = [one for one in instance_types() if one.gpus or one.neuron_devices]
    assert len(accelerated) > 50
    assert [one.name for one in accelerated if quota_of(one.name, is_spot=False) is None] == []


def test_demand_uses_largest_type_for_maximum_and_smallest_for_minimum() -> None:
    needed, unclear = demands(cluster({"name": "a", "instances": ["g5.xlarge", "g5.12xlarge"], "max": 8}))
    assert {one.quota.label: (one.at_least, one.at_most, one.pools) for one in needed} == {
        "standard": (4, 8, ("system: 4 × m7i.large",)),
        "G/VT": (4, 8 * 48, ("a: 8 × g5.12xlarge",)),
    }
    assert unclear == []


def test_pools_of_one_class_add_up_and_spot_counts_separately() -> None:
    needed, _ = demands(
        cluster(
            {"name": "a", "instances": ["g5.xlarge"], "max": 2},
            {"name": "b", "instances": ["g6.xlarge"], "max": 3},
            {"name": "c", "instances": ["g6.xlarge"], "max": 5, "capacity": "spot"},
        )
    )
    assert {one.quota.label: one.at_most for one in needed} == {"standard": 8, "G/VT": 20, "G/VT spot": 20}


def test_a_capacity_block_counts_against_no_quota() -> None:
    block = {
        "name": "p5",
        "instances": ["p5.48xlarge"],
        "provision": "node-group",
        "capacity": "capacity-block",
        "reservation": "cr-0123456789abcdef0",
        "zone": "us-east-1a",
    }
    assert [one.quota.label for one in demands(cluster(block))[0]] == ["standard"]


def test_types_without_a_known_quota_are_reported() -> None:
    pool = {"name": "a", "instances": ["p6-b200.48xlarge"], "capacity": "spot"}
    assert demands(cluster(pool))[1] == ["p6-b200.48xlarge"]


def test_usage_by_others_excludes_own_nodes_capacity_blocks_and_dedicated_hosts() -> None:
    instances: list[Mapping[str, Any]] = [
        {"InstanceType": "g5.xlarge"},
        {"InstanceType": "g5.xlarge", "InstanceLifecycle": "spot"},
        {"InstanceType": "g5.xlarge", "Tags": [{"Key": "windlass.dev/cluster", "Value": "vision"}]},
        {"InstanceType": "g5.xlarge", "Tags": [{"Key": "kubernetes.io/cluster/vision", "Value": "owned"}]},
        {"InstanceType": "p5.48xlarge", "InstanceLifecycle": "capacity-block"},
        {"InstanceType": "g5.xlarge", "Placement": {"Tenancy": "host"}},
        {"InstanceType": "g99.xlarge", "CpuOptions": {"CoreCount": 3, "ThreadsPerCore": 2}},
    ]
    assert used_by_others(instances, "vision") == {"L-DB2E81BA": 4 + 6, "L-3819A6DF": 4}
