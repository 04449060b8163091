"""Result of an audit: objects that exist, and queries that AWS did not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["hour", "month", "GiB-month", "MiBps-month", "IOPS-month"]


@dataclass(frozen=True, slots=True)
class PriceKey:
    """Key into the price tables for one part of an object's bill."""

    service: str
    """Price table: `ec2`, `ec2-spot`, `ebs`, `efs`, `nat`, …."""
    unit: Unit
    """Unit of the price. `MiBps-month` and `IOPS-month` count only what is provisioned beyond the free amount."""
    dimension: str
    """Row of the price table: an instance type, a volume type or a storage class; empty if the table has a single
    price."""
    quantity: float | None
    """Number of billed units, such as instances or GiB; None if AWS does not report it."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An existing object that belongs to the cluster."""

    service: str
    """Name of the boto3 client: `ec2`, `elbv2`."""
    kind: str
    """Display name of the kind: `volume`, `load balancer`."""
    id: str
    """Id, name or ARN, as used in `remedy`."""
    name: str
    """Value of the tag `Name`, or the object's own name; the id if it has neither."""
    region: str
    """AWS region; `global` for IAM and budgets."""
    reason: str
    """Why the object counts as part of the cluster: `tag windlass.dev/cluster=train`."""
    bills: bool
    """Whether AWS charges for the object in its current state. Charges per use (requests, traffic) do not count."""
    price_keys: tuple[PriceKey, ...] = ()
    """Every time-based charge of the object; empty if it does not bill."""
    kept_on_purpose: bool = False
    """Whether the object is left for the user to delete: a bucket with results, or an object tagged
    `windlass.dev/keep`."""
    remedy: str = ""
    """Command that deletes the object, or a note about what deletes it."""
    is_certain: bool = True
    """False if only a name prefix, or a claim that names no cluster, links the object to the cluster."""
    detail: str = ""
    """State or size for display: `in-use by i-0abc`, `available, 100 GiB gp3`."""
    usd_per_month: float | None = None
    """US dollars per month at list prices; null if the object does not bill, has no known price, or was not
    priced yet."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A query that AWS did not answer; objects of this kind may exist and bill."""

    kind: str
    """Kind of object that was listed, such as `volume`."""
    asked: str
    """IAM action of the query: `ec2:DescribeVolumes`."""
    reason: str
    """Message of the error."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Everything that an audit found, sorted: billing objects first, then by service, kind and name."""

    cluster: str
    region: str
    account_id: str
    """AWS account of the credentials: all queries were about it."""
    found: tuple[FoundObject, ...]
    """All objects found, certain and uncertain, including those kept on purpose."""
    unknown: tuple[Unknown, ...]
    at: float
    """Time of the audit in Unix seconds."""
    num_calls: int
    """Number of AWS calls; each page counts, retries do not."""

    @property
    def usd_per_month(self) -> float:
        """List price in US dollars per month of all certain objects whose price is known."""
        return round(sum(one.usd_per_month or 0.0 for one in (*self.leaks, *self.kept)), 2)

    @property
    def leaks(self) -> tuple[FoundObject, ...]:
        """Objects that certainly belong to the cluster and are not kept on purpose, billing or not."""
        return tuple(one for one in self.found if one.is_certain and not one.kept_on_purpose)

    @property
    def kept(self) -> tuple[FoundObject, ...]:
        """Objects that are kept on purpose; they may incur charges."""
        return tuple(one for one in self.found if one.is_certain and one.kept_on_purpose)

    @property
    def possible(self) -> tuple[FoundObject, ...]:
        """Objects that may belong to the cluster; check them by hand."""
        return tuple(one for one in self.found if not one.is_certain)

    @property
    def is_clean(self) -> bool:
        """Whether every query was answered, no leak was found, and no uncertain object bills, except objects kept on
        purpose. `kept` and `possible` may still have rows.
        """
        is_unproved = any(one.bills and not one.kept_on_purpose for one in self.possible)
        return not self.leaks and not self.unknown and not is_unproved
