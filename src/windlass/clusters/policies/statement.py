"""One policy statement, and the ARNs and conditions that statements are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.clusters.aws import partition
from windlass.clusters.tags import OWNER
from windlass.spec.cluster import Cluster

Conditions = Mapping[str, Mapping[str, str | list[str]]]


@dataclass(frozen=True, slots=True)
class ArnScope:
    """Account, region and resource names of a cluster, from which ARNs are built."""

    name: str
    """Name of the cluster."""
    region: str
    account: str
    """Account number, 12 digits."""
    bucket: str
    """Name of the cluster's data bucket."""
    repositories: tuple[str, ...]
    """Names of the image repositories."""
    path: str = "/"
    """Path of the roles and instance profiles."""
    vpc: str | None = None
    """Id of an existing VPC; None for a new one."""
    bucket_key: str = ""
    """ARN of the existing KMS key of the bucket; empty for a key that Terraform creates."""

    @classmethod
    def of(cls, cluster: Cluster, account: str) -> ArnScope:
        """Builds the scope of a cluster in an account."""
        bucket = cluster.storage.bucket or f"windlass-{cluster.name}-{account}"
        repositories = cluster.repositories or (cluster.name,)
        path, vpc, key = cluster.iam.path, cluster.network.vpc, cluster.encryption.bucket or ""
        return cls(cluster.name, cluster.region, account, bucket, repositories, path, vpc, key)

    @property
    def partition(self) -> str:
        """Partition in ARNs: `aws`, `aws-cn` or `aws-us-gov`."""
        return partition(self.region)

    def arn(self, service: str, rest: str) -> str:
        """Returns an ARN in the region of the cluster."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{rest}"

    def arns(self, service: str, *rests: str) -> tuple[str, ...]:
        """Returns several ARNs of one service in the region of the cluster."""
        return tuple(self.arn(service, rest) for rest in rests)

    def iam(self, rest: str) -> str:
        """Returns an IAM ARN, which has no region."""
        return f"arn:{self.partition}:iam::{self.account}:{rest}"

    def role(self, name: str) -> str:
        """Returns the ARN of the role `CLUSTER-name`."""
        return self.iam(f"role{self.path}{self.name}-{name}")

    @property
    def bucket_arn(self) -> str:
        """ARN of the data bucket."""
        return f"arn:{self.partition}:s3:::{self.bucket}"

    @property
    def vpc_arn(self) -> str:
        """ARN of the existing VPC, of any account, because VPCs can be shared; a pattern for all VPCs without one."""
        return f"arn:{self.partition}:ec2:{self.region}:*:vpc/{self.vpc or '*'}"

    @property
    def subnets_arn(self) -> str:
        """Pattern of the ARNs of subnets, which another account owns if the VPC is shared."""
        return f"arn:{self.partition}:ec2:{self.region}:{'*' if self.vpc else self.account}:subnet/*"

    @property
    def here(self) -> Conditions:
        """Condition: requests in the region of the cluster. For actions that cannot be limited to resources."""
        return {"StringEquals": {"aws:RequestedRegion": self.region}}

    @property
    def own(self) -> Conditions:
        """Condition: resources with the cluster's tag. For resources that have generated ids instead of names."""
        return {"StringEquals": {f"aws:ResourceTag/{OWNER}": self.name}}

    @property
    def new(self) -> Conditions:
        """Condition: resources that are tagged with the cluster on creation."""
        return {"StringEquals": {f"aws:RequestTag/{OWNER}": self.name}}


@dataclass(frozen=True, slots=True)
class Statement:
    """A policy statement: allowed actions, resources and conditions."""

    sid: str
    """Statement id that describes the purpose; letters and digits."""
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    conditions: Conditions = field(default_factory=dict)
    why: str = ""
    """Reason for the statement, if its id and actions do not explain it."""

    def as_json(self) -> dict[str, Any]:
        """Returns the statement as JSON for a policy document."""
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
    """Returns the prefixed names of actions of one service, sorted."""
    return tuple(sorted(f"{service}:{name}" for name in names))


def both(*conditions: Conditions) -> Conditions:
    """Merges conditions; all of them must hold."""
    found: dict[str, dict[str, str | list[str]]] = {}
    for one in conditions:
        for operator, values in one.items():
            found.setdefault(operator, {}).update(values)
    return found
