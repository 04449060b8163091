"""Checks the IAM role that EKS Pod Identity gives to a service account's pods; creates a missing association."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import Aws, NotThere, aws_errors
from windlass.clusters.preflight.finding import Finding, Offer, unknown
from windlass.errors import WindlassError

NAME: Final = "pod identity"
AGENT: Final = "eks-pod-identity-agent"


@dataclass(frozen=True, slots=True)
class PodsOf:
    """Pods that need the role: cluster, namespace and service account."""

    cluster: str
    namespace: str
    service_account: str = "default"


def association_finding(aws: Aws, pods: PodsOf, role_arn: str) -> Finding:
    """Checks that the pods are associated with the role (any role, if `role_arn` is empty), and that the agent is
    installed.

    If the association is missing, the fix is the command that creates it; with `role_arn`, Windlass also offers to run
    it.
    """
    try:
        found = _associated(aws, pods)
        has_agent = _has_agent(aws, pods.cluster)
    except WindlassError as error:
        return unknown(NAME, error)
    who = f"service account {pods.namespace}/{pods.service_account}"
    if found is None:
        offer = None
        if role_arn:
            question = f"Associate {who} of cluster {pods.cluster} with {role_arn}?"
            offer = Offer(question, functools.partial(associate, aws, pods, role_arn))
        return Finding(
            NAME, "warn", f"{who} has no role of EKS Pod Identity", command(aws.region, pods, role_arn), offer
        )
    if role_arn and found["roleArn"] != role_arn:
        fix = (
            f"aws eks update-pod-identity-association --cluster-name {pods.cluster} --association-id "
            f"{found['associationId']} --role-arn {role_arn} --region {aws.region}"
        )
        return Finding(NAME, "fail", f"{who} has the role {found['roleArn']}, expected {role_arn}", fix)
    if not has_agent:
        fix = f"aws eks create-addon --cluster-name {pods.cluster} --addon-name {AGENT} --region {aws.region}"
        return Finding(NAME, "warn", f"{who} has the role {found['roleArn']}, and add-on {AGENT} is not installed", fix)
    return Finding(NAME, "ok", f"{who} has the role {found['roleArn']}")


def command(region: str, pods: PodsOf, role_arn: str) -> str:
    """Returns the `aws` command that creates the association."""
    return (
        f"aws eks create-pod-identity-association --cluster-name {pods.cluster} --namespace {pods.namespace} "
        f"--service-account {pods.service_account} --role-arn {role_arn or 'ROLE_ARN'} --region {region}"
    )


def associate(aws: Aws, pods: PodsOf, role_arn: str) -> Finding:
    """Creates the association. Raises AwsError."""
    with aws_errors(f"associate {role_arn}", "eks:CreatePodIdentityAssociation"):
        made = aws.client("eks").create_pod_identity_association(
            clusterName=pods.cluster, namespace=pods.namespace, serviceAccount=pods.service_account, roleArn=role_arn
        )["association"]
    fix = f"pods that start from now on have it, if the role trusts pods.eks.amazonaws.com and add-on {AGENT} is there"
    return Finding(NAME, "ok", f"made {made['associationId']}: {role_arn}", fix)


def _associated(aws: Aws, pods: PodsOf) -> Mapping[str, Any] | None:
    client = aws.client("eks")
    with aws_errors(f"list associations of {pods.cluster}", "eks:ListPodIdentityAssociations"):
        listed = client.list_pod_identity_associations(
            clusterName=pods.cluster, namespace=pods.namespace, serviceAccount=pods.service_account
        )["associations"]
    if not listed:
        return None
    with aws_errors("describe an association", "eks:DescribePodIdentityAssociation"):
        found: Mapping[str, Any] = client.describe_pod_identity_association(
            clusterName=pods.cluster, associationId=listed[0]["associationId"]
        )["association"]
    return found


def _has_agent(aws: Aws, cluster: str) -> bool:
    try:
        with aws_errors(f"describe add-on {AGENT}", "eks:DescribeAddon"):
            aws.client("eks").describe_addon(clusterName=cluster, addonName=AGENT)
    except NotThere:
        return False
    return True
