"""Lists clusters and shows one: the status reported by Terraform, AWS and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from windlass.clusters.components.manager import ComponentStatus
from windlass.clusters.find import ManagedCluster, OnEvent, all_of, of_folder
from windlass.clusters.kubernetes import api_client, component_manager, wanted_components
from windlass.clusters.reconcile import require_account
from windlass.clusters.security_groups import AddedRule, added_rules
from windlass.clusters.storage.volumes import of_cluster, remember
from windlass.clusters.terraform.changes import Change
from windlass.clusters.terraform.folder import ClusterFolder, FolderError
from windlass.clusters.working_folder import bucket_or_recorded, local_resources, take_outputs, write_folder
from windlass.errors import WindlassError
from windlass.pricing.kubernetes import support_note
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.terraform.state import StateResource


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One cluster of this user in the list of clusters."""

    name: str
    region: str
    kubernetes: str
    state: str
    """`up`; `incomplete` if a command was killed or the state was lost; `configured` if no resources exist; `unknown`
    if the state is in a bucket and was not read; `damaged` if a file of the folder cannot be read."""
    resources: int
    """Number of resources in the Terraform state."""
    path: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Status of a cluster according to Terraform, AWS and its API server."""

    summary: ClusterSummary
    drift: tuple[Change, ...]
    """Differences between AWS and the Terraform state."""
    components: tuple[ComponentStatus, ...]
    unreachable: str
    """Why the API server does not respond; empty if it does."""
    target: str
    """Name of the target for `--on`; empty before the first `cluster up` has finished."""
    added: tuple[AddedRule, ...] = ()
    """Security group rules that were added outside Terraform."""
    unchecked: tuple[str, ...] = ()
    """Error messages of failed searches for added security group rules."""
    notes: tuple[str, ...] = ()
    """Notes, such as the end of support of the Kubernetes version."""


def summaries(context: Context) -> Sequence[ClusterSummary]:
    """Returns summaries of this user's clusters from their folders; queries neither AWS nor the clusters."""
    return [_listed(one, context) for one in all_of(context)]


def _listed(folder: ClusterFolder, context: Context) -> ClusterSummary:
    """Returns the summary of one cluster; a damaged folder is listed as `damaged`."""
    try:
        return summary(of_folder(folder, context))
    except WindlassError:
        return ClusterSummary(folder.name, "", "", "damaged", 0, str(folder.path))


def summary(named: ManagedCluster, in_bucket: int | None = None) -> ClusterSummary:
    """Returns the summary of a cluster from its folder. `in_bucket` is the number of resources of a remote state, None
    if the bucket was not read. Raises FolderError.
    """
    from windlass.clusters.recovery import needs_recovery

    is_remote = named.cluster.state is not None
    resources = in_bucket or 0 if is_remote else _resources(named)
    may_exist = resources > 0 or (is_remote and in_bucket is None)
    has_outputs = named.outputs() is not None
    # outputs without resources mean that the state was lost
    if needs_recovery(named.folder) or (has_outputs and not may_exist):
        word = "incomplete"
    elif has_outputs:
        word = "up"
    elif is_remote and in_bucket is None:  # another machine may have created the cluster
        word = "unknown"
    else:
        word = "incomplete" if may_exist else "configured"
    cluster = named.cluster
    return ClusterSummary(cluster.name, cluster.region, cluster.kubernetes, word, resources, str(named.folder.path))


def _resources(named: ManagedCluster) -> int:
    """Returns the number of resources in the local state; 0 while Terraform writes it. Raises FolderError."""
    from windlass.clusters.terraform.process import record_of

    running = record_of(named.folder.path)
    is_written = running is not None and running.is_alive
    try:
        return local_resources(named)
    except FolderError:
        if is_written:
            return 0
        raise


def status(named: ManagedCluster, context: Context, on_event: OnEvent, *, with_drift: bool = True) -> ClusterStatus:
    """Returns the status of a cluster: differences in AWS, and the state of its components. Raises TerraformError."""
    drift: tuple[Change, ...] = ()
    in_bucket: int | None = None
    added: tuple[AddedRule, ...] = ()
    unchecked: tuple[str, ...] = ()
    note = support_note(named.cluster.kubernetes, datetime.now(UTC).date())
    if with_drift and (named.folder.exists or named.cluster.state is not None):
        with named.folder.locked("cluster status"):
            if not named.folder.exists:  # another machine may have created the cluster
                write_folder(named, context, bucket=bucket_or_recorded(named, context))
            terraform = named.terraform(context, on_event)
            terraform.init()
            require_account(named, terraform, context)
            drift = terraform.drift()
            take_outputs(named, terraform)
            state = terraform.state()
            if named.cluster.state is not None:
                in_bucket = sum(one.mode == "managed" for one in state)
            added, unchecked = _added(named, context, state)
    found = summary(named, in_bucket)
    outputs = named.outputs()
    notes = (note,) if note else ()
    if outputs is None:
        return ClusterStatus(found, drift, (), "", "", added, unchecked, notes)
    try:
        with component_manager(named, outputs, context) as manager:
            components, unreachable = manager.status(wanted_components(named)), ""
        with api_client(named, outputs) as client:
            remember(named, of_cluster(client))
    except WindlassError as error:
        components, unreachable = (), error.message
    return ClusterStatus(found, drift, components, unreachable, named.cluster.name, added, unchecked, notes)


def _added(
    named: ManagedCluster, context: Context, state: Sequence[StateResource]
) -> tuple[tuple[AddedRule, ...], tuple[str, ...]]:
    """Returns rules that were added to the cluster's security groups, and the queries that AWS did not answer."""
    try:
        with named.aws(context) as aws:
            found = added_rules(aws, state)
    except WindlassError as error:
        return (), (f"rules of security groups: {error.message}",)
    return found, ()
