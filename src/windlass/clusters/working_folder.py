"""Writes the working folder of a cluster: Terraform configuration, variables, backend, kubeconfig, target, outputs."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from windlass.clusters.eks.outputs import Outputs, kubeconfig, sagemaker_target, target
from windlass.clusters.eks.variables import variables
from windlass.clusters.find import FILE, OUTPUTS, TARGETS, ManagedCluster
from windlass.clusters.terraform.folder import Backend, LocalBackend, S3Backend, write_private
from windlass.errors import EngineError, UsageError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.storage.bucket import Bucket
    from windlass.clusters.terraform import Terraform
    from windlass.spec.cluster import Cluster

SERVICES: Final = (
    "budgets", "cloudcontrolapi", "cloudformation", "ec2", "ecr", "efs", "eks", "events", "fsx", "iam", "kms", "logs",
    "s3", "sqs", "ssm", "sts",
)  # fmt: skip
"""AWS services whose endpoints an emulator replaces."""


def endpoints(context: Context) -> dict[str, str]:
    """Returns the endpoints of the emulator in `$AWS_ENDPOINT_URL` by service; empty for AWS."""
    url = context.environ.get("AWS_ENDPOINT_URL")
    return dict.fromkeys(SERVICES, url) if url else {}


def backend_of(cluster: Cluster, context: Context) -> Backend:
    """Returns the backend in which Terraform stores the state of a cluster."""
    if (state := cluster.state) is None:
        return LocalBackend()
    key = f"{state.prefix.strip('/')}/{cluster.name}.tfstate"
    return S3Backend(state.bucket, key, state.region or cluster.region, endpoint=endpoints(context).get("s3", ""))


def look_up_bucket(named: ManagedCluster, context: Context) -> Bucket:
    """Looks up the bucket of a cluster, and whether the cluster owns it. Raises AwsError, FolderError."""
    from windlass.clusters.recovery import needs_recovery
    from windlass.clusters.storage import bucket

    is_unfinished = needs_recovery(named.folder)
    with named.aws(context) as aws:
        return bucket.find_bucket(aws, named.cluster, named.folder.variables(), is_unfinished=is_unfinished)


def bucket_or_recorded(named: ManagedCluster, context: Context) -> Bucket | None:
    """Looks up the bucket before a removal; None if AWS does not answer but the last command recorded it. Raises
    AwsError.
    """
    from windlass.clusters.aws import AwsError

    try:
        return look_up_bucket(named, context)
    except AwsError:
        if "bucket_managed" in named.folder.variables():
            return None
        raise


def write_folder(
    named: ManagedCluster,
    context: Context,
    *,
    bucket: Bucket | None = None,
    delete_bucket: bool = False,
    delete_images: bool = False,
) -> None:
    """Writes the working folder. Raises UsageError for a copied folder or a change of region."""
    _refuse_other_name(named)
    _refuse_other_region(named)
    made = variables(named.cluster, endpoints(context))
    before = named.folder.variables()
    if bucket is not None:
        made |= bucket.variables()
    elif before.get("bucket_name") == made["bucket_name"]:
        kept = ("bucket_managed",) if before.get("bucket_managed", True) else ("bucket_managed", "bucket_key_arn")
        made |= {name: before[name] for name in kept if name in before}
    outputs = named.outputs()
    if outputs is not None and outputs.kubernetes_version == named.cluster.kubernetes:
        made["addon_versions"] = {**(outputs.addon_versions or {}), **made["addon_versions"]}
    if not made["zones"] and not made["subnet_ids"] and outputs is not None:
        made["zones"] = list(outputs.zones)  # a new zone of the region must not move the subnets of the first `up`
    if delete_bucket:
        made["bucket_force_destroy"] = True  # the destroy deletes the bucket's objects too
    if delete_images:
        made["repositories_force_destroy"] = True
    named.folder.write(files("windlass.clusters") / "eks", made, backend_of(named.cluster, context))
    write_private(named.folder.path / FILE, named.text.encode())


def _refuse_other_name(named: ManagedCluster) -> None:
    """Raises UsageError for a copied folder: its state has the resources of the other cluster, which would be
    replaced.
    """
    before = named.folder.variables().get("name")
    if before not in (None, named.cluster.name):
        raise UsageError(
            f"{named.folder.path} is a copy of the folder of {before}, with its state",
            f"delete the copy; a new cluster needs only a cluster file with name: {named.cluster.name}",
        )


def _refuse_other_region(named: ManagedCluster) -> None:
    """Raises UsageError for a change of region: Terraform would find no resources and drop them while AWS bills
    them.
    """
    before = named.folder.variables().get("region")
    if before in (None, named.cluster.region) or not _may_have_resources(named):
        return
    raise other_region(named.cluster.name, before, named.cluster.region)


def other_region(name: str, before: str, region: str) -> UsageError:
    """Returns the error for a cluster file whose region is not that of the existing cluster."""
    return UsageError(
        f"{name} was made in {before}, and its file says {region}",
        f"write region: {before}; a cluster elsewhere gets another name, or this one is removed first",
    )


def _may_have_resources(named: ManagedCluster) -> bool:
    from windlass.clusters.recovery import needs_recovery

    is_local = named.cluster.state is None
    return not is_local or named.outputs() is not None or needs_recovery(named.folder) or local_resources(named) > 0


def local_resources(named: ManagedCluster) -> int:
    """Returns the number of resources in the local state; 0 without a state. Raises FolderError."""
    found = (named.folder.local_state() or {}).get("resources", [])
    return sum(len(one.get("instances", ())) for one in found if one.get("mode") == "managed")


def connect(named: ManagedCluster, outputs: Outputs) -> None:
    """Writes the outputs, the kubeconfig and the target of the cluster into its folder."""
    from windlass.spec.yamlwriter import block_lines

    cluster, folder = named.cluster, named.folder.path
    write_private(folder / OUTPUTS, json.dumps(asdict(outputs), indent=2).encode())
    write_private(named.kubeconfig, json.dumps(kubeconfig(outputs), indent=2).encode())
    entries = {cluster.name: target(outputs, cluster, str(named.kubeconfig))}
    if (beside := sagemaker_target(outputs)) is not None:
        entries[f"{cluster.name}-sagemaker"] = beside
    write_private(folder / TARGETS, "\n".join([*block_lines(entries), ""]).encode())


def take_outputs(named: ManagedCluster, terraform: Terraform) -> Outputs | None:
    """Returns the outputs in Terraform's state, and writes them into the folder like `connect` if they differ.

    Another machine may have created the cluster. None if no `up` has finished. Raises TerraformError, FolderError.
    """
    values = terraform.outputs()
    try:
        found = Outputs.of(values)
    except EngineError:  # no `up` has finished, so outputs are missing
        return None
    if found != named.outputs():
        connect(named, found)
    return found
