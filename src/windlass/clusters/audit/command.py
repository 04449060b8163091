"""Lists what AWS has of a cluster, with prices; also of clusters that Windlass did not make."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from windlass.clusters.storage.volumes import Volumes, remembered
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.views.platform import ClusterAudit, LeftObject, Unanswered

if TYPE_CHECKING:
    from windlass.clusters.audit import AuditReport, Found
    from windlass.clusters.aws import Aws
    from windlass.pricing.table import Table

EKS_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
"""Names that EKS takes; an audit by an empty name would take everything in the account for its own."""


def audit(
    name: str,
    aws: Aws,
    context: Context,
    *,
    is_ours: bool = True,
    vpc_id: str | None = None,
    bucket: str = "",
    volumes: Volumes | None = None,
    subnet_ids: Iterable[str] = (),
) -> ClusterAudit:
    """What AWS has of the cluster `name`, by a listing of each service. Raises AwsError where there is no login."""
    from windlass.clusters.audit import audit as list_all
    from windlass.pricing.refreshed import load

    known = volumes or Volumes()
    report = list_all(
        name,
        aws,
        vpc_id=vpc_id,
        is_ours=is_ours,
        bucket=bucket,
        volume_names=known.names,
        volume_ids=known.ids,
        subnet_ids=tuple(subnet_ids),
    )
    return view(report, load(context.home))


def audit_named(name: str, region: str, context: Context, *, is_ours: bool) -> ClusterAudit:
    """The same, in an account that the usual variables and files of AWS name.

    Raises UsageError for a name that no cluster can have, JobFileError, FolderError, AwsError, MissingPart.
    """
    if not EKS_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a cluster", "a letter or digit, then letters, digits, '-' and '_'")
    from windlass.clusters.aws import Aws
    from windlass.clusters.find import all_of, of_folder

    named = next((of_folder(one, context) for one in all_of(context) if one.name == name), None)
    outputs = named.outputs() if named is not None else None
    bucket = (named.cluster.storage.bucket or "") if named is not None else ""
    chosen = region or (named.cluster.region if named is not None else "")
    with Aws(chosen, environ=context.environ) as aws:
        if outputs is not None and is_ours:
            require_owner(name, {outputs.run_role_arn.split(":")[4]}, aws)
        vpc_id, subnets = (outputs.vpc_id, outputs.private_subnet_ids) if outputs is not None else (None, ())
        volumes = remembered(named) if named is not None else None
        return audit(
            name, aws, context, is_ours=is_ours, vpc_id=vpc_id, bucket=bucket, volumes=volumes, subnet_ids=subnets
        )


def require_owner(name: str, accounts: Collection[str], aws: Aws) -> None:
    """Raise UsageError where the login is of another account than the cluster: nothing of it is found there."""
    if accounts and (own := aws.identity.account_id) not in accounts:
        raise UsageError(
            f"{name} is in account {', '.join(sorted(accounts))}, and the login is of account {own}",
            "use the login that made the cluster: AWS_PROFILE; see: aws sts get-caller-identity",
        )


def view(report: AuditReport, table: Table) -> ClusterAudit:
    """A report with prices."""
    rows = {
        kind: [_object(one, report.region, table) for one in getattr(report, kind)]
        for kind in ("leaks", "kept", "possible")
    }
    priced = (one.usd_per_month for kind in ("leaks", "kept") for one in rows[kind])
    return ClusterAudit(
        report.cluster,
        report.region,
        report.is_clean,
        tuple(rows["leaks"]),
        tuple(rows["kept"]),
        tuple(rows["possible"]),
        tuple(Unanswered(one.asked, one.kind, one.reason, one.hint) for one in report.unknown),
        round(sum(amount or 0.0 for amount in priced), 2),
        report.num_calls,
        report.at.timestamp(),
    )


def _object(found: Found, region: str, table: Table) -> LeftObject:
    from windlass.clusters.audit.prices import bill

    usd = bill(found, region, table) if found.bills else None
    return LeftObject(
        found.service,
        found.kind,
        found.id,
        found.name,
        found.region,
        found.reason,
        found.bills,
        None if usd is None else round(usd, 2),
        found.detail,
        found.remedy,
        found.kept_on_purpose,
    )
