"""Collects the facts by which an audit recognizes a cluster's objects, above all its VPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finders.compute import instance_owner, reservations, volume_owner
from windlass.clusters.audit.finders.eks import describe
from windlass.clusters.audit.finders.network import security_group_owner
from windlass.clusters.audit.scope import Scope, clusters_of
from windlass.clusters.aws import AwsError
from windlass.clusters.tags import EXISTING_VPC, flat

OPERATIONS: Final = (
    "eks:DescribeCluster",
    "eks:ListClusters",
    "ec2:DescribeVpcs",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeInstances",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
)


def locate(calls: FinderCalls, scope: Scope, vpc_id: str | None) -> Scope:
    """Returns `scope` with the facts that EKS and EC2 report about the cluster. Failed queries are recorded by
    `calls`.
    """
    for step in (_others, partial(_vpcs, vpc_id=vpc_id), _subnets, _groups, _instances, _volumes):
        with _recorded(calls):
            scope = step(calls, scope)
    return scope


@contextmanager
def _recorded(calls: FinderCalls) -> Iterator[None]:
    try:
        yield
    except AwsError as error:
        calls.record_failure(error)


def _others(calls: FinderCalls, scope: Scope) -> Scope:
    names = frozenset(calls.items("eks", "list_clusters", "clusters"))
    return replace(scope, other_names=names - {scope.name})


def _vpcs(calls: FinderCalls, scope: Scope, vpc_id: str | None) -> Scope:
    """Adds the VPCs of the cluster. A VPC shared with another cluster is excluded, because it has objects of both."""
    about = _described(calls, scope.name)
    if EXISTING_VPC in flat(about.get("tags")):
        scope = replace(scope, existing_vpc_id=_vpc_of(about))
    used = {vpc_id or "", _vpc_of(about)} - {"", scope.existing_vpc_id}
    if used and not scope.is_ours:
        used -= {_vpc_of(_described(calls, other)) for other in sorted(scope.other_names)}
    issuer = ((about.get("identity") or {}).get("oidc") or {}).get("issuer", "").removeprefix("https://")
    scope = replace(scope, issuer=issuer)
    own, named, excluded = set(), set(scope.other_names), set()
    for one in calls.items("ec2", "describe_vpcs", "Vpcs"):
        tags, id = flat(one.get("Tags")), one["VpcId"]
        named |= clusters_of(tags)
        if one.get("IsDefault") or scope.is_of_another(tags) or id == scope.existing_vpc_id:
            excluded.add(id)
        elif (scope.is_ours and id == vpc_id) or scope.owner(tags, is_network=True):
            own.add(id)
    used -= own | excluded
    names = frozenset(named) - {scope.name}
    return replace(scope, vpc_ids=frozenset(own), used_vpc_ids=frozenset(used), other_names=names)


def _described(calls: FinderCalls, name: str) -> dict[str, Any]:
    with _recorded(calls):
        return describe(calls, name) or {}
    return {}


def _vpc_of(about: dict[str, Any]) -> str:
    return str((about.get("resourcesVpcConfig") or {}).get("vpcId", ""))


def _subnets(calls: FinderCalls, scope: Scope) -> Scope:
    found = calls.items("ec2", "describe_subnets", "Subnets")
    own = {one["SubnetId"] for one in found if one.get("VpcId") in scope.vpc_ids}
    return replace(scope, subnet_ids=scope.subnet_ids | own)


def _volumes(calls: FinderCalls, scope: Scope) -> Scope:
    volumes = calls.items("ec2", "describe_volumes", "Volumes")
    own = {one["VolumeId"] for one in volumes if (owner := volume_owner(scope, one)) and owner.is_certain}
    return replace(scope, volume_ids=scope.volume_ids | own)


def _groups(calls: FinderCalls, scope: Scope) -> Scope:
    groups = calls.items("ec2", "describe_security_groups", "SecurityGroups")
    owned = {one["GroupId"] for one in groups if (owner := security_group_owner(scope, one)) and owner.is_certain}
    return replace(scope, security_group_ids=frozenset(owned))


def _instances(calls: FinderCalls, scope: Scope) -> Scope:
    own, others, named = set(), set(), set(scope.other_names)
    for one in reservations(calls):
        tags = flat(one.get("Tags"))
        named |= clusters_of(tags)
        if (owner := instance_owner(scope, one)) and owner.is_certain:
            own.add(one["InstanceId"])
        elif scope.is_of_another(tags):
            others.add(one["InstanceId"])
    names = frozenset(named) - {scope.name}
    return replace(scope, instance_ids=frozenset(own), other_instance_ids=frozenset(others), other_names=names)
