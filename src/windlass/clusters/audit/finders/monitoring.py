"""Finders for logs, alarms, queues, rules and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import GLOBAL, Finder, command, gib, row, stored
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope

GROUPS: Final = ("/aws/eks/{}/", "/aws/containerinsights/{}/", "/aws/windlass/{}/", "/windlass/{}/")
"""Prefixes of the log groups that EKS, Container Insights and Windlass name after a cluster."""


def _log_groups(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["logGroupName"]
        owner = next((Owner(f"name {name}") for form in GROUPS if f"{name}/".startswith(form.format(scope.name))), None)
        arn = one.get("logGroupArn") or one["arn"].removesuffix(":*")
        tags = calls.tags("logs", "list_tags_for_resource", "tags", resourceArn=arn)
        if scope.is_of_another(tags):
            return
        if owner := owner or scope.owner(tags, name=name.lstrip("/")):
            size = gib(one.get("storedBytes"))
            yield row(
                LOGS,
                scope,
                owner,
                name,
                tags=tags,
                prices=[stored("logs", "", size)] if size else [],
                detail=f"{size:.3f} GiB, kept {one.get('retentionInDays') or 'for ever'}"
                + (" days" if one.get("retentionInDays") else ""),
                remedy=command(scope, "logs delete-log-group --log-group-name", name),
            )

    return calls.each(calls.items("logs", "describe_log_groups", "logGroups"), inspect)


def _alarms(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(asked: tuple[str, dict[str, Any]]) -> Iterator[FoundObject]:
        kind, one = asked
        name, watches = one["AlarmName"], one.get("Dimensions") or ()
        tags = calls.tags("cloudwatch", "list_tags_for_resource", "Tags", ResourceARN=one["AlarmArn"])
        owner = scope.owner(tags, name=name)
        if {"Name": "ClusterName", "Value": scope.name} in [dict(each) for each in watches] and not owner:
            owner = None if scope.is_of_another(tags) else Owner(f"watches ClusterName={scope.name}")
        if owner:
            yield row(
                ALARM,
                scope,
                owner,
                name,
                tags=tags,
                prices=[PriceKey("cloudwatch", "month", kind, 1.0)],
                remedy=command(scope, "cloudwatch delete-alarms --alarm-names", name),
            )

    def alarms() -> Iterator[tuple[str, dict[str, Any]]]:
        types = ["MetricAlarm", "CompositeAlarm"]
        for key, kind in (("MetricAlarms", "alarm"), ("CompositeAlarms", "composite")):
            for one in calls.items("cloudwatch", "describe_alarms", key, AlarmTypes=types):
                yield kind, one

    return calls.each(alarms(), inspect)


def _queues(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(url: str) -> Iterator[FoundObject]:
        name = url.rsplit("/", 1)[-1]
        tags = calls.tags("sqs", "list_queue_tags", "Tags", QueueUrl=url)
        if owner := scope.owner(tags, name=name):
            yield row(
                QUEUE,
                scope,
                owner,
                url,
                name=name,
                tags=tags,
                remedy=command(scope, "sqs delete-queue --queue-url", url),
            )

    return calls.each(calls.items("sqs", "list_queues", "QueueUrls"), inspect)


def _rules(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["Name"]
        tags = calls.tags("events", "list_tags_for_resource", "Tags", ResourceARN=one["Arn"])
        if owner := scope.owner(tags, name=name):
            yield row(
                RULE,
                scope,
                owner,
                name,
                tags=tags,
                detail=one.get("Description") or one.get("State", ""),
                remedy="remove its targets, then: " + command(scope, "events delete-rule --name", name),
            )

    return calls.each(calls.items("events", "list_rules", "Rules"), inspect)


def _budgets(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["BudgetName"]
        arn = f"arn:{scope.partition}:budgets::{scope.account_id}:budget/{name}"
        tags = calls.tags("budgets", "list_tags_for_resource", "ResourceTags", ResourceARN=arn)
        if owner := scope.owner(tags, name=name):
            words = "budgets delete-budget --account-id"
            yield row(
                BUDGET,
                scope,
                owner,
                name,
                tags=tags,
                region=GLOBAL,
                remedy=command(scope, words, scope.account_id, "--budget-name", name, region=False),
            )

    return calls.each(calls.items("budgets", "describe_budgets", "Budgets", AccountId=scope.account_id), inspect)


LOGS: Final = ("logs", "log group")
ALARM: Final = ("cloudwatch", "alarm")
QUEUE: Final = ("sqs", "queue")
RULE: Final = ("events", "rule")
BUDGET: Final = ("budgets", "budget")

FINDERS: Final = (
    Finder(*LOGS, ("logs:DescribeLogGroups", "logs:ListTagsForResource"), _log_groups),
    Finder(*ALARM, ("cloudwatch:DescribeAlarms", "cloudwatch:ListTagsForResource"), _alarms),
    Finder(*QUEUE, ("sqs:ListQueues", "sqs:ListQueueTags"), _queues),
    Finder(*RULE, ("events:ListRules", "events:ListTagsForResource"), _rules),
    Finder(*BUDGET, ("budgets:DescribeBudgets", "budgets:ListTagsForResource"), _budgets),
)
