"""Identity of an emulated account (not AWS): roles, policies, quotas, images."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape


class NotThere(Exception):
    """An object does not exist, or access is denied; the arguments are the code and the message of the AWS error."""


class Account:
    """An account whose contents a test sets. Policies are evaluated: actions and resources with `*`, and conditions
    with StringEquals and StringLike. Everything else is denied. Deny statements are not supported.
    """

    def __init__(self, number: str) -> None:
        self.number = number
        self.roles: dict[str, Mapping[str, Any]] = {}
        """The trust policy of each role, by its name."""
        self.policies: dict[str, Mapping[str, Any]] = {}
        """Of a user or a role, by its ARN."""
        self.quotas: dict[str, float] = {}
        """Applied ones, by name."""
        self.default_quotas: dict[str, float] = {}
        self.images: set[str] = set()
        """`REPOSITORY:TAG`."""
        self.caller = ""
        """The ARN of the login whose policy bounds all calls; empty where none does."""
        self.secrets: dict[str, str] = {}
        """The text of each, by its name."""
        self.locked_secrets: set[str] = set()
        """Those that the role may not read."""

    def require(
        self, service: str, operation: str, body: Mapping[str, Any], region: str, resource: str | None = None
    ) -> None:
        """Raises NotThere with AWS's error for a call that the caller's policy does not allow on a `resource`."""
        there = f"{region}:{self.number}"
        jobs = f"arn:aws:sagemaker:{there}:training-job/{body.get('TrainingJobName', '')}"
        group = f"arn:aws:logs:{there}:log-group:{body.get('logGroupName', '')}:log-stream:"
        resource = resource or {"sagemaker": "*" if operation == "Search" else jobs, "logs": group}.get(service)
        asked = [] if resource is None else [(f"{service}:{operation}", resource)]
        if operation == "CreateTrainingJob":
            asked += [("iam:PassRole", body["RoleArn"]), *([("sagemaker:AddTags", jobs)] if body.get("Tags") else [])]
        passed = "scheduler" if service == "scheduler" else "sagemaker"
        if role := body.get("ExecutionRoleArn") or body.get("Target", {}).get("RoleArn"):
            asked.append(("iam:PassRole", role))
        if service == "sagemaker" and body.get("Tags") and operation != "CreateTrainingJob":
            asked.append(("sagemaker:AddTags", resource or ""))
        policy = self.policies.get(self.caller, {"Statement": []})
        for action, on in asked:
            if self.caller and not allows(policy, action, on, {"iam:PassedToService": [f"{passed}.amazonaws.com"]}):
                words = f"User: {self.caller} is not authorized to perform: {action} on resource: {on}"
                raise NotThere("AccessDeniedException", words)

    def admit(self, body: Mapping[str, Any]) -> None:
        """Raises NotThere with AWS's error for a training job whose role, image or instances are not available.

        Properties that a test does not set are not checked.
        """
        self.admit_role(body["RoleArn"])
        self.admit_image(body["AlgorithmSpecification"]["TrainingImage"])
        kind, count = body["ResourceConfig"]["InstanceType"], body["ResourceConfig"]["InstanceCount"]
        self.admit_instances(
            f"{kind} for {'spot ' if body.get('EnableManagedSpotTraining') else ''}training job usage", count
        )

    def admit_role(self, role: str) -> None:
        """Raises NotThere with AWS's error for a role that SageMaker cannot assume."""
        if self.roles and not _trusts_sagemaker(self.roles.get(role.rpartition("/")[2])):
            raise NotThere(
                "ValidationException",
                f"Could not assume role {role}. Please ensure that the role exists "
                "and allows principal 'sagemaker.amazonaws.com' to assume the role.",
            )

    def admit_image(self, image: str) -> None:
        """Raises NotThere with AWS's error for an image that does not exist."""
        if self.images and image.rpartition("/")[2] not in self.images:
            raise NotThere("ValidationException", f"Requested image {image} not found.")

    def admit_instances(self, use: str, count: int) -> None:
        """Raises NotThere with AWS's error for more instances than the quota `use` has."""
        limit = int(self.quotas.get(use, 0))
        if self.quotas and count > limit:
            raise NotThere(
                "ResourceLimitExceeded",
                f"The account-level service limit '{use}' is {limit} Instances, "
                f"with current utilization of 0 Instances and a request delta of {count}.",
            )

    def _GetSecretValue(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["SecretId"]
        if name not in self.secrets:
            raise NotThere("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
        if name in self.locked_secrets:
            raise NotThere("AccessDeniedException", "not authorized to perform: secretsmanager:GetSecretValue")
        return {"Name": name, "SecretString": self.secrets[name]}

    def _GetRole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["RoleName"]
        if name not in self.roles:
            raise NotThere("NoSuchEntity", f"The role with name {name} cannot be found.")
        document = quote(json.dumps(self.roles[name]))
        role = {
            "Path": "/",
            "RoleName": name,
            "RoleId": "AROA1234567890123456",
            "Arn": self.arn(f"role/{name}"),
            "CreateDate": "2026-01-01T00:00:00Z",
            "AssumeRolePolicyDocument": document,
        }
        return {"Role": role}

    def _SimulatePrincipalPolicy(self, body: Mapping[str, Any]) -> dict[str, Any]:
        policy = self.policies.get(body["PolicySourceArn"], {"Statement": []})
        context = {one["ContextKeyName"]: one["ContextKeyValues"] for one in body.get("ContextEntries", [])}
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": "allowed" if allows(policy, action, resource, context) else "implicitDeny",
            }
            for action in body["ActionNames"]
            for resource in body["ResourceArns"]
        ]
        return {"EvaluationResults": results, "IsTruncated": False}

    def _ListServiceQuotas(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"Quotas": [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]}

    def _ListAWSDefaultServiceQuotas(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"Quotas": [{"QuotaName": name, "Value": value} for name, value in self.default_quotas.items()]}

    def _DescribeImages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        repository, tag = body["repositoryName"], body["imageIds"][0]["imageTag"]
        if f"{repository}:{tag}" not in self.images:
            raise NotThere("ImageNotFoundException", f"The image with tag {tag} does not exist in {repository}")
        return {"imageDetails": [{"repositoryName": repository, "imageTags": [tag]}]}

    def arn(self, what: str) -> str:
        return f"arn:aws:iam::{self.number}:{what}"


def _trusts_sagemaker(document: Mapping[str, Any] | None) -> bool:
    """Whether a trust policy, in the format that the tests use, names the SageMaker service."""
    return document is not None and any(
        one.get("Principal") == {"Service": "sagemaker.amazonaws.com"} for one in document["Statement"]
    )


def allows(policy: Mapping[str, Any], action: str, resource: str, context: Mapping[str, list[str]]) -> bool:
    for one in policy["Statement"]:
        equal = one.get("Condition", {}).get("StringEquals", {})
        like = one.get("Condition", {}).get("StringLike", {})
        if (
            any(fnmatch.fnmatchcase(action, pattern) for pattern in one["Action"])
            and any(fnmatch.fnmatchcase(resource, pattern) for pattern in one["Resource"])
            and all(context.get(key) == [value] for key, value in equal.items())
            and all(
                any(fnmatch.fnmatchcase(value, pattern) for value in context.get(key, []) for pattern in patterns)
                for key, patterns in like.items()
            )
        ):
            return True
    return False


def of_form(form: Mapping[str, list[str]]) -> dict[str, Any]:
    """Parses the body of a query protocol request: `A.member.1.B=c` becomes `{"A": [{"B": "c"}]}`."""
    body: dict[str, Any] = {}
    for name, [value] in sorted(form.items(), key=lambda one: [part.zfill(6) for part in one[0].split(".")]):
        if name not in ("Action", "Version"):
            _put(body, name.replace(".member", "").split("."), value)
    return body


def _put(into: Any, path: list[str], value: str) -> None:
    name, *rest = path
    if isinstance(into, list):
        if not rest:
            into.append(value)
            return
        while len(into) < int(name):
            into.append([] if rest[0].isdigit() else {})
        _put(into[int(name) - 1], rest, value)
    elif not rest:
        into[name] = value
    else:
        _put(into.setdefault(name, [] if rest[0].isdigit() else {}), rest, value)


def to_xml(value: Any) -> str:
    """Formats a query protocol response."""
    return "".join(_elements(value))


def _elements(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield f"<{name}>{to_xml(one)}</{name}>"
    elif isinstance(value, list):
        for one in value:
            yield f"<member>{to_xml(one)}</member>"
    else:
        yield str(value).lower() if isinstance(value, bool) else escape(str(value))
