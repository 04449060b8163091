"""Removes a cluster in order: exports, controllers, Terraform; then proves by an audit that nothing is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.actions.clusters.audit import audit
from windlass.actions.clusters.find import Named, OnEvent, Stage
from windlass.actions.clusters.inside import connected
from windlass.actions.clusters.kept import empty_bucket, keep_bucket
from windlass.actions.clusters.planning import bucket_or_remembered, plan_view, write_folder
from windlass.actions.clusters.up import recover, require_known
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.infra.outputs import Outputs
from windlass.runs.context import Context
from windlass.views.platform import ClusterPlan, ClusterRemoved, Drained

if TYPE_CHECKING:
    from windlass.engines.kubernetes.drain import Drained as DrainedObjects
    from windlass.engines.kubernetes.holdings import Holding
    from windlass.infra.aws import Aws
    from windlass.infra.terraform import StopRequests


RETAINED = "its reclaim policy is Retain"
EMPTY_BYTES = 1_000_000
"""What an EFS without files of users may report: it counts the folders of its access points."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is in a cluster before it is removed."""

    outputs: Outputs | None
    """None where `up` has not ended."""
    active: tuple[str, ...]
    """Runs that have not ended, one sentence each."""
    holdings: tuple[Holding, ...]
    """What holds objects in AWS."""
    unreachable: str
    """Why the API server does not answer; empty where it does."""


def look(named: Named, context: Context) -> Look:
    """What is in a cluster. Reads only."""
    outputs = named.outputs()
    recorded = _recorded(named, context)
    if outputs is None:
        return Look(None, recorded, (), "")
    from windlass.engines.kubernetes import drain

    try:
        with connected(named, outputs) as client:
            return Look(outputs, tuple(dict.fromkeys([*recorded, *drain.active(client)])), drain.holdings(client), "")
    except WindlassError as error:
        return Look(outputs, recorded, (), error.message)


def _recorded(named: Named, context: Context) -> tuple[str, ...]:
    """Runs of this user on the cluster that have not ended."""
    names = {named.cluster.name, f"{named.cluster.name}-sagemaker"}
    with context.store() as store:
        found = [status for status in store.statuses(unfinished=True) if status.target in names]
    return tuple(f"{status.id} is {status.phase}" for status in found)


def require_idle(named: Named, found: Look) -> None:
    """Raise UsageError while runs are active, or where it is not known whether they are."""
    if found.active:
        listed = "; ".join(found.active[:5]) + (f"; and {len(found.active) - 5} more" if len(found.active) > 5 else "")
        raise UsageError(f"{len(found.active)} runs use {named.cluster.name}: {listed}",
                         "windlass stop RUN; or --force, which ends them")  # fmt: skip
    if found.unreachable:
        raise UsageError(
            f"the API server of {named.cluster.name} does not answer ({found.unreachable}): whether runs use it, and "
            "which load balancers and volumes its controllers have made, is not known",
            "run this where the API server is reached; or --force: the audit afterwards lists what is left",
        )


def require_exported(found: Look, aws: Aws) -> None:
    """Raise UsageError while a file system that goes with the cluster has files that no bucket has."""
    from windlass.infra.aws import NotThere, aws_errors

    efs = found.outputs.efs_id if found.outputs is not None else None
    if efs is None:
        return
    try:
        with aws_errors(f"describe {efs}", action="elasticfilesystem:DescribeFileSystems"):
            [system] = aws.client("efs").describe_file_systems(FileSystemId=efs)["FileSystems"]
    except NotThere:  # an earlier `down` has removed it already
        return
    if (size := int(system["SizeInBytes"]["Value"])) > EMPTY_BYTES:
        raise UsageError(
            f"the file system {efs} has {size / 1e6:,.1f} MB, which go with it",
            "copy what is wanted: windlass cp claim:efs/PATH . --on TARGET; or --force, and all of it is deleted",
        )


def down(
    named: Named, context: Context, on_event: OnEvent, confirm: Callable[[ClusterPlan, Look], bool],
    stop: StopRequests, *, force: bool = False, break_lock: bool = False,
    with_recovery: bool = False, delete_bucket: bool = False,
) -> ClusterRemoved | None:  # fmt: skip
    """Remove the cluster; None where `confirm` refuses. May be repeated, also after a crash: it goes on.

    Raises UsageError while runs are active, TerraformError, AwsError, EngineError.
    """
    began = time.monotonic()
    with named.folder.locked("cluster down"):
        found = look(named, context)
        if not force:
            require_idle(named, found)
        write_folder(named, context, bucket=bucket_or_remembered(named, context), delete_bucket=delete_bucket)
        terraform = named.terraform(context, on_event, stop)
        on_event(Stage("preparing Terraform"))
        terraform.init()
        recover(named, terraform, context, on_event, break_lock=break_lock, is_asked=with_recovery)
        if not force:
            with named.aws(context) as aws:
                require_known(named, {one.address for one in terraform.state()}, aws)
        plan = terraform.plan(destroy=True)
        if not confirm(plan_view(named, plan, context), found):
            return None
        with named.aws(context) as aws:
            if not force:
                require_exported(found, aws)
            export(found, aws, on_event)
            volumes, drained = drain_cluster(named, found, on_event, force=force)
            if empty_bucket(terraform, on_event) if delete_bucket else keep_bucket(terraform, aws, on_event):
                plan = terraform.plan(destroy=True)  # the state is another one now
            on_event(Stage("destroying"))
            destroyed = 0 if plan.summary.is_empty else terraform.apply(plan).destroyed
            on_event(Stage("auditing"))
            vpc_id = found.outputs.vpc_id if found.outputs is not None else None
            bucket = named.cluster.storage.bucket or ""
            seen = audit(named.cluster.name, aws, context, vpc_id=vpc_id, bucket=bucket, volume_names=volumes)
        if seen.is_clean:
            named.folder.remove()
    return ClusterRemoved(
        named.cluster.name, destroyed, time.monotonic() - began,
        tuple(_view(one) for one in (drained.drained if drained else ())),
        tuple(_view(one.holding, one.why) for one in (drained.left if drained else ())),
        tuple(_view(one, RETAINED) for one in (drained.kept if drained else ())), seen,
    )  # fmt: skip


def export(found: Look, aws: Aws, on_event: OnEvent) -> None:
    """Write what FSx has and the bucket lacks to the bucket, and wait for it. Raises EngineError, AwsError."""
    from windlass.infra import fsx
    from windlass.infra.aws import NotThere
    from windlass.infra.outputs import FSX_PATH

    outputs = found.outputs
    if outputs is None or outputs.fsx_id is None or outputs.fsx_association_id is None:
        return
    on_event(Stage("exporting what FSx has and the bucket lacks"))
    with contextlib.suppress(NotThere):  # an earlier `down` has removed it already
        task = fsx.begin_export(aws, outputs.fsx_id, FSX_PATH.strip("/"))
        fsx.wait(aws, task, lambda state, share: on_event(Exporting(state, share)))


@dataclass(frozen=True, slots=True)
class Exporting:
    """How far an export of FSx is."""

    state: str
    share: float | None


def drain_cluster(
    named: Named, found: Look, on_event: OnEvent, *, force: bool
) -> tuple[tuple[str, ...], DrainedObjects | None]:  # fmt: skip
    """Have controllers remove what they made in AWS; gives the names of the volumes that were there.

    Raises EngineError where something is left, unless forced: Terraform would wait for it, and fail.
    """
    from windlass.engines.kubernetes.components.resources import Resources
    from windlass.engines.kubernetes.drain import drain

    if found.outputs is None or found.unreachable:
        return (), None
    on_event(Stage("draining: load balancers, volumes, nodes of Karpenter"))
    with connected(named, found.outputs) as client:
        volumes = tuple(str(one["metadata"]["name"]) for one in Resources(client).list("v1", "PersistentVolume"))
        done = drain(client, on_event)
    if done.left and not force:
        words = "; ".join(map(str, done.left))
        raise EngineError(
            f"{len(done.left)} objects in the cluster still hold objects in AWS: {words}",
            "repair the controller that is named, and repeat; or --force, and remove by hand what the audit lists",
        )
    return volumes, done


def _view(holding: Holding, why: str = "") -> Drained:
    return Drained(holding.ref.kind, holding.ref.namespace, holding.ref.name, holding.holds, why)
