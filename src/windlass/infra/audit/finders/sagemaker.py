"""Finders of SageMaker: endpoints, notebooks, training jobs and warm pools, domains and their apps, HyperPod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.infra.audit.calls import Ask
from windlass.infra.audit.finder import Finder, command, hourly, row, stored
from windlass.infra.audit.report import Found, PriceKey
from windlass.infra.audit.scope import Owner, Scope


def _tags(ask: Ask, arn: str) -> dict[str, str]:
    return ask.tags("sagemaker", "list_tags", "Tags", ResourceArn=arn)


def _endpoints(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name, tags = one["EndpointName"], _tags(ask, one["EndpointArn"])
        if owner := scope.owner(tags, name=name):
            prices = list(_endpoint_prices(ask, name))
            types = ", ".join(f"{key.quantity:g} x {key.dimension}" for key in prices) or "serverless"
            yield row(
                ENDPOINT, scope, owner, name, tags=tags, prices=prices,
                detail=f"{one.get('EndpointStatus', '')}, {types}",
                remedy=command(scope, "sagemaker delete-endpoint --endpoint-name", name),
            )  # fmt: skip

    return ask.each(ask.items("sagemaker", "list_endpoints", "Endpoints"), look)


def _endpoint_prices(ask: Ask, name: str) -> Iterator[PriceKey]:
    about = ask.get("sagemaker", "describe_endpoint", EndpointName=name)
    if not about.get("EndpointConfigName"):
        return
    config = ask.get("sagemaker", "describe_endpoint_config", EndpointConfigName=about["EndpointConfigName"])
    now = {one["VariantName"]: one.get("CurrentInstanceCount") for one in about.get("ProductionVariants") or ()}
    for one in config.get("ProductionVariants") or ():
        if one.get("InstanceType"):
            count = now.get(one["VariantName"])
            yield hourly(
                "sagemaker-hosting", one["InstanceType"], one["InitialInstanceCount"] if count is None else count
            )


def _notebooks(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name, state = one["NotebookInstanceName"], one.get("NotebookInstanceStatus", "")
        tags = _tags(ask, one["NotebookInstanceArn"])
        if owner := scope.owner(tags, name=name):
            runs = [hourly("sagemaker-notebook", one["InstanceType"])] if state in ("InService", "Pending") else []
            yield row(
                NOTEBOOK, scope, owner, name, tags=tags, prices=[*runs, stored("sagemaker-volume", "ml.gp2", None)],
                detail=f"{state}, {one.get('InstanceType', '')}",
                remedy=command(scope, "sagemaker delete-notebook-instance --notebook-instance-name", name),
            )  # fmt: skip

    return ask.each(ask.items("sagemaker", "list_notebook_instances", "NotebookInstances"), look)


def _training(ask: Ask, scope: Scope) -> Iterator[Found]:
    words = "sagemaker stop-training-job --training-job-name"
    return _jobs(ask, scope, TRAINING, words, StatusEquals="InProgress")


def _pools(ask: Ask, scope: Scope) -> Iterator[Found]:
    words = "sagemaker update-training-job --resource-config KeepAlivePeriodInSeconds=0 --training-job-name"
    return _jobs(ask, scope, POOL, words, WarmPoolStatusEquals="Available")


def _jobs(ask: Ask, scope: Scope, what: tuple[str, str], words: str, **chosen: str) -> Iterator[Found]:
    jobs = ask.items("sagemaker", "list_training_jobs", "TrainingJobSummaries", **chosen)
    return ask.each(jobs, lambda one: _job(ask, scope, what, one, words))


def _job(ask: Ask, scope: Scope, what: tuple[str, str], one: dict[str, Any], words: str) -> Iterator[Found]:
    """A job's row: by its tags, else by the name of the role that it runs as, which Windlass makes for a cluster."""
    name, tags = one["TrainingJobName"], _tags(ask, one["TrainingJobArn"])
    owner = scope.owner(tags)
    if owner is None and (scope.is_of_another(tags) or not scope.is_ours):
        return
    about = ask.get("sagemaker", "describe_training_job", TrainingJobName=name)
    role = str(about.get("RoleArn", "")).rsplit("/", 1)[-1]
    if owner is None and scope.begins(role):
        owner = Owner(f"runs as {role}, a role of the cluster")
    if owner is None:
        return
    resources = about.get("ResourceConfig") or {}
    yield row(
        what, scope, owner, name, tags=tags, prices=_job_prices(resources),
        detail=f"{resources.get('InstanceCount', '?')} x {resources.get('InstanceType', '?')}",
        remedy=command(scope, words, name),
    )  # fmt: skip


def _job_prices(resources: dict[str, Any]) -> Iterator[PriceKey]:
    for group in resources.get("InstanceGroups") or [resources]:
        if group.get("InstanceType"):
            yield hourly("sagemaker-training", group["InstanceType"], group.get("InstanceCount", 1))


def _domains(ask: Ask, scope: Scope) -> Iterator[Found]:
    for id, name, owner, tags in _own_domains(ask, scope):
        words = "sagemaker delete-domain --retention-policy HomeEfsFileSystem=Delete --domain-id"
        yield row(
            DOMAIN, scope, owner, id, name=name, tags=tags, detail="its apps and its EFS bill as rows of their own",
            remedy=command(scope, words, id),
        )  # fmt: skip


def _own_domains(ask: Ask, scope: Scope) -> Iterator[tuple[str, str, Owner, dict[str, str]]]:
    def look(one: dict[str, Any]) -> Iterator[tuple[str, str, Owner, dict[str, str]]]:
        id, tags = one["DomainId"], _tags(ask, one["DomainArn"])
        vpc = ask.get("sagemaker", "describe_domain", DomainId=id).get("VpcId", "") if scope.vpc_ids else ""
        if owner := scope.owner(tags, vpc_id=vpc, name=one.get("DomainName", "")):
            yield id, one.get("DomainName", id), owner, tags

    return ask.each(ask.items("sagemaker", "list_domains", "Domains"), look)


def _apps(ask: Ask, scope: Scope) -> Iterator[Found]:
    for id, name, owner, _ in _own_domains(ask, scope):
        for one in ask.items("sagemaker", "list_apps", "Apps", DomainIdEquals=id):
            kind = (one.get("ResourceSpec") or {}).get("InstanceType", "")
            if one.get("Status") not in ("InService", "Pending") or kind in ("", "system"):
                continue
            user = one.get("UserProfileName") or one.get("SpaceName") or ""
            whose = ["--user-profile-name", user] if one.get("UserProfileName") else ["--space-name", user]
            words = ["--app-type", one["AppType"], "--app-name", one["AppName"], *whose]
            yield row(
                APP, scope, Owner(f"of domain {name} ({owner.reason})", owner.is_certain),
                f"{id}/{user}/{one['AppName']}", name=one["AppName"], prices=[hourly("sagemaker-studio", kind)],
                detail=f"{one['AppType']} on {kind}",
                remedy=command(scope, "sagemaker delete-app --domain-id", id, *words),
            )  # fmt: skip


def _hyperpods(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name, tags = one["ClusterName"], _tags(ask, one["ClusterArn"])
        about = ask.get("sagemaker", "describe_cluster", ClusterName=name)
        owner = scope.owner(tags, name=name)
        on = str(((about.get("Orchestrator") or {}).get("Eks") or {}).get("ClusterArn", ""))
        if on.endswith(f":{scope.region}:{scope.account_id}:cluster/{scope.name}"):
            owner = Owner("its orchestrator is the cluster")
        if owner:
            groups = [group for group in about.get("InstanceGroups") or () if group.get("CurrentCount")]
            yield row(
                HYPERPOD, scope, owner, name, tags=tags,
                prices=[hourly("sagemaker-hyperpod", each["InstanceType"], each["CurrentCount"]) for each in groups],
                detail=one.get("ClusterStatus", ""),
                remedy=command(scope, "sagemaker delete-cluster --cluster-name", name),
            )  # fmt: skip

    return ask.each(ask.items("sagemaker", "list_clusters", "ClusterSummaries"), look)


ENDPOINT: Final = ("sagemaker", "endpoint")
NOTEBOOK: Final = ("sagemaker", "notebook instance")
TRAINING: Final = ("sagemaker", "training job in progress")
POOL: Final = ("sagemaker", "warm pool")
DOMAIN: Final = ("sagemaker", "domain")
APP: Final = ("sagemaker", "app")
HYPERPOD: Final = ("sagemaker", "HyperPod cluster")

TAGS: Final = "sagemaker:ListTags"
JOBS: Final = ("sagemaker:ListTrainingJobs", TAGS, "sagemaker:DescribeTrainingJob")
DOMAINS: Final = ("sagemaker:ListDomains", TAGS, "sagemaker:DescribeDomain")

FINDERS: Final = (
    Finder(
        *ENDPOINT,
        ("sagemaker:ListEndpoints", TAGS, "sagemaker:DescribeEndpoint", "sagemaker:DescribeEndpointConfig"),
        _endpoints,
    ),
    Finder(*NOTEBOOK, ("sagemaker:ListNotebookInstances", TAGS), _notebooks),
    Finder(*TRAINING, JOBS, _training),
    Finder(*POOL, JOBS, _pools),
    Finder(*DOMAIN, DOMAINS, _domains),
    Finder(*APP, (*DOMAINS, "sagemaker:ListApps"), _apps),
    Finder(*HYPERPOD, ("sagemaker:ListClusters", TAGS, "sagemaker:DescribeCluster"), _hyperpods),
)
