"""IAM actions that Terraform needs for Karpenter's event queue and for the budget."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import ArnScope, Statement, actions
from windlass.spec.cluster import Cluster


def statements(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields statements for SQS and EventBridge if the cluster has Karpenter, and for Budgets if it has a budget."""
    if "karpenter" in cluster.components:
        yield Statement(
            "OwnQueue",
            actions(
                "sqs",
                "CreateQueue",
                "DeleteQueue",
                "GetQueueAttributes",
                "GetQueueUrl",
                "ListQueueTags",
                "SetQueueAttributes",
                "TagQueue",
                "UntagQueue",
            ),
            scope.arns("sqs", f"{scope.name}-karpenter"),
        )
        yield Statement(
            "OwnEventRules",
            actions("events", "DeleteRule", "DescribeRule", "ListTagsForResource", "ListTargetsByRule", "PutRule",
                    "PutTargets", "RemoveTargets", "TagResource", "UntagResource"),
            scope.arns("events", f"rule/{scope.name}-karpenter-*"),
        )  # fmt: skip
    if cluster.budget is not None:
        yield Statement(
            "OwnBudget",
            actions("budgets", "ListTagsForResource", "ModifyBudget", "TagResource", "UntagResource", "ViewBudget"),
            (f"arn:{scope.partition}:budgets::{scope.account}:budget/{scope.name}",),
        )
