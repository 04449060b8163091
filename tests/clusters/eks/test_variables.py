"""A cluster file is translated into Terraform variables."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from windlass.clusters.eks.variables import variables
from windlass.spec.parse import parse_cluster

SHORT = "name: vision\nregion: us-west-2\n"
DEFAULTED = {
    "zone_count",
    "support_type",
    "bucket_force_destroy",
    "repositories_force_destroy",
    "bucket_managed",
    "bucket_key_arn",
    "service_account",
}
BLOCK = """
gpus:
  - {name: p5, instances: [p5.48xlarge], provision: node-group, capacity: capacity-block, reservation: cr-0a,
     zone: us-west-2a, max: 2, disk: 500GiB, labels: {team: vision}}
"""


def made(text: str) -> dict[str, Any]:
    return variables(parse_cluster(text))


def test_variables_match_the_declarations_in_the_configuration() -> None:
    text = (files("windlass.clusters") / "eks" / "variables.tf").read_text()
    declared = set(re.findall(r'^variable "(\w+)"', text, re.MULTILINE))
    given = set(made(SHORT))
    assert given <= declared
    assert declared - given <= DEFAULTED, "those have defaults there"


def test_defaults_come_only_from_the_cluster_file() -> None:
    found = made(SHORT)
    assert (found["zones"], found["gpu_pools"], found["efs"], found["fsx"]) == ([], {}, None, None)
    assert found["system_nodes"] == {"instance_types": ["m7i.large"], "min": 2, "max": 4, "disk_gib": 50, "ami": None}
    assert (found["karpenter"], found["load_balancer_controller"]) == (True, True)
    assert (found["repositories"], found["bucket_name"], found["endpoints"]) == (["vision"], "", {})


def test_capacity_block_uses_efa_a_placement_group_and_fast_disks() -> None:
    assert made(SHORT + BLOCK)["gpu_pools"] == {
        "p5": {
            "instance_types": ["p5.48xlarge"],
            "capacity": "capacity-block",
            "capacity_reservation_id": "cr-0a",
            "min": 0,
            "max": 2,
            "zone": "us-west-2a",
            "efa_interfaces": 32,
            "placement_group": True,
            "disk_gib": 500,
            "disk_throughput_mibs": 600,
            "parallel_pull": True,
            "ami_type": "AL2023_x86_64_NVIDIA",
            "ami": None,
            "labels": {"windlass.dev/pool": "p5", "team": "vision"},
            "taint": True,
        }
    }


def test_karpenter_pools_do_not_become_node_groups() -> None:
    assert made(SHORT + "gpus: [{name: a, instances: [g5.xlarge]}]\n")["gpu_pools"] == {}


@pytest.mark.parametrize(
    ("instance", "efa", "pull", "ami"),
    [
        ("g5.xlarge", 0, False, "AL2023_x86_64_NVIDIA"),
        ("p4d.24xlarge", 4, True, "AL2023_x86_64_NVIDIA"),
        ("trn1.32xlarge", 8, True, "AL2023_x86_64_NEURON"),
        ("g5g.16xlarge", 0, True, "AL2023_ARM_64_NVIDIA"),
    ],
)
def test_pool_settings_are_derived_from_the_instance_type(instance: str, efa: int, pull: bool, ami: str) -> None:
    pool = f"gpus: [{{name: a, instances: [{instance}], provision: node-group}}]\n"
    [found] = made(SHORT + pool)["gpu_pools"].values()
    assert (found["efa_interfaces"], found["parallel_pull"], found["ami_type"]) == (efa, pull, ami)
    assert found["placement_group"] is bool(efa)


def test_efa_can_be_turned_off() -> None:
    pool = "gpus: [{name: a, instances: [p4d.24xlarge], provision: node-group, efa: false}]\n"
    [found] = made(SHORT + pool)["gpu_pools"].values()
    assert (found["efa_interfaces"], found["placement_group"]) == (0, False)


def test_file_systems_and_budget_become_variables() -> None:
    text = "storage: {efs: {throughput: bursting}, fsx: {size: 2400GiB, deployment: persistent-2, throughput: 250}}\n"
    found = made(f"{SHORT}{text}budget: {{limit: 500, email: team@example.com}}\n")
    assert found["efs"] == {"throughput": "bursting"}
    assert found["fsx"] == {
        "size_gib": 2400,
        "deployment": "PERSISTENT_2",
        "throughput": 250,
        "import_prefix": "fsx/",
        "export": True,
        "export_deleted": False,
    }
    assert found["budget"] == {"limit_usd": 500, "email": "team@example.com"}


def test_networks_become_variables() -> None:
    existing = "network: {vpc: vpc-0a, subnets: [subnet-0a, subnet-0b], proxy: 'http://p:3128', no_proxy: [.corp]}\n"
    found = made(SHORT + existing)
    assert (found["vpc_id"], found["subnet_ids"], found["zones"]) == ("vpc-0a", ["subnet-0a", "subnet-0b"], [])
    assert (found["proxy"], found["no_proxy"], found["endpoint_services"]) == ("http://p:3128", [".corp"], [])
    found = made(SHORT + "network: {nat: none}\n")
    assert (found["vpc_id"], found["subnet_ids"], found["nat"], found["proxy"]) == ("", [], "none", "")
    assert "ecr.dkr" in found["endpoint_services"]
