"""Nodes and empty node pools are checked, and the EKS cluster of a kubeconfig is identified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.kubernetes.reading.preflight.platform import (
    EksCluster,
    Expected,
    eks_cluster,
    nodes_check,
    pool_checks,
)
from windlass.engines.kubernetes.reading.preflight.probes import location
from windlass.spec.targets import KubernetesTarget


def node(
    name: str, *, ready: str = "True", pool: str = "", spec: dict[str, Any] | None = None, **conditions: str
) -> dict[str, Any]:
    found = [{"type": kind, "status": status} for kind, status in {"Ready": ready, **conditions}.items()]
    labels = {"windlass.dev/pool": pool} if pool else {}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": {"conditions": found}}


def test_ready_nodes_pass_and_others_are_listed() -> None:
    assert nodes_check([node("a"), node("b")]).found == "2 of 2 are ready"
    bad = nodes_check(
        [node("a"), node("b", ready="Unknown"), node("c", DiskPressure="True"), node("d", spec={"unschedulable": True})]
    )
    assert (bad.level, bad.found) == ("warn", "3 of 4 are ready; not ready: b; c has DiskPressure; cordoned: d")
    assert nodes_check([node("a", ready="False")]).level == "fail"
    assert nodes_check([]).level == "fail"


def nodepool(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [
        {"type": "NodeClassReady", "status": ready, "message": "no AMI was found"},
        {"type": "Ready", "status": ready},
    ]
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}


def test_pool_can_grow_from_zero_if_its_node_pool_is_ready() -> None:
    wanted = Expected(pools=("good", "bad", "gone"), groups=("group", "still"))
    found = {
        one.name: one
        for one in pool_checks([node("a", pool="group")], [nodepool("good"), nodepool("bad", "False")], wanted)
    }
    assert {name: one.level for name, one in found.items()} == {
        "pool good": "ok",
        "pool bad": "fail",
        "pool gone": "fail",
        "pool group": "ok",
        "pool still": "warn",
    }
    assert found["pool bad"].found == "its NodePool is not ready: no AMI was found"


def test_empty_node_group_is_scaled_up_by_cluster_autoscaler() -> None:
    [found] = pool_checks([], None, Expected(groups=("still",)), is_scaled=True)
    assert (found.level, found.fix) == ("ok", "")


def test_a_pool_at_its_limit_warns() -> None:
    full = nodepool("full", limits={"nvidia.com/gpu": "8"})
    full["status"]["resources"] = {"nvidia.com/gpu": "8"}
    assert [one.level for one in pool_checks([], [full], Expected(pools=("full",)))] == ["warn"]


def config(tmp_path: Path, name: str, server: str, user: dict[str, Any]) -> KubernetesTarget:
    document = {
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "config").write_text(json.dumps(document))
    return KubernetesTarget(name="t", context=name, kubeconfig=str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("name", "server", "user", "found"),
    [
        (
            "lab",
            "https://ABC1.gr7.us-west-2.eks.amazonaws.com",
            {"exec": {"args": ["eks", "get-token", "--cluster-name", "lab", "--region", "us-west-2"]}},
            EksCluster("lab", "us-west-2"),
        ),
        (
            "lab",
            "https://ABC1.gr7.us-west-2.eks.amazonaws.com",
            {"exec": {"args": ["token", "-i", "lab"]}},
            EksCluster("lab", "us-west-2"),
        ),
        ("arn:aws:eks:eu-west-1:123456789012:cluster/lab", "https://10.0.0.1", {}, EksCluster("lab", "eu-west-1")),
        ("lab", "https://10.0.0.1", {}, None),
    ],
)
def test_eks_cluster_is_read_from_the_kubeconfig(
    tmp_path: Path, name: str, server: str, user: dict[str, Any], found: EksCluster | None
) -> None:
    assert eks_cluster(config(tmp_path, name, server, user), {}) == found


@pytest.mark.parametrize(
    ("storage", "found"),
    [
        ("s3://data/windlass/", ("data", "windlass/doctor/")),
        ("s3://data", ("data", "windlass/doctor/")),
        ("s3://data/a/b", ("data", "a/b/doctor/")),
        (None, None),
    ],
)
def test_the_doctor_writes_below_the_prefix_of_the_target(storage: str | None, found: tuple[str, str] | None) -> None:
    assert location(KubernetesTarget(name="t", context="c", storage=storage)) == found
