"""Makes a cluster, or changes it to what its file says: Terraform, the target, operators, supervisors."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from windlass.clusters.audit.command import require_owner
from windlass.clusters.eks.outputs import Outputs, kubeconfig, sagemaker_target, target
from windlass.clusters.find import OUTPUTS, TARGETS, Named, OnEvent, Stage
from windlass.clusters.guards import EXPORTED
from windlass.clusters.kubernetes import connected, create_namespace, grant_users, managed, states, wanted
from windlass.clusters.planning import cluster_notes, look_at_bucket, plan_view, require_kept, write_folder
from windlass.clusters.recovery import needs_recovery
from windlass.clusters.storage.bucket import ADDRESS
from windlass.clusters.storage.kept_bucket import adoption, usable_key
from windlass.clusters.storage.volumes import of_cluster, remember
from windlass.clusters.tags import OWNER
from windlass.clusters.terraform.folder import FolderError, write_private
from windlass.errors import EngineError, MissingPart, UsageError
from windlass.runs.context import Context
from windlass.views.platform import ClusterMade, ClusterPlan, ComponentState

PROGRAMS: Final = {
    "helm": "https://helm.sh/docs/intro/install/",
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
}
"""What `up` needs beside Terraform, by where it is had."""
UNFINISHED: Final = (
    "an earlier command did not end: `up` first takes up again what it left, and this plan may show that as missing"
)
CLUSTER: Final = "aws_eks_cluster.main"
if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.recovery import RecoveryReport
    from windlass.clusters.storage.bucket import Bucket
    from windlass.clusters.terraform import Plan, Result, StopRequests, Terraform


def plan_up(
    named: Named,
    terraform: Terraform,
    context: Context,
    on_event: OnEvent,
    *,
    break_lock: bool = False,
    with_recovery: bool = False,
    is_dry: bool = False,
) -> tuple[Plan, ClusterPlan]:
    """Plan what `up` does in AWS, after what an earlier command left is taken up again; the folder is locked.

    `is_dry`: nothing changes in AWS or in the state: nothing is recovered, and the state is not locked.
    Raises TerraformError, AwsError, FolderError, UsageError.
    """
    from windlass.clusters.storage.bucket import require_usable

    bucket = look_at_bucket(named, context)
    require_usable(bucket, named.cluster)
    write_folder(named, context, bucket=bucket)
    on_event(Stage("preparing Terraform"))
    terraform.init()
    require_account(named, terraform, context)
    must_recover = needs_recovery(named.folder)
    if not is_dry:
        recover(named, terraform, context, on_event, bucket=bucket, break_lock=break_lock, is_asked=with_recovery)
    if named.outputs() is None and take_outputs(named, terraform) is not None:
        write_folder(named, context, bucket=bucket)  # with the zones of the first `up`, on whichever machine that was
    state = {one.address: one.id for one in terraform.state()}
    bucket = in_state(named, context, bucket, state)
    notes = [UNFINISHED] if is_dry and must_recover else []
    with named.aws(context) as aws:
        if not notes:
            require_known(named, state, aws)
        kept, of_kept = adoption(named.cluster.name, bucket, state, aws, on_event, is_dry=is_dry)
        notes += [*of_kept, *foreign_notes(bucket), *cluster_notes(named, aws, datetime.now(UTC).date())]
    on_event(Stage("planning"))
    plan = terraform.plan(adopt=kept, is_locked=not is_dry)
    return plan, plan_view(named, plan, context, notes)


def in_state(named: Named, context: Context, bucket: Bucket, state: Mapping[str, str]) -> Bucket:
    """The bucket, as Terraform has to take it: what it has made is its own, also where the tag was removed since.

    Raises UsageError where the tag names another cluster.
    """
    if bucket.is_managed or state.get(ADDRESS) != bucket.name:
        return bucket
    if bucket.owner:
        raise UsageError(
            f"Terraform has made s3://{bucket.name} for {named.cluster.name}, and its tag gives it to {bucket.owner}",
            f"correct the tag {OWNER}; or terraform state rm {ADDRESS} in {named.folder.path}",
        )
    found = replace(bucket, is_managed=True, key_arn="")
    write_folder(named, context, bucket=found)
    return found


def foreign_notes(bucket: Bucket) -> list[str]:
    """What to know of a bucket of others."""
    from windlass.clusters.storage.bucket import whose

    if bucket.is_managed:
        return []
    why = f"s3://{bucket.name} exists, and is not of this cluster ({whose(bucket)})"
    return [f"{why}: nothing of it is changed; roles of this cluster get rights on its objects"]


def recover(
    named: Named,
    terraform: Terraform,
    context: Context,
    on_event: OnEvent,
    *,
    bucket: Bucket | None,
    break_lock: bool,
    is_asked: bool,
) -> None:
    """Take up again what a killed command has left, so that nothing exists that Terraform does not know.

    Without such a command, only where the user asks: for the recovery itself (`is_asked`), as after the state was lost,
    or for the release of a lock, which a command on another machine may have left. A pending deletion of the key of the
    bucket is cancelled before: a second key would be made in place of one that is not to be found. Raises StateLocked,
    TerraformError, AwsError.
    """
    from windlass.clusters.recovery import recover as recover_state

    if not (is_asked or break_lock or needs_recovery(named.folder)):
        return
    on_event(Stage("looking in AWS for what exists and Terraform does not know"))
    with named.aws(context) as aws:
        if bucket is not None and bucket.is_managed and bucket.exists:
            usable_key(named.cluster.name, bucket.name, aws, on_event)
        report = recover_state(terraform, aws, break_lock=break_lock)
    for line in recovery_lines(report):
        on_event(Stage(f"  {line}"))


def require_known(named: Named, addresses: Collection[str], aws: Aws) -> None:
    """Raise UsageError where the cluster exists and the state lacks it: a second network and key would be made beside
    it, and file systems replaced that have the first key. Raises AwsError.
    """
    from windlass.clusters.aws import NotThere, aws_errors

    name = named.cluster.name
    if CLUSTER in addresses:
        return
    try:
        with aws_errors(f"look for the cluster {name}", action="eks:DescribeCluster"):
            aws.client("eks").describe_cluster(name=name)
    except NotThere:
        return
    raise UsageError(
        f"a cluster {name} is in {named.cluster.region} already, and the state of Terraform does not have it",
        "--recover takes up a cluster that Windlass made; a new one needs another name",
    )


def require_account(named: Named, terraform: Terraform, context: Context) -> None:
    """Raise UsageError where the login is of another account than the cluster: Terraform would find nothing of it, and
    forget it, while AWS bills it. Raises TerraformError, AwsError.
    """
    from windlass.clusters.eks.contents import accounts

    try:
        named.folder.local_state()
    except FolderError:  # damaged: a recovery makes it again
        return
    if owners := accounts(terraform.state()):
        with named.aws(context) as aws:
            require_owner(named.cluster.name, owners, aws)


def recovery_lines(report: RecoveryReport) -> list[str]:
    """What a recovery has done, and what a person has to look at."""
    lock = [f"released the lock of {report.lock.who}"] if report.lock is not None else []
    return [
        *lock,
        *(f"found again: {one.address} ({one.id})" for one in report.imported),
        *(f"complete, and kept: {address}" for address in report.untainted),
        *(
            f"made twice: {one.type} {one.name}: {', '.join(one.extra)} is in no state, and bills"
            for one in report.duplicates
        ),
        *(f"of this cluster, and in no state: {one.type} {one.name} ({one.id})" for one in report.orphans),
        *(f"has the name of {one.address}, and is not of this cluster: {one.id}" for one in report.foreign),
        *(f"not looked for: {address}" for address in report.unknown),
    ]


def up(
    named: Named,
    context: Context,
    on_event: OnEvent,
    confirm: Callable[[ClusterPlan], bool],
    stop: StopRequests,
    *,
    break_lock: bool = False,
    with_recovery: bool = False,
    with_components: bool = True,
    force: bool = False,
) -> ClusterMade | None:
    """Make the cluster, or change it; None where `confirm` refuses the plan. May be repeated, also after a crash.

    Raises UsageError for a plan that loses files of users, unless forced; TerraformError, AwsError, FolderError,
    EngineError, MissingPart.
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
        if is_change and not confirm(shown):
            return None
        # Another machine may have removed the cluster since these outputs were written.
        has_cluster = any(one.address == CLUSTER for one in terraform.state())
        if with_components and has_cluster and (before := named.outputs()) is not None:
            retire(named, before, context, on_event)
        if is_change:
            on_event(Stage(f"applying: {plan.summary.text}"))
            done = terraform.apply(plan)
        outputs = Outputs.of(terraform.outputs())
        (named.folder.path / EXPORTED).unlink(missing_ok=True)
        connect(named, outputs)
        components = install(named, outputs, context, on_event) if with_components else ()
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
    """Raise MissingPart for a program that operators are installed by: before AWS has worked for 20 minutes."""
    for program, url in PROGRAMS.items():
        if shutil.which(program, path=context.environ.get("PATH", "")) is None:
            raise MissingPart(
                f"{program} is not installed, and operators are installed by it",
                f"install it: {url}; or --no-components, and install them by a second `up`",
            )


def retire(named: Named, outputs: Outputs, context: Context, on_event: OnEvent) -> None:
    """Uninstall the operators that the cluster file has no more, while the roles and queues that they use are there.

    Raises EngineError where something of theirs is in use.
    """
    names = wanted(named)
    with managed(named, outputs, context) as manager:
        gone = [one.component for one in manager.status() if one.installed and one.component not in names]
        if gone:
            on_event(Stage(f"uninstalling {', '.join(gone)}"))
            manager.uninstall(gone, on_event)


def connect(named: Named, outputs: Outputs) -> None:
    """Write the outputs, the kubeconfig and the target of the cluster into its folder."""
    from windlass.spec.yamlwriter import block_lines

    cluster, folder = named.cluster, named.folder.path
    write_private(folder / OUTPUTS, json.dumps(asdict(outputs), indent=2).encode())
    write_private(named.kubeconfig, json.dumps(kubeconfig(outputs), indent=2).encode())
    entries = {cluster.name: target(outputs, cluster, str(named.kubeconfig))}
    if (beside := sagemaker_target(outputs)) is not None:
        entries[f"{cluster.name}-sagemaker"] = beside
    write_private(folder / TARGETS, "\n".join([*block_lines(entries), ""]).encode())


def take_outputs(named: Named, terraform: Terraform) -> Outputs | None:
    """The outputs of Terraform's state, written into the folder as `connect` does where it lacks them: another machine
    may have made the cluster. None where no `up` has ended. Raises TerraformError, FolderError.
    """
    values = terraform.outputs()
    try:
        found = Outputs.of(values)
    except EngineError:  # not all of them are there
        return None
    if found != named.outputs():
        connect(named, found)
    return found


def install(named: Named, outputs: Outputs, context: Context, on_event: OnEvent) -> tuple[ComponentState, ...]:
    """Install the operators of the cluster file, and set the namespace up for supervisors.

    Raises EngineError, MissingPart.
    """
    from windlass.actions.targets import find_target
    from windlass.engines import engine_class

    on_event(Stage("installing operators"))
    create_namespace(named, outputs)
    with managed(named, outputs, context) as manager:
        names = wanted(named)
        manager.install(names, on_event)
        found = states(manager.status(names))
    with connected(named, outputs) as client:
        remember(named, of_cluster(client))
    on_event(Stage("setting up supervisors"))
    chosen = find_target(named.cluster.name, context)
    engine_class(chosen.kind).setup(chosen, context)
    grant_users(named, outputs, context)
    return found
