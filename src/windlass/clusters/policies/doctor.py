"""IAM actions of `windlass doctor --on CLUSTER`: reads, and the requests that it files for the user."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import ArnScope, Statement, actions


def statements(scope: ArnScope) -> Iterator[Statement]:
    """Yields statements for zones and offerings, quotas and usage, policy simulation, and the pod identity
    association.
    """
    yield Statement(
        "ReadOffersAndUse",
        actions(
            "ec2",
            "DescribeAddresses",
            "DescribeAvailabilityZones",
            "DescribeInstanceTypeOfferings",
            "DescribeInstances",
            "DescribeRouteTables",
            "DescribeSubnets",
            "DescribeVpcEndpoints",
            "DescribeVpcs",
        ),
        conditions=scope.here,
        why="EC2 Describe actions cannot be limited to resources",
    )
    yield Statement("ReadDnsOfVpc", ("ec2:DescribeVpcAttribute",), (scope.vpc_arn,), why="for an existing VPC")
    quotas = scope.arns("servicequotas", "ec2/*", "vpc/*")
    yield Statement(
        "ReadDefaultQuotas",
        ("servicequotas:GetAWSDefaultServiceQuota",),
        conditions=scope.here,
        why="AWS's default quotas are the same for all accounts",
    )
    yield Statement(
        "ReadQuotas",
        actions("servicequotas", "GetServiceQuota", "ListRequestedServiceQuotaChangeHistoryByQuota"),
        quotas,
    )
    yield Statement(
        "RequestQuotas",
        ("servicequotas:RequestServiceQuotaIncrease",),
        quotas,
        why="for doctor --request; omit it otherwise",
    )
    yield Statement(
        "SimulateOwnRights",
        actions("iam", "GetRole", "SimulatePrincipalPolicy"),
        (scope.iam("role/*"), scope.iam("user/*")),
        why="the name of the user or role that runs doctor is not known in advance",
    )
    yield Statement(
        "ReadAssociations",
        actions("eks", "DescribeAddon", "DescribePodIdentityAssociation", "ListPodIdentityAssociations"),
        scope.arns("eks", f"addon/{scope.name}/*", f"cluster/{scope.name}", f"podidentityassociation/{scope.name}/*"),
    )
    yield Statement(
        "AssociateRunRole",
        ("eks:CreatePodIdentityAssociation",),
        scope.arns("eks", f"cluster/{scope.name}"),
        why="for a cluster that Windlass did not create, after confirmation; omit it otherwise",
    )
    yield Statement(
        "PassRunRole",
        ("iam:PassRole",),
        (scope.role("run"),),
        {"StringEquals": {"iam:PassedToService": ["eks.amazonaws.com", "pods.eks.amazonaws.com"]}},
    )
