"""Extracts the account, the API server and the file systems of a cluster from the Terraform state. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.eks.outputs import ApiServer

if TYPE_CHECKING:
    from windlass.clusters.terraform.state import StateResource
    from windlass.spec.cluster import Cluster


SAGEMAKER_ROLE: Final = "aws_iam_role.sagemaker"


@dataclass(frozen=True, slots=True)
class Contents:
    """Resources of a cluster that exist, whichever machine created them."""

    has_cluster: bool = False
    """Whether the state contains an EKS cluster."""
    api: ApiServer | None = None
    """API server of the cluster; None if the state has no address yet, because EKS is still creating the cluster."""
    efs_ids: tuple[str, ...] = ()
    fsx_ids: tuple[str, ...] = ()
    vpc_id: str | None = None
    sagemaker_role: str = ""
    """ARN of the role for SageMaker training jobs; empty if the cluster has none."""
    repositories: tuple[str, ...] = ()
    """Names of the image repositories."""


def contents(state: Iterable[StateResource], cluster: Cluster) -> Contents:
    """Extracts the contents from a state."""
    made = [one for one in state if one.mode == "managed"]

    def ids(type: str) -> tuple[str, ...]:
        return tuple(one.id for one in made if one.type == type)

    found = next((one.values for one in made if one.type == "aws_eks_cluster"), None)
    endpoint, authority = (found or {}).get("endpoint"), _first((found or {}).get("certificate_authority")).get("data")
    api = None
    if endpoint and authority:
        api = ApiServer(cluster.name, cluster.region, str(endpoint), str(authority), cluster.namespace)
    return Contents(
        found is not None,
        api,
        ids("aws_efs_file_system"),
        ids("aws_fsx_lustre_file_system"),
        next(iter(ids("aws_vpc")), None),
        next((str(one.values.get("arn")) for one in made if one.address.startswith(SAGEMAKER_ROLE)), ""),
        ids("aws_ecr_repository"),
    )


def accounts(state: Iterable[StateResource]) -> frozenset[str]:
    """Returns the account numbers in the ARNs of a state."""
    return frozenset(account for _, account in _owners(state) if account.isdigit())


def regions(state: Iterable[StateResource]) -> frozenset[str]:
    """Returns the regions in the ARNs of a state; ARNs of global services such as IAM have none."""
    return frozenset(region for region, _ in _owners(state) if region)


def _owners(state: Iterable[StateResource]) -> list[tuple[str, str]]:
    """Returns region and account of each ARN in a state."""
    arns = (str(one.values.get("arn") or "").split(":") for one in state if one.mode == "managed")
    return [(parts[3], parts[4]) for parts in arns if len(parts) > 5]


def _first(blocks: Any) -> dict[str, Any]:
    """Returns the only block of a list; empty if the list is empty."""
    return dict(blocks[0]) if isinstance(blocks, list) and blocks else {}
