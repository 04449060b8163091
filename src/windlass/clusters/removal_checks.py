"""Refuses `cluster down` while runs are active, files are in no bucket, or the cluster could not be checked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.eks.contents import Contents
from windlass.clusters.eks.outputs import kubeconfig
from windlass.clusters.find import ManagedCluster
from windlass.clusters.kubernetes import api_client
from windlass.clusters.tags import flat
from windlass.clusters.terraform.folder import write_private
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.holdings import Holding

EMPTY_BYTES: Final = 1_000_000
"""Maximum size in bytes of an EFS without user files: AWS counts the folders of access points."""


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """Runs and cloud resources of a cluster before its removal."""

    contents: Contents
    active: tuple[str, ...] = ()
    """Active runs, one sentence each."""
    holdings: tuple[Holding, ...] = ()
    """Kubernetes objects that own AWS resources."""
    unchecked: str = ""
    """Why the API server could not be queried; empty if it was queried, or if no cluster exists."""


def find_usage(named: ManagedCluster, found: Contents, context: Context) -> ClusterUsage:
    """Returns runs and cloud resources of the cluster in the Terraform state. Reads only."""
    recorded = recorded_runs(named, context)
    if not found.has_cluster:
        return ClusterUsage(found, recorded)
    if found.api is None:
        return ClusterUsage(found, recorded, unchecked="the state of Terraform has no address of its API server")
    from windlass.clusters import drain

    # This machine may have no kubeconfig: another machine may have created the cluster.
    write_private(named.kubeconfig, json.dumps(kubeconfig(found.api), indent=2).encode())
    try:
        with api_client(named, found.api) as client:
            return ClusterUsage(found, tuple(dict.fromkeys([*recorded, *drain.active(client)])), drain.holdings(client))
    except WindlassError as error:
        return ClusterUsage(found, recorded, unchecked=f"its API server does not answer: {error.message}")


def recorded_runs(named: ManagedCluster, context: Context) -> tuple[str, ...]:
    """Returns this user's active runs on the cluster."""
    names = {named.cluster.name, f"{named.cluster.name}-sagemaker"}
    with context.store() as store:
        found = [status for status in store.statuses(unfinished=True) if status.target in names]
    return tuple(f"{status.id} is {status.phase}" for status in found)


def sagemaker_use(name: str, found: Contents, aws: Aws) -> tuple[str, ...]:
    """Returns active SageMaker jobs and endpoints that use the role of the cluster `name`, including those of other
    users. Raises AwsError.
    """
    if not found.sagemaker_role:
        return ()
    return (*_jobs(found, aws), *_endpoints(name, found, aws))


def _endpoints(cluster: str, found: Contents, aws: Aws) -> tuple[str, ...]:
    """Returns the endpoints that use the cluster's role, and those whose role is unknown because their configuration or
    a model was deleted: they run and bill without it. Raises AwsError.
    """
    from windlass.clusters.audit.scope import KEEP, clusters_of, kept
    from windlass.clusters.aws import NotThere, aws_errors

    client, used = aws.client("sagemaker"), []
    with aws_errors("list endpoints", action="sagemaker:ListEndpoints"):
        pages = client.get_paginator("list_endpoints").paginate()
        endpoints = [(str(one["EndpointName"]), str(one["EndpointArn"])) for page in pages for one in page["Endpoints"]]
    for name, arn in endpoints:
        try:
            with aws_errors(f"describe the endpoint {name}", action="sagemaker:DescribeEndpoint"):
                config = client.describe_endpoint(EndpointName=name)["EndpointConfigName"]
            with aws_errors(f"read the tags of the endpoint {name}", action="sagemaker:ListTags"):
                tags = flat(client.list_tags(ResourceArn=arn).get("Tags"))
        except NotThere:  # deleted since it was listed
            continue
        roles = set(_endpoint_roles(client, config))
        if found.sagemaker_role in roles:
            used.append(f"the endpoint {name} is up")
        elif roles == {""} and not kept(tags) and clusters_of(tags) <= {cluster}:
            used.append(
                f"the endpoint {name} is up, and its role is unknown, because its configuration or model is deleted; "
                f"if it does not belong to {cluster}, tag it {KEEP}=true"
            )
    return tuple(used)


def _endpoint_roles(client: Any, config: str) -> Iterator[str]:
    """Yields the roles of an endpoint configuration and its models; empty for a deleted one. Raises AwsError."""
    from windlass.clusters.aws import NotThere, aws_errors

    try:
        with aws_errors(f"describe the configuration {config}", action="sagemaker:DescribeEndpointConfig"):
            about = client.describe_endpoint_config(EndpointConfigName=config)
    except NotThere:
        yield ""
        return
    if about.get("ExecutionRoleArn"):  # of an endpoint for inference components, whose variants have no model
        yield str(about["ExecutionRoleArn"])
    for one in about["ProductionVariants"]:
        if one.get("ModelName"):
            yield _model_role(client, one)


def _jobs(found: Contents, aws: Aws) -> Iterator[str]:
    """Yields the training, processing and transform jobs that use the cluster's role. Raises AwsError."""
    from windlass.clusters.aws import aws_errors

    client = aws.client("sagemaker")
    for kind, state in itertools.product(("Training", "Processing", "Transform"), ("InProgress", "Stopping")):
        what = kind.lower()
        with aws_errors(f"list {what} jobs", action=f"sagemaker:List{kind}Jobs"):
            pages = client.get_paginator(f"list_{what}_jobs").paginate(StatusEquals=state)
            names = [str(one[f"{kind}JobName"]) for page in pages for one in page[f"{kind}JobSummaries"]]
        for name in names:
            with aws_errors(f"describe the {what} job {name}", action=f"sagemaker:Describe{kind}Job"):
                about = getattr(client, f"describe_{what}_job")(**{f"{kind}JobName": name})
            role = about["RoleArn"] if "RoleArn" in about else _model_role(client, about)
            if role == found.sagemaker_role:
                yield f"the {what} job {name} is {state}"


def _model_role(client: Any, about: dict[str, Any]) -> str:
    """Returns the role of the model of a variant or a transform job; empty if it is deleted. Raises AwsError."""
    from windlass.clusters.aws import NotThere, aws_errors

    model = str(about["ModelName"])
    try:
        with aws_errors(f"describe the model {model}", action="sagemaker:DescribeModel"):
            return str(client.describe_model(ModelName=model).get("ExecutionRoleArn") or "")
    except NotThere:
        return ""


def require_idle(named: ManagedCluster, active: tuple[str, ...], unchecked: str = "") -> None:
    """Raises UsageError if runs are active, or if the cluster could not be queried."""
    if active:
        listed = "; ".join(active[:5]) + (f"; and {len(active) - 5} more" if len(active) > 5 else "")
        raise UsageError(
            f"{len(active)} runs or services use {named.cluster.name}: {listed}",
            "windlass stop RUN, windlass close SERVICE; other work where it was started; or --force, which kills what "
            "runs in the cluster: SageMaker's jobs and endpoints continue, and the audit lists them",
        )
    if unchecked:
        raise UsageError(
            f"{named.cluster.name} could not be checked ({unchecked}): whether runs use it, and which load balancers "
            "and volumes its controllers have created, is unknown",
            "run this where the API server is reached; or --force, and afterwards "
            f"windlass cluster audit {named.cluster.name}, which lists what is left",
        )


def require_exported(found: Contents, aws: Aws) -> None:
    """Raises UsageError if a file system that would be deleted has files that are in no bucket. Raises AwsError."""
    from windlass.clusters.aws import NotThere, aws_errors

    for efs in found.efs_ids:
        try:
            with aws_errors(f"describe {efs}", action="elasticfilesystem:DescribeFileSystems"):
                [system] = aws.client("efs").describe_file_systems(FileSystemId=efs)["FileSystems"]
        except NotThere:  # an earlier `down` has deleted the file system
            continue
        if (size := int(system["SizeInBytes"]["Value"])) > EMPTY_BYTES:
            raise UsageError(
                f"the file system {efs} has {size / 1e6:,.1f} MB of files, which would be deleted",
                "copy the files to keep: windlass cp claim:efs/PATH . --on TARGET; --force deletes all of them",
            )
