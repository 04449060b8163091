"""The working folder of a cluster: Terraform's configuration, variables and backend, kubeconfig, target and outputs."""

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
    "s3", "sqs", "sts",
)  # fmt: skip
"""Whose endpoints an emulator replaces."""


def endpoints(context: Context) -> dict[str, str]:
    """Endpoints of the emulator in `$AWS_ENDPOINT_URL`, by service; empty for AWS."""
    url = context.environ.get("AWS_ENDPOINT_URL")
    return dict.fromkeys(SERVICES, url) if url else {}


def backend_of(cluster: Cluster, context: Context) -> Backend:
    """Where Terraform keeps the state of a cluster."""
    if (state := cluster.state) is None:
        return LocalBackend()
    key = f"{state.prefix.strip('/')}/{cluster.name}.tfstate"
    return S3Backend(state.bucket, key, state.region or cluster.region, endpoint=endpoints(context).get("s3", ""))


def look_at_bucket(named: ManagedCluster, context: Context) -> Bucket:
    """The bucket of a cluster, and whether it is its own. Raises AwsError, FolderError."""
    from windlass.clusters.recovery import needs_recovery
    from windlass.clusters.storage import bucket

    is_unfinished = needs_recovery(named.folder)
    with named.aws(context) as aws:
        return bucket.look(aws, named.cluster, named.folder.variables(), is_unfinished=is_unfinished)


def bucket_or_remembered(named: ManagedCluster, context: Context) -> Bucket | None:
    """The same for a removal; None where AWS does not say, and the last command knew it. Raises AwsError."""
    from windlass.clusters.aws import AwsError

    try:
        return look_at_bucket(named, context)
    except AwsError:
        if "bucket_managed" in named.folder.variables():
            return None
        raise


def write_folder(
    named: ManagedCluster, context: Context, *, bucket: Bucket | None = None, delete_bucket: bool = False
) -> None:
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


def _refuse_other_name(named: ManagedCluster) -> None:
    """The state of a copied folder names the resources of the other cluster: they would be replaced, or destroyed."""
    before = named.folder.variables().get("name")
    if before not in (None, named.cluster.name):
        raise UsageError(
            f"{named.folder.path} is a copy of the folder of {before}, with its state",
            f"delete the copy; a new cluster needs only a cluster file with name: {named.cluster.name}",
        )


def _refuse_other_region(named: ManagedCluster) -> None:
    """Terraform would not find its resources in another region and drop them from the state, while AWS bills them."""
    before = named.folder.variables().get("region")
    if before in (None, named.cluster.region) or not _may_have_resources(named):
        return
    raise UsageError(
        f"{named.cluster.name} was made in {before}, and its file says {named.cluster.region}",
        f"write region: {before}; a cluster elsewhere gets another name, or this one is removed first",
    )


def _may_have_resources(named: ManagedCluster) -> bool:
    from windlass.clusters.recovery import needs_recovery

    is_local = named.cluster.state is None
    return not is_local or named.outputs() is not None or needs_recovery(named.folder) or local_resources(named) > 0


def local_resources(named: ManagedCluster) -> int:
    """Number of resources in the local state; 0 without a state. Raises FolderError."""
    found = (named.folder.local_state() or {}).get("resources", [])
    return sum(len(one.get("instances", ())) for one in found if one.get("mode") == "managed")


def connect(named: ManagedCluster, outputs: Outputs) -> None:
    """Write the outputs, the kubeconfig and the target of the cluster into its folder."""
    from windlass.spec.yamlwriter import block_lines

    cluster, folder = named.cluster, named.folder.path
    write_private(folder / OUTPUTS, json.dumps(asdict(outputs), indent=2).encode())
    write_private(named.kubeconfig, json.dumps(kubeconfig(outputs), indent=2).encode())
    entries = {cluster.name: target(outputs, cluster, str(named.kubeconfig))}
    if (beside := sagemaker_target(outputs)) is not None:
        entries[f"{cluster.name}-sagemaker"] = beside
    write_private(folder / TARGETS, "\n".join([*block_lines(entries), ""]).encode())


def take_outputs(named: ManagedCluster, terraform: Terraform) -> Outputs | None:
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
