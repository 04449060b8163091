"""Terraform outputs become a target, a kubeconfig and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.clusters.eks.outputs import FSX_PATH, Karpenter, Outputs, kubeconfig, sagemaker_target, target
from windlass.engines.kubernetes.access.kubeconfig import read_context
from windlass.errors import EngineError
from windlass.spec.parse import parse_cluster, parse_targets
from windlass.spec.targets import KubernetesTarget, SageMakerTarget
from windlass.spec.yamlwriter import block_lines

VALUES: dict[str, Any] = {
    "name": "vision",
    "region": "us-west-2",
    "account_id": "123456789012",
    "arn": "arn:aws:eks:us-west-2:123456789012:cluster/vision",
    "endpoint": "https://vision.eks.example",
    "certificate_authority": "Q0E=",
    "kubernetes_version": "1.35",
    "vpc_id": "vpc-1",
    "private_subnet_ids": ["subnet-1", "subnet-2"],
    "zones": ["us-west-2a", "us-west-2b"],
    "node_security_group_id": "sg-1",
    "bucket": "windlass-vision-123456789012",
    "namespace": "training",
    "repositories": {"vision": "123456789012.dkr.ecr.us-west-2.amazonaws.com/vision"},
    "run_role_arn": "arn:aws:iam::123456789012:role/vision-run",
    "node_role_arn": "arn:aws:iam::123456789012:role/vision-node",
}
"""Outputs of a cluster without options: Terraform omits null outputs."""
CLUSTER = parse_cluster("name: vision\nregion: us-west-2\nstorage: {fsx: {prefix: train/}}\n")


def parsed(entries: dict[str, Any]) -> Any:
    return parse_targets("\n".join([*block_lines(entries), ""]))["vision"]


def test_null_outputs_are_none() -> None:
    found = Outputs.of(VALUES)
    assert (found.efs_id, found.karpenter, found.zones) == (None, None, ("us-west-2a", "us-west-2b"))


def test_outputs_survive_a_round_trip_through_their_file() -> None:
    from dataclasses import asdict

    karpenter = {"queue_name": "q", "instance_profile": "p"}
    found = Outputs.of({**VALUES, "karpenter": {**karpenter, "more": 1}, "efs_id": ""})
    assert found.karpenter == Karpenter(**karpenter)
    assert found.efs_id is None
    assert Outputs.of(json.loads(json.dumps(asdict(found)))) == found


def test_missing_outputs_are_reported() -> None:
    with pytest.raises(EngineError, match="has no outputs bucket, vpc_id: the cluster is not complete"):
        Outputs.of({name: value for name, value in VALUES.items() if name not in ("vpc_id", "bucket")})


def test_target_is_valid_in_a_targets_file() -> None:
    bare = parsed({"vision": target(Outputs.of(VALUES), CLUSTER, "/home/ada/kubeconfig")})
    assert isinstance(bare, KubernetesTarget)
    assert (bare.context, bare.namespace, bare.kubeconfig) == ("vision", "training", "/home/ada/kubeconfig")
    assert (bare.storage, bare.data, bare.file_systems) == ("s3://windlass-vision-123456789012/windlass/", None, ())


def test_target_stages_data_in_its_fastest_file_system() -> None:
    fsx = {"fsx_id": "fs-0123456789abcdef0", "fsx_dns_name": "fs.example", "fsx_mount_name": "abcd", "efs_id": "fs-1"}
    full = parsed({"vision": target(Outputs.of({**VALUES, **fsx}), CLUSTER, "/k")})
    assert full.data.claim == "fsx"
    [system] = full.file_systems
    assert (system.kind, system.source) == ("lustre", "s3://windlass-vision-123456789012/train/")
    assert (system.dns_name, system.mount_name, system.path) == ("fs.example", "abcd", FSX_PATH)


def test_sagemaker_target_exists_only_with_its_role() -> None:
    assert sagemaker_target(Outputs.of(VALUES)) is None
    role = "arn:aws:iam::123456789012:role/vision-sagemaker"
    entry = sagemaker_target(Outputs.of({**VALUES, "sagemaker_role_arn": role}))
    assert entry is not None
    found = parsed({"vision": entry})
    assert isinstance(found, SageMakerTarget)
    assert (found.role, found.region) == (role, "us-west-2")


def test_kubeconfig_contains_no_secret_and_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(Outputs.of(VALUES))))
    found = read_context("vision", str(path))
    assert found.server == "https://vision.eks.example"
    login = found.user.settings["exec"]
    assert [login["command"], *login["args"][:4]] == ["aws", "eks", "get-token", "--cluster-name", "vision"]
    assert not {"token", "password", "client-key-data"} & set(found.user.settings)


def test_jobs_on_the_target_get_the_proxy_in_both_cases_of_letters() -> None:
    proxy = {"HTTP_PROXY": "http://p:3128", "HTTPS_PROXY": "http://p:3128", "NO_PROXY": "10.0.0.0/8,.svc"}
    found = parsed({"vision": target(Outputs.of({**VALUES, "proxy_environment": proxy}), CLUSTER, "/k")})
    assert found.env == {**proxy, **{name.lower(): value for name, value in proxy.items()}}
    assert parsed({"vision": target(Outputs.of(VALUES), CLUSTER, "/k")}).env == {}


def test_a_vpc_is_terraform_s_unless_the_outputs_say_otherwise() -> None:
    assert Outputs.of(VALUES).vpc_managed
    assert not Outputs.of({**VALUES, "vpc_managed": False}).vpc_managed
