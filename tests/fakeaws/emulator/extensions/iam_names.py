"""IAM action names: ministack lacks those of Budgets, and does not check S3 Files."""

from __future__ import annotations

from ministack.core import iam_actions

BUDGETS = "AWSBudgetServiceGateway."


def extend() -> None:
    """Checks calls against the actions in AWS's service authorization reference."""
    iam_actions.SERVICE_TO_IAM_NAMESPACE["s3files"] = "s3files"
    iam_actions._BOTOCORE_SERVICE_MAP["s3files"] = ["s3files"]
    named = iam_actions._action_from_target

    def action_from_target(headers: dict[str, str]) -> str | None:
        action: str | None = named(headers)
        if not headers.get("x-amz-target", "").startswith(BUDGETS) or action is None or "Action" in action:
            return action
        if action.startswith("Describe"):
            return "ViewBudget"
        return "ModifyBudget" if action.startswith(("Create", "Update", "Delete")) else action

    iam_actions._action_from_target = action_from_target
