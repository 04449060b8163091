"""IAM actions of `windlass doctor --on CLUSTER`: reads, and the requests that it files for the user."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import Place, Statement, actions


def statements(place: Place) -> Iterator[Statement]:
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
            "DescribeVpcs",
        ),
        conditions=place.here,
        why="descriptions of EC2 cannot be bounded to resources",
    )
    quotas = place.arns("servicequotas", "ec2/*", "vpc/*")
    yield Statement(
        "ReadDefaultQuotas",
        ("servicequotas:GetAWSDefaultServiceQuota",),
        conditions=place.here,
        why="the defaults are those of all accounts",
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
        why="for doctor --request; leave it out otherwise",
    )
    yield Statement(
        "SimulateOwnRights",
        actions("iam", "GetRole", "SimulatePrincipalPolicy"),
        (place.iam("role/*"), place.iam("user/*")),
        why="the name of the person or role who runs doctor is not known beforehand",
    )
    yield Statement(
        "ReadAssociations",
        actions("eks", "DescribeAddon", "DescribePodIdentityAssociation", "ListPodIdentityAssociations"),
        place.arns("eks", f"addon/{place.name}/*", f"cluster/{place.name}", f"podidentityassociation/{place.name}/*"),
    )
    yield Statement(
        "AssociateRunRole",
        ("eks:CreatePodIdentityAssociation",),
        place.arns("eks", f"cluster/{place.name}"),
        why="for a cluster that Windlass did not make, after a question; leave it out otherwise",
    )
    yield Statement(
        "PassRunRole",
        ("iam:PassRole",),
        (place.role("run"),),
        {"StringEquals": {"iam:PassedToService": ["eks.amazonaws.com", "pods.eks.amazonaws.com"]}},
    )
