"""IAM actions that Terraform needs for Karpenter's event queue and for the budget."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import Place, Statement, actions
from windlass.spec.cluster import Cluster


def statements(cluster: Cluster, place: Place) -> Iterator[Statement]:
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
            place.arns("sqs", f"{place.name}-karpenter"),
        )
        yield Statement(
            "OwnEventRules",
            actions("events", "DeleteRule", "DescribeRule", "ListTagsForResource", "ListTargetsByRule", "PutRule",
                    "PutTargets", "RemoveTargets", "TagResource", "UntagResource"),
            place.arns("events", f"rule/{place.name}-karpenter-*"),
        )  # fmt: skip
    if cluster.budget is not None:
        yield Statement(
            "OwnBudget",
            actions("budgets", "ListTagsForResource", "ModifyBudget", "TagResource", "UntagResource", "ViewBudget"),
            (f"arn:{place.partition}:budgets::{place.account}:budget/{place.name}",),
        )
