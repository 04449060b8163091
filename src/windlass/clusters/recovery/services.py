"""Finds existing EKS clusters with their parts, repositories, queues, rules, log groups and budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.clusters.aws import partition
from windlass.clusters.recovery.search import Finder, FoundResource, Search, Values, need, status_of


def _parts(owner: Sequence[FoundResource], ids: Sequence[str]) -> Sequence[FoundResource]:
    """Returns parts of a named resource, which have no tags of their own; they belong to the cluster if it does."""
    return [FoundResource(id, is_ours=one.is_ours) for one in owner for id in ids]


def _eks(found: Any, id: str, search: Search) -> Sequence[FoundResource]:
    if not found:
        return []
    word = str(found.get("status") or "")
    return [FoundResource(id, status_of(word), is_ours=search.owns(found.get("tags")), has_status=bool(word))]


def _eks_cluster(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    return _eks(search.call("eks", "describe_cluster", name=name).get("cluster"), name, search)


def _eks_node_group(search: Search, values: Values) -> Sequence[FoundResource]:
    cluster, name = need(values, "cluster_name"), need(values, "node_group_name")
    found = search.call("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name).get("nodegroup")
    return _eks(found, f"{cluster}:{name}", search)


def _eks_addon(search: Search, values: Values) -> Sequence[FoundResource]:
    cluster, name = need(values, "cluster_name"), need(values, "addon_name")
    found = search.call("eks", "describe_addon", clusterName=cluster, addonName=name).get("addon")
    return _eks(found, f"{cluster}:{name}", search)


def _eks_access_entry(search: Search, values: Values) -> Sequence[FoundResource]:
    cluster, principal = need(values, "cluster_name"), need(values, "principal_arn")
    found = search.call("eks", "describe_access_entry", clusterName=cluster, principalArn=principal).get("accessEntry")
    return _eks(found, f"{cluster}:{principal}", search)


def _eks_access_policy(search: Search, values: Values) -> Sequence[FoundResource]:
    cluster, principal, policy = (need(values, name) for name in ("cluster_name", "principal_arn", "policy_arn"))
    arguments = {"clusterName": cluster, "principalArn": principal}
    found = search.pages("eks", "list_associated_access_policies", "associatedAccessPolicies", **arguments)
    ids = [f"{cluster}#{principal}#{policy}" for one in found if one["policyArn"] == policy]
    return _parts(_eks_cluster(search, {"name": cluster}), ids)


def _eks_pod_identity(search: Search, values: Values) -> Sequence[FoundResource]:
    cluster, namespace, account = (need(values, name) for name in ("cluster_name", "namespace", "service_account"))
    arguments = {"clusterName": cluster, "namespace": namespace, "serviceAccount": account}
    found = search.pages("eks", "list_pod_identity_associations", "associations", **arguments)
    ids = [
        f"{cluster},{one['associationId']}"
        for one in found
        if one["namespace"] == namespace and one["serviceAccount"] == account
    ]
    return _parts(_eks_cluster(search, {"name": cluster}), ids)


def _ecr_repository(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    found = search.call("ecr", "describe_repositories", repositoryNames=[name]).get("repositories") or ()
    tags = [search.call("ecr", "list_tags_for_resource", resourceArn=one["repositoryArn"]).get("tags") for one in found]
    return [FoundResource(name, is_ours=search.owns(own)) for own in tags]


def _ecr_lifecycle(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "repository")
    found = search.call("ecr", "get_lifecycle_policy", repositoryName=name)
    return _parts(_ecr_repository(search, {"name": name}), [name]) if found.get("lifecyclePolicyText") else []


def _queue(search: Search, values: Values) -> Sequence[FoundResource]:
    url = search.call("sqs", "get_queue_url", QueueName=need(values, "name")).get("QueueUrl")
    if not url:
        return []
    return [FoundResource(url, is_ours=search.owns(search.call("sqs", "list_queue_tags", QueueUrl=url).get("Tags")))]


def _queue_policy(search: Search, values: Values) -> Sequence[FoundResource]:
    url = need(values, "queue_url")
    found = search.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=["Policy"])
    return [FoundResource(url)] if (found.get("Attributes") or {}).get("Policy") else []


def _event_rule(search: Search, values: Values) -> Sequence[FoundResource]:
    name, bus = need(values, "name"), str(values.get("event_bus_name") or "default")
    found = search.call("events", "describe_rule", Name=name, EventBusName=bus)
    if not found:
        return []
    tags = search.call("events", "list_tags_for_resource", ResourceARN=found["Arn"]).get("Tags")
    return [FoundResource(f"{bus}/{name}", is_ours=search.owns(tags))]


def _event_target(search: Search, values: Values) -> Sequence[FoundResource]:
    rule, target = need(values, "rule"), need(values, "target_id")
    bus = str(values.get("event_bus_name") or "default")
    found = search.pages("events", "list_targets_by_rule", "Targets", Rule=rule, EventBusName=bus)
    ids = [f"{bus}/{rule}/{target}" for one in found if one["Id"] == target]
    return _parts(_event_rule(search, {"name": rule, "event_bus_name": bus}), ids)


def _log_group(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    groups = search.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    return [
        FoundResource(
            name, is_ours=search.owns(search.call("logs", "list_tags_log_group", logGroupName=name).get("tags"))
        )
        for one in groups
        if one["logGroupName"] == name
    ]


def _budget(search: Search, values: Values) -> Sequence[FoundResource]:
    name, account = need(values, "name"), str(values.get("account_id") or search.aws.identity.account_id)
    found = search.call("budgets", "describe_budget", AccountId=account, BudgetName=name)
    if not found.get("Budget"):
        return []
    arn = f"arn:{partition(search.aws.region)}:budgets::{account}:budget/{name}"
    tags = search.call("budgets", "list_tags_for_resource", ResourceARN=arn).get("ResourceTags")
    return [FoundResource(f"{account}:{name}", is_ours=search.owns(tags))]


FINDERS: Final[Mapping[str, Finder]] = {
    "aws_eks_cluster": _eks_cluster,
    "aws_eks_node_group": _eks_node_group,
    "aws_eks_addon": _eks_addon,
    "aws_eks_access_entry": _eks_access_entry,
    "aws_eks_access_policy_association": _eks_access_policy,
    "aws_eks_pod_identity_association": _eks_pod_identity,
    "aws_ecr_repository": _ecr_repository,
    "aws_ecr_lifecycle_policy": _ecr_lifecycle,
    "aws_sqs_queue": _queue,
    "aws_sqs_queue_policy": _queue_policy,
    "aws_cloudwatch_event_rule": _event_rule,
    "aws_cloudwatch_event_target": _event_target,
    "aws_cloudwatch_log_group": _log_group,
    "aws_budgets_budget": _budget,
}
