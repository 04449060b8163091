"""Decides whether an object of AWS belongs to a cluster: by its tags, its VPC, role, subnet, origin or name. Pure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from windlass.clusters.tags import OWNER

KEEP: Final = "windlass.dev/keep"
"""Set by a user on what has to stay after the cluster."""
NAME_TAGS: Final = (
    "karpenter.sh/discovery",
    "eks:cluster-name",
    "aws:eks:cluster-name",
    "eks:eks-cluster-name",
    "elbv2.k8s.aws/cluster",
    "ingress.k8s.aws/cluster",
    "KubernetesCluster",
    "alpha.eksctl.io/cluster-name",
    "cluster.k8s.amazonaws.com/name",
    "karpenter.k8s.aws/cluster",
)
"""Tags whose value is the cluster's name: of Karpenter, EKS, the load balancer controller, eksctl, the VPC CNI."""
OWNED_PREFIXES: Final = (
    "kubernetes.io/cluster/",
    "k8s.io/cluster/",
    "sigs.k8s.io/cluster-api-provider-aws/cluster/",
)
"""Tags whose key ends in the cluster's name; the value is `owned` or `shared`, and what is shared outlives it."""
SELECTORS: Final = frozenset({"karpenter.sh/discovery"})
"""Tags that users put on VPCs and subnets which the cluster only uses."""
CLAIM_NAME: Final = "kubernetes.io/created-for/pvc/name"
CLAIM_SPACE: Final = "kubernetes.io/created-for/pvc/namespace"
CLAIM_VOLUME: Final = "kubernetes.io/created-for/pv/name"
CSI_TAGS: Final = ("ebs.csi.aws.com/cluster", "efs.csi.aws.com/cluster", "CSIVolumeName", CLAIM_NAME)
"""On what a CSI driver made; none of them names the cluster."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Why an object belongs to the cluster."""

    reason: str
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """One cluster, as far as an audit needs to know it to recognize what belongs to it."""

    name: str
    region: str
    account_id: str
    partition: str = "aws"
    is_ours: bool = False
    """Whether Windlass made it; then names that begin with the cluster's are suspicious."""
    vpc_ids: frozenset[str] = frozenset()
    """VPCs made for the cluster: all that is in them belongs to it unless a tag names another cluster."""
    used_vpc_ids: frozenset[str] = frozenset()
    """VPCs that no tag gives to the cluster and no other cluster of EKS uses: what is in them may be its own."""
    other_names: frozenset[str] = frozenset()
    """Names of the region's other clusters, and of those that tags of VPCs and instances name."""
    issuer: str = ""
    """URL of the OIDC issuer without its scheme; empty once the cluster is gone."""
    instance_ids: frozenset[str] = frozenset()
    """Instances that belong to the cluster, running or not."""
    other_instance_ids: frozenset[str] = frozenset()
    """Instances of other clusters."""
    security_group_ids: frozenset[str] = frozenset()
    """Security groups that belong to the cluster."""
    bucket: str = ""
    """Name of the bucket that Windlass made for the cluster; `windlass-NAME-ACCOUNT` where it is empty."""
    volume_names: frozenset[str] = frozenset()
    """Names of PersistentVolumes (`pvc-…`) that the cluster is known to have had."""
    volume_ids: frozenset[str] = frozenset()
    """Volumes of EBS that the cluster has, or is known to have had."""
    subnet_ids: frozenset[str] = frozenset()
    """Subnets of the cluster, also where they are gone."""

    def owner(
        self, tags: Mapping[str, str] | None = None, *, name: str = "", vpc_id: str = "", is_network: bool = False
    ) -> Owner | None:
        """Why an object with these tags, this name, in this VPC, belongs to the cluster; None where it does not.

        `is_network` is for VPCs and subnets, which may carry tags of a cluster that only uses them. A tag of another
        cluster outweighs VPC and name.
        """
        tags = tags or {}
        if OWNER in tags:
            return Owner(f"tag {OWNER}={self.name}") if tags[OWNER] == self.name else None
        if named := self._tag(tags, is_network):
            return Owner(f"tag {named}")
        if self.is_of_another(tags):
            return None
        if vpc_id and vpc_id in self.vpc_ids:
            return Owner(f"in {vpc_id}, the cluster's VPC")
        if tags.get(CLAIM_VOLUME) in self.volume_names:
            return Owner(f"tag {CLAIM_VOLUME}={tags[CLAIM_VOLUME]}, a volume of the cluster")
        if vpc_id and vpc_id in self.used_vpc_ids:
            return Owner(f"in {vpc_id}, the VPC that the cluster uses", is_certain=False)
        is_elsewhere = bool(vpc_id and self.vpc_ids)
        if self.is_ours and not is_elsewhere and self.begins(name):
            return Owner(f"name begins with {self.name}; no tag names a cluster", is_certain=False)
        return self._claimed(tags)

    def user(
        self, tags: Mapping[str, str], *, role: str = "", subnets: Iterable[str] = (), profile: str = ""
    ) -> Owner | None:
        """Why an object that runs as this role (its ARN or name) or with this instance profile, or in these subnets,
        belongs to the cluster; None where it does not. A tag of another cluster outweighs them.
        """
        if self.is_of_another(tags):
            return None
        if at := self.subnet_ids & set(subnets):
            return Owner(f"in {min(at)}, a subnet of the cluster")
        for kind, named in (("aws_iam_role", role), ("aws_iam_instance_profile", profile)):
            name = named.rsplit("/", 1)[-1]
            if self.is_ours and name in names_of(kind, self.name):
                return Owner(f"runs as {name}, of the cluster")
            if self.is_ours and name and self.begins(name):
                return Owner(f"runs as {name}, whose name begins with {self.name}", is_certain=False)
        return None

    def is_of_another(self, tags: Mapping[str, str]) -> bool:
        """Whether a tag names a cluster, and not this one."""
        named = clusters_of(tags)
        return bool(named) and self.name not in named

    def begins(self, name: str) -> bool:
        """Whether a name is the cluster's, or begins with it and a separator, and not with another cluster's."""
        bare = name.removeprefix("windlass-").removeprefix("windlass/")
        if not _begins(bare, self.name):
            return False
        longer = (other for other in self.other_names if len(other) > len(self.name))
        return not any(_begins(bare, other) for other in longer)

    def _tag(self, tags: Mapping[str, str], is_network: bool) -> str:
        for key in NAME_TAGS:
            if tags.get(key) == self.name and not (is_network and key in SELECTORS and not self.is_ours):
                return f"{key}={self.name}"
        for prefix in OWNED_PREFIXES:
            if tags.get(prefix + self.name) == "owned":
                return f"{prefix}{self.name}=owned"
        return ""

    def _claimed(self, tags: Mapping[str, str]) -> Owner | None:
        made_by = next((tag for tag in CSI_TAGS if tag in tags), "")
        if not made_by:
            return None
        claim = f"{tags.get(CLAIM_SPACE, '?')}/{tags[CLAIM_NAME]}" if CLAIM_NAME in tags else made_by
        return Owner(f"made for a claim of Kubernetes ({claim}); no tag names the cluster", is_certain=False)


def better(*owners: Owner | None) -> Owner | None:
    """The first that is certain, else the first."""
    found = [one for one in owners if one is not None]
    return next((one for one in found if one.is_certain), found[0] if found else None)


@functools.cache
def names_of(kind: str, cluster: str) -> frozenset[str]:
    """Names that the Terraform configuration gives to resources of a type."""
    patterns = json.loads((files("windlass.clusters") / "eks" / "names.json").read_text())
    found = (name for address, name in patterns.items() if address.startswith(f"{kind}."))
    return frozenset(name.replace("{name}", cluster) for name in found if "{key}" not in name)


def clusters_of(tags: Mapping[str, str]) -> set[str]:
    """Names of the clusters that tags name as owners; Windlass's own tag outweighs all others."""
    if OWNER in tags:
        return {tags[OWNER]}
    return {tags[key] for key in NAME_TAGS if tags.get(key)} | {
        key.removeprefix(prefix)
        for key, value in tags.items()
        for prefix in OWNED_PREFIXES
        if key.startswith(prefix) and value == "owned"
    }


def kept(tags: Mapping[str, str]) -> bool:
    """Whether a user marked an object to be kept."""
    return tags.get(KEEP, "false").lower() not in ("", "false", "no", "0")


def _begins(name: str, cluster: str) -> bool:
    return re.match(rf"{re.escape(cluster)}($|[-_/.])", name) is not None
