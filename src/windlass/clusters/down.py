"""Removes a cluster: exports files, drains controllers, runs Terraform destroy, and audits what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.clusters.audit.named import audit, audited_network
from windlass.clusters.audit.report import AuditReport
from windlass.clusters.drain import Drained
from windlass.clusters.eks.contents import contents
from windlass.clusters.find import ManagedCluster, OnEvent, StageStarted, Warned
from windlass.clusters.holdings import Holding
from windlass.clusters.kubernetes import api_client
from windlass.clusters.plan import ClusterPlan, cluster_plan
from windlass.clusters.reconcile import recover, require_account, require_known
from windlass.clusters.removal_checks import (
    ClusterUsage,
    find_usage,
    recorded_runs,
    require_exported,
    require_idle,
    sagemaker_use,
)
from windlass.clusters.storage.fsx import export
from windlass.clusters.storage.images import images, require_no_images
from windlass.clusters.storage.kept_bucket import allow_deletion, keep_or_empty
from windlass.clusters.storage.volumes import of_cluster, remember, remembered
from windlass.clusters.working_folder import bucket_or_recorded, look_up_bucket, write_folder
from windlass.errors import EngineError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.terraform import StopRequests


@dataclass(frozen=True, slots=True)
class ClusterRemoved:
    """Result of `cluster down`: removed and remaining resources."""

    name: str
    destroyed: int
    """Number of Terraform resources destroyed."""
    seconds: float
    drained: tuple[Holding, ...]
    """Removed Kubernetes objects that had resources in AWS."""
    left: tuple[Holding, ...]
    kept: tuple[Holding, ...]
    audit: AuditReport
    lost: tuple[str, ...] = ()
    """File systems without an export, and images, that were deleted with --force, one sentence each."""


def down(
    named: ManagedCluster,
    context: Context,
    on_event: OnEvent,
    confirm: Callable[[ClusterPlan, ClusterUsage], bool],
    stop: StopRequests,
    *,
    force: bool = False,
    break_lock: bool = False,
    with_recovery: bool = False,
    delete_bucket: bool = False,
) -> ClusterRemoved | None:
    """Removes the cluster; returns None if `confirm` declines. Can be repeated, also after a crash.

    Raises UsageError while runs are active or files are in no bucket, Interrupted after a stop request, TerraformError,
    AwsError, EngineError.
    """
    began = time.monotonic()
    with named.folder.locked("cluster down"):
        if not force:
            # Fails early, before the slow Terraform calls.
            require_idle(named, recorded_runs(named, context))
        # Deleting the bucket requires its current owner, so AWS must answer.
        find_bucket = look_up_bucket if delete_bucket else bucket_or_recorded
        bucket = find_bucket(named, context)
        write_folder(named, context, bucket=bucket, delete_bucket=delete_bucket, delete_images=force)
        terraform = named.terraform(context, on_event, stop)
        on_event(StageStarted("preparing Terraform"))
        terraform.init()
        require_account(named, terraform, context)
        recover(named, terraform, context, on_event, bucket=bucket, break_lock=break_lock, is_asked=with_recovery)
        state = terraform.state()  # resources created from another machine are only in the state
        found = find_usage(named, contents(state, named.cluster), context)
        with named.aws(context) as aws:
            listed = images(found.contents, aws)
            if not force:
                require_no_images(listed)
                _require_unused(named, found, aws)
                require_known(named, {one.address for one in state}, aws)
                require_exported(found.contents, aws)
        plan = terraform.plan(destroy=True)
        notes = [*listed]
        if delete_bucket and bucket is not None and bucket.exists and bucket.is_managed:
            notes.append(f"s3://{bucket.name} is deleted with all its objects")
        shown = cluster_plan(named, plan, context, notes)
        with stop.interruptible("stopped before the removal; nothing was removed"):
            if not confirm(shown, found):
                return None
        with named.aws(context) as aws:
            with stop.interruptible("stopped during the export of FSx, which continues in AWS; nothing was removed"):
                lost = export(named, found.contents, aws, on_event, force=force)
            if not force:  # a run may have started during the question or the export
                found = find_usage(named, found.contents, context)
                _require_unused(named, found, aws)
            lost += tuple(f"{one}, which were deleted" for one in listed)
            with stop.interruptible("stopped while draining; load balancers, volumes and nodes may be deleted already"):
                drained = drain_cluster(named, found, on_event, force=force)
            is_changed = keep_or_empty(terraform, aws, on_event, bucket, is_to_delete=delete_bucket)
            if listed:
                is_changed |= allow_deletion(terraform, on_event, "aws_ecr_repository")
            if is_changed:
                plan = terraform.plan(destroy=True)  # the state has changed, so the first plan is stale
            on_event(StageStarted("destroying"))
            destroyed = 0 if plan.summary.is_empty else terraform.apply(plan).destroyed
            on_event(StageStarted("auditing"))
            outputs = named.outputs()
            network = audited_network(outputs, found.contents.vpc_id, named.cluster.network.vpc)
            seen = audit(
                named.cluster.name,
                aws,
                context,
                network=network,
                volumes=remembered(named),
                existing=named.cluster.existing,
            )
        if seen.is_clean:
            named.folder.remove()
    return ClusterRemoved(
        named.cluster.name,
        destroyed,
        time.monotonic() - began,
        drained.drained,
        drained.left,
        drained.kept,
        seen,
        lost,
    )


def _require_unused(named: ManagedCluster, found: ClusterUsage, aws: Aws) -> None:
    """Raises UsageError if runs, jobs or endpoints are active, or the API server was not queried. Raises AwsError."""
    active = (*found.active, *sagemaker_use(named.cluster.name, found.contents, aws))
    require_idle(named, active, found.unchecked)


def drain_cluster(named: ManagedCluster, found: ClusterUsage, on_event: OnEvent, *, force: bool) -> Drained:
    """Lets controllers delete their AWS resources, after recording the cluster's volumes for the audit.

    Raises EngineError if objects remain, unless forced: Terraform would wait for them and fail.
    """
    from windlass.clusters.drain import drain

    if found.contents.api is None or found.unchecked:
        if found.unchecked:
            on_event(Warned(f"not draining: {found.unchecked}"))
        return Drained()
    on_event(StageStarted("draining: load balancers, volumes, nodes of Karpenter"))
    with api_client(named, found.contents.api) as client:
        remember(named, of_cluster(client))
        done = drain(client, on_event)
    if done.left and not force:
        words = "; ".join(map(str, done.left))
        raise EngineError(
            f"{len(done.left)} objects in the cluster still hold objects in AWS: {words}",
            "repair the controller that is named, and repeat; or --force, and remove by hand what "
            f"windlass cluster audit {named.cluster.name} lists",
        )
    return done
