"""Clusters that Windlass makes: what `windlass cluster` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrittenCluster:
    """The cluster file that `cluster init` wrote."""

    path: str


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Something that is billed."""

    what: str
    usd_per_month: float | None
    """By list prices, of 730 hours; null where it is billed by use or has no known price."""
    is_by_use: bool
    unknown: str
    """Why it has no price; empty where it has one."""


@dataclass(frozen=True, slots=True)
class PoolPrice:
    """GPU nodes while all of them run."""

    name: str
    usd_per_hour: float | None
    """Null where a part of it has no known price."""


@dataclass(frozen=True, slots=True)
class ClusterPrice:
    """What a cluster costs by list prices, without discounts and taxes."""

    usd_per_month: float
    """While it stands idle; the least that it is where `unknown` is not empty."""
    rows: tuple[PriceRow, ...]
    pools: tuple[PoolPrice, ...]
    unknown: tuple[str, ...]
    """What has no known price."""
    dates: tuple[str, ...]
    """Oldest and newest date of the prices; empty without any."""


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A resource of Terraform that a plan changes."""

    address: str
    action: str
    """`create`, `update`, `replace` or `delete`."""
    reason: str
    """Why it is replaced; empty otherwise."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What `cluster up` or `cluster down` would do in AWS."""

    name: str
    region: str
    changes: tuple[ResourceChange, ...]
    drift: tuple[ResourceChange, ...]
    """What differs in AWS from what Terraform has made."""
    summary: str
    """`Plan: 99 to add, 0 to change, 0 to destroy.`"""
    minutes: float
    """To expect."""
    price: ClusterPrice
    path: str
    """Of the working folder, in which `terraform` runs by hand too."""
    is_private: bool
    """Whether the API server is reached from the VPC alone."""
    notes: tuple[str, ...] = ()
    """What a person should know before agreeing: a bucket of others, dates of support, zones without an instance type,
    and what could not be looked at."""


@dataclass(frozen=True, slots=True)
class ComponentState:
    """An operator in the cluster."""

    name: str
    installed: str
    """Version; empty where it is not installed."""
    wanted: str
    state: str
    is_healthy: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterMade:
    """What `cluster up` has made."""

    name: str
    region: str
    target: str
    """Name of the target for `--on`."""
    kubeconfig: str
    """Path."""
    bucket: str
    """Of data, code and results."""
    added: int
    changed: int
    destroyed: int
    """Resources of Terraform."""
    seconds: float
    components: tuple[ComponentState, ...]


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster of this user."""

    name: str
    region: str
    kubernetes: str
    state: str
    """`up`, `incomplete` where a command did not end or the state was lost, `configured` where nothing is made,
    `unknown` where the state is in a bucket and was not read, or `damaged` where a file of its folder cannot be read.
    """
    resources: int
    """That Terraform has made."""
    path: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster: what Terraform and the cluster report."""

    summary: ClusterSummary
    drift: tuple[ResourceChange, ...]
    """What differs in AWS from what Terraform has made."""
    components: tuple[ComponentState, ...]
    unreachable: str
    """Why the API server does not answer; empty where it does."""
    target: str
    """Name of the target for `--on`; empty before `cluster up` has ended."""
    added: tuple[AddedRule, ...] = ()
    """Rules of security groups that others have added."""
    not_looked: tuple[str, ...] = ()
    """What AWS was asked for comparison and did not answer."""
    notes: tuple[str, ...] = ()
    """What a person should know: dates of support."""


@dataclass(frozen=True, slots=True)
class AddedRule:
    """A rule of a security group that Terraform has not made."""

    group: str
    text: str
    """`tcp 22 from 0.0.0.0/0`."""
    remedy: str
    """A command that removes it."""


@dataclass(frozen=True, slots=True)
class LeftObject:
    """An object in AWS that belongs to the cluster."""

    service: str
    kind: str
    id: str
    name: str
    region: str
    reason: str
    """Why it is held to belong to the cluster."""
    bills: bool
    usd_per_month: float | None
    """By list prices; null where it does not bill or has no known price."""
    detail: str
    remedy: str
    """A command that removes it, or what removes it."""
    is_kept: bool = False
    """Whether it is left on purpose: a bucket, or what a user has tagged `windlass.dev/keep`."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question that AWS did not answer; what it asks about may exist and bill."""

    asked: str
    """The action of IAM."""
    what: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class ClusterAudit:
    """What AWS has of a cluster, by a listing of each service."""

    name: str
    region: str
    is_clean: bool
    """Whether nothing is left and every question was answered."""
    leaks: tuple[LeftObject, ...]
    kept: tuple[LeftObject, ...]
    """Left on purpose."""
    possible: tuple[LeftObject, ...]
    """Objects that may belong to the cluster; check them by hand."""
    unknown: tuple[Unanswered, ...]
    usd_per_month: float
    """Of all rows with a known price."""
    num_calls: int
    at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Drained:
    """An object in the cluster that held something in AWS."""

    kind: str
    namespace: str
    name: str
    holds: str
    why: str
    """Why it is left or kept; empty where it was removed."""


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """What `cluster down` has removed, and what is left."""

    name: str
    destroyed: int
    """Resources of Terraform."""
    seconds: float
    drained: tuple[Drained, ...]
    left: tuple[Drained, ...]
    kept: tuple[Drained, ...]
    audit: ClusterAudit
    lost: tuple[str, ...] = ()
    """File systems that were deleted by force without their export, one sentence each."""


@dataclass(frozen=True, slots=True)
class ExportedCluster:
    """Files that `cluster export` wrote."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """What the other tool cannot make."""
