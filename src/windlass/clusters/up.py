"""Creates or updates a cluster: Terraform, the target, components, supervisor setup."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from windlass.clusters.components.manager import ComponentStatus
from windlass.clusters.eks.outputs import Outputs
from windlass.clusters.find import ManagedCluster, OnEvent, StageStarted
from windlass.clusters.kubernetes import api_client, component_manager, create_namespace, grant_users, wanted_components
from windlass.clusters.plan import ClusterPlan, cluster_notes, cluster_plan, require_kept
from windlass.clusters.reconcile import CLUSTER, recover, require_account, require_known
from windlass.clusters.recovery import needs_recovery
from windlass.clusters.storage.bucket import ADDRESS
from windlass.clusters.storage.existing_keys import require_keys
from windlass.clusters.storage.fsx import EXPORTED
from windlass.clusters.storage.kept_bucket import adoption
from windlass.clusters.storage.volumes import of_cluster, remember
from windlass.clusters.tags import OWNER
from windlass.clusters.working_folder import connect, look_up_bucket, take_outputs, write_folder
from windlass.errors import MissingExtra, UsageError
from windlass.runs.context import Context

PROGRAMS: Final = {
    "helm": "https://helm.sh/docs/intro/install/",
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
}
"""Programs that `up` needs in addition to Terraform, with their download pages."""
UNFINISHED: Final = (
    "an earlier command was killed: `up` first recovers its resources, which this plan may show as missing"
)
if TYPE_CHECKING:
    from windlass.clusters.storage.bucket import Bucket
    from windlass.clusters.terraform import Plan, Result, StopRequests, Terraform


class RunSetup(Protocol):
    """One-time setup of a target by its engine, before runs."""

    def set_up(self) -> None:
        """Creates the objects that supervisors need. Raises UsageError, EngineError."""

    def rights(self) -> Sequence[Mapping[str, Any]]:
        """Returns the Kubernetes objects that grant the permissions for runs. Raises UsageError, EngineError."""


@dataclass(frozen=True, slots=True)
class ClusterMade:
    """Result of `cluster up`."""

    name: str
    region: str
    target: str
    """Name of the target for `--on`."""
    kubeconfig: str
    bucket: str
    """Bucket for data, code and results."""
    added: int
    changed: int
    destroyed: int
    """Number of Terraform resources destroyed."""
    seconds: float
    components: tuple[ComponentStatus, ...]


def plan_up(
    named: ManagedCluster,
    terraform: Terraform,
    context: Context,
    on_event: OnEvent,
    *,
    break_lock: bool = False,
    with_recovery: bool = False,
    is_dry: bool = False,
) -> tuple[Plan, ClusterPlan]:
    """Plans what `up` changes in AWS, after recovering from a killed command. The folder must be locked.

    `is_dry`: changes nothing in AWS or the state; there is no recovery, and the state is not locked. Raises
    TerraformError, AwsError, FolderError, UsageError.
    """
    from windlass.clusters.storage.bucket import require_usable

    bucket = look_up_bucket(named, context)
    require_usable(bucket, named.cluster)
    write_folder(named, context, bucket=bucket)
    on_event(StageStarted("preparing Terraform"))
    terraform.init()
    require_account(named, terraform, context)
    must_recover = needs_recovery(named.folder)
    if not is_dry:
        recover(named, terraform, context, on_event, bucket=bucket, break_lock=break_lock, is_asked=with_recovery)
    if named.outputs() is None and take_outputs(named, terraform) is not None:
        write_folder(named, context, bucket=bucket)  # keeps the zones of the first `up`, on whichever machine it ran
    state = {one.address: one.id for one in terraform.state()}
    bucket = in_state(named, context, bucket, state)
    notes = [UNFINISHED] if is_dry and must_recover else []
    with named.aws(context) as aws:
        if not notes:
            require_known(named, state, aws)
        notes += require_keys(named.cluster, aws)
        kept, of_kept = adoption(named.cluster.name, bucket, state, aws, on_event, is_dry=is_dry)
        notes += [*of_kept, *foreign_notes(bucket), *cluster_notes(named, aws, datetime.now(UTC).date())]
    on_event(StageStarted("planning"))
    plan = terraform.plan(adopt=kept, is_locked=not is_dry)
    return plan, cluster_plan(named, plan, context, notes)


def in_state(named: ManagedCluster, context: Context, bucket: Bucket, state: Mapping[str, str]) -> Bucket:
    """Returns the bucket as managed if it is in the Terraform state, even if its tag was removed.

    Raises UsageError if the tag names another cluster.
    """
    if bucket.is_managed or state.get(ADDRESS) != bucket.name:
        return bucket
    if bucket.owner:
        raise UsageError(
            f"Terraform has made s3://{bucket.name} for {named.cluster.name}, and its tag gives it to {bucket.owner}",
            f"correct the tag {OWNER}; or terraform state rm {ADDRESS} in {named.folder.path}",
        )
    found = replace(bucket, is_managed=True, key_arn=named.cluster.encryption.bucket or "")
    write_folder(named, context, bucket=found)
    return found


def foreign_notes(bucket: Bucket) -> list[str]:
    """Returns notes on a bucket that the cluster does not manage."""
    from windlass.clusters.storage.bucket import whose

    if bucket.is_managed:
        return []
    why = f"s3://{bucket.name} exists and does not belong to this cluster ({whose(bucket)})"
    return [f"{why}: it is not changed, and roles of this cluster get access to its objects"]


def up(
    named: ManagedCluster,
    context: Context,
    on_event: OnEvent,
    confirm: Callable[[ClusterPlan], bool],
    stop: StopRequests,
    runs: RunSetup,
    *,
    break_lock: bool = False,
    with_recovery: bool = False,
    with_components: bool = True,
    force: bool = False,
) -> ClusterMade | None:
    """Creates or updates the cluster; returns None if `confirm` declines the plan. Can be repeated, also after a crash.

    `runs` sets up the target once the components are installed. Raises UsageError for a plan that would delete users'
    files, unless forced; TerraformError, AwsError, FolderError, EngineError, MissingExtra.
    """
    began = time.monotonic()
    if with_components:
        require_programs(context)
    with named.folder.locked("cluster up"):
        terraform = named.terraform(context, on_event, stop)
        plan, shown = plan_up(named, terraform, context, on_event, break_lock=break_lock, with_recovery=with_recovery)
        done: Result | None = None
        is_change = not plan.summary.is_empty or bool(plan.summary.output_changes)
        if not force:
            require_kept(plan.summary)
        with stop.interruptible("stopped before terraform apply started"):
            if is_change and not confirm(shown):
                return None
        # Another machine may have removed the cluster since these outputs were written.
        has_cluster = any(one.address == CLUSTER for one in terraform.state())
        if with_components and has_cluster and (before := named.outputs()) is not None:
            with stop.interruptible("stopped while uninstalling operators"):
                retire(named, before, context, on_event)
        if is_change:
            on_event(StageStarted(f"applying: {plan.summary.text}"))
            done = terraform.apply(plan)
        outputs = Outputs.of(terraform.outputs())
        (named.folder.path / EXPORTED).unlink(missing_ok=True)
        connect(named, outputs)
        with stop.interruptible("stopped while installing operators; Terraform has finished"):
            components = install(named, outputs, context, on_event, runs) if with_components else ()
    return ClusterMade(
        named.cluster.name,
        named.cluster.region,
        named.cluster.name,
        str(named.kubeconfig),
        outputs.bucket,
        done.added if done else 0,
        done.changed if done else 0,
        done.destroyed if done else 0,
        time.monotonic() - began,
        components,
    )


def require_programs(context: Context) -> None:
    """Raises MissingExtra if a program for the components is missing, before Terraform runs for 20 minutes."""
    for program, url in PROGRAMS.items():
        if shutil.which(program, path=context.environ.get("PATH", "")) is None:
            raise MissingExtra(
                f"{program} is not installed, but components need it",
                f"install it: {url}; or use --no-components, and install the components with a second `up`",
            )


def retire(named: ManagedCluster, outputs: Outputs, context: Context, on_event: OnEvent) -> None:
    """Uninstalls components that are no longer in the cluster file, while their roles and queues still exist.

    Raises EngineError if custom resources of a component still exist.
    """
    names = wanted_components(named)
    with component_manager(named, outputs, context) as manager:
        gone = [one.name for one in manager.status() if one.installed and one.name not in names]
        if gone:
            on_event(StageStarted(f"uninstalling {', '.join(gone)}"))
            manager.uninstall(gone, on_event)


def install(
    named: ManagedCluster, outputs: Outputs, context: Context, on_event: OnEvent, runs: RunSetup
) -> tuple[ComponentStatus, ...]:
    """Installs the components of the cluster file, and sets up the namespace for supervisors.

    Raises EngineError, MissingExtra.
    """
    on_event(StageStarted("installing operators"))
    create_namespace(named, outputs)
    with component_manager(named, outputs, context) as manager:
        names = wanted_components(named)
        manager.install(names, on_event)
        found = manager.status(names)
    with api_client(named, outputs) as client:
        remember(named, of_cluster(client))
    on_event(StageStarted("setting up supervisors"))
    runs.set_up()
    if named.cluster.access.users:
        grant_users(named, outputs, runs.rights())
    return found
