"""Decides whether an AWS object belongs to a cluster, by its tags, VPC, role, subnet, origin or name. Pure."""

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
"""Tag by which users mark objects that must outlive the cluster."""
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
"""Tags whose value is the cluster's name, set by Karpenter, EKS, the load balancer controller, eksctl and the
VPC CNI."""
OWNED_PREFIXES: Final = (
    "kubernetes.io/cluster/",
    "k8s.io/cluster/",
    "sigs.k8s.io/cluster-api-provider-aws/cluster/",
)
"""Prefixes of tag keys that end with the cluster's name. The tag's value is `owned` or `shared`; shared objects outlive
the cluster."""
SELECTORS: Final = frozenset({"karpenter.sh/discovery"})
"""Tags that users set on existing VPCs and subnets for a cluster to use."""
CLAIM_NAME: Final = "kubernetes.io/created-for/pvc/name"
CLAIM_SPACE: Final = "kubernetes.io/created-for/pvc/namespace"
CLAIM_VOLUME: Final = "kubernetes.io/created-for/pv/name"
CSI_TAGS: Final = ("ebs.csi.aws.com/cluster", "efs.csi.aws.com/cluster", "CSIVolumeName", CLAIM_NAME)
"""Tags of objects created by a CSI driver; none of them names the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """What a caller knows about the network of a cluster."""

    vpc_id: str | None = None
    """VPC that was created for the cluster."""
    subnet_ids: tuple[str, ...] = ()
    """Subnets that were created for the cluster."""
    existing_vpc_id: str = ""
    """VPC of others in which the cluster was created."""


NO_NETWORK: Final = ClusterNetwork()


@dataclass(frozen=True, slots=True)
class Owner:
    """Reason why an object belongs to the cluster."""

    reason: str
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts about one cluster by which an audit recognizes its objects."""

    name: str
    region: str
    account_id: str
    partition: str = "aws"
    is_ours: bool = False
    """Whether Windlass created the cluster. If so, objects whose name starts with the cluster's name are reported as
    possible."""
    vpc_ids: frozenset[str] = frozenset()
    """VPCs created for the cluster: every object in them belongs to it unless a tag names another cluster."""
    used_vpc_ids: frozenset[str] = frozenset()
    """VPCs without a cluster tag that no other EKS cluster uses: objects in them may belong to the cluster."""
    other_names: frozenset[str] = frozenset()
    """Names of other clusters in the region, from EKS and from tags of VPCs and instances."""
    issuer: str = ""
    """URL of the OIDC issuer without its scheme; empty once the cluster is deleted."""
    instance_ids: frozenset[str] = frozenset()
    """Instances of the cluster, running or stopped."""
    other_instance_ids: frozenset[str] = frozenset()
    """Instances of other clusters."""
    security_group_ids: frozenset[str] = frozenset()
    """Security groups of the cluster."""
    volume_names: frozenset[str] = frozenset()
    """Names of PersistentVolumes (`pvc-…`) that the cluster is known to have had."""
    existing: frozenset[str] = frozenset()
    """Ids and ARNs of objects of others that the cluster only uses; the audit omits those without the cluster's tag."""
    volume_ids: frozenset[str] = frozenset()
    """EBS volumes that the cluster has, or is known to have had."""
    subnet_ids: frozenset[str] = frozenset()
    """Subnets of the cluster, including deleted ones."""
    existing_vpc_id: str = ""
    """VPC of others that the cluster only uses: neither the VPC, its subnets, routes and gateways nor the name of an
    object in it show that the cluster owns them."""

    @property
    def tag_reason(self) -> str:
        """Why a resource with the tag of the cluster belongs to the cluster."""
        return f"tag {OWNER}={self.name}"

    def owner(
        self, tags: Mapping[str, str] | None = None, *, name: str = "", vpc_id: str = "", is_network: bool = False
    ) -> Owner | None:
        """Returns why an object with these tags, this name and this VPC belongs to the cluster; None if it does not.

        `is_network` is for VPCs and subnets, which may carry tags of a cluster that only uses them. A tag that names
        another cluster outweighs VPC and name.
        """
        tags, is_existing = tags or {}, bool(vpc_id) and vpc_id == self.existing_vpc_id
        if is_network and is_existing:
            return None
        if OWNER in tags:
            return Owner(self.tag_reason) if tags[OWNER] == self.name else None
        if named := self._tag(tags, is_network, is_used=is_network or is_existing):
            return Owner(f"tag {named}")
        if self.is_of_another(tags):
            return None
        if vpc_id and vpc_id in self.vpc_ids:
            return Owner(f"in {vpc_id}, the cluster's VPC")
        if tags.get(CLAIM_VOLUME) in self.volume_names:
            return Owner(f"tag {CLAIM_VOLUME}={tags[CLAIM_VOLUME]}, a volume of the cluster")
        if vpc_id and vpc_id in self.used_vpc_ids:
            return Owner(f"in {vpc_id}, the VPC that the cluster uses", is_certain=False)
        is_elsewhere = is_existing or bool(vpc_id and self.vpc_ids)
        if self.is_ours and not is_elsewhere and self.begins(name):
            return Owner(f"name begins with {self.name}; no tag names a cluster", is_certain=False)
        return self._claimed(tags)

    def user(
        self, tags: Mapping[str, str], *, role: str = "", subnets: Iterable[str] = (), profile: str = ""
    ) -> Owner | None:
        """Returns why an object with this role (ARN or name), this instance profile or these subnets belongs to the
        cluster; None if it does not. A tag that names another cluster outweighs role, profile and subnets.
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
        """Whether a tag names a different cluster."""
        named = clusters_of(tags)
        return bool(named) and self.name not in named

    def begins(self, name: str) -> bool:
        """Whether a name equals the cluster's name, or starts with it and a separator. Objects of clusters whose longer
        name starts the same way are excluded.
        """
        bare = name.removeprefix("windlass-").removeprefix("windlass/")
        if not _begins(bare, self.name):
            return False
        longer = (other for other in self.other_names if len(other) > len(self.name))
        return not any(_begins(bare, other) for other in longer)

    def _tag(self, tags: Mapping[str, str], is_network: bool, *, is_used: bool) -> str:
        if is_network and self.is_ours:  # Windlass tags its networks; tags of others are also on networks in use
            return ""
        for key in NAME_TAGS:
            if tags.get(key) == self.name and not (is_used and key in SELECTORS):
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
    """Returns the first owner that is certain, else the first owner."""
    found = [one for one in owners if one is not None]
    return next((one for one in found if one.is_certain), found[0] if found else None)


@functools.cache
def names_of(kind: str, cluster: str) -> frozenset[str]:
    """Returns the names that the Terraform configuration gives to resources of a type."""
    patterns = json.loads((files("windlass.clusters") / "eks" / "names.json").read_text())
    found = (name for address, name in patterns.items() if address.startswith(f"{kind}."))
    return frozenset(name.replace("{name}", cluster) for name in found if "{key}" not in name)


def clusters_of(tags: Mapping[str, str]) -> set[str]:
    """Returns the clusters that tags name as owners; Windlass's own tag outweighs all others."""
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
