"""A cluster is exported as a ClusterConfig of eksctl.

`eksctl_cluster_config.schema.json` contains the fields that Windlass writes, from eksctl's published schema (v1alpha5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from windlass.clusters.components.table import KARPENTER
from windlass.clusters.export import cluster_config
from windlass.spec.parse import parse_cluster

SCHEMA = json.loads(Path(__file__).with_name("eksctl_cluster_config.schema.json").read_text())
WHOLE = """
name: vision
region: us-west-2
zones: [us-west-2a, us-west-2b]
access: {admins: ["arn:aws:iam::123456789012:role/admins"], users: ["arn:aws:iam::123456789012:role/users"]}
network: {public_access: [203.0.113.7/32], nat: per-zone}
gpus:
  - {name: block, instances: [p5.48xlarge], provision: node-group, capacity: capacity-block, reservation: cr-0a,
     zone: us-west-2a}
  - {name: efa, instances: [p4d.24xlarge], provision: node-group, min: 1}
  - {name: spot, instances: [g5.xlarge, g5.2xlarge], provision: node-group, capacity: spot}
  - {name: karpenter, instances: [g5.xlarge]}
storage: {efs: true, fsx: true, s3_files: true}
sagemaker: true
budget: {limit: 500, email: team@example.com}
"""


def made(text: str) -> tuple[dict[str, Any], list[str]]:
    return cluster_config(parse_cluster(text))


@pytest.mark.parametrize("text", ["name: vision\nregion: us-west-2\n", WHOLE])
def test_config_has_only_fields_in_the_eksctl_schema(text: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(made(text)[0])


def test_unknown_eksctl_field_is_detected() -> None:
    config, _ = made(WHOLE)
    config["managedNodeGroups"][0]["instanceKind"] = "g5.xlarge"
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(config)


def test_pools_become_node_groups() -> None:
    groups = {group["name"]: group for group in made(WHOLE)[0]["managedNodeGroups"]}
    assert list(groups) == ["system", "block", "efa", "spot"]
    assert groups["block"]["capacityReservation"] == {"capacityReservationTarget": {"capacityReservationID": "cr-0a"}}
    assert groups["block"]["availabilityZones"] == ["us-west-2a"]
    assert groups["efa"]["efaEnabled"] is True
    assert (groups["efa"]["minSize"], groups["efa"]["desiredCapacity"]) == (1, 1)
    assert groups["spot"]["spot"] is True
    assert "efaEnabled" not in groups["spot"]


def test_the_api_server_is_private_unless_ranges_are_named() -> None:
    bare, whole = (made(text)[0]["vpc"] for text in ("name: vision\nregion: us-west-2\n", WHOLE))
    assert bare["clusterEndpoints"] == {"privateAccess": True, "publicAccess": False}
    assert whole["clusterEndpoints"]["publicAccess"] is True
    assert whole["publicAccessCIDRs"] == ["203.0.113.7/32"]


def test_parts_that_eksctl_cannot_create_are_listed() -> None:
    left_out = made(WHOLE)[1]
    for what in ("bucket", "repositories", "EFS", "FSx", "S3 Files", "SageMaker", "budget", "NodePools", "operators"):
        assert any(what in one for one in left_out), what


def test_eksctl_config_has_the_karpenter_version_of_windlass() -> None:
    assert made(WHOLE)[0]["karpenter"]["version"] == KARPENTER.version


def test_an_existing_vpc_and_its_subnets_are_named_by_id() -> None:
    text = "name: vision\nregion: us-west-2\nnetwork: {vpc: vpc-0a, subnets: [subnet-0a, subnet-0b], proxy: 'http://p:1'}\n"
    config, left_out = made(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(config)
    assert (config["vpc"]["id"], "cidr" in config["vpc"], "nat" in config["vpc"]) == ("vpc-0a", False, False)
    assert config["vpc"]["subnets"]["private"] == {id: {"id": id} for id in ("subnet-0a", "subnet-0b")}
    assert "eksctl does not make the proxy of nodes and components" in left_out


def test_a_vpc_without_nat_lacks_its_endpoints() -> None:
    config, left_out = made("name: vision\nregion: us-west-2\nnetwork: {nat: none}\n")
    assert config["vpc"]["nat"] == {"gateway": "Disable"}
    assert "eksctl does not make the interface endpoints" in left_out


def test_rules_of_a_company_are_listed_as_left_out_and_versions_of_addons_are_written() -> None:
    text = (
        "name: vision\nregion: us-west-2\niam: {path: /team/}\nsystem: {ami: al2023@v20261101}\n"
        "encryption: {logs: 'arn:aws:kms:us-west-2:123456789012:key/1-a'}\naddons: {vpc-cni: v1.20.4-eksbuild.2}\n"
    )
    config, left_out = made(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(config)
    assert {"name": "vpc-cni", "version": "v1.20.4-eksbuild.2"} in config["addons"]
    for what in ("a permissions boundary or a path", "existing KMS keys", "AMIs"):
        assert any(what in one for one in left_out), what
