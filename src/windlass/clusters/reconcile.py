"""Brings the state of Terraform in line with AWS: takes up what a killed command left, refuses a wrong login."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from windlass.clusters.find import ManagedCluster, OnEvent, StageStarted
from windlass.clusters.recovery import needs_recovery
from windlass.clusters.storage.kept_bucket import usable_key
from windlass.clusters.terraform.folder import FolderError
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
    """Take up again what a killed command has left, so that nothing exists that Terraform does not know.

    Without such a command, only where the user asks: for the recovery itself (`is_asked`), as after the state was lost,
    or for the release of a lock, which a command on another machine may have left. A pending deletion of the key of the
    bucket is cancelled before: a second key would be made in place of one that is not to be found. Raises StateLocked,
    TerraformError, AwsError.
    """
    from windlass.clusters.recovery import recover as recover_state

    if not (is_asked or break_lock or needs_recovery(named.folder)):
        return
    on_event(StageStarted("looking in AWS for what exists and Terraform does not know"))
    with named.aws(context) as aws:
        if bucket is not None and bucket.is_managed and bucket.exists:
            usable_key(named.cluster.name, bucket.name, aws, on_event)
        report = recover_state(terraform, aws, break_lock=break_lock)
    for line in recovery_lines(report):
        on_event(StageStarted(f"  {line}"))


def recovery_lines(report: RecoveryReport) -> list[str]:
    """Lines that describe a recovery: changes to the state, and resources that the user should check."""
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


def require_known(named: ManagedCluster, addresses: Collection[str], aws: Aws) -> None:
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


def require_account(named: ManagedCluster, terraform: Terraform, context: Context) -> None:
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


def require_owner(name: str, accounts: Collection[str], aws: Aws) -> None:
    """Raise UsageError where the login is of another account than the cluster: nothing of it is found there."""
    if accounts and (own := aws.identity.account_id) not in accounts:
        raise UsageError(
            f"{name} is in account {', '.join(sorted(accounts))}, and the login is of account {own}",
            "use the login that made the cluster: AWS_PROFILE; see: aws sts get-caller-identity",
        )
