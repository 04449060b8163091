"""The least-privilege policy of an audit, built from the operations that its finders declare."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.audit.locate import OPERATIONS
from windlass.clusters.aws import iam_action


def audit_actions() -> tuple[str, ...]:
    """Returns all IAM actions that an audit uses, sorted; all are read-only."""
    asked = {call for finder in FINDERS for call in finder.operations} | set(OPERATIONS)
    return tuple(sorted({iam_action(*call.split(":")) for call in asked}))


def audit_statements() -> list[dict[str, Any]]:
    """Returns one statement per service. List actions cannot be limited to resources, and the audit reads all tags."""
    by_service: defaultdict[str, list[str]] = defaultdict(list)
    for action in audit_actions():
        by_service[action.split(":")[0]].append(action)
    return [
        {"Sid": f"Audit{service.title().replace('-', '')}", "Effect": "Allow", "Action": actions, "Resource": "*"}
        for service, actions in sorted(by_service.items())
    ]
