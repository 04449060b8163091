"""Names every resource that a request needs a right on, as AWS's service authorization reference has it.

ministack checks one resource of a request, by the first parameter it knows, and has no ARN for what a request makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

REFERENCE: Final[dict[str, Any]] = json.loads(Path(__file__).parents[1].joinpath("authorization.json").read_text())
"""Resource types of each action with their condition keys; `tools/authorization.py` makes it, and names its source."""
EC2_TYPES: Final = {
    "vpc": "vpc",
    "subnet": "subnet",
    "sg": "security-group",
    "sgr": "security-group-rule",
    "rtb": "route-table",
    "igw": "internet-gateway",
    "eipalloc": "elastic-ip",
    "nat": "natgateway",
    "vpce": "vpc-endpoint",
    "lt": "launch-template",
    "fl": "vpc-flow-log",
    "eni": "network-interface",
    "pg": "placement-group",
    "i": "instance",
    "vol": "volume",
}
"""Resource types by the prefix of their ids."""
EC2_ID: Final = re.compile(rf"({'|'.join(EC2_TYPES)})-[0-9a-f]{{8,}}")
IAM_PARAMETERS: Final = {"role": "RoleName", "instance-profile": "InstanceProfileName", "user": "UserName"}
MAKES: Final = ("Create", "Allocate")
PASSED: Final = {
    "eks:CreateCluster": ("roleArn", "eks.amazonaws.com"),
    "eks:CreateNodegroup": ("nodeRole", "eks.amazonaws.com"),
    "eks:CreatePodIdentityAssociation": ("roleArn", "pods.eks.amazonaws.com"),
    "ec2:CreateFlowLogs": ("DeliverLogsPermissionArn", "vpc-flow-logs.amazonaws.com"),
    "iam:AddRoleToInstanceProfile": ("RoleName", "ec2.amazonaws.com"),
    "sagemaker:CreateTrainingJob": ("RoleArn", "sagemaker.amazonaws.com"),
}
"""Parameters that hand a role to a service, for which AWS checks iam:PassRole."""


@dataclass(frozen=True)
class Request:
    """What came over the wire."""

    service: str
    path: str
    body: bytes
    params: dict[str, Any]
    region: str
    account: str
    fallback: str
    """The ARN that ministack found."""

    @property
    def json(self) -> dict[str, Any]:
        """The body, where it is a JSON object."""
        try:
            found = json.loads(self.body or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def param(self, name: str) -> str:
        """A parameter of the query protocols, or of the body."""
        value = self.params.get(name) or self.json.get(name) or ""
        return str(value[0] if isinstance(value, list) else value)

    def arn(self, rest: str, service: str = "", region: str | None = None) -> str:
        """An ARN of this account."""
        where = self.region if region is None else region
        return f"arn:aws:{service or self.service}:{where}:{self.account}:{rest}"


@dataclass(frozen=True)
class Check:
    """One right that a request needs."""

    action: str
    arn: str
    has_request_tags: bool = True
    context: tuple[tuple[str, str], ...] = ()


def checks(action: str, request: Request) -> list[Check]:
    """All rights that a request for `action` needs; the first is the action's own."""
    named = {
        "ec2": _ec2,
        "iam": _iam,
        "eks": _eks,
        "kms": _kms,
        "elasticfilesystem": _efs,
        "fsx": _fsx,
        "events": _events,
        "budgets": _budgets,
        "ecr": _ecr,
    }.get(request.service)
    if named is None or action not in REFERENCE["actions"]:
        return [Check(action, request.fallback), *_passed(action, request), *_tagged(action, request)]
    return [*named(action, request), *_passed(action, request), *_tagged(action, request)]


def types_of(action: str) -> dict[str, Any]:
    """The resource types of an action; empty where it names no resource."""
    return {name: row for name, row in REFERENCE["actions"][action].items() if name}


def _of(action: str, found: dict[str, list[str]]) -> list[Check]:
    """A check for each resource whose type the action has; one on everything where it has none, or none is named."""
    known = [Check(action, arn) for kind in types_of(action) for arn in found.get(kind, ())]
    return known or [Check(action, "*")]


def _ec2(action: str, request: Request) -> list[Check]:
    table = types_of(action)
    found = _ec2_ids(request)
    for kind, name in (("placement-group", "GroupName"), ("launch-template", "LaunchTemplateName")):
        if not action.startswith("ec2:Create") and (value := request.param(name)):
            found.setdefault(kind, []).append(request.arn(f"{kind}/{value}"))
    tagged = {request.param(key) for key in request.params if re.fullmatch(r"TagSpecification\.\d+\.ResourceType", key)}
    is_new = action.partition(":")[2].startswith(MAKES) and action not in ("ec2:CreateTags", "ec2:CreateRoute")
    made = [
        kind for kind, row in table.items() if kind not in found and ((is_new and row["required"]) or kind in tagged)
    ]
    if action == "ec2:CreateLaunchTemplateVersion":
        made = []
    rows = [(kind, arn) for kind in table for arn in found.get(kind, ())]
    rows += [(kind, request.arn(f"{kind}/*")) for kind in made]
    own = [Check(action, arn, "aws:RequestTag/${TagKey}" in table[kind]["conditions"]) for kind, arn in rows]
    verb = action.partition(":")[2]
    tags = [
        Check("ec2:CreateTags", request.arn(f"{kind}/*"), context=(("ec2:CreateAction", verb),))
        for kind in made
        if kind in tagged
    ]
    return [*(own or [Check(action, "*")]), *tags]


def _ec2_ids(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in request.params.items():
        if key.startswith(("Filter.", "LaunchTemplateData.")):
            continue
        text = str(value[0] if isinstance(value, list) else value)
        if match := EC2_ID.fullmatch(text):
            kind = EC2_TYPES[match[1]]
            found.setdefault(kind, []).append(request.arn(f"{kind}/{text}"))
        elif text.startswith("rtbassoc-"):
            found |= {kind: [request.arn(f"{kind}/{id}")] for kind, id in _associated(text).items()}
    return found


def _associated(association: str) -> dict[str, str]:
    """The route table of an association, and its subnet, which AWS checks where only the association is named."""
    from ministack.services import ec2

    for table in ec2._route_tables.values():
        for one in table.get("Associations", []):
            if one.get("RouteTableAssociationId") == association:
                return {"route-table": table["RouteTableId"], "subnet": str(one.get("SubnetId", ""))}
    return {}


def _iam(action: str, request: Request) -> list[Check]:
    found = {
        kind: [request.arn(f"{kind}/{name}", region="")]
        for kind, parameter in IAM_PARAMETERS.items()
        if (name := request.param(parameter))
    }
    if source := request.param("PolicySourceArn"):
        found[source.split(":")[5].split("/")[0]] = [source]
    context: tuple[tuple[str, str], ...] = ()
    if arn := request.param("PolicyArn"):
        found["policy"], context = [arn], (("iam:PolicyARN", arn),)
    if name := request.param("AWSServiceName"):
        found["role"], context = (
            [request.arn(f"role/aws-service-role/{name}/*", region="")],
            (("iam:AWSServiceName", name),),
        )
    return [replace(one, context=context) for one in _of(action, found)]


EKS_PARTS: Final = {
    "node-groups": "nodegroup",
    "addons": "addon",
    "access-entries": "access-entry",
    "pod-identity-associations": "podidentityassociation",
}


def _eks(action: str, request: Request) -> list[Check]:
    """ARNs of what belongs to a cluster end in an id, which the request does not have."""
    parts = [unquote(part) for part in request.path.split("/") if part]
    if parts[:1] == ["tags"]:
        return [Check(action, "/".join(parts[1:]))]
    if len(parts) < 2 or parts[0] != "clusters":
        return _of(action, {})
    found = {"cluster": [request.arn(f"cluster/{parts[1]}")]}
    if len(parts) > 3 and parts[2] in EKS_PARTS:
        kind = EKS_PARTS[parts[2]]
        name = "role/0/name" if kind == "access-entry" else parts[3]
        found[kind] = [request.arn(f"{kind}/{parts[1]}/{name}/0")]
    return _of(action, found)


def _kms(action: str, request: Request) -> list[Check]:
    key = request.param("TargetKeyId") or request.param("KeyId")
    found: dict[str, list[str]] = {}
    if alias := request.param("AliasName"):
        from ministack.services import kms

        found["alias"] = [request.arn(alias)]
        key = key or str(kms._aliases.get(request.arn(alias), ""))
    if key:
        found["key"] = [key if key.startswith("arn:") else request.arn(f"key/{key}")]
    return _of(action, found)


def _efs(action: str, request: Request) -> list[Check]:
    from ministack.services import efs

    path = unquote(request.path)
    for id in re.findall(r"fsmt-[0-9a-f]{8,}", path):
        path += " " + str((efs._mount_targets.get(id) or {}).get("FileSystemId", ""))
    texts = [path, *(str(value) for value in request.json.values()), *(str(value) for value in request.params.values())]
    return _of(action, dict(_by_id(request, " ".join(texts), {"fs": "file-system", "fsap": "access-point"})))


def _fsx(action: str, request: Request) -> list[Check]:
    found = dict(_by_id(request, request.body.decode(), {"fs": "file-system", "task": "task", "backup": "backup"}))
    for match in re.findall(r"dra-[0-9a-f]{8,}", request.body.decode()):
        found.setdefault("association", []).append(request.arn(f"association/fs-0/{match}"))
    if action.partition(":")[2].startswith(MAKES):
        for kind in types_of(action):
            name = f"{kind}/fs-0/*" if kind == "association" else f"{kind}/*"
            found.setdefault(kind, [request.arn(name)])
    return _of(action, found)


def _by_id(request: Request, text: str, kinds: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    for prefix, kind in kinds.items():
        if ids := sorted(set(re.findall(rf"\b{prefix}-[0-9a-f]{{8,}}", text))):
            yield kind, [request.arn(f"{kind}/{id}") for id in ids]


def _events(action: str, request: Request) -> list[Check]:
    """Rules of the default bus have no bus in their ARN."""
    arn = request.param("ResourceARN") or request.fallback
    if rule := request.param("Rule"):
        arn = request.arn(f"rule/{rule}")
    return [Check(action, arn.replace(":rule/default/", ":rule/"))]


def _ecr(action: str, request: Request) -> list[Check]:
    if names := request.json.get("repositoryNames"):
        return [Check(action, request.arn(f"repository/{name}")) for name in names]
    return [Check(action, request.param("resourceArn") or request.fallback)]


def _budgets(action: str, request: Request) -> list[Check]:
    body = request.json
    described = body.get("Budget") or body.get("NewBudget") or {}
    name = body.get("BudgetName") or described.get("BudgetName", "")
    arn = str(body.get("ResourceARN") or (request.arn(f"budget/{name}", region="") if name else "*"))
    return [Check(action, arn)]


def _passed(action: str, request: Request) -> list[Check]:
    parameter, service = PASSED.get(action, ("", ""))
    if not parameter or not (role := request.param(parameter)):
        return []
    arn = role if role.startswith("arn:") else request.arn(f"role/{role}", service="iam", region="")
    return [Check("iam:PassRole", arn, context=(("iam:PassedToService", service),))]


NEW: Final = {
    "kms:CreateKey": "key/*",
    "elasticfilesystem:CreateFileSystem": "file-system/*",
    "elasticfilesystem:CreateAccessPoint": "access-point/*",
    "fsx:CreateFileSystem": "file-system/*",
    "fsx:CreateDataRepositoryAssociation": "association/*/*",
    "fsx:CreateDataRepositoryTask": "task/*",
    "ecr:CreateRepository": "",
}
"""What gets the tags of a request that makes it, where AWS checks TagResource on it too; EC2 is above."""


def _tagged(action: str, request: Request) -> list[Check]:
    if action not in NEW or not (request.json.get("Tags") or request.json.get("tags")):
        return []
    service, _, verb = action.partition(":")
    arn = request.arn(NEW[action], service=service) if NEW[action] else request.fallback
    return [Check(f"{service}:TagResource", arn, context=((f"{service}:CreateAction", verb),))]
