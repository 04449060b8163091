"""Writes cluster files and what other tools take of them; lists clusters and shows one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.find import FILE, Named, OnEvent, all_of, of_folder
from windlass.clusters.kubernetes import connected, managed, states, wanted
from windlass.clusters.planning import bucket_or_remembered, changes, local_resources, write_folder
from windlass.clusters.storage.volumes import of_cluster, remember
from windlass.clusters.terraform.folder import ClusterFolder, FolderError
from windlass.clusters.up import require_account, take_outputs
from windlass.errors import JobFileError, UsageError, WindlassError
from windlass.pricing.kubernetes import support_note
from windlass.runs.context import Context
from windlass.views.platform import AddedRule, ClusterStatus, ClusterSummary, ExportedCluster

if TYPE_CHECKING:
    from windlass.clusters.terraform.state import StateResource

HEADER: Final = "# An EKS cluster for training. All fields: docs/reference/cluster-file.md\n"
EKSCTL_FILE: Final = "eksctl.yaml"


@dataclass(frozen=True, slots=True)
class Answers:
    """What `cluster init` asks for."""

    name: str
    region: str
    gpus: tuple[tuple[str, int], ...]
    """Instance types, each with the most nodes of it."""
    spot: bool
    efs: bool
    public_access: tuple[str, ...] = ()
    """Ranges of addresses that reach the API server over the Internet."""


def check(name: str = "training", region: str = "us-east-1", gpus: tuple[tuple[str, int], ...] = ()) -> None:
    """Raises UsageError for a name, a region or GPU pools that cannot be those of a cluster."""
    try:
        draft(Answers(name, region, gpus, spot=False, efs=False))
    except JobFileError as error:
        problem = error.problems[0]
        raise UsageError(f"{problem.field}: {problem.message}", problem.hint) from error


def draft(answers: Answers) -> str:
    """The text of a cluster file. Raises JobFileError for an answer that cannot be."""
    from windlass.spec.parse import parse_cluster
    from windlass.spec.yamlwriter import block_lines

    capacity = {"capacity": "spot"} if answers.spot else {}
    pools = [
        {"name": pool_name(instance), "instances": [instance], **capacity, "max": most}
        for instance, most in answers.gpus
    ]
    mapping: dict[str, Any] = {"name": answers.name, "region": answers.region}
    if answers.public_access:
        mapping["network"] = {"public_access": list(answers.public_access)}
    if pools:
        mapping["gpus"] = pools
    if answers.efs:
        mapping["storage"] = {"efs": True}
    text = HEADER + "\n".join([*block_lines(mapping), ""])
    parse_cluster(text, FILE)  # what we write, we can read
    return text


def pool_name(instance_type: str) -> str:
    """The name of a pool of an instance type: `g5-12xlarge`."""
    return instance_type.replace(".", "-")[:20].rstrip("-")


def draft_path(context: Context, *, force: bool) -> Path:
    """Where `init` writes the cluster file. Raises UsageError where one is there already, unless forced."""
    path = context.cwd / FILE
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force overwrites it")
    return path


def export_eksctl(named: Named, context: Context, *, force: bool) -> ExportedCluster:
    """Write an equivalent ClusterConfig of eksctl. Raises UsageError where the file is there already, unless forced."""
    from windlass.clusters.export import cluster_config
    from windlass.spec.yamlwriter import block_lines

    config, left_out = cluster_config(named.cluster)
    path = context.cwd / EKSCTL_FILE
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force overwrites it")
    path.write_text("\n".join([*block_lines(config), ""]), encoding="utf-8")
    return ExportedCluster((path.name,), tuple(left_out))


def export_terraform(named: Named, context: Context) -> ExportedCluster:
    """Write the Terraform configuration of a cluster into its working folder, to be read or run by hand."""
    with named.folder.locked("cluster export"):
        write_folder(named, context)
    return ExportedCluster(tuple(str(named.folder.path / name) for name in named.folder.written()), ())


def summaries(context: Context) -> Sequence[ClusterSummary]:
    """The clusters of this user, by their folders; asks neither AWS nor the clusters."""
    return [_listed(one, context) for one in all_of(context)]


def _listed(folder: ClusterFolder, context: Context) -> ClusterSummary:
    """One row of the list: a damaged folder does not end the list."""
    try:
        return summary(of_folder(folder, context))
    except WindlassError:
        return ClusterSummary(folder.name, "", "", "damaged", 0, str(folder.path))


def summary(named: Named, in_bucket: int | None = None) -> ClusterSummary:
    """One cluster, by its folder; `in_bucket` is the number of resources of a state in a bucket, None where it was not
    asked for. Raises FolderError.
    """
    from windlass.clusters.recovery import needs_recovery

    is_remote = named.cluster.state is not None
    resources = in_bucket or 0 if is_remote else _resources(named)
    may_exist = resources > 0 or (is_remote and in_bucket is None)
    has_outputs = named.outputs() is not None
    if needs_recovery(named.folder) or (has_outputs and not may_exist):  # the second: its state was lost
        word = "incomplete"
    elif has_outputs:
        word = "up"
    elif is_remote and in_bucket is None:  # another machine may have made it: nothing is known of it here
        word = "unknown"
    else:
        word = "incomplete" if may_exist else "configured"
    cluster = named.cluster
    return ClusterSummary(cluster.name, cluster.region, cluster.kubernetes, word, resources, str(named.folder.path))


def _resources(named: Named) -> int:
    """How many resources the state in the folder names; 0 where Terraform is writing it. Raises FolderError."""
    from windlass.clusters.terraform.process import record_of

    running = record_of(named.folder.path)
    is_written = running is not None and running.is_alive
    try:
        return local_resources(named)
    except FolderError:
        if is_written:
            return 0
        raise


def status(named: Named, context: Context, on_event: OnEvent, *, with_drift: bool = True) -> ClusterStatus:
    """One cluster: what differs in AWS, and how its operators are. Raises TerraformError."""
    drift: tuple[Any, ...] = ()
    in_bucket: int | None = None
    added: tuple[AddedRule, ...] = ()
    not_looked: tuple[str, ...] = ()
    note = support_note(named.cluster.kubernetes, datetime.now(UTC).date())
    if with_drift and (named.folder.exists or named.cluster.state is not None):
        with named.folder.locked("cluster status"):
            if not named.folder.exists:  # another machine may have made the cluster
                write_folder(named, context, bucket=bucket_or_remembered(named, context))
            terraform = named.terraform(context, on_event)
            terraform.init()
            require_account(named, terraform, context)
            drift = changes(terraform.drift())
            take_outputs(named, terraform)
            state = terraform.state()
            if named.cluster.state is not None:
                in_bucket = sum(one.mode == "managed" for one in state)
            added, not_looked = _added(named, context, state)
    found = summary(named, in_bucket)
    outputs = named.outputs()
    if outputs is None:
        return ClusterStatus(found, drift, (), "", "", added, not_looked)
    try:
        with managed(named, outputs, context) as manager:
            components, unreachable = states(manager.status(wanted(named))), ""
        with connected(named, outputs) as client:
            remember(named, of_cluster(client))
    except WindlassError as error:
        components, unreachable = (), error.message
    notes = (note,) if note else ()
    return ClusterStatus(found, drift, components, unreachable, named.cluster.name, added, not_looked, notes)


def _added(
    named: Named, context: Context, state: Sequence[StateResource]
) -> tuple[tuple[AddedRule, ...], tuple[str, ...]]:
    """Rules that others have added to the groups of the cluster, and what AWS did not answer."""
    from windlass.clusters.security_groups import added_rules

    try:
        with named.aws(context) as aws:
            found = added_rules(aws, state)
    except WindlassError as error:
        return (), (f"rules of security groups: {error.message}",)
    return tuple(AddedRule(one.group, one.text, one.remedy) for one in found), ()
