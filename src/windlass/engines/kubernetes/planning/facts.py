"""Reads the facts that a plan for a cluster depends on: the code to send, and the objects of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines import travel
from windlass.engines.kubernetes.access.client import Client, require_websockets
from windlass.engines.kubernetes.access.connect import find_kubeconfig
from windlass.engines.kubernetes.access.errors import NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.access.optional import groups_of, items
from windlass.engines.kubernetes.objects.node_pools import labels_made
from windlass.engines.kubernetes.objects.pod_template import GPU_LABELS
from windlass.engines.kubernetes.planning.mounts import wanted_claims
from windlass.engines.kubernetes.planning.runtimes import Runtimes, read_runtimes
from windlass.engines.kubernetes.planning.transfers import wanted_claim
from windlass.engines.kubernetes.reading import karpenter, kueue
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rights import NO_RIGHTS_MISSING, Rights, read_rights
from windlass.runs.machine import user_name
from windlass.runs.store import default_home

if TYPE_CHECKING:
    from windlass.pricing.table import Table
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

MAX_BYTES: Final = 64 << 20
"""Maximum size of uncompressed code, in bytes, if ConfigMaps carry the code."""
WANTED_RIGHTS: Final = (*rbac.NEEDED, *rbac.EXEC, *rbac.LEASES, *rbac.POLICIES, *rbac.SUPERVISED)
"""Permissions of the login that a plan depends on."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Facts of a cluster: its version, permissions, and the objects that the job names."""

    version: str
    """Kubernetes version, such as `v1.34.4`."""
    groups: frozenset[str]
    """API groups and versions that the cluster serves, such as `jobset.x-k8s.io/v1alpha2`."""
    rights: Rights = NO_RIGHTS_MISSING
    """Permissions of the login and of the supervisors' service account."""
    gpu_labels: tuple[tuple[str, str], ...] = ()
    """Labels (name, value) that name a GPU type, of existing nodes and of nodes that NodePools can provision, without
    duplicates."""
    secrets: frozenset[str] | None = None
    """Names of the job's secrets that exist; None if the login may not read them."""
    claims: frozenset[str] | None = None
    """Names of the job's claims that exist; None if the login may not read them."""
    csi_drivers: frozenset[str] | None = None
    """Names of the CSI drivers; None if the login may not list them, or the job mounts no data."""
    queues: tuple[tuple[str, str], ...] | None = None
    """LocalQueues of the namespace, each with the reason why it admits no jobs (empty if it admits some); None if the
    login may not list them, or the job names no queue."""
    node_pools: tuple[Mapping[str, Any], ...] | None = None
    """NodePools of Karpenter; None without Karpenter, or if the login may not list them."""
    runtimes: Runtimes | None = None
    """The training runtime that the job names; None if the job names none."""

    def gpu_label(self, gpu_type: str | None) -> tuple[str, str] | None:
        """Returns the node label (name, value) whose value contains a GPU type as a word; None if there is none."""
        if gpu_type is None:
            return None
        wanted = gpu_type.lower()
        for label, value in self.gpu_labels:
            if wanted in (value.lower(), *value.lower().replace("_", "-").split("-")):
                return label, value
        return None

    def has_claim(self, name: str) -> bool:
        """Returns whether a claim is known to exist."""
        return self.claims is not None and name in self.claims


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that a plan for a cluster depends on."""

    code: travel.CodeFacts
    cluster: Cluster | None
    """Facts of the cluster; None if it does not answer."""
    kubeconfig: str
    """Absolute path of the kubeconfig with the context, since a later command may have another default."""
    unreachable: str = ""
    """Why the cluster does not answer."""
    user: str = ""
    """Name of the user on this machine; empty if unknown."""
    prices: Table | None = None
    """List prices; None if the target names no region."""


def read_facts(job: Job, target: KubernetesTarget, *, base: Path, environ: Mapping[str, str]) -> Facts:
    """Reads all facts that a plan for `job` on `target` needs.

    Raises UsageError for a context that does not exist, NotLoggedIn, Refused (401), MissingExtra if the package for
    exec is not installed, StoreError for list prices that cannot be read.
    """
    require_websockets()
    kubeconfig = find_kubeconfig(target, environ)
    with ThreadPoolExecutor(1) as pool:  # compresses the code while the cluster answers
        limit = MAX_BYTES if target.storage is None else travel.MAX_BYTES
        code = pool.submit(travel.read_code, job, base, environ, limit)
        cluster, unreachable = _look(job, target, kubeconfig)
    return Facts(
        code=code.result(),
        cluster=cluster,
        kubeconfig=kubeconfig,
        unreachable=unreachable,
        user=user_name(),
        prices=None if target.region is None else _prices(environ),
    )


def _prices(environ: Mapping[str, str]) -> Table:
    """Loads the list prices of AWS. Raises StoreError for fetched prices that are damaged."""
    # imported here, because a supervisor in a cluster imports this module and has no price data
    from windlass.pricing.refreshed import load

    return load(default_home(environ))


def _look(job: Job, target: KubernetesTarget, kubeconfig: str) -> tuple[Cluster | None, str]:
    client = Client(target.context, job.kubernetes.namespace or target.namespace, kubeconfig)
    try:
        return read_cluster(job, target, client), ""
    except NotLoggedIn:
        raise
    except Unreachable as error:
        return None, error.message
    finally:
        client.close()


def read_cluster(job: Job, target: KubernetesTarget, client: Client) -> Cluster:
    """Reads the facts of the cluster that this job needs, in parallel. Raises Refused (401), Unreachable."""
    asked = [*job.secrets, *([job.notify] if job.notify is not None else [])]
    claims = [volume.claim for volume in job.volumes if volume.claim is not None]
    results = job.kubernetes.results
    if results is not None and results.claim is not None:
        claims.append(results.claim)
    if (data := wanted_claim(job, target)) is not None:
        claims.append(data.claim)
    claims += wanted_claims(job, target)
    with ThreadPoolExecutor(10) as pool:
        version = pool.submit(client.call, "GET", "/version")
        groups = pool.submit(client.call, "GET", "/apis")
        rights = pool.submit(read_rights, client, WANTED_RIGHTS)
        of_nodes = pool.submit(_gpu_labels, client) if job.resources.gpu_type is not None else None
        secrets = pool.submit(_there, client, "Secret", asked)
        found = pool.submit(_there, client, "PersistentVolumeClaim", claims)
        drivers = pool.submit(_csi_drivers, client) if any(data.is_mounted for data in job.data) else None
        queues = pool.submit(kueue.queues, client) if job.queue is not None else None
        node_pools = pool.submit(karpenter.node_pools, client)
        named = job.kubernetes.runtime
        standing = pool.submit(read_runtimes, client, named, job.kubernetes.runtime_kind) if named is not None else None
        return Cluster(
            version=str(version.result()["gitVersion"]),
            groups=groups_of(groups.result()),
            rights=rights.result(),
            gpu_labels=()
            if of_nodes is None
            else tuple(sorted({*of_nodes.result(), *labels_made(node_pools.result() or (), GPU_LABELS)})),
            secrets=secrets.result(),
            claims=found.result(),
            csi_drivers=drivers.result() if drivers is not None else None,
            queues=queues.result() if queues is not None else None,
            node_pools=node_pools.result(),
            runtimes=standing.result() if standing is not None else None,
        )


def _csi_drivers(client: Client) -> frozenset[str] | None:
    found = items(lambda: client.find("storage.k8s.io/v1", "CSIDriver"))
    return None if found is None else frozenset(one["metadata"]["name"] for one in found)


def _gpu_labels(client: Client) -> set[tuple[str, str]]:
    """Returns the GPU labels of all nodes; none if the login may not list nodes."""
    nodes = items(lambda: client.find("v1", "Node")) or ()
    labels = (node["metadata"].get("labels", {}) for node in nodes)
    return {(name, found[name]) for found in labels for name in GPU_LABELS if name in found}


def _there(client: Client, kind: str, names: list[str]) -> frozenset[str] | None:
    """Returns the names of the objects that exist; None if the login may not read them."""
    try:
        return frozenset(name for name in names if client.get_if_exists("v1", kind, name) is not None)
    except Refused as error:
        if error.status != 403:
            raise
        return None


def boot_program() -> str:
    """Returns the source of the program that unpacks the code in a pod."""
    return (Path(__file__).parents[3] / "worker" / "boot.py").read_text(encoding="utf-8")
