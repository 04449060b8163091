"""Ownership rules: tags, VPC, names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windlass.clusters.audit.scope import Scope, kept
from windlass.clusters.tags import flat

OURS = Scope("train", "us-east-1", "123456789012", is_ours=True)
THEIRS = replace(OURS, is_ours=False)


@pytest.mark.parametrize(
    "tags",
    [
        {"windlass.dev/cluster": "train"},
        {"karpenter.sh/discovery": "train"},
        {"eks:cluster-name": "train"},
        {"aws:eks:cluster-name": "train"},
        {"eks:eks-cluster-name": "train"},
        {"elbv2.k8s.aws/cluster": "train"},
        {"KubernetesCluster": "train"},
        {"alpha.eksctl.io/cluster-name": "train"},
        {"kubernetes.io/cluster/train": "owned"},
        {"kubernetes.io/cluster/train": "owned", "ebs.csi.aws.com/cluster": "true"},
    ],
)
@pytest.mark.parametrize("scope", [OURS, THEIRS])
def test_each_cluster_tag_proves_ownership(scope: Scope, tags: dict[str, str]) -> None:
    owner = scope.owner(tags)
    assert owner is not None
    assert owner.is_certain
    assert owner.reason.startswith("tag ")


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"Name": "train"},
        {"team": "train"},
        {"windlass.dev/cluster": "train-2"},
        {"kubernetes.io/cluster/train": "shared"},
        {"kubernetes.io/cluster/train-2": "owned"},
        {"eks:cluster-name": "trains"},
        {"windlass.dev/cluster": "other", "kubernetes.io/cluster/train": "owned"},
    ],
)
def test_other_tags_do_not_prove_ownership(tags: dict[str, str]) -> None:
    assert THEIRS.owner(tags, name="train-node") is None


def test_objects_in_the_cluster_vpc_belong_to_it_unless_tagged_otherwise() -> None:
    scope = replace(THEIRS, vpc_ids=frozenset({"vpc-1"}))
    assert scope.owner({}, vpc_id="vpc-1") is not None
    assert scope.owner({"team": "shop"}, vpc_id="vpc-1") is not None
    assert scope.owner({}, vpc_id="vpc-2") is None
    assert scope.owner({"elbv2.k8s.aws/cluster": "other"}, vpc_id="vpc-1") is None
    assert scope.owner({"windlass.dev/cluster": "other"}, vpc_id="vpc-1") is None


def test_discovery_tag_on_a_foreign_network_does_not_prove_ownership() -> None:
    assert THEIRS.owner({"karpenter.sh/discovery": "train"}, is_network=True) is None
    assert THEIRS.owner({"kubernetes.io/cluster/train": "owned"}, is_network=True) is not None


def test_only_windlass_s_own_tag_shows_that_it_made_a_network() -> None:
    assert OURS.owner({"windlass.dev/cluster": "train"}, is_network=True) is not None
    for key, value in (("karpenter.sh/discovery", "train"), ("kubernetes.io/cluster/train", "owned")):
        assert OURS.owner({key: value}, is_network=True) is None


def test_parts_and_names_of_an_existing_vpc_do_not_belong_to_the_cluster() -> None:
    scope = replace(OURS, existing_vpc_id="vpc-1")
    assert scope.owner({"windlass.dev/cluster": "train"}, vpc_id="vpc-1", is_network=True) is None
    assert scope.owner({"Name": "train-ecr"}, name="train-ecr", vpc_id="vpc-1") is None
    assert scope.owner({}, name="train-ecr", vpc_id="vpc-2") is not None
    assert scope.owner({"windlass.dev/cluster": "train"}, vpc_id="vpc-1") is not None
    assert scope.owner({"karpenter.sh/discovery": "train"}, vpc_id="vpc-1") is None
    assert scope.owner({"elbv2.k8s.aws/cluster": "train"}, vpc_id="vpc-1") is not None


def test_a_name_alone_is_possible_and_not_certain() -> None:
    owner = OURS.owner({}, name="train-gpu")
    assert owner is not None
    assert not owner.is_certain
    assert THEIRS.owner({}, name="train-gpu") is None


@pytest.mark.parametrize(
    "name", ["train", "train-gpu", "train/image", "train_123", "windlass-train-123456789012", "windlass/train"]
)
def test_name_with_the_cluster_prefix_matches(name: str) -> None:
    assert OURS.begins(name)


@pytest.mark.parametrize("name", ["trains", "training-gpu", "my-train", "", "windlass", "t", "tr.in-gpu"])
def test_other_names_do_not_match(name: str) -> None:
    assert not OURS.begins(name)


def test_names_of_a_cluster_with_a_longer_name_do_not_match() -> None:
    scope = replace(OURS, other_names=frozenset({"train-2", "tra"}))
    assert not scope.begins("train-2-gpu")
    assert not scope.begins("train-2")
    assert scope.begins("train-20")
    assert scope.begins("train-gpu")


def test_objects_in_a_vpc_used_only_by_the_cluster_are_possible() -> None:
    scope = replace(THEIRS, used_vpc_ids=frozenset({"vpc-1"}))
    owner = scope.owner({"team": "shop"}, vpc_id="vpc-1")
    assert owner is not None
    assert not owner.is_certain
    assert scope.owner({"KubernetesCluster": "other"}, vpc_id="vpc-1") is None


def test_name_does_not_count_for_an_object_in_another_vpc() -> None:
    scope = replace(OURS, vpc_ids=frozenset({"vpc-1"}))
    assert scope.owner({}, name="train-tg", vpc_id="vpc-2") is None
    assert scope.owner({}, name="train-tg") is not None


def test_volume_of_a_claim_is_certain_only_if_recorded_for_the_cluster() -> None:
    tags = {
        "kubernetes.io/created-for/pv/name": "pvc-1",
        "kubernetes.io/created-for/pvc/name": "data",
        "kubernetes.io/created-for/pvc/namespace": "ml",
        "ebs.csi.aws.com/cluster": "true",
    }
    owner = THEIRS.owner(tags)
    assert owner is not None
    assert not owner.is_certain
    assert "ml/data" in owner.reason
    sure = replace(THEIRS, volume_names=frozenset({"pvc-1"})).owner(tags)
    assert sure is not None
    assert sure.is_certain
    assert THEIRS.owner(tags | {"kubernetes.io/cluster/other": "owned"}) is None


def test_tags_of_all_services_are_normalized() -> None:
    assert flat([{"Key": "a", "Value": "b"}]) == {"a": "b"}
    assert flat([{"key": "a", "value": "b"}]) == {"a": "b"}
    assert flat([{"TagKey": "a", "TagValue": "b"}]) == {"a": "b"}
    assert flat({"a": "b"}) == {"a": "b"}
    assert flat(None) == {}


@pytest.mark.parametrize(("value", "is_kept"), [("true", True), ("until March", True), ("false", False), ("", False)])
def test_objects_with_the_keep_tag_are_kept(value: str, is_kept: bool) -> None:
    assert kept({"windlass.dev/keep": value}) is is_kept
