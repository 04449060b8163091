"""Finds security group rules that were added outside Terraform, which only compares its own rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.audit.finder import clean
from windlass.clusters.aws import Aws, aws_errors
from windlass.clusters.tags import flat
from windlass.clusters.terraform.state import StateResource

RULES: Final = ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule")
GROUPS: Final = ("aws_security_group", "aws_default_security_group")
WORLD: Final = ("0.0.0.0/0", "::/0")
OF_CONTROLLER: Final = "elbv2.k8s.aws/"
"""Prefix of tags and descriptions of the AWS Load Balancer Controller, whose security groups may be open to the
world."""


@dataclass(frozen=True, slots=True)
class AddedRule:
    """A security group rule that was added outside Terraform."""

    group: str
    """Name of the security group."""
    text: str
    """Description of the rule: `tcp 22 from 0.0.0.0/0`."""
    remedy: str


def added_rules(aws: Aws, state: Iterable[StateResource]) -> tuple[AddedRule, ...]:
    """Returns rules of the cluster's security groups that are not in the state. In groups that EKS and other tools
    created in its VPC, only rules open to the world count; in an existing VPC, only EKS's own group is compared besides
    those of the state. Raises AwsError.
    """
    made = [one for one in state if one.mode == "managed"]
    own = {one.id for one in made if one.type in GROUPS}
    known = {one.id for one in made if one.type in RULES}
    vpcs = [one.id for one in made if one.type == "aws_vpc"]
    of_eks = {id for one in made if one.type == "aws_eks_cluster" for id in _group_of_eks(one)}
    by, values = ("vpc-id", vpcs) if vpcs else ("group-id", sorted(own | of_eks))
    groups = _pages(aws, "describe_security_groups", "SecurityGroups", by, values)
    if not vpcs:
        groups = [one for one in groups if one["GroupId"] in own | of_eks]
    compared = {one["GroupId"]: one for one in groups if one["GroupId"] in own or not _is_controllers(one)}
    rules = _pages(aws, "describe_security_group_rules", "SecurityGroupRules", "group-id", sorted(compared))
    return tuple(
        _added(aws, compared[one["GroupId"]], one)
        for one in rules
        if one["SecurityGroupRuleId"] not in known and _is_foreign(one, own)
    )


def _group_of_eks(cluster: StateResource) -> Iterator[str]:
    """Yields the security group that EKS created for a cluster."""
    for each in cluster.values.get("vpc_config") or ():
        if id := each.get("cluster_security_group_id"):
            yield str(id)


def _is_foreign(rule: dict[str, Any], own: Collection[str]) -> bool:
    if rule["GroupId"] in own:
        return True
    is_open = rule.get("CidrIpv4") in WORLD or rule.get("CidrIpv6") in WORLD
    return is_open and not rule["IsEgress"] and not rule.get("Description", "").startswith(OF_CONTROLLER)


def _is_controllers(group: dict[str, Any]) -> bool:
    return any(key.startswith(OF_CONTROLLER) for key in flat(group.get("Tags")))


def _added(aws: Aws, group: dict[str, Any], rule: dict[str, Any]) -> AddedRule:
    peers = (
        rule.get("CidrIpv4"),
        rule.get("CidrIpv6"),
        rule.get("PrefixListId"),
        (rule.get("ReferencedGroupInfo") or {}).get("GroupId"),
    )
    peer, protocol = next((one for one in peers if one), "?"), rule.get("IpProtocol", "-1")
    first, last = rule.get("FromPort", -1), rule.get("ToPort", -1)
    ports = "" if protocol == "-1" or first == -1 else f" {first}" if first == last else f" {first}-{last}"
    verb = "revoke-security-group-egress" if rule["IsEgress"] else "revoke-security-group-ingress"
    ids = f"--group-id {rule['GroupId']} --security-group-rule-ids {rule['SecurityGroupRuleId']}"
    return AddedRule(
        clean(group["GroupName"]),
        clean(f"{'all' if protocol == '-1' else protocol}{ports} {'to' if rule['IsEgress'] else 'from'} {peer}"),
        clean(f"aws ec2 {verb} {ids} --region {aws.region}"),
    )


def _pages(aws: Aws, operation: str, key: str, name: str, values: Collection[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with aws_errors("list security groups and their rules", f"ec2:Describe{key}"):
        pages = aws.client("ec2").get_paginator(operation)
        for page in pages.paginate(Filters=[{"Name": name, "Values": list(values)}]) if values else ():
            found += page[key]
    return found
