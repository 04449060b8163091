"""Authorizes each request for all resources that AWS would check, with their tags, and for passed roles.

If FAKEAWS_CALLS names a file, each decision is appended to it as a line of JSON, including those for the root user.
"""

from __future__ import annotations

import contextvars
import json
import os
from pathlib import Path
from typing import Any

from ministack.core import iam_actions, iam_evaluator
from ministack.services import tagging
from tests.fakeaws.emulator.extensions.authorized_resources import Check, Request, checks

_request: contextvars.ContextVar[Request | None] = contextvars.ContextVar("request", default=None)
_denied: contextvars.ContextVar[Check | None] = contextvars.ContextVar("denied", default=None)


def extend() -> None:
    """Adds the checks of the authorization reference before ministack's policy evaluation."""
    iam_actions._TAG_MEMBERS = frozenset({*iam_actions._TAG_MEMBERS, "TagSpecifications"})
    _remember_requests()
    _check_all(os.environ.get("FAKEAWS_CALLS", ""))
    _name_what_is_denied()
    _know_tags()


def _remember_requests() -> None:
    found = iam_actions.extract_resource_arn

    def extract_resource_arn(
        service: str,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        query_params: dict[str, Any],
        region: str,
        account_id: str,
    ) -> str:
        arn = str(found(service, method, path, headers, body, query_params, region, account_id))
        _request.set(Request(service, path, body, query_params, region, account_id, arn))
        return arn

    iam_actions.extract_resource_arn = extract_resource_arn


def _check_all(log: str) -> None:
    enforce = iam_evaluator.enforce

    def enforced(
        access_key_id: str,
        iam_action: str,
        service: str,
        region: str,
        resource_arn: str = "*",
        service_context: dict[str, Any] | None = None,
    ) -> Any:
        request, context = _request.get(), service_context or {}
        is_first = request is not None and request.service == service and request.fallback == resource_arn
        wanted = checks(iam_action, request) if is_first and request else [Check(iam_action, resource_arn)]
        for check in wanted:
            denied = enforce(
                access_key_id,
                check.action,
                check.action.partition(":")[0] if check.action != iam_action else service,
                region,
                check.arn,
                _context(context, check),
            )
            if log:
                _write(log, check, bool(denied), access_key_id)
            if denied:
                _denied.set(check)
                return denied
        return None

    iam_evaluator.enforce = enforced


def _context(context: dict[str, Any], check: Check) -> dict[str, Any]:
    """Returns the condition keys of one check: AWS sets request tags only for resource types that support them."""
    kept = {
        key: value
        for key, value in context.items()
        if check.has_request_tags or not key.lower().startswith(("aws:requesttag/", "aws:tagkeys"))
    }
    return kept | dict(check.context)


def _write(log: str, check: Check, denied: bool, access_key_id: str) -> None:
    line = {"action": check.action, "resource": check.arn, "denied": denied, "key": access_key_id}
    with Path(log).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _name_what_is_denied() -> None:
    answer = iam_actions.access_denied_response

    def access_denied_response(service: str, action: str, *rest: Any, **options: Any) -> Any:
        check = _denied.get()
        if check is not None:
            action, options["resource_arn"] = check.action, check.arn
        return answer(service, action, *rest, **options)

    iam_actions.access_denied_response = access_denied_response


def _know_tags() -> None:
    """Adds aws:ResourceTag for EC2, EKS, EFS and FSx; ministack supports it for nine other services."""
    known = tagging.resource_tags

    def resource_tags(arn: str) -> dict[str, str] | None:
        service, _, rest = arn.partition("arn:aws:")[2].partition(":")
        if service == "ec2":
            return _ec2_tags(rest.rpartition("/")[2])
        if service == "eks":
            return _eks_tags(arn)
        if service == "fsx":
            return _fsx_tags(arn)
        if service == "elasticfilesystem":
            rows = ((candidate, tags) for candidate, tags in tagging._collect_efs() if candidate == arn)
            return {tag["Key"]: tag["Value"] for _, tags in rows for tag in tags}
        found: dict[str, str] | None = known(arn)
        return found

    tagging.resource_tags = resource_tags


def _ec2_tags(id: str) -> dict[str, str]:
    from ministack.services import ec2

    group = ec2._placement_groups.get(id)  # ARNs contain the name, tags are stored by id
    return {tag["Key"]: tag["Value"] for tag in ec2._tags.get(group["GroupId"] if group else id) or ()}


def _eks_tags(arn: str) -> dict[str, str]:
    from ministack.services import eks

    return dict(eks._tags.get(arn) or {})


def _fsx_tags(arn: str) -> dict[str, str]:
    from tests.fakeaws.emulator.extensions import fsx

    return fsx.tags_of(arn)
