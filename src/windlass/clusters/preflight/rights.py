"""Simulates with IAM whether the credentials allow a policy's actions; reports the smallest policy that is missing.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html; permission boundaries and
organization policies are included. Actions are only evaluated, never executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import AccessDenied, Aws, NotThere, aws_errors
from windlass.clusters.preflight.finding import Finding, unknown
from windlass.errors import WindlassError

Statement = Mapping[str, Any]
BATCH: Final = 50
"""Maximum number of actions per simulation request."""
AT_ONCE: Final = 4
"""Maximum number of parallel requests; IAM allows only a few per second."""
NAME: Final = "permissions"
SAMPLE: Final = "doctor"
"""Sample text in place of `*` in a simulated resource name: a policy for the pattern allows this name too."""
ALLOW: Final = "allow iam:SimulatePrincipalPolicy and iam:GetRole, to have them checked"
SHOWN: Final = 8
MANY: Final = 60
"""Number of missing actions above which the fix is to attach the whole policy instead of a statement."""
KINDS: Final = {"true": "boolean", "false": "boolean"}
"""Types of condition values that are not strings, by value."""
ON_TEXTS: Final = re.compile(r"(ForAnyValue:|ForAllValues:)?(String(Equals|Like)|Arn(Equals|Like)|Bool)(IfExists)?")
"""Condition operators whose values can be passed to the simulation unchanged."""


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """One simulation request: actions on each resource, in the context in which a statement allows them."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    """Resources as written in the statement."""
    condition: str = "{}"
    """Condition of the statement as JSON."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that would be denied."""

    action: str
    resource: str
    """Resource as written in the statement."""
    condition: str = "{}"
    """Condition of the statement as JSON."""
    why: str = ""
    """What denies the action if no additional policy can allow it, such as an SCP; else empty."""


def permission_finding(aws: Aws, statements: Sequence[Statement]) -> Finding:
    """Checks whether all actions in a policy's statements are allowed."""
    try:
        principal = principal_of(aws)
        if principal.endswith(":root"):
            return Finding(NAME, "ok", "the root user may do everything")
        refused = list(simulate(aws, principal, statements))
    except AccessDenied as error:
        return Finding(NAME, "warn", f"unknown: {error.message}", ALLOW)
    except WindlassError as error:
        return unknown(NAME, error)
    count = len({action for one in statements for action in actions_of(one)})
    return judged(refused, count, principal)


def judged(refused: Sequence[Refusal], count: int, principal: str) -> Finding:
    """Builds the finding from refusals, with the missing permissions as statements. Pure."""
    if not refused:
        return Finding(NAME, "ok", f"all {count} actions that cluster up and down use are allowed to {principal}")
    names = list(dict.fromkeys(one.action for one in refused))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    text = f"{len(names)} of {count} actions are refused to {principal}: {', '.join(names[:SHOWN])}{more}"
    forbidden = [f"{one.action}: {one.why}" for one in refused if one.why]
    lacking = [one for one in refused if not one.why]
    fix = [f"add to its policy: {json.dumps(least(lacking))}"] if lacking else []
    if len({one.action for one in lacking}) > MANY:
        fix = ["attach the policies that windlass cluster policy prints"]
    fix += [f"no policy of its own can allow {'; '.join(dict.fromkeys(forbidden))}"] if forbidden else []
    return Finding(NAME, "fail", text, "; ".join(fix))


def least(refused: Iterable[Refusal]) -> list[dict[str, Any]]:
    """Returns the smallest statements that allow the refused actions: one per condition and set of resources. Pure."""
    resources: dict[tuple[str, str], set[str]] = {}
    for one in refused:
        resources.setdefault((one.condition, one.action), set()).add(one.resource)
    actions: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (condition, action), named in sorted(resources.items()):
        actions.setdefault((condition, ("*",) if "*" in named else tuple(sorted(named))), []).append(action)
    return [
        {
            "Effect": "Allow",
            "Action": found,
            "Resource": named[0] if len(named) == 1 else list(named),
            **({"Condition": json.loads(condition)} if condition != "{}" else {}),
        }
        for (condition, named), found in actions.items()
    ]


def simulate(aws: Aws, principal: str, statements: Sequence[Statement]) -> Iterator[Refusal]:
    """Yields the actions of these statements that would be denied. Raises AwsError."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda asked: _refused(aws, principal, asked), requests(statements)):
            yield from found


def requests(statements: Sequence[Statement]) -> list[SimulationRequest]:
    """Splits statements into simulation requests of at most `BATCH` actions. Pure."""
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for one in statements:
        key = (tuple(_list(one.get("Resource", "*"))), json.dumps(one.get("Condition", {}), sort_keys=True))
        asked = found.setdefault(key, [])
        asked += [action for action in actions_of(one) if action not in asked]
    return [
        SimulationRequest(tuple(actions[start : start + BATCH]), resources, condition)
        for (resources, condition), actions in found.items()
        for start in range(0, len(actions), BATCH)
    ]


def actions_of(statement: Statement) -> list[str]:
    """Returns the actions of a statement without wildcards; patterns cannot be simulated."""
    return [action for action in _list(statement.get("Action", ())) if "*" not in action]


def context_of(condition: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns context values that satisfy the string comparisons of a condition."""
    found: dict[str, str] = {}
    for operator, values in condition.items():
        if ON_TEXTS.fullmatch(operator):
            found |= {key: str(_list(some)[0]).replace("*", SAMPLE) for key, some in values.items()}
    return found


def _refused(aws: Aws, principal: str, asked: SimulationRequest) -> list[Refusal]:
    named = {one if one == "*" else one.replace("*", SAMPLE): one for one in asked.resources}
    entries = [
        {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": KINDS.get(value, "string")}
        for key, value in context_of(json.loads(asked.condition)).items()
    ]
    with aws_errors(f"simulate what {principal} may do", "iam:SimulatePrincipalPolicy"):
        pages = (
            aws.client("iam")
            .get_paginator("simulate_principal_policy")
            .paginate(
                PolicySourceArn=principal, ActionNames=asked.actions, ResourceArns=list(named), ContextEntries=entries
            )
        )
        found = [one for page in pages for one in page["EvaluationResults"]]
    return [
        Refusal(str(one["EvalActionName"]), named.get(one["EvalResourceName"], "*"), asked.condition, _why(one))
        for one in found
        if one["EvalDecision"] != "allowed"
    ]


def _why(result: Mapping[str, Any]) -> str:
    if not result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True):
        return "a policy of the organization (SCP) refuses it"
    if not result.get("PermissionsBoundaryDecisionDetail", {}).get("AllowedByPermissionsBoundary", True):
        return "the permissions boundary refuses it"
    return "a statement with Deny forbids it" if result["EvalDecision"] == "explicitDeny" else ""


def principal_of(aws: Aws) -> str:
    """Returns the ARN of the user or role behind the credentials. Raises AwsError.

    The ARN of a role session lacks the role's path, which is read from IAM.
    """
    arn = aws.identity.arn
    session = re.fullmatch(r"arn:(aws[\w-]*):sts::(\d+):assumed-role/([^/]+)/.+", arn)
    if session is None:
        return arn
    try:
        with aws_errors(f"read role {session[3]}", "iam:GetRole"):
            return str(aws.client("iam").get_role(RoleName=session[3])["Role"]["Arn"])
    except (AccessDenied, NotThere):
        return f"arn:{session[1]}:iam::{session[2]}:role/{session[3]}"


def _list(value: Any) -> list[str]:
    return [str(value)] if isinstance(value, str) else [str(one) for one in value]
