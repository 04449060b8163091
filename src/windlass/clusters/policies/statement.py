"""One statement of a policy, and the names that its resources are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.clusters.aws import partition
from windlass.clusters.tags import OWNER
from windlass.spec.cluster import Cluster

Conditions = Mapping[str, Mapping[str, str | list[str]]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cluster is, and how what belongs to it is called."""

    name: str
    """Of the cluster."""
    region: str
    account: str
    """12 digits."""
    bucket: str
    """Of the cluster's data."""
    repositories: tuple[str, ...]
    """Of images."""

    @classmethod
    def of(cls, cluster: Cluster, account: str) -> Place:
        """The place of a cluster in an account."""
        bucket = cluster.storage.bucket or f"windlass-{cluster.name}-{account}"
        return cls(cluster.name, cluster.region, account, bucket, cluster.repositories or (cluster.name,))

    @property
    def partition(self) -> str:
        """`aws`, `aws-cn` or `aws-us-gov`."""
        return partition(self.region)

    def arn(self, service: str, rest: str) -> str:
        """An ARN in the region of the cluster."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{rest}"

    def arns(self, service: str, *rests: str) -> tuple[str, ...]:
        """Several of them."""
        return tuple(self.arn(service, rest) for rest in rests)

    def iam(self, rest: str) -> str:
        """An ARN of IAM, which has no region."""
        return f"arn:{self.partition}:iam::{self.account}:{rest}"

    def role(self, name: str) -> str:
        """The ARN of the role NAME-`name`."""
        return self.iam(f"role/{self.name}-{name}")

    @property
    def bucket_arn(self) -> str:
        """The ARN of the bucket."""
        return f"arn:{self.partition}:s3:::{self.bucket}"

    @property
    def here(self) -> Conditions:
        """In the region of the cluster alone: for what names no resource."""
        return {"StringEquals": {"aws:RequestedRegion": self.region}}

    @property
    def own(self) -> Conditions:
        """On what has the tag of the cluster: for what has no name of ours, but an id."""
        return {"StringEquals": {f"aws:ResourceTag/{OWNER}": self.name}}

    @property
    def new(self) -> Conditions:
        """On what gets the tag of the cluster while it is made."""
        return {"StringEquals": {f"aws:RequestTag/{OWNER}": self.name}}


@dataclass(frozen=True, slots=True)
class Statement:
    """What is allowed, on what, and when."""

    sid: str
    """Says what it is for; letters and digits."""
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    conditions: Conditions = field(default_factory=dict)
    why: str = ""
    """Why it is as it is, where the names do not say so."""

    def as_json(self) -> dict[str, Any]:
        """As it stands in a policy."""
        found: dict[str, Any] = {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": _one_or_all(self.actions),
            "Resource": _one_or_all(self.resources),
        }
        if self.conditions:
            found["Condition"] = {name: dict(values) for name, values in self.conditions.items()}
        return found


def _one_or_all(values: tuple[str, ...]) -> str | list[str]:
    return values[0] if len(values) == 1 else list(values)


def actions(service: str, *names: str) -> tuple[str, ...]:
    """Actions of one service, sorted."""
    return tuple(sorted(f"{service}:{name}" for name in names))


def both(*conditions: Conditions) -> Conditions:
    """All conditions together."""
    found: dict[str, dict[str, str | list[str]]] = {}
    for one in conditions:
        for operator, values in one.items():
            found.setdefault(operator, {}).update(values)
    return found
