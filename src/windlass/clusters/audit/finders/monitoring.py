"""Finders for logs, alarms, queues, rules and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import Ask
from windlass.clusters.audit.finder import GLOBAL, Finder, command, gib, row, stored
from windlass.clusters.audit.report import Found, PriceKey
from windlass.clusters.audit.scope import Owner, Scope

GROUPS: Final = ("/aws/eks/{}/", "/aws/containerinsights/{}/", "/aws/windlass/{}/", "/windlass/{}/")
"""Prefixes of the log groups that EKS, Container Insights and Windlass name after a cluster."""


def _log_groups(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name = one["logGroupName"]
        owner = next((Owner(f"name {name}") for form in GROUPS if f"{name}/".startswith(form.format(scope.name))), None)
        arn = one.get("logGroupArn") or one["arn"].removesuffix(":*")
        tags = ask.tags("logs", "list_tags_for_resource", "tags", resourceArn=arn)
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

    return ask.each(ask.items("logs", "describe_log_groups", "logGroups"), look)


def _alarms(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(asked: tuple[str, dict[str, Any]]) -> Iterator[Found]:
        kind, one = asked
        name, watches = one["AlarmName"], one.get("Dimensions") or ()
        tags = ask.tags("cloudwatch", "list_tags_for_resource", "Tags", ResourceARN=one["AlarmArn"])
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
            for one in ask.items("cloudwatch", "describe_alarms", key, AlarmTypes=types):
                yield kind, one

    return ask.each(alarms(), look)


def _queues(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(url: str) -> Iterator[Found]:
        name = url.rsplit("/", 1)[-1]
        tags = ask.tags("sqs", "list_queue_tags", "Tags", QueueUrl=url)
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

    return ask.each(ask.items("sqs", "list_queues", "QueueUrls"), look)


def _rules(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name = one["Name"]
        tags = ask.tags("events", "list_tags_for_resource", "Tags", ResourceARN=one["Arn"])
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

    return ask.each(ask.items("events", "list_rules", "Rules"), look)


def _budgets(ask: Ask, scope: Scope) -> Iterator[Found]:
    def look(one: dict[str, Any]) -> Iterator[Found]:
        name = one["BudgetName"]
        arn = f"arn:{scope.partition}:budgets::{scope.account_id}:budget/{name}"
        tags = ask.tags("budgets", "list_tags_for_resource", "ResourceTags", ResourceARN=arn)
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

    return ask.each(ask.items("budgets", "describe_budgets", "Budgets", AccountId=scope.account_id), look)


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
