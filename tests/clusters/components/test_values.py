"""Terraform outputs become values, storage objects and node pools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass.clusters.components import node_pools, storage
from windlass.clusters.components.values import ClusterValues, Efs, Fsx, GpuPool, gpu_pool, values_of

OUTPUTS = {
    "name": "lab", "region": "eu-west-1", "vpc_id": "vpc-1", "namespace": "team", "endpoint": "https://e",
    "private_subnet_ids": ["subnet-a", "subnet-b"], "node_security_group_id": "sg-1",
    "karpenter": {"queue_name": "lab-events", "controller_role_arn": "arn", "node_role_name": "lab-node",
                  "instance_profile": "lab-karpenter"},
    "load_balancer_controller_role_arn": "arn", "efs_id": "fs-1", "efs_access_point_id": "fsap-1", "fsx_id": "fs-2",
    "fsx_dns_name": "fs-2.fsx", "fsx_mount_name": "abcd",
}  # fmt: skip
POOL = {
    "instance_types": ["g5.xlarge"],
    "capacity": "spot",
    "min": 0,
    "max": 4,
    "zone": "eu-west-1a",
    "disk_gib": 300,
    "disk_throughput_mibs": 1000,
    "parallel_pull": True,
    "ami_type": "AL2023_x86_64_NVIDIA",
    "taint": True,
    "labels": {"team": "vision"},
    "capacity_reservation_id": None,
    "efa_interfaces": 0,
    "placement_group": False,
}


def test_values_come_from_the_outputs() -> None:
    found = values_of(OUTPUTS, tags={"team": "vision"})
    assert (found.queue_name, found.instance_profile) == ("lab-events", "lab-karpenter")
    assert (found.has_karpenter, found.has_load_balancer_controller) == (True, True)
    assert found.efs == Efs("fs-1", "fsap-1")
    assert found.fsx == Fsx("fs-2", "fs-2.fsx", "abcd", 1200)
    assert found.tags == {"team": "vision", "windlass.dev/cluster": "lab", "windlass.dev/managed-by": "karpenter"}


def test_missing_terraform_outputs_mean_absent_parts() -> None:
    absent = {name: None for name in OUTPUTS if name not in ("name", "region", "vpc_id")}
    found = values_of({**OUTPUTS, **absent})
    assert (found.efs, found.fsx, found.has_karpenter, found.namespace) == (None, None, False, "default")
    assert [one["metadata"]["name"] for one in storage.objects(found)] == ["gp3"]


@pytest.mark.parametrize(
    ("ami", "family", "term"),
    [
        ("", None, {"alias": "al2023@latest"}),
        ("al2023@v20261101", None, {"alias": "al2023@v20261101"}),
        ("ami-0123456789abcdef0", "AL2023", {"id": "ami-0123456789abcdef0"}),
        ("/team/images/gpu:3", "AL2023", {"ssmParameter": "/team/images/gpu:3"}),
    ],
)
def test_karpenter_selects_the_ami_of_the_pool(ami: str, family: str | None, term: dict[str, str]) -> None:
    spec = node_pools.node_class(gpu_pool("a10g", {**POOL, "ami": ami}), values_of(OUTPUTS))["spec"]
    assert (spec.get("amiFamily"), spec["amiSelectorTerms"]) == (family, [term])
    assert json.loads(spec["userData"])["spec"]["featureGates"] == {"FastImagePull": True}


def test_disks_and_volumes_have_the_key_of_the_cluster_file() -> None:
    pool = gpu_pool("a10g", POOL)
    for key, named in (("arn:aws:kms:eu-west-1:1:key/1", True), ("", False)):
        values = values_of(OUTPUTS, [pool], disk_key_arn=key)
        ebs = node_pools.node_class(pool, values)["spec"]["blockDeviceMappings"][0]["ebs"]
        parameters = storage_of(values)[("StorageClass", "gp3")]["parameters"]
        assert (ebs.get("kmsKeyID"), parameters.get("kmsKeyId")) == ((key, key) if named else (None, None))


def storage_of(values: ClusterValues) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in storage.objects(values)}


def test_file_systems_become_volumes_reserved_for_their_claims() -> None:
    found = storage_of(values_of(OUTPUTS))
    assert list(found) == [
        ("StorageClass", "gp3"),
        ("StorageClass", "efs"),
        ("PersistentVolume", "windlass-lab-efs"),
        ("PersistentVolumeClaim", "efs"),
        ("PersistentVolume", "windlass-lab-fsx"),
        ("PersistentVolumeClaim", "fsx"),
    ]
    gp3 = found["StorageClass", "gp3"]
    assert gp3["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert (gp3["volumeBindingMode"], gp3["parameters"]["encrypted"]) == ("WaitForFirstConsumer", "true")
    efs = found["PersistentVolume", "windlass-lab-efs"]["spec"]
    assert efs["csi"] == {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1::fsap-1"}
    assert efs["persistentVolumeReclaimPolicy"] == "Retain"
    assert (efs["claimRef"]["namespace"], efs["claimRef"]["name"]) == ("team", "efs")
    fsx = found["PersistentVolume", "windlass-lab-fsx"]["spec"]
    assert fsx["csi"]["volumeAttributes"] == {"dnsname": "fs-2.fsx", "mountname": "abcd"}
    claim = found["PersistentVolumeClaim", "fsx"]
    assert (claim["metadata"]["namespace"], claim["spec"]["volumeName"]) == ("team", "windlass-lab-fsx")
    assert claim["spec"]["resources"]["requests"]["storage"] == "1200Gi"


def test_without_an_access_point_volumes_are_only_created_on_demand() -> None:
    found = storage_of(values_of({**OUTPUTS, "efs_access_point_id": None, "fsx_id": None}))
    assert list(found) == [("StorageClass", "gp3"), ("StorageClass", "efs")]
    assert found["StorageClass", "efs"]["parameters"]["fileSystemId"] == "fs-1"


def made(pool: GpuPool) -> tuple[dict[str, Any], dict[str, Any]]:
    node_class, node_pool = node_pools.objects(values_of(OUTPUTS, [pool]))
    return node_class["spec"], node_pool["spec"]


def test_gpu_pool_becomes_a_node_class_and_a_node_pool() -> None:
    node_class, pool = made(gpu_pool("vision", POOL))
    assert node_class["instanceProfile"] == "lab-karpenter"
    assert "role" not in node_class, "Karpenter would make instance profiles, and leave them behind"
    assert node_class["subnetSelectorTerms"] == [{"id": "subnet-a"}, {"id": "subnet-b"}]
    disk = node_class["blockDeviceMappings"][0]["ebs"]
    assert (disk["volumeSize"], disk["throughput"], disk["iops"]) == ("300Gi", 1000, 4000)
    assert json.loads(node_class["userData"])["spec"] == {"featureGates": {"FastImagePull": True}}
    assert node_class["tags"]["windlass.dev/cluster"] == "lab"
    requirements = {one["key"]: one["values"] for one in pool["template"]["spec"]["requirements"]}
    assert requirements == {
        "node.kubernetes.io/instance-type": ["g5.xlarge"],
        "karpenter.sh/capacity-type": ["spot"],
        "topology.kubernetes.io/zone": ["eu-west-1a"],
    }
    assert pool["template"]["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]
    assert pool["template"]["metadata"]["labels"] == {"team": "vision", "windlass.dev/pool": "vision"}
    assert pool["limits"] == {"nodes": "4"}
    assert pool["disruption"] == {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "300s"}


def test_capacity_block_is_requested_by_its_reservation() -> None:
    block = {**POOL, "capacity": "capacity-block", "capacity_reservation_id": "cr-1", "taint": False, "max": None}
    node_class, pool = made(gpu_pool("block", block))
    assert node_class["capacityReservationSelectorTerms"] == [{"id": "cr-1"}]
    assert pool["template"]["spec"]["requirements"][1]["values"] == ["reserved"]
    assert "taints" not in pool["template"]["spec"]
    assert "limits" not in pool


@pytest.mark.parametrize(
    ("ami_type", "alias", "device"),
    [
        ("AL2023_x86_64_NVIDIA", "al2023@latest", "/dev/xvda"),
        ("BOTTLEROCKET_x86_64_NVIDIA", "bottlerocket@latest", "/dev/xvdb"),
    ],
)
def test_image_volume_depends_on_the_operating_system(ami_type: str, alias: str, device: str) -> None:
    node_class, _ = made(gpu_pool("vision", {**POOL, "ami_type": ami_type}))
    assert node_class["amiSelectorTerms"] == [{"alias": alias}]
    assert node_class["blockDeviceMappings"][0]["deviceName"] == device


def test_nodes_of_karpenter_get_the_proxy() -> None:
    proxy = {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": ".svc"}
    values = values_of({**OUTPUTS, "proxy_environment": proxy}, [gpu_pool("a", {**POOL, "parallel_pull": False})])
    config = json.loads(node_pools.objects(values)[0]["spec"]["userData"])
    assert config["spec"] == {"instance": {"environment": {"default": proxy}}}
    assert (values.proxy, values_of({**OUTPUTS, "proxy_environment": None}).proxy) == (proxy, {})
