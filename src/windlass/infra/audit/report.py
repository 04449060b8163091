"""What an audit found, as values: objects that are left, and questions that AWS did not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

Unit = Literal["hour", "month", "GiB-month", "MiBps-month", "IOPS-month"]


class JsonAble(Protocol):
    """A price that an audit can write out."""

    def to_json(self) -> Any:
        """The value as JSON has it."""


P = TypeVar("P")


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

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "service": self.service, "unit": self.unit, "dimension": self.dimension, "quantity": self.quantity,
        }  # fmt: skip


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
    created_at: datetime | None = None
    kept_on_purpose: bool = False
    """Its deletion is the user's decision: a bucket with results, or tagged `windlass.dev/keep`."""
    remedy: str = ""
    """A command that deletes it, or what deletes it."""
    is_certain: bool = True
    """False where only the beginning of its name, or a claim that names no cluster, points to the cluster."""
    detail: str = ""
    """State or size, for a person: `in-use by i-0abc`, `available, 100 GiB gp3`."""

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; times in UTC, RFC 3339."""
        return {
            "service": self.service, "kind": self.kind, "id": self.id, "name": self.name, "region": self.region,
            "reason": self.reason, "bills": self.bills, "price_keys": [key.to_json() for key in self.price_keys],
            "created_at": _utc(self.created_at), "kept_on_purpose": self.kept_on_purpose, "remedy": self.remedy,
            "is_certain": self.is_certain, "detail": self.detail,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unknown:
    """A question that AWS did not answer; what it asks about may exist and bill."""

    service: str
    kind: str
    """What was looked for: `volume`."""
    asked: str
    """The action of IAM: `ec2:DescribeVolumes`."""
    reason: str
    """Why it is not known: the message of the error."""
    hint: str = ""
    count: int = 1
    """How many calls failed in the same way."""

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "service": self.service, "kind": self.kind, "asked": self.asked, "reason": self.reason, "hint": self.hint,
            "count": self.count,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All that an audit found, sorted: what bills first, then by service, kind and name."""

    cluster: str
    region: str
    account_id: str
    found: tuple[Found, ...]
    """Certain and uncertain ones, also those that are kept on purpose."""
    unknown: tuple[Unknown, ...]
    at: datetime
    num_calls: int
    """Calls to AWS, pages counted one by one, without repeated attempts."""

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
        """What may belong to the cluster: a person has to look."""
        return tuple(one for one in self.found if not one.is_certain)

    @property
    def is_clean(self) -> bool:
        """Whether every question was answered and no leak was found; `kept` and `possible` may have rows."""
        return not self.leaks and not self.unknown

    def rows(self, price_of: Callable[[Found], P | None]) -> Iterator[tuple[Found, P | None]]:
        """Each object with its price; None for what does not bill and for what has no price."""
        for one in self.found:
            yield one, price_of(one) if one.bills else None

    def to_json(self, price_of: Callable[[Found], JsonAble | None] | None = None) -> dict[str, Any]:
        """As JSON has it; with a `price` (None: unknown, or does not bill) for each row where `price_of` is given."""
        found = []
        for one, price in self.rows(price_of or (lambda _: None)):
            row = one.to_json()
            if price_of is not None:
                row["price"] = price.to_json() if price is not None else None
            found.append(row)
        return {
            "cluster": self.cluster, "region": self.region, "account_id": self.account_id, "at": _utc(self.at),
            "is_clean": self.is_clean, "num_calls": self.num_calls, "found": found,
            "unknown": [one.to_json() for one in self.unknown],
        }  # fmt: skip


def _utc(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if at is not None else None
