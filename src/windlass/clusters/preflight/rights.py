"""Checks by IAM's own simulation whether the credentials may do what a policy lists; names the least that is missing.

https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html; boundaries and policies of the
organization count too. Nothing is done: an action is only evaluated.
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
"""Actions of one request."""
AT_ONCE: Final = 4
"""Requests at a time: IAM allows few in a second."""
NAME: Final = "permissions"
SAMPLE: Final = "doctor"
"""Stands for a `*` within a name: a policy for all names of a pattern allows this one too."""
ALLOW: Final = "allow iam:SimulatePrincipalPolicy and iam:GetRole, to have them checked"
SHOWN: Final = 8
MANY: Final = 60
"""Missing actions from which on the whole policy is attached rather than a statement added."""
KINDS: Final = {"true": "boolean", "false": "boolean"}
"""Types of values of conditions that are no texts."""
ON_TEXTS: Final = re.compile(r"(ForAnyValue:|ForAllValues:)?(String(Equals|Like)|Arn(Equals|Like)|Bool)(IfExists)?")
"""Operators of conditions whose values are texts that may be given as they are."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request asks: actions on each resource, in the context in which a statement allows them."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    """As the statement names them."""
    condition: str = "{}"
    """Of the statement, as JSON."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that would be refused."""

    action: str
    resource: str
    """As the statement names it."""
    condition: str = "{}"
    """Of the statement, as JSON."""
    why: str = ""
    """What forbids it where no statement of the credentials' own policies can allow it; else empty."""


def permission_finding(aws: Aws, statements: Sequence[Statement]) -> Finding:
    """Whether all actions of the statements of a policy are allowed."""
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
    """What refusals mean: the least policy that is missing, as statements. Pure."""
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
    """The statements that allow just what was refused: one for each condition and set of resources. Pure."""
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
    """What of these statements would be refused. Raises AwsError."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(lambda asked: _refused(aws, principal, asked), requests(statements)):
            yield from found


def requests(statements: Sequence[Statement]) -> list[Asked]:
    """What is asked for, at most `BATCH` actions at once. Pure."""
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for one in statements:
        key = (tuple(_list(one.get("Resource", "*"))), json.dumps(one.get("Condition", {}), sort_keys=True))
        asked = found.setdefault(key, [])
        asked += [action for action in actions_of(one) if action not in asked]
    return [
        Asked(tuple(actions[start : start + BATCH]), resources, condition)
        for (resources, condition), actions in found.items()
        for start in range(0, len(actions), BATCH)
    ]


def actions_of(statement: Statement) -> list[str]:
    """The actions of a statement that have a name; a pattern cannot be simulated."""
    return [action for action in _list(statement.get("Action", ())) if "*" not in action]


def context_of(condition: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Values under which a condition holds, as far as it is one on texts."""
    found: dict[str, str] = {}
    for operator, values in condition.items():
        if ON_TEXTS.fullmatch(operator):
            found |= {key: str(_list(some)[0]).replace("*", SAMPLE) for key, some in values.items()}
    return found


def _refused(aws: Aws, principal: str, asked: Asked) -> list[Refusal]:
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
    """The user or role behind the credentials, as policies are attached to it. Raises AwsError.

    A session of a role is named by the role without its path, which IAM has to be asked for.
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
