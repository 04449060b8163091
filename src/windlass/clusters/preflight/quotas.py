"""Compares an account's quotas with current usage and a cluster's demand; files increase requests."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import AccessDenied, Aws, NotThere, aws_errors
from windlass.clusters.preflight.demand import ADDRESSES, VPCS, Demand, Quota, demands, quota_of
from windlass.clusters.preflight.finding import Finding, Offer, unknown
from windlass.errors import WindlassError
from windlass.pricing.instances import vcpus_of
from windlass.spec.cluster import Cluster

CONSOLE: Final = "look: https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas"
OPEN: Final = ("PENDING", "CASE_OPENED")
"""States of a request that AWS has not decided yet."""
OF_CLUSTER: Final = ("windlass.dev/cluster", "eks:cluster-name", "aws:eks:cluster-name", "eks:eks-cluster-name")
"""Instance tags whose value is the name of the node's cluster."""
MISSING: Final = ("NoSuchResourceException", "ResourceNotFoundException")


@dataclass(frozen=True, slots=True)
class Pending:
    """A quota increase request that AWS has not decided yet."""

    wanted: float
    since: str


def quota_findings(aws: Aws, cluster: Cluster, zones: int) -> Iterator[Finding]:
    """Checks the vCPU quotas of the pools' instance classes, Elastic IPs and VPCs; each quota once."""
    account = _Account(aws)
    needed, unclear = demands(cluster)
    for demand in needed:
        ask = functools.partial(account.vcpus, demand=demand, cluster=cluster.name)
        yield _asked(f"quota {demand.quota.label}", ask)
    if unclear:
        text = f"unknown: which quota {', '.join(unclear)} count against, or how many vCPUs they have"
        yield Finding("quota", "warn", text, f"{CONSOLE}?region={aws.region}")
    if gateways := cluster.network.num_gateways(zones):
        yield _asked("quota addresses", lambda name: account.counted(name, ADDRESSES, gateways, cluster.name))
    if not cluster.network.vpc:
        yield _asked("quota VPCs", lambda name: account.counted(name, VPCS, 1, cluster.name))


def _asked(name: str, ask: Callable[[str], Finding]) -> Finding:
    try:
        return ask(name)
    except WindlassError as error:
        return unknown(name, error)


class _Account:
    """Running instances and quotas of the account."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    @functools.cached_property
    def _instances(self) -> list[Mapping[str, Any]]:
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        with aws_errors("list instances", "ec2:DescribeInstances"):
            pages = self._aws.client("ec2").get_paginator("describe_instances").paginate(Filters=states)
            return [one for page in pages for group in page["Reservations"] for one in group["Instances"]]

    def vcpus(self, name: str, demand: Demand, cluster: str) -> Finding:
        """Checks whether all pools fit in addition to the other running instances. Raises AwsError."""
        quota = demand.quota
        value = self.value(quota)
        used = used_by_others(self._instances, cluster)[quota.code]
        text = (
            f"{value:g} vCPUs ({quota.name}), {used} of them used by others; "
            f"the pools need {demand.at_most} at most ({', '.join(demand.pools)})"
        )
        if used + demand.at_most <= value:
            return Finding(name, "ok", text)
        level = "fail" if used + demand.at_least > value else "warn"
        return self._short(name, level, text, quota, used + demand.at_most)

    def counted(self, name: str, quota: Quota, needed: int, cluster: str) -> Finding:
        """Checks whether `needed` more objects fit into a quota. Raises AwsError."""
        value = self.value(quota)
        used = self._addresses(cluster) if quota is ADDRESSES else self._vpcs(cluster)
        text = f"{value:g} ({quota.name}), {used} of them used by others; the cluster needs {needed}"
        if used + needed <= value:
            return Finding(name, "ok", text)
        return self._short(name, "fail", text, quota, used + needed)

    def value(self, quota: Quota) -> float:
        """Returns the account's value of a quota, or the AWS default if the account has none. Raises AwsError."""
        client = self._aws.client("service-quotas")
        named = {"ServiceCode": quota.service, "QuotaCode": quota.code}
        try:
            with aws_errors(f"read quota {quota.code}", "servicequotas:GetServiceQuota"):
                return float(client.get_service_quota(**named)["Quota"]["Value"])
        except WindlassError as error:
            if not isinstance(error, NotThere) and getattr(error, "code", "") not in MISSING:
                raise
        with aws_errors(f"read quota {quota.code}", "servicequotas:GetAWSDefaultServiceQuota"):
            return float(client.get_aws_default_service_quota(**named)["Quota"]["Value"])

    def pending(self, quota: Quota) -> Pending | None:
        """Returns the largest open increase request; None without one. Raises AwsError."""
        client = self._aws.client("service-quotas")
        with aws_errors("list requests", "servicequotas:ListRequestedServiceQuotaChangeHistoryByQuota"):
            pages = client.get_paginator("list_requested_service_quota_change_history_by_quota").paginate(
                ServiceCode=quota.service, QuotaCode=quota.code
            )
            found = [one for page in pages for one in page["RequestedQuotas"] if one["Status"] in OPEN]
        if not found:
            return None
        largest = max(found, key=lambda one: float(one["DesiredValue"]))
        return Pending(float(largest["DesiredValue"]), str(largest.get("Created", ""))[:10])

    def _short(self, name: str, level: Any, text: str, quota: Quota, wanted: int) -> Finding:
        region = self._aws.region
        try:
            pending = self.pending(quota)
        except AccessDenied:
            pending = None
        if pending is not None and pending.wanted >= wanted:
            return Finding(
                name,
                level,
                f"{text}; a request for {pending.wanted:g} is open since {pending.since}",
                "wait for AWS's answer: large GPU quotas take days",
            )
        if pending is not None:
            text += f"; a request for {pending.wanted:g} is open since {pending.since}, which is too few"
        command = (
            f"aws service-quotas request-service-quota-increase --service-code {quota.service} "
            f"--quota-code {quota.code} --desired-value {wanted} --region {region}"
        )
        question = f"Request {wanted} for quota {quota.name} in {region}?"
        act = functools.partial(request, self._aws, name, quota, wanted)
        return Finding(name, level, text, f"windlass doctor --on … --request, or: {command}", Offer(question, act))

    # -- current usage -----------------------------------------------------------------------------------------------

    def _addresses(self, cluster: str) -> int:
        with aws_errors("list addresses", "ec2:DescribeAddresses"):
            found = self._aws.client("ec2").describe_addresses()["Addresses"]
        return sum(not _is_of(one, cluster) for one in found)

    def _vpcs(self, cluster: str) -> int:
        with aws_errors("list VPCs", "ec2:DescribeVpcs"):
            pages = self._aws.client("ec2").get_paginator("describe_vpcs").paginate()
            return sum(not _is_of(one, cluster) for page in pages for one in page["Vpcs"])


def used_by_others(instances: list[Mapping[str, Any]], cluster: str) -> Counter[str]:
    """Returns used vCPUs by quota code, excluding the cluster's own nodes and capacity blocks. Pure."""
    used: Counter[str] = Counter()
    for one in instances:
        lifecycle = one.get("InstanceLifecycle", "")
        is_shared = one.get("Placement", {}).get("Tenancy", "default") != "host"
        quota = quota_of(str(one["InstanceType"]), is_spot=lifecycle == "spot")
        if quota is None or lifecycle == "capacity-block" or not is_shared or _is_of(one, cluster):
            continue
        cpu = one.get("CpuOptions", {})
        used[quota.code] += vcpus_of(str(one["InstanceType"])) or cpu.get("CoreCount", 0) * cpu.get("ThreadsPerCore", 1)
    return used


def _is_of(thing: Mapping[str, Any], cluster: str) -> bool:
    tags = {one["Key"]: one["Value"] for one in thing.get("Tags", ())}
    return any(tags.get(name) == cluster for name in OF_CLUSTER) or f"kubernetes.io/cluster/{cluster}" in tags


def request(aws: Aws, name: str, quota: Quota, wanted: int) -> Finding:
    """Files a request for a larger quota. Raises AwsError."""
    with aws_errors(f"request quota {quota.code}", "servicequotas:RequestServiceQuotaIncrease"):
        made = aws.client("service-quotas").request_service_quota_increase(
            ServiceCode=quota.service, QuotaCode=quota.code, DesiredValue=float(wanted)
        )["RequestedQuota"]
    return Finding(
        name,
        "ok",
        f"requested {wanted} for {quota.name}: {made['Id']}, {made['Status']}",
        "AWS answers by e-mail; windlass doctor shows whether it is decided",
    )
