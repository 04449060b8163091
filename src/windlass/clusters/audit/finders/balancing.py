"""Finders of load balancers (application, network, gateway and classic) and target groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, hourly, row
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Scope
from windlass.clusters.aws import AwsError, NotThere
from windlass.clusters.tags import flat

BATCH: Final = 20
"""Maximum number of load balancers or target groups in one call for tags."""


def _batches(calls: FinderCalls, operation: str, key: str) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    try:
        for one in calls.items("elbv2", operation, key):
            batch.append(one)
            if len(batch) == BATCH:
                yield batch
                batch = []
    except AwsError:
        if batch:
            yield batch  # the objects listed before the error are still reported
        raise
    if batch:
        yield batch


def _tags(calls: FinderCalls, arns: list[str]) -> dict[str, dict[str, str]]:
    """Returns tags by ARN. A single deleted object fails the call for the whole batch; then each ARN is queried
    separately.
    """
    try:
        answer = calls.get("elbv2", "describe_tags", ResourceArns=arns)
    except NotThere:
        if len(arns) == 1:
            return {}
        return {arn: tags for one in arns for arn, tags in _tags(calls, [one]).items()}
    return {one["ResourceArn"]: flat(one["Tags"]) for one in answer["TagDescriptions"]}


def _balancers(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(batch: list[dict[str, Any]]) -> Iterator[FoundObject]:
        tags = _tags(calls, [one["LoadBalancerArn"] for one in batch])
        for one in batch:
            arn = one["LoadBalancerArn"]
            own, name = tags.get(arn, {}), one["LoadBalancerName"]
            if owner := scope.owner(own, vpc_id=one.get("VpcId", ""), name=name):
                yield row(
                    BALANCER,
                    scope,
                    owner,
                    arn,
                    name=name,
                    tags=own,
                    prices=[hourly("elb", one.get("Type", "application"))],
                    detail=f"{one.get('Type', 'application')}, {one.get('Scheme', '')}",
                    remedy=command(scope, "elbv2 delete-load-balancer --load-balancer-arn", arn),
                )

    return calls.each(_batches(calls, "describe_load_balancers", "LoadBalancers"), inspect)


def _targets(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(batch: list[dict[str, Any]]) -> Iterator[FoundObject]:
        tags = _tags(calls, [one["TargetGroupArn"] for one in batch])
        for one in batch:
            arn = one["TargetGroupArn"]
            own, name = tags.get(arn, {}), one["TargetGroupName"]
            if owner := scope.owner(own, vpc_id=one.get("VpcId", ""), name=name):
                used = len(one.get("LoadBalancerArns") or ())
                yield row(
                    TARGETS,
                    scope,
                    owner,
                    arn,
                    name=name,
                    tags=own,
                    detail=f"of {used} load balancers",
                    remedy=command(scope, "elbv2 delete-target-group --target-group-arn", arn),
                )

    return calls.each(_batches(calls, "describe_target_groups", "TargetGroups"), inspect)


def _classic(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["LoadBalancerName"]
        answer = calls.get("elb", "describe_tags", LoadBalancerNames=[name])
        tags = flat(answer["TagDescriptions"][0]["Tags"]) if answer["TagDescriptions"] else {}
        if owner := scope.owner(tags, vpc_id=one.get("VPCId", ""), name=name):
            yield row(
                CLASSIC,
                scope,
                owner,
                name,
                tags=tags,
                prices=[hourly("elb", "classic")],
                detail=one.get("DNSName", ""),
                remedy=command(scope, "elb delete-load-balancer --load-balancer-name", name),
            )

    return calls.each(calls.items("elb", "describe_load_balancers", "LoadBalancerDescriptions"), inspect)


BALANCER: Final = ("elbv2", "load balancer")
TARGETS: Final = ("elbv2", "target group")
CLASSIC: Final = ("elb", "classic load balancer")

FINDERS: Final = (
    Finder(*BALANCER, ("elbv2:DescribeLoadBalancers", "elbv2:DescribeTags"), _balancers),
    Finder(*TARGETS, ("elbv2:DescribeTargetGroups", "elbv2:DescribeTags"), _targets),
    Finder(*CLASSIC, ("elb:DescribeLoadBalancers", "elb:DescribeTags"), _classic),
)
