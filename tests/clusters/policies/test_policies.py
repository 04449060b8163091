"""The printed policies agree with AWS's service authorization reference and with the code that needs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.policies.clusters import ACCOUNT, COMPANY, EVERYTHING, SMALL, cluster, every_action
from tests.fakeaws.emulator.reference import TABLE

import windlass.clusters
from windlass.clusters.policies import (
    LONGEST,
    TITLES,
    ArnScope,
    Purpose,
    Statement,
    as_statements,
    policies,
    statements,
)
from windlass.clusters.policies.audit import audit_statements
from windlass.clusters.policies.control import managed_policies, passed, roles_of
from windlass.clusters.policies.documents import documents

REFERENCE: Final[dict[str, Any]] = json.loads(TABLE.read_text())
CONFIGURATION: Final = Path(windlass.clusters.__file__).with_name("eks")
ANYWHERE: Final = frozenset({"aws:RequestedRegion", "aws:ViaAWSService"})
"""Condition keys that every service supports."""
ALL: Final = {
    f"{purpose}-{name}{one.sid}": (purpose, one)
    for name, text in (("", EVERYTHING), ("company-", COMPANY))
    for purpose in Purpose
    for one in statements(cluster(text), ACCOUNT, purpose)
}
by_sid = pytest.mark.parametrize(("purpose", "one"), ALL.values(), ids=ALL.keys())
WITHOUT_RESOURCE: Final = frozenset({Purpose.AUDIT})
"""Purposes whose statements list no resources: audits search for objects without names and tags."""

LISTINGS: Final = {"ListLogs": "all log groups are listed", "ListEfs": "looked for by name before there is an id"}
"""Statements on all resources although the actions support resources, each with its reason."""


def types_of(action: str) -> dict[str, Any]:
    return {kind: row for kind, row in REFERENCE["actions"][action].items() if kind}


def is_of(resource: str, service: str, kind: str) -> bool:
    """Whether the resource of a statement can have a type, judging by the fixed parts of the type's ARN."""
    template = str(REFERENCE["resources"][f"{service}:{kind}"]["arn"])
    if service == "ecr":
        template = template.replace("${RepositoryName}", "*")
    start = re.sub(r"\$\{\w+\}", "*", template).split(":", 5)
    found = resource.split(":", 5)
    if len(found) != 6 or found[2] != start[2]:
        return False
    head = re.split(r"[/*]", start[5])[0]
    return not head or found[5].startswith(head)


@by_sid
def test_actions_are_named_in_full_and_known_to_aws(purpose: Purpose, one: Statement) -> None:
    assert one.actions
    for action in one.actions:
        assert re.fullmatch(r"[a-z0-9-]+:[A-Z][A-Za-z0-9]+", action)
        # The reference is from April 2026 and does not contain S3 Files, which is newer.
        assert action in REFERENCE["actions"] or action.startswith("s3files:"), action


@by_sid
def test_statements_name_resources_if_aws_checks_them(purpose: Purpose, one: Statement) -> None:
    for action in (each for each in one.actions if each in REFERENCE["actions"]):
        kinds, service = types_of(action), action.split(":")[0]
        if one.resources == ("*",):
            assert not kinds or purpose in WITHOUT_RESOURCE or one.sid in LISTINGS, action
        else:
            assert any(is_of(resource, service, kind) for resource in one.resources for kind in kinds), action
    for resource in one.resources:
        if resource != "*" and one.sid != "S3Files":
            assert any(
                is_of(resource, action.split(":")[0], kind) for action in one.actions for kind in types_of(action)
            ), f"{resource}: no action of the statement is checked on it"


@by_sid
def test_condition_keys_are_supported_by_the_action(purpose: Purpose, one: Statement) -> None:
    for action in (each for each in one.actions if each in REFERENCE["actions"]):
        service, rows = action.split(":")[0], REFERENCE["actions"][action]
        known = {key for row in rows.values() for key in row["conditions"]}
        known |= {key for kind in types_of(action) for key in REFERENCE["resources"][f"{service}:{kind}"]["conditions"]}
        for key in {key for values in one.conditions.values() for key in values} - ANYWHERE:
            assert re.sub(r"(Tag/).*", r"\1${TagKey}", key) in known, f"{action} has no condition {key}"


@by_sid
def test_actions_without_resources_are_limited_to_the_region(purpose: Purpose, one: Statement) -> None:
    if one.resources == ("*",) and purpose is not Purpose.AUDIT:
        keys = {key for values in one.conditions.values() for key in values}
        is_global = set(one.actions) <= {"s3:ListAllMyBuckets", "ecr:GetAuthorizationToken"}
        assert "aws:RequestedRegion" in keys or is_global


@by_sid
def test_roles_are_passed_and_created_for_named_services_only(purpose: Purpose, one: Statement) -> None:
    key = {"iam:PassRole": "iam:PassedToService", "iam:CreateServiceLinkedRole": "iam:AWSServiceName"}
    for action in set(one.actions) & set(key):
        assert one.actions == (action,)
        assert one.conditions["StringEquals"][key[action]]
        assert all(resource.count("*") <= 1 and "/*" not in resource[:-2] for resource in one.resources)


@pytest.mark.parametrize("text", [SMALL, EVERYTHING, COMPANY], ids=["small", "everything", "company"])
@pytest.mark.parametrize("purpose", list(Purpose))
def test_documents_are_within_the_limit_and_have_each_statement_once(text: str, purpose: Purpose) -> None:
    found = policies(cluster(text), ACCOUNT, purpose)
    assert all(one.size <= LONGEST for one in found)
    assert [one for document in found for one in document.statements] == list(
        statements(cluster(text), ACCOUNT, purpose)
    )
    sids = [one["Sid"] for one in as_statements(cluster(text), ACCOUNT, purpose)]
    assert len(sids) == len(set(sids))
    assert all(re.fullmatch(r"[A-Za-z0-9]+", sid) for sid in sids)
    assert len({one.name for one in found}) == len(found)
    assert TITLES[purpose]


def test_the_longest_names_fit_too() -> None:
    text = COMPANY.replace("name: vision", f"name: {'v' * 30}").replace("us-east-1", "ap-southeast-2")
    for purpose in Purpose:
        assert all(one.size <= LONGEST for one in policies(cluster(text), ACCOUNT, purpose))


def test_several_documents_are_numbered_and_one_is_not() -> None:
    one = Statement("A", ("s3:GetObject",), ("arn:aws:s3:::b/*",))
    two = Statement("B", ("s3:PutObject",), ("arn:aws:s3:::b/*",))
    [single] = documents("windlass-a", [one, two])
    assert single.name == "windlass-a"
    assert [document.name for document in documents("windlass-a", [one, two], 150)] == ["windlass-a-1", "windlass-a-2"]


@pytest.mark.parametrize(
    "service", ["elasticfilesystem", "fsx", "s3files", "cloudformation", "budgets", "sqs", "events"]
)
def test_policies_omit_parts_that_the_cluster_file_omits(service: str) -> None:
    def services(text: str) -> set[str]:
        found = statements(cluster(text), ACCOUNT, Purpose.UP)
        return {action.split(":")[0] for one in found for action in one.actions}

    assert service in services(EVERYTHING)
    assert service not in services(SMALL)


def test_policies_of_two_clusters_share_only_resources_limited_by_tags() -> None:
    other = cluster(EVERYTHING.replace("name: vision", "name: audio"))
    for mine, theirs in zip(
        statements(cluster(), ACCOUNT, Purpose.UP), statements(other, ACCOUNT, Purpose.UP), strict=True
    ):
        if shared := set(mine.resources) & set(theirs.resources):
            assert shared == {"*"} or mine.conditions != theirs.conditions or mine.sid in UNBOUNDED, mine.sid


UNBOUNDED: Final = {
    "ReadKeys": "keys are described before AWS knows their tags",
    "ListEfs": "looked for by name",
    "FindState": "both clusters keep their state in one bucket",
    "LaunchIn": "EKS's group has no tag of ours",
    "InterfacesOfMountTargets": "made by EFS, without tags",
    "RolesOfServices": "of the account",
    "RoleOfFsxForTheBucket": "of the account",
    "RightsOfFsxOnTheBucket": "of the account",
    "ExportFsx": "a task is new",
    "S3Files": "not in the reference yet",
}
"""Statements that are equal for two clusters of an account, each with its reason."""


def test_every_role_and_managed_policy_of_the_configuration_is_in_the_policies() -> None:
    text = "\n".join(path.read_text() for path in CONFIGURATION.glob("*.tf"))
    attached = set(re.findall(r'"(Amazon(?:EKS|EC2|EBS|EFS|S3)\w+)"', text)) | set(
        re.findall(r"policy/(?:service-role/)?(Amazon\w+)", text)
    )
    attached -= {name for name in attached if "Admin" in name or name == "AmazonEKSEditPolicy"}
    assert {name.split("/")[-1] for name in managed_policies(cluster())} == attached
    names = json.loads((CONFIGURATION / "names.json").read_text())
    roles = {name.removeprefix("{name}-") for address, name in names.items() if address.startswith("aws_iam_role.")}
    # No cluster file can request the Mountpoint driver, and the SageMaker role is passed by the user who starts a job.
    assert set(roles_of(cluster())) == roles - {"s3-csi"}
    assert set(passed(cluster())) == roles - {"s3-csi", "sagemaker"}


NOT_OURS: Final = {
    "billing:GetBillingViewData": "a budget of a billing view",
    "fsx:CreateBackup": "a backup before a file system is deleted, which the configuration skips",
    "ec2:DescribeSecurityGroups": "read by ReadNetwork",
    "ecs:ListClusters": "flow logs of ECS",
    "ecs:ListContainerInstances": "flow logs of ECS",
    "ecs:ListServices": "flow logs of ECS",
    "ecs:ListTaskDefinitions": "flow logs of ECS",
    "ecs:ListTasks": "flow logs of ECS",
    "route53:AssociateVPCWithHostedZone": "endpoints with private DNS names; ours is a gateway",
    "ssm:GetParameters": "templates that name an image by a parameter; ours name none",
    "s3:PutObject": "tasks with a report; ours have none",
}
"""Dependent actions in AWS's reference that Windlass's calls do not need, each with its reason."""


def test_dependent_actions_are_allowed_or_have_a_reason() -> None:
    allowed = {action for one in statements(cluster(), ACCOUNT, Purpose.UP) for action in one.actions}
    needed = {
        need
        for action in allowed
        if action in REFERENCE["actions"]
        for row in REFERENCE["actions"][action].values()
        for need in row["needs"]
    }
    assert needed - allowed - set(NOT_OURS) == set()


def test_doctor_policy_has_exactly_the_actions_in_its_code() -> None:
    """doctor's calls are wrapped in `aws_errors`, which names their action."""
    folder = CONFIGURATION.with_name("preflight")
    text = "\n".join(path.read_text() for path in sorted(folder.glob("*.py")))
    named = set(re.findall(r'aws_errors\([^\n]*"([a-z0-9-]+:[A-Z]\w+)"\)', text))
    allowed = {action for one in statements(cluster(), ACCOUNT, Purpose.DOCTOR) for action in one.actions}
    assert named == allowed - {"iam:PassRole"}


def test_audit_policy_has_exactly_the_declared_actions() -> None:
    assert as_statements(cluster(), ACCOUNT, Purpose.AUDIT) == [
        {**one, "Action": one["Action"][0] if len(one["Action"]) == 1 else one["Action"]} for one in audit_statements()
    ]


def test_reference_has_only_actions_used_in_policies() -> None:
    assert every_action() - set(REFERENCE["actions"]) == {
        action for action in every_action() if action.startswith("s3files:")
    }


def test_policies_name_roles_by_their_path_and_grant_only_within_the_boundary() -> None:
    scope, boundary = ArnScope.of(cluster(COMPANY), ACCOUNT), cluster(COMPANY).iam.permissions_boundary
    assert scope.role("node") == "arn:aws:iam::123456789012:role/team/vision-node"
    found = [one for purpose in Purpose for one in statements(cluster(COMPANY), ACCOUNT, purpose)]
    named = {arn for one in found for arn in one.resources if ":iam::" in arn and "aws-service-role" not in arn}
    assert {arn for arn in named if "/team/vision-" not in arn} == {
        f"arn:aws:iam::{ACCOUNT}:{kind}/*" for kind in ("role", "user")
    }
    grants = {"iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy", "iam:PutRolePermissionsBoundary"}
    of_fsx = {"RightsOfFsxOnTheBucket"}
    bounded = [one for one in found if grants & set(one.actions) and one.sid not in of_fsx]
    assert {action for one in bounded for action in one.actions} >= grants
    assert {one.conditions["StringEquals"]["iam:PermissionsBoundary"] for one in bounded} == {boundary}


def test_existing_keys_are_used_and_never_changed_and_without_new_keys_none_is_made() -> None:
    keys = cluster(COMPANY).encryption.keys
    found = [
        one for one in statements(cluster(COMPANY), ACCOUNT, Purpose.UP) if set(one.resources) & set(keys.values())
    ]
    assert {one.sid: set(one.resources) for one in found} == {
        "ReadExistingKeys": set(keys.values()),
        "UseExistingKeysThroughServices": {keys["secrets"], keys["file_systems"]},
    }
    for purpose in (Purpose.RUNS, Purpose.PODS):
        [key] = [one for one in statements(cluster(COMPANY), ACCOUNT, purpose) if one.sid == "Key"]
        assert key.resources == (keys["bucket"],)
    arn = "arn:aws:kms:us-east-1:210987654321:key/1-a"
    every = "".join(f"  {purpose}: {arn}\n" for purpose in ("secrets", "logs", "registry", "bucket"))
    small = statements(cluster(f"{SMALL}encryption:\n{every}"), ACCOUNT, Purpose.UP)
    actions = {action for one in small for action in one.actions if action.startswith("kms:")}
    assert {"kms:CreateKey", "kms:TagResource", "kms:ScheduleKeyDeletion"} & actions == set()


def test_arns_use_the_partition_of_the_region() -> None:
    scope = ArnScope.of(cluster(SMALL.replace("us-east-1", "cn-north-1")), ACCOUNT)
    assert scope.bucket_arn == "arn:aws-cn:s3:::windlass-vision-123456789012"
    assert scope.role("node") == "arn:aws-cn:iam::123456789012:role/vision-node"
