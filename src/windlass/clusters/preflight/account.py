"""Checks whether an account meets the requirements of `cluster up`; yields each finding immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windlass.clusters.aws import Aws
from windlass.clusters.preflight.finding import Finding, unknown
from windlass.clusters.preflight.network import network_findings
from windlass.clusters.preflight.offerings import offering_findings, zones_of
from windlass.clusters.preflight.programs import identity_finding
from windlass.clusters.preflight.quotas import quota_findings
from windlass.clusters.preflight.rights import Statement, permission_finding
from windlass.errors import WindlassError
from windlass.spec.cluster import Cluster


def account_findings(aws: Aws, cluster: Cluster, statements: Callable[[str], Sequence[Statement]]) -> Iterator[Finding]:
    """Checks identity, permissions, an existing VPC, zones and offerings, and quotas; only the identity without valid
    credentials.

    `statements` returns the required policy for an account number.
    """
    identity = identity_finding(aws)
    yield identity
    if identity.level == "fail":
        return
    yield permission_finding(aws, statements(aws.identity.account_id))
    try:
        zones = zones_of(aws, cluster)
    except WindlassError as error:
        yield unknown("zones", error)
        zones = tuple(cluster.zones)
    yield from network_findings(aws, cluster)
    if zones:
        is_chosen = cluster.zones or cluster.network.subnets
        text = f"{', '.join(zones)}{'' if is_chosen else ' (zones: is not set, so these are taken)'}"
        yield Finding("zones", "ok", text)
        yield from offering_findings(aws, cluster, zones)
    yield from quota_findings(aws, cluster, max(1, len(zones)))
