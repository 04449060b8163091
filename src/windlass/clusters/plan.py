"""The plan of a cluster: Terraform's changes, the expected minutes in AWS, the price of the cluster, and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from windlass.clusters.eks.variables import DISK_MIB_PER_SECOND
from windlass.clusters.find import ManagedCluster
from windlass.clusters.terraform.changes import Action, Change
from windlass.errors import UsageError
from windlass.pricing.cluster import Estimate, estimate
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.terraform import Plan, PlanSummary
    from windlass.spec.cluster import Cluster

LOSSES: Final = frozenset(
    {
        "aws_efs_file_system",
        "aws_fsx_lustre_file_system",
        "aws_s3_bucket",
        "aws_ecr_repository",
        "aws_eks_cluster",
        "aws_kms_key",
    }
)
"""Resource types whose deletion also deletes users' data."""
CHAIN: Final[tuple[tuple[str, float, float], ...]] = (
    ("aws_vpc", 0.5, 0.5),
    ("aws_nat_gateway", 2.0, 1.0),
    ("aws_eks_cluster", 9.0, 3.0),
    ("aws_eks_node_group", 3.0, 5.0),
    ("aws_eks_addon", 2.0, 0.5),
)
"""Resource types that are created one after the other, with minutes to create and to destroy. Resources of one type run
in parallel."""
BESIDE: Final[tuple[tuple[str, float, float], ...]] = (
    ("aws_fsx_lustre_file_system", 8.0, 10.0),
    ("aws_fsx_data_repository_association", 5.0, 5.0),
)
"""Further resource types that are created one after the other, in parallel with `CHAIN`."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What `cluster up` or `cluster down` would do in AWS."""

    name: str
    region: str
    changes: tuple[Change, ...]
    drift: tuple[Change, ...]
    """Differences between AWS and the Terraform state."""
    summary: str
    """Terraform's summary: `Plan: 99 to add, 0 to change, 0 to destroy.`"""
    minutes: float
    """Expected duration in AWS, from figures of AWS and eksctl; for display only."""
    price: Estimate
    path: str
    """Path of the working folder, in which `terraform` can also be run by hand."""
    is_private: bool
    """Whether the API server is reachable only from the VPC."""
    notes: tuple[str, ...] = ()
    """Notes to read before confirming: a bucket of another owner, end of support, zones without an instance type, and
    checks that could not be made."""


def minutes(types: Iterable[str], *, is_destroy: bool = False) -> float:
    """Estimates the minutes for resources of these types; 0 if all of them are quick."""
    present = set(types)
    chain, beside = (
        sum(removed if is_destroy else made for kind, made, removed in rows if kind in present)
        for rows in (CHAIN, BESIDE)
    )
    return max(chain, beside)


def cluster_plan(named: ManagedCluster, plan: Plan, context: Context, notes: Iterable[str] = ()) -> ClusterPlan:
    """Combines a Terraform plan with its expected duration and the price of the cluster."""
    return ClusterPlan(
        named.cluster.name,
        named.cluster.region,
        plan.summary.changes,
        plan.summary.drift_to_undo,
        plan.summary.text,
        minutes((change.type for change in plan.summary.changes), is_destroy=plan.is_destroy),
        price(named.cluster, context),
        str(named.folder.path),
        not named.cluster.network.public_access,
        (*notes, *addon_notes(plan.summary.changes)),
    )


def addon_notes(changes: Iterable[Change]) -> list[str]:
    """Returns a note with the version of each EKS add-on that a plan creates or updates."""
    versions = {
        str(one.after.get("addon_name")): one.after.get("addon_version")
        for one in changes
        if one.type == "aws_eks_addon" and one.action is not Action.DELETE
    }
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return [f"EKS add-ons, kept until addons: or kubernetes: changes: {listed}"] if listed else []


def cluster_notes(named: ManagedCluster, aws: Aws, today: date) -> list[str]:
    """Returns notes on a cluster file before it is applied: end of support of its Kubernetes version, problems of an
    existing VPC, and zones without an instance type, in which no node would start. A failed AWS query is a note too.
    """
    from windlass.clusters.preflight.network import network_findings
    from windlass.clusters.preflight.offerings import offering_findings, zones_of
    from windlass.errors import WindlassError
    from windlass.pricing.kubernetes import support_note

    notes = [support_note(named.cluster.kubernetes, today)]
    outputs, cluster = named.outputs(), named.cluster
    found = list(network_findings(aws, cluster))
    try:
        is_first = outputs is None or cluster.zones or cluster.network.subnets
        zones = zones_of(aws, cluster) if is_first or outputs is None else outputs.zones
        found += offering_findings(aws, cluster, zones) if zones else ()
    except WindlassError as error:
        notes.append(f"which zones offer the instance types is unknown: {error.message}")
    notes += [f"{one.name}: {one.found}{f' ({one.fix})' if one.fix else ''}" for one in found if one.level != "ok"]
    return [one for one in notes if one]


def require_kept(summary: PlanSummary) -> None:
    """Raises UsageError for a plan that deletes or replaces storage with users' files, or the cluster itself."""
    lost = [one for one in summary.changes if one.type in LOSSES and one.action in (Action.DELETE, Action.REPLACE)]
    if lost:
        words = ", ".join(f"{one.action.value} {one.address}" for one in lost)
        raise UsageError(
            f"the plan would {words}, with all its data",
            "check the changes: windlass cluster plan; --force applies the plan anyway",
        )


def price(cluster: Cluster, context: Context) -> Estimate:
    """Estimates the price of a cluster, from the bundled list prices or those fetched by `prices update`."""
    from windlass.pricing.items import items_of
    from windlass.pricing.refreshed import load

    items = items_of(cluster, disk_mib_per_second=DISK_MIB_PER_SECOND)
    return estimate(items, cluster.region, load(context.home))
