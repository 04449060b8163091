"""What an audit found, as values: objects that are left, and questions that AWS did not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["hour", "month", "GiB-month", "MiBps-month", "IOPS-month"]


@dataclass(frozen=True, slots=True)
class PriceKey:
    """What a price table needs to price one part of an object's bill."""

    service: str
    """The table: `ec2`, `ec2-spot`, `ebs`, `efs`, `nat`, …."""
    unit: Unit
    """What one price is for; `MiBps-month` and `IOPS-month` are what is provisioned beyond what is free."""
    dimension: str
    """Within the table: an instance type, a volume type, a storage class; empty where there is one price."""
    quantity: float | None
    """How many units at any moment (instances, GiB); None where AWS does not report it."""


@dataclass(frozen=True, slots=True)
class Found:
    """One object that exists and belongs to the cluster."""

    service: str
    """Name of the client: `ec2`, `elbv2`."""
    kind: str
    """`volume`, `load balancer`; as a person reads it."""
    id: str
    """What `remedy` needs: an id, a name or an ARN."""
    name: str
    """The tag `Name` or the object's own name; the id where it has none."""
    region: str
    """`global` for IAM and budgets."""
    reason: str
    """Why it is held to belong to the cluster: `tag windlass.dev/cluster=train`."""
    bills: bool
    """Whether AWS charges for it as it is now. Charges for use alone (requests, traffic) do not count."""
    price_keys: tuple[PriceKey, ...] = ()
    """Every part of its bill that runs with time; empty if it does not bill."""
    kept_on_purpose: bool = False
    """Its deletion is the user's decision: a bucket with results, or tagged `windlass.dev/keep`."""
    remedy: str = ""
    """A command that deletes it, or what deletes it."""
    is_certain: bool = True
    """False where only the beginning of its name, or a claim that names no cluster, points to the cluster."""
    detail: str = ""
    """State or size, for a person: `in-use by i-0abc`, `available, 100 GiB gp3`."""
    usd_per_month: float | None = None
    """By list prices; null where it does not bill or has no known price, and before it is priced."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A question that AWS did not answer; what it asks about may exist and bill."""

    kind: str
    """What was looked for: `volume`."""
    asked: str
    """The action of IAM: `ec2:DescribeVolumes`."""
    reason: str
    """Why it is not known: the message of the error."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that an audit found, sorted: what bills first, then by service, kind and name."""

    cluster: str
    region: str
    found: tuple[Found, ...]
    """Certain and uncertain ones, also those that are kept on purpose."""
    unknown: tuple[Unknown, ...]
    at: float
    """Unix seconds."""
    num_calls: int
    """Calls to AWS, pages counted one by one, without repeated attempts."""

    @property
    def usd_per_month(self) -> float:
        """Of all objects with a known price, but for those that may belong to it."""
        return round(sum(one.usd_per_month or 0.0 for one in (*self.leaks, *self.kept)), 2)

    @property
    def leaks(self) -> tuple[Found, ...]:
        """What certainly belongs to the cluster and is not kept on purpose; billing or not."""
        return tuple(one for one in self.found if one.is_certain and not one.kept_on_purpose)

    @property
    def kept(self) -> tuple[Found, ...]:
        """What is left on purpose; it may bill."""
        return tuple(one for one in self.found if one.is_certain and one.kept_on_purpose)

    @property
    def possible(self) -> tuple[Found, ...]:
        """Objects that may belong to the cluster; check them by hand."""
        return tuple(one for one in self.found if not one.is_certain)

    @property
    def is_clean(self) -> bool:
        """Whether every question was answered, no leak was found, and nothing that bills may belong to the cluster
        and is not kept on purpose; `kept` and `possible` may have rows.
        """
        is_unproved = any(one.bills and not one.kept_on_purpose for one in self.possible)
        return not self.leaks and not self.unknown and not is_unproved
