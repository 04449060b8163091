"""Reconciles the Terraform state with AWS: recovers from a killed command, refuses the wrong account."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from windlass.clusters.find import ManagedCluster, OnEvent, StageStarted, Warned
from windlass.clusters.recovery import needs_recovery
from windlass.clusters.storage.kept_bucket import usable_key
from windlass.clusters.terraform.folder import FolderError
from windlass.clusters.working_folder import other_region
from windlass.errors import UsageError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.recovery import RecoveryReport
    from windlass.clusters.storage.bucket import Bucket
    from windlass.clusters.terraform import Terraform

CLUSTER: Final = "aws_eks_cluster.main"


def recover(
    named: ManagedCluster,
    terraform: Terraform,
    context: Context,
    on_event: OnEvent,
    *,
    bucket: Bucket | None,
    break_lock: bool,
    is_asked: bool,
) -> None:
    """Recovers from a killed command, so that the Terraform state contains every resource that exists.

    Runs only after a killed command, or on the user's request: `is_asked`, for example after the state was lost, or
    `break_lock`, to release a lock that another machine left. First cancels a pending deletion of the bucket's key,
    because otherwise the plan would create a second key. Raises StateLocked, TerraformError, AwsError.
    """
    from windlass.clusters.recovery import recover as recover_state

    if not (is_asked or break_lock or needs_recovery(named.folder)):
        return
    on_event(StageStarted("searching AWS for resources that are missing in the Terraform state"))
    with named.aws(context) as aws:
        if bucket is not None and bucket.is_managed and bucket.exists and not bucket.key_arn:
            usable_key(named.cluster.name, bucket.name, aws, on_event)
        report = recover_state(terraform, aws, break_lock=break_lock)
    for line in recovery_lines(report):
        on_event(StageStarted(f"  {line}"))
    for line in recovery_warnings(report):
        on_event(Warned(line))


def recovery_lines(report: RecoveryReport) -> list[str]:
    """Describes what a recovery changed in the state."""
    lock = [f"released the lock of {report.lock.who}"] if report.lock is not None else []
    return [
        *lock,
        *(f"imported: {one.address} ({one.id})" for one in report.imported),
        *(f"complete, and no longer tainted: {address}" for address in report.untainted),
    ]


def recovery_warnings(report: RecoveryReport) -> list[str]:
    """Describes the resources that the user must check after a recovery."""
    return [
        *(
            f"duplicate: {one.type} {one.name}: {', '.join(one.extra)} is in no state and bills"
            for one in report.duplicates
        ),
        *(f"of this cluster but in no state: {one.type} {one.name} ({one.id})" for one in report.orphans),
        *(f"has the name of {one.address} but does not belong to this cluster: {one.id}" for one in report.foreign),
        *(f"not searched for: {address}" for address in report.unknown),
    ]


def require_known(named: ManagedCluster, addresses: Collection[str], aws: Aws) -> None:
    """Raises UsageError if the cluster exists in AWS but not in the state.

    Terraform would create a second network and key, and replace file systems that use the first key. Raises AwsError.
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
        f"a cluster {name} is in {named.cluster.region} already, but the Terraform state does not contain it",
        "--recover imports a cluster that Windlass created; a new cluster needs another name",
    )


def require_account(named: ManagedCluster, terraform: Terraform, context: Context) -> None:
    """Raises UsageError if the credentials belong to another account than the cluster, or the cluster file names
    another region.

    Otherwise Terraform would find no resources and drop them from the state, while AWS still bills them. The account is
    also read from the outputs of the last `up`, because the state is empty after a destroy that left resources. Raises
    TerraformError, AwsError, FolderError.
    """
    from windlass.clusters.eks.contents import accounts, regions

    outputs = named.outputs()
    owners = {outputs.account_id} if outputs is not None else set()
    name, region = named.cluster.name, named.cluster.region
    try:
        named.folder.local_state()
    except FolderError:  # recovery rebuilds a damaged state, in which no account can be read
        pass
    else:
        state = terraform.state()
        owners |= accounts(state)
        if (found := regions(state)) and region not in found:
            raise other_region(name, ", ".join(sorted(found)), region)
    if owners:
        with named.aws(context) as aws:
            require_owner(name, owners, aws)


def require_owner(name: str, accounts: Collection[str], aws: Aws) -> None:
    """Raises UsageError if the credentials belong to another account than the cluster."""
    if accounts and (own := aws.identity.account_id) not in accounts:
        raise UsageError(
            f"{name} is in account {', '.join(sorted(accounts))}, but the credentials are of account {own}",
            "use the credentials that created the cluster: AWS_PROFILE; see: aws sts get-caller-identity",
        )
