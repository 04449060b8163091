"""Prepares a cluster through its API server: components, the namespace of runs, and the permissions of its users."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.eks.outputs import ApiServer, Outputs
from windlass.clusters.eks.variables import pool_variables
from windlass.clusters.find import ManagedCluster
from windlass.runs.context import Context
from windlass.spec.cluster import GIB

if TYPE_CHECKING:
    from windlass.clusters.components.manager import Manager
    from windlass.engines.kubernetes.access.client import Client

CHARTS: Final = "WINDLASS_CHARTS"
"""Environment variable with a folder of charts and manifests, for machines that cannot reach the repositories."""
CACHE: Final = "charts"
USERS: Final = "windlass-users"
"""Kubernetes group of the users in the cluster file, assigned by their access entries."""


@contextlib.contextmanager
def api_client(named: ManagedCluster, outputs: ApiServer | Outputs) -> Iterator[Client]:
    """Opens a client of the cluster's API server, in the namespace of its runs."""
    from windlass.engines.kubernetes.access.client import Client

    with contextlib.closing(Client(outputs.name, outputs.namespace, str(named.kubeconfig))) as client:
        yield client


@contextlib.contextmanager
def component_manager(named: ManagedCluster, outputs: Outputs, context: Context) -> Iterator[Manager]:
    """Opens the manager of the cluster's components."""
    from windlass.clusters.components.manager import Manager
    from windlass.clusters.components.source import FolderSource, NetworkSource
    from windlass.clusters.components.values import gpu_pool, values_of

    folder = context.environ.get(CHARTS)
    source = FolderSource(Path(folder)) if folder else NetworkSource(context.home / "clusters" / CACHE)
    pools = [gpu_pool(one.name, pool_variables(one)) for one in named.cluster.karpenter_pools]
    fsx = named.cluster.storage.fsx
    size: dict[str, Any] = {"fsx_size_gib": fsx.size // GIB} if fsx is not None else {}
    values = values_of(
        asdict(outputs),
        pools,
        tags=named.cluster.tags,
        disk_key_arn=named.cluster.encryption.disks or "",
        is_isolated=named.cluster.network.nat == "none",
        image_mirror=named.cluster.image_mirror or "",
        **size,
    )
    with api_client(named, outputs) as client:
        yield Manager(client, str(named.kubeconfig), values, source)


def create_namespace(named: ManagedCluster, outputs: Outputs) -> None:
    """Creates the namespace of the runs unless it exists. Raises Refused, Unreachable."""
    from windlass.clusters.components.resources import Ref, Resources

    if outputs.namespace == "default":
        return
    labels = {"app.kubernetes.io/managed-by": "windlass", "windlass.dev/cluster": named.cluster.name}
    with api_client(named, outputs) as client:
        resources, ref = Resources(client), Ref("v1", "Namespace", "", outputs.namespace)
        if resources.get(ref) is None:
            meta = {"name": outputs.namespace, "labels": labels}
            resources.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}, ref)


def grant_users(named: ManagedCluster, outputs: Outputs, rights: Sequence[Mapping[str, Any]]) -> None:
    """Grants the users of the cluster file permission to create runs: EKS's own access policies omit JobSets and
    TrainJobs.

    `rights` are the objects that grant the permissions, including a Role. Raises Refused, Unreachable.
    """
    from windlass.clusters.components.resources import Ref, Resources

    role = next(one for one in rights if one["kind"] == "Role")
    name, api = str(role["metadata"]["name"]), "rbac.authorization.k8s.io"
    meta = {"name": f"{name}-users", "namespace": outputs.namespace}
    binding: dict[str, Any] = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "subjects": [{"kind": "Group", "name": USERS, "apiGroup": api}],
        "roleRef": {"kind": "Role", "name": name, "apiGroup": api},
    }
    with api_client(named, outputs) as client:
        resources = Resources(client)
        for one in (role, binding):
            place = Ref(f"{api}/v1", str(one["kind"]), outputs.namespace, str(one["metadata"]["name"]))
            resources.apply(dict(one), place)


def wanted_components(named: ManagedCluster) -> list[str]:
    """Returns the components that a cluster file requests, including those generated from Terraform outputs."""
    asked = list(named.cluster.components)
    return [*asked, "storage", *(["node-pools"] if named.cluster.karpenter_pools else [])]
