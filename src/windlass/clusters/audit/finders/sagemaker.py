"""Finders for SageMaker: endpoints, notebooks, jobs and warm pools, domains and their apps, HyperPod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, hourly, row, stored
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope, better
from windlass.clusters.aws import NotThere


def _tags(calls: FinderCalls, arn: str) -> dict[str, str]:
    return calls.tags("sagemaker", "list_tags", "Tags", ResourceArn=arn)


def _endpoints(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name, tags = one["EndpointName"], _tags(calls, one["EndpointArn"])
        about, config = _configured(calls, name)
        if owner := better(scope.owner(tags, name=name), *_users(calls, scope, tags, config)):
            prices = list(_endpoint_prices(about, config))
            types = ", ".join(f"{key.quantity:g} x {key.dimension or '?'}" for key in prices) or "serverless"
            yield row(
                ENDPOINT,
                scope,
                owner,
                name,
                tags=tags,
                prices=prices,
                detail=f"{one.get('EndpointStatus', '')}, {types}",
                remedy=command(scope, "sagemaker delete-endpoint --endpoint-name", name),
            )

    return calls.each(calls.items("sagemaker", "list_endpoints", "Endpoints"), inspect)


def _configured(calls: FinderCalls, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns an endpoint and its configuration, which is empty if it was deleted while the endpoint keeps running."""
    about = calls.get("sagemaker", "describe_endpoint", EndpointName=name)
    try:
        return about, calls.get(
            "sagemaker", "describe_endpoint_config", EndpointConfigName=about.get("EndpointConfigName", name)
        )
    except NotThere:
        return about, {}


def _users(calls: FinderCalls, scope: Scope, tags: dict[str, str], config: dict[str, Any]) -> Iterator[Owner | None]:
    """Yields why an endpoint or a transform job belongs to the cluster, from the roles and subnets of its configuration
    and models.

    One whose configuration or models are deleted runs and bills, with a role that SageMaker no longer reports.
    """
    yield _user(scope, tags, config.get("ExecutionRoleArn", ""), config.get("VpcConfig"))
    is_known = bool(config.get("ExecutionRoleArn"))
    for name in {one["ModelName"] for one in config.get("ProductionVariants") or () if one.get("ModelName")}:
        try:
            model = calls.get("sagemaker", "describe_model", ModelName=name)
        except NotThere:
            continue
        is_known = True
        yield _user(scope, tags, model.get("ExecutionRoleArn", ""), model.get("VpcConfig"))
    if scope.is_ours and not is_known and not scope.is_of_another(tags):
        yield Owner("its configuration or model is deleted, so its role is unknown", is_certain=False)


def _user(scope: Scope, tags: dict[str, str], role: str, network: dict[str, Any] | None) -> Owner | None:
    return scope.user(tags, role=role, subnets=(network or {}).get("Subnets") or ())


def _endpoint_prices(about: dict[str, Any], config: dict[str, Any]) -> Iterator[PriceKey]:
    if not config:  # only the configuration has the instance types
        for one in about.get("ProductionVariants") or [{}]:
            if not one.get("CurrentServerlessConfig"):
                yield hourly("sagemaker-hosting", "", one.get("CurrentInstanceCount", 1))
    now = {one["VariantName"]: one.get("CurrentInstanceCount") for one in about.get("ProductionVariants") or ()}
    for one in config.get("ProductionVariants") or ():
        if one.get("InstanceType"):
            count = now.get(one["VariantName"])
            yield hourly(
                "sagemaker-hosting", one["InstanceType"], one["InitialInstanceCount"] if count is None else count
            )


def _notebooks(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name, state = one["NotebookInstanceName"], one.get("NotebookInstanceStatus", "")
        tags = _tags(calls, one["NotebookInstanceArn"])
        about = calls.get("sagemaker", "describe_notebook_instance", NotebookInstanceName=name)
        used = scope.user(tags, role=about.get("RoleArn", ""), subnets=[about.get("SubnetId", "")])
        if owner := better(scope.owner(tags, name=name), used):
            runs = [hourly("sagemaker-notebook", one["InstanceType"])] if state in ("InService", "Pending") else []
            yield row(
                NOTEBOOK,
                scope,
                owner,
                name,
                tags=tags,
                prices=[*runs, stored("sagemaker-volume", "ml.gp2", None)],
                detail=f"{state}, {one.get('InstanceType', '')}",
                remedy=command(scope, "sagemaker delete-notebook-instance --notebook-instance-name", name),
            )

    return calls.each(calls.items("sagemaker", "list_notebook_instances", "NotebookInstances"), inspect)


def _training(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    jobs = _under_way(calls, "list_training_jobs", "TrainingJobSummaries")
    return _jobs(calls, scope, TRAINING, "sagemaker stop-training-job --training-job-name", jobs)


def _pools(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    words = "sagemaker update-training-job --resource-config KeepAlivePeriodInSeconds=0 --training-job-name"
    jobs = calls.items("sagemaker", "list_training_jobs", "TrainingJobSummaries", WarmPoolStatusEquals="Available")
    return _jobs(calls, scope, POOL, words, jobs)


def _under_way(calls: FinderCalls, operation: str, key: str) -> Iterator[dict[str, Any]]:
    """Yields the jobs that bill; a stopping job bills too."""
    for state in ("InProgress", "Stopping"):
        yield from calls.items("sagemaker", operation, key, StatusEquals=state)


def _jobs(
    calls: FinderCalls, scope: Scope, what: tuple[str, str], words: str, jobs: Iterator[dict[str, Any]]
) -> Iterator[FoundObject]:
    return calls.each(jobs, lambda one: _job(calls, scope, what, one, words))


def _job(
    calls: FinderCalls, scope: Scope, what: tuple[str, str], one: dict[str, Any], words: str
) -> Iterator[FoundObject]:
    """Yields the row of a job that belongs to the cluster by its tags, its subnets or its role."""
    name, tags = one["TrainingJobName"], _tags(calls, one["TrainingJobArn"])
    if scope.is_of_another(tags):
        return
    about = calls.get("sagemaker", "describe_training_job", TrainingJobName=name)
    owner = better(scope.owner(tags), _user(scope, tags, about.get("RoleArn", ""), about.get("VpcConfig")))
    if owner is None:
        return
    resources = about.get("ResourceConfig") or {}
    yield row(
        what,
        scope,
        owner,
        name,
        tags=tags,
        prices=_job_prices(resources),
        detail=f"{resources.get('InstanceCount', '?')} x {resources.get('InstanceType', '?')}",
        remedy=command(scope, words, name),
    )


def _processing(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name, tags = one["ProcessingJobName"], _tags(calls, one["ProcessingJobArn"])
        about = calls.get("sagemaker", "describe_processing_job", ProcessingJobName=name)
        network = (about.get("NetworkConfig") or {}).get("VpcConfig")
        if owner := better(scope.owner(tags), _user(scope, tags, about.get("RoleArn", ""), network)):
            each = (about.get("ProcessingResources") or {}).get("ClusterConfig") or {}
            kind, count = each.get("InstanceType", ""), each.get("InstanceCount", 1)
            yield row(
                PROCESSING,
                scope,
                owner,
                name,
                tags=tags,
                prices=[hourly("sagemaker-processing", kind, count)],
                detail=f"{count} x {kind}",
                remedy=command(scope, "sagemaker stop-processing-job --processing-job-name", name),
            )

    return calls.each(_under_way(calls, "list_processing_jobs", "ProcessingJobSummaries"), inspect)


def _transform(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name, tags = one["TransformJobName"], _tags(calls, one["TransformJobArn"])
        about = calls.get("sagemaker", "describe_transform_job", TransformJobName=name)
        users = _users(calls, scope, tags, {"ProductionVariants": [{"ModelName": about.get("ModelName")}]})
        if owner := better(scope.owner(tags, name=name), *users):
            each = about.get("TransformResources") or {}
            kind, count = each.get("InstanceType", ""), each.get("InstanceCount", 1)
            yield row(
                TRANSFORM,
                scope,
                owner,
                name,
                tags=tags,
                prices=[hourly("sagemaker-transform", kind, count)],
                detail=f"{count} x {kind}",
                remedy=command(scope, "sagemaker stop-transform-job --transform-job-name", name),
            )

    return calls.each(_under_way(calls, "list_transform_jobs", "TransformJobSummaries"), inspect)


def _job_prices(resources: dict[str, Any]) -> Iterator[PriceKey]:
    for group in resources.get("InstanceGroups") or [resources]:
        if group.get("InstanceType"):
            yield hourly("sagemaker-training", group["InstanceType"], group.get("InstanceCount", 1))


def _domains(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for id, name, owner, tags in _own_domains(calls, scope):
        words = "sagemaker delete-domain --retention-policy HomeEfsFileSystem=Delete --domain-id"
        yield row(
            DOMAIN,
            scope,
            owner,
            id,
            name=name,
            tags=tags,
            detail="its apps and its EFS bill as rows of their own",
            remedy=command(scope, words, id),
        )


def _own_domains(calls: FinderCalls, scope: Scope) -> Iterator[tuple[str, str, Owner, dict[str, str]]]:
    def inspect(one: dict[str, Any]) -> Iterator[tuple[str, str, Owner, dict[str, str]]]:
        id, tags = one["DomainId"], _tags(calls, one["DomainArn"])
        about = calls.get("sagemaker", "describe_domain", DomainId=id)
        role = str((about.get("DefaultUserSettings") or {}).get("ExecutionRole", ""))
        used = scope.user(tags, role=role, subnets=about.get("SubnetIds") or ())
        owner = scope.owner(tags, vpc_id=about.get("VpcId", ""), name=one.get("DomainName", ""))
        if owner := better(owner, used):
            yield id, one.get("DomainName", id), owner, tags

    return calls.each(calls.items("sagemaker", "list_domains", "Domains"), inspect)


def _apps(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for id, name, owner, _ in _own_domains(calls, scope):
        for one in calls.items("sagemaker", "list_apps", "Apps", DomainIdEquals=id):
            kind = (one.get("ResourceSpec") or {}).get("InstanceType", "")
            if one.get("Status") not in ("InService", "Pending") or kind in ("", "system"):
                continue
            user = one.get("UserProfileName") or one.get("SpaceName") or ""
            whose = ["--user-profile-name", user] if one.get("UserProfileName") else ["--space-name", user]
            words = ["--app-type", one["AppType"], "--app-name", one["AppName"], *whose]
            yield row(
                APP,
                scope,
                Owner(f"of domain {name} ({owner.reason})", owner.is_certain),
                f"{id}/{user}/{one['AppName']}",
                name=one["AppName"],
                prices=[hourly("sagemaker-studio", kind)],
                detail=f"{one['AppType']} on {kind}",
                remedy=command(scope, "sagemaker delete-app --domain-id", id, *words),
            )


def _hyperpods(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name, tags = one["ClusterName"], _tags(calls, one["ClusterArn"])
        about = calls.get("sagemaker", "describe_cluster", ClusterName=name)
        owner = scope.owner(tags, name=name)
        on = str(((about.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn", ""))
        if on.endswith(f":{scope.region}:{scope.account_id}:cluster/{scope.name}"):
            owner = Owner("its orchestrator is the cluster")
        roles = {str(group.get("ExecutionRole", "")) for group in about.get("InstanceGroups") or ()}
        owner = better(owner, *(_user(scope, tags, role, about.get("VpcConfig")) for role in sorted(roles)))
        if owner:
            groups = [group for group in about.get("InstanceGroups") or () if group.get("CurrentCount")]
            yield row(
                HYPERPOD,
                scope,
                owner,
                name,
                tags=tags,
                prices=[hourly("sagemaker-hyperpod", each["InstanceType"], each["CurrentCount"]) for each in groups],
                detail=one.get("ClusterStatus", ""),
                remedy=command(scope, "sagemaker delete-cluster --cluster-name", name),
            )

    return calls.each(calls.items("sagemaker", "list_clusters", "ClusterSummaries"), inspect)


ENDPOINT: Final = ("sagemaker", "endpoint")
NOTEBOOK: Final = ("sagemaker", "notebook instance")
TRAINING: Final = ("sagemaker", "training job in progress")
POOL: Final = ("sagemaker", "warm pool")
PROCESSING: Final = ("sagemaker", "processing job in progress")
TRANSFORM: Final = ("sagemaker", "transform job in progress")
DOMAIN: Final = ("sagemaker", "domain")
APP: Final = ("sagemaker", "app")
HYPERPOD: Final = ("sagemaker", "HyperPod cluster")

TAGS: Final = "sagemaker:ListTags"
JOBS: Final = ("sagemaker:ListTrainingJobs", TAGS, "sagemaker:DescribeTrainingJob")
DOMAINS: Final = ("sagemaker:ListDomains", TAGS, "sagemaker:DescribeDomain")

FINDERS: Final = (
    Finder(
        *ENDPOINT,
        (
            "sagemaker:ListEndpoints",
            TAGS,
            "sagemaker:DescribeEndpoint",
            "sagemaker:DescribeEndpointConfig",
            "sagemaker:DescribeModel",
        ),
        _endpoints,
    ),
    Finder(*NOTEBOOK, ("sagemaker:ListNotebookInstances", TAGS, "sagemaker:DescribeNotebookInstance"), _notebooks),
    Finder(*TRAINING, JOBS, _training),
    Finder(*POOL, JOBS, _pools),
    Finder(*PROCESSING, ("sagemaker:ListProcessingJobs", TAGS, "sagemaker:DescribeProcessingJob"), _processing),
    Finder(
        *TRANSFORM,
        ("sagemaker:ListTransformJobs", TAGS, "sagemaker:DescribeTransformJob", "sagemaker:DescribeModel"),
        _transform,
    ),
    Finder(*DOMAIN, DOMAINS, _domains),
    Finder(*APP, (*DOMAINS, "sagemaker:ListApps"), _apps),
    Finder(*HYPERPOD, ("sagemaker:ListClusters", TAGS, "sagemaker:DescribeCluster"), _hyperpods),
)
