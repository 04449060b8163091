"""Finders for EKS: the cluster itself and its node groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, hourly, row
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Owner, Scope
from windlass.clusters.aws import AwsError, NotThere
from windlass.clusters.tags import flat


def describe(calls: FinderCalls, name: str) -> dict[str, Any] | None:
    """Returns the description of the cluster with this name; None if it does not exist. Raises AwsError."""
    try:
        found: dict[str, Any] = calls.get("eks", "describe_cluster", name=name)["cluster"]
    except NotThere:
        return None
    return found


def _clusters(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    one = describe(calls, scope.name)
    if one is None:
        return
    version = one.get("version", "?")
    yield row(
        CLUSTER,
        scope,
        Owner("its name"),
        scope.name,
        tags=flat(one.get("tags")),
        prices=[hourly("eks", _support(calls, version, one))],
        detail=f"{one.get('status', '')}, Kubernetes {version}",
        remedy="windlass cluster down, or: " + command(scope, "eks delete-cluster --name", scope.name),
    )


def _support(calls: FinderCalls, version: str, one: dict[str, Any]) -> str:
    """Returns `standard` or `extended`, from the version's support status and the cluster's policy; empty if
    unknown.
    """
    if (one.get("upgradePolicy") or {}).get("supportType") == "STANDARD":
        return "standard"
    try:
        found = calls.get("eks", "describe_cluster_versions", clusterVersions=[version]).get("clusterVersions") or []
    except AwsError:
        return ""  # then the cluster is reported without a price
    status = str(found[0].get("versionStatus") or found[0].get("status", "")).lower() if found else ""
    return "extended" if "extended" in status else "standard" if "standard" in status else ""


def _node_groups(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(name: str) -> Iterator[FoundObject]:
        one = calls.get("eks", "describe_nodegroup", clusterName=scope.name, nodegroupName=name)["nodegroup"]
        wants = (one.get("scalingConfig") or {}).get("desiredSize", "?")
        yield row(
            NODE_GROUP,
            scope,
            Owner("of the cluster"),
            name,
            tags=flat(one.get("tags")),
            detail=f"{one.get('status', '')}, wants {wants} instances",
            remedy=command(scope, "eks delete-nodegroup", "--cluster-name", scope.name, "--nodegroup-name", name),
        )

    try:
        names = list(calls.items("eks", "list_nodegroups", "nodegroups", clusterName=scope.name))
    except NotThere:
        return iter(())
    return calls.each(names, inspect)


CLUSTER: Final = ("eks", "cluster")
NODE_GROUP: Final = ("eks", "node group")

FINDERS: Final = (
    Finder(*CLUSTER, ("eks:DescribeCluster", "eks:DescribeClusterVersions"), _clusters),
    Finder(*NODE_GROUP, ("eks:ListNodegroups", "eks:DescribeNodegroup"), _node_groups),
)
