"""Prepares Terraform for a cluster: variables, backend, working folder; and shows what a plan does and costs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from windlass.clusters.duration import minutes
from windlass.clusters.eks.variables import DISK_MIB_PER_SECOND, variables
from windlass.clusters.find import FILE, Named
from windlass.clusters.terraform.changes import Action
from windlass.clusters.terraform.folder import Backend, LocalBackend, S3Backend, write_private
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.views.platform import ClusterPlan, ClusterPrice, PoolPrice, PriceRow, ResourceChange

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.storage.bucket import Bucket
    from windlass.clusters.terraform import Change, Plan, PlanSummary
    from windlass.spec.cluster import Cluster

SERVICES: Final = (
    "budgets", "cloudcontrolapi", "cloudformation", "ec2", "ecr", "efs", "eks", "events", "fsx", "iam", "kms", "logs",
    "s3", "sqs", "sts",
)  # fmt: skip
"""Whose endpoints an emulator replaces."""
LOSSES: Final = frozenset(
    {
        "aws_efs_file_system",
        "aws_fsx_lustre_file_system",
        "aws_s3_bucket",
        "aws_ecr_repository",
        "aws_eks_cluster",
        "aws_kms_key",
    }
)
"""Types of resources whose end is the end of what users keep in them."""


def endpoints(context: Context) -> dict[str, str]:
    """Of an emulator that `$AWS_ENDPOINT_URL` names, by service; none for AWS."""
    url = context.environ.get("AWS_ENDPOINT_URL")
    return dict.fromkeys(SERVICES, url) if url else {}


def backend_of(cluster: Cluster, context: Context) -> Backend:
    """Where Terraform keeps the state of a cluster."""
    if (state := cluster.state) is None:
        return LocalBackend()
    key = f"{state.prefix.strip('/')}/{cluster.name}.tfstate"
    return S3Backend(state.bucket, key, state.region or cluster.region, endpoint=endpoints(context).get("s3", ""))


def look_at_bucket(named: Named, context: Context) -> Bucket:
    """The bucket of a cluster, and whether it is its own. Raises AwsError, FolderError."""
    from windlass.clusters.recovery import needs_recovery
    from windlass.clusters.storage import bucket

    is_unfinished = needs_recovery(named.folder)
    with named.aws(context) as aws:
        return bucket.look(aws, named.cluster, named.folder.variables(), is_unfinished=is_unfinished)


def bucket_or_remembered(named: Named, context: Context) -> Bucket | None:
    """The same for a removal; None where AWS does not say, and the last command knew it. Raises AwsError."""
    from windlass.clusters.aws import AwsError

    try:
        return look_at_bucket(named, context)
    except AwsError:
        if "bucket_managed" in named.folder.variables():
            return None
        raise


def write_folder(named: Named, context: Context, *, bucket: Bucket | None = None, delete_bucket: bool = False) -> None:
    """Write configuration, variables and backend into the working folder, and the cluster file itself. `bucket` as it
    was looked at; None where AWS was not asked, so that it counts as in the command before.

    Raises UsageError for a change of region and for a folder that was copied, FolderError, OSError.
    """
    _refuse_other_name(named)
    _refuse_other_region(named)
    made = variables(named.cluster, endpoints(context))
    before = named.folder.variables()
    if bucket is not None:
        made |= bucket.variables()
    elif before.get("bucket_name") == made["bucket_name"]:
        made |= {name: before[name] for name in ("bucket_managed", "bucket_key_arn") if name in before}
    if not made["zones"] and (outputs := named.outputs()) is not None:
        made["zones"] = list(outputs.zones)  # those of the first `up`: a zone that a region gains moves no subnet
    if delete_bucket:  # by a destroy, with all that is in it
        made["bucket_force_destroy"] = True
    named.folder.write(files("windlass.clusters") / "eks", made, backend_of(named.cluster, context))
    write_private(named.folder.path / FILE, named.text.encode())


def _refuse_other_name(named: Named) -> None:
    """The state of a copied folder names the resources of the other cluster: they would be replaced, or destroyed."""
    before = named.folder.variables().get("name")
    if before not in (None, named.cluster.name):
        raise UsageError(
            f"{named.folder.path} is a copy of the folder of {before}, with its state",
            f"delete the copy; a new cluster needs only a cluster file with name: {named.cluster.name}",
        )


def _refuse_other_region(named: Named) -> None:
    """In another region Terraform finds nothing of what it has made, and forgets it, while AWS bills it."""
    before = named.folder.variables().get("region")
    if before in (None, named.cluster.region) or not _may_have_resources(named):
        return
    raise UsageError(
        f"{named.cluster.name} was made in {before}, and its file says {named.cluster.region}",
        f"write region: {before}; a cluster elsewhere gets another name, or this one is removed first",
    )


def _may_have_resources(named: Named) -> bool:
    from windlass.clusters.recovery import needs_recovery

    is_local = named.cluster.state is None
    return not is_local or named.outputs() is not None or needs_recovery(named.folder) or local_resources(named) > 0


def local_resources(named: Named) -> int:
    """How many resources a state in the working folder names; 0 where there is none. Raises FolderError."""
    found = (named.folder.local_state() or {}).get("resources", [])
    return sum(len(one.get("instances", ())) for one in found if one.get("mode") == "managed")


def plan_view(named: Named, plan: Plan, context: Context, notes: Iterable[str] = ()) -> ClusterPlan:
    """What a plan would do in AWS, how long it takes, and what the cluster costs."""
    return ClusterPlan(
        named.cluster.name,
        named.cluster.region,
        changes(plan.summary.changes),
        changes(plan.summary.drift_to_undo),
        plan.summary.text,
        minutes((change.type for change in plan.summary.changes), is_destroy=plan.is_destroy),
        price(named.cluster, context),
        str(named.folder.path),
        not named.cluster.network.public_access,
        tuple(notes),
    )


def cluster_notes(named: Named, aws: Aws, today: date) -> list[str]:
    """What to know of a cluster file before it is applied: support of Kubernetes, and zones without an instance type,
    which no node would start in. What AWS does not say is a note too.
    """
    from windlass.clusters.preflight.offerings import offering_findings, zones_of
    from windlass.errors import WindlassError
    from windlass.pricing.kubernetes import support_note

    notes = [support_note(named.cluster.kubernetes, today)]
    outputs = named.outputs()
    try:
        zones = outputs.zones if outputs is not None and not named.cluster.zones else zones_of(aws, named.cluster)
        found = [one for one in offering_findings(aws, named.cluster, zones) if one.level != "ok"]
        notes += [f"{one.name}: {one.found}{f' ({one.fix})' if one.fix else ''}" for one in found]
    except WindlassError as error:
        notes.append(f"which zones offer the instance types is unknown: {error.message}")
    return [one for one in notes if one]


def require_kept(summary: PlanSummary) -> None:
    """Raise UsageError for a plan that deletes or replaces what holds files of users, or the cluster itself."""
    lost = [one for one in summary.changes if one.type in LOSSES and one.action in (Action.DELETE, Action.REPLACE)]
    if lost:
        words = ", ".join(f"{one.action.value} {one.address}" for one in lost)
        raise UsageError(
            f"the plan would {words}, with all that is in it",
            "look at what has changed: windlass cluster plan; --force does it all the same",
        )


def changes(found: Iterable[Change]) -> tuple[ResourceChange, ...]:
    """Changes of Terraform as views."""
    return tuple(ResourceChange(one.address, one.action.value, one.reason) for one in found)


def price(cluster: Cluster, context: Context) -> ClusterPrice:
    """What a cluster costs by list prices: those that come with Windlass, or that `prices update` has fetched."""
    from windlass.pricing.cluster import estimate
    from windlass.pricing.items import items_of
    from windlass.pricing.refreshed import load

    items = items_of(cluster, disk_mib_per_second=DISK_MIB_PER_SECOND)
    found = estimate(items, cluster.region, load(context.home))
    return ClusterPrice(
        round(found.base_month_usd, 2),
        tuple(PriceRow(row.what, _cents(row.per_month_usd), row.is_by_use, row.unknown) for row in found.rows),
        tuple(PoolPrice(pool.name, _cents(pool.per_hour_usd)) for pool in found.pools),
        found.unknown,
        found.dates or (),
    )


def _cents(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 2)
