"""The least policy that an audit needs, made of what the finders declare."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.audit.locate import ASKS
from windlass.clusters.aws import iam_action


def audit_actions() -> tuple[str, ...]:
    """All actions of IAM that an audit uses, sorted; none of them changes anything."""
    asked = {call for finder in FINDERS for call in finder.asks} | set(ASKS)
    return tuple(sorted({iam_action(*call.split(":")) for call in asked}))


def audit_statements() -> list[dict[str, Any]]:
    """One statement for each service. Listings cannot be bounded to resources, and tags are read of all of them."""
    by_service: defaultdict[str, list[str]] = defaultdict(list)
    for action in audit_actions():
        by_service[action.split(":")[0]].append(action)
    return [
        {"Sid": f"Audit{service.title().replace('-', '')}", "Effect": "Allow", "Action": actions, "Resource": "*"}
        for service, actions in sorted(by_service.items())
    ]
