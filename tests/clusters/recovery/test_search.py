"""Recovery finders share their search helpers, and cover all types of the cluster configuration."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakeaws.emulator import Emulator
from tests.helpers.clock import FakeClock

from windlass.clusters.aws import AccessDenied, Aws, AwsError
from windlass.clusters.recovery.discovery import Discovery, _refused
from windlass.clusters.recovery.search import (
    NotKnownYet,
    Search,
    Status,
    is_absence,
    need,
    planned_name,
    status_of,
    tag_of,
)
from windlass.clusters.recovery.table import FINDERS, LISTERS, WITHOUT_OBJECT
from windlass.clusters.terraform.driver import import_block

WITHOUT_IMPORT = {"aws_cloudcontrolapi_resource"}
"""Types that the provider cannot import: recovery reports their addresses as unknown."""


def test_each_type_of_the_configuration_can_be_found() -> None:
    folder = Path(str(files("windlass.clusters") / "eks"))
    text = "\n".join(path.read_text() for path in folder.glob("*.tf"))
    used = set(re.findall(r'^resource "(\w+)"', text, re.MULTILINE))
    assert used
    assert used - set(FINDERS) - WITHOUT_OBJECT == WITHOUT_IMPORT & used


def test_each_listed_type_has_a_finder() -> None:
    assert set(LISTERS) <= set(FINDERS)


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("ACTIVE", Status.READY),
        ("available", Status.READY),
        ("DEGRADED", Status.READY),
        ("", Status.READY),
        ("CREATING", Status.PENDING),
        ("pendingAcceptance", Status.PENDING),
        ("deleting", Status.GOING),
        ("deleted", Status.GONE),
        ("CREATE_FAILED", Status.FAILED),
    ],
)
def test_status_words_of_services_are_mapped(word: str, status: Status) -> None:
    assert status_of(word) is status


def test_emulated_deleted_nat_gateway_is_ignored_although_listed(shared_aws: Emulator) -> None:
    ec2 = shared_aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"]
    tags = [{"Key": "Name", "Value": "gone-a"}, {"Key": "windlass.dev/cluster", "Value": "gone"}]
    about = {"ResourceType": "natgateway", "Tags": tags}
    made = ec2.create_nat_gateway(SubnetId=subnet, ConnectivityType="private", TagSpecifications=[about])
    ec2.delete_nat_gateway(NatGatewayId=made["NatGateway"]["NatGatewayId"])
    no_terraform: Any = None
    with Aws(environ=shared_aws.environ) as aws:
        search = Search(aws, "gone")
        [listed] = FINDERS["aws_nat_gateway"](search, {"tags_all": {"Name": "gone-a"}})
        assert listed.status is Status.GONE
        discovery = Discovery(no_terraform, search, clock=FakeClock(), plan=pytest.fail)
        assert discovery.settled("aws_nat_gateway.main", "aws_nat_gateway", {"tags_all": {"Name": "gone-a"}}) == []


@pytest.mark.parametrize(("owner", "is_ours"), [("team", True), ("others", False)])
def test_emulated_parts_of_a_foreign_repository_or_cluster_and_a_foreign_budget_are_not_imported(
    shared_aws: Emulator, owner: str, *, is_ours: bool
) -> None:
    """Others may use their names: an import would adopt the budget, and create the repository and the cluster."""
    client, name, role = shared_aws.client, f"team-{owner}", "arn:aws:iam::123456789012:role/run"
    tags = {"windlass.dev/cluster": owner}
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    with Aws(environ=shared_aws.environ) as aws:
        account = aws.identity.account_id
        client("ecr").create_repository(repositoryName=name, tags=pairs)
        client("ecr").put_lifecycle_policy(repositoryName=name, lifecyclePolicyText=f"{{}}{' ' * 100}")
        network = {"subnetIds": ["subnet-1", "subnet-2"]}
        client("eks").create_cluster(name=name, roleArn=role, resourcesVpcConfig=network, tags=tags)
        about = {"namespace": "kube-system", "serviceAccount": "aws-node", "roleArn": role}
        client("eks").create_pod_identity_association(clusterName=name, **about)
        client("eks").create_access_entry(clusterName=name, principalArn=role)
        policy = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
        client("eks").associate_access_policy(
            clusterName=name, principalArn=role, policyArn=policy, accessScope={"type": "cluster"}
        )
        client("events").put_rule(Name=name, ScheduleExpression="rate(1 day)", Tags=pairs)
        client("events").put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": "arn:aws:sqs:us-east-1:1:q"}])
        budget = {"BudgetName": name, "BudgetType": "COST", "TimeUnit": "MONTHLY"}
        limit = {"BudgetLimit": {"Amount": "100", "Unit": "USD"}}
        client("budgets").create_budget(AccountId=account, Budget={**budget, **limit}, ResourceTags=pairs)
        planned: dict[str, dict[str, str]] = {
            "aws_ecr_lifecycle_policy": {"repository": name},
            "aws_eks_pod_identity_association": {
                "cluster_name": name,
                "namespace": "kube-system",
                "service_account": "aws-node",
            },
            "aws_eks_access_policy_association": {"cluster_name": name, "principal_arn": role, "policy_arn": policy},
            "aws_cloudwatch_event_target": {"rule": name, "target_id": "queue"},
            "aws_budgets_budget": {"name": name},
        }
        found = {type: FINDERS[type](Search(aws, "team"), values) for type, values in planned.items()}
    assert {type: [one.is_ours for one in listed] for type, listed in found.items()} == {
        type: [is_ours] for type in planned
    }


class Keys:
    """Stand-in for KMS whose key policies deny the tags of some keys."""

    def __init__(self, denied: tuple[str, ...]) -> None:
        self.denied = denied

    def can_paginate(self, _operation: str) -> bool:
        return False

    def list_keys(self) -> Any:
        return {"Keys": [{"KeyId": "ours"}, {"KeyId": "secret"}]}

    def list_resource_tags(self, KeyId: str) -> Any:  # noqa: N803
        if KeyId in self.denied:
            raise AccessDenied("no resource-based policy allows it")
        return {"Tags": [{"TagKey": "windlass.dev/cluster", "TagValue": "team"}, {"TagKey": "Name", "TagValue": "k"}]}

    def describe_key(self, KeyId: str) -> Any:  # noqa: N803
        return {"KeyMetadata": {"KeyId": KeyId, "KeyState": "Enabled"}}


def test_key_whose_policy_denies_its_tags_is_reported_and_does_not_end_the_search() -> None:
    """Security teams keep such keys; one of them would block every `up` and `down` after a kill."""
    aws: Any = SimpleNamespace(client=lambda _service: Keys(("secret",)))
    search = Search(aws, "team")
    [found] = FINDERS["aws_kms_key"](search, {"tags": {"Name": "k"}})
    assert (found.id, search.unread) == ("ours", {"the KMS key secret, whose tags cannot be read"})


def test_tags_of_keys_must_be_readable_with_the_credentials() -> None:
    aws: Any = SimpleNamespace(client=lambda _service: Keys(("ours", "secret")))
    with pytest.raises(AccessDenied):
        FINDERS["aws_kms_key"](Search(aws, "team"), {"tags": {"Name": "k"}})


@pytest.mark.parametrize(
    "tags",
    [
        {"Name": "a"},
        [{"Key": "Name", "Value": "a"}],
        [{"key": "Name", "value": "a"}],
        [{"TagKey": "Name", "TagValue": "a"}],
    ],
)
def test_tags_are_read_in_each_form_of_aws(tags: object) -> None:
    assert tag_of(tags, "Name") == "a"
    assert tag_of(tags, "Other") == tag_of(None, "Name") == ""


def test_missing_attribute_raises_not_known_yet() -> None:
    assert need({"a": "b"}, "a") == "b"
    for values in ({}, {"a": None}, {"a": ""}):
        with pytest.raises(NotKnownYet):
            need(values, "a")
    with pytest.raises(NotKnownYet):
        planned_name({"tags": {"x": "y"}})


def test_id_is_escaped_in_the_import_block() -> None:
    assert import_block("aws_vpc.main", 'a"b${c}%{d}\n') == (
        'import {\n  to = aws_vpc.main\n  id = "a\\"b$${c}%%{d}\\n"\n}\n'
    )


def test_refused_import_addresses_are_parsed_from_the_message() -> None:
    detail = 'While attempting to import an existing object to "aws_eip.nat[\\"us-east-1a\\"]", the provider detected'
    assert _refused(detail) == ['aws_eip.nat["us-east-1a"]']


@pytest.mark.parametrize(
    ("code", "is_absent"),
    [
        ("PolicyNotFound", True),
        ("NoSuchPublicAccessBlockConfiguration", True),
        ("AWS.SimpleQueueService.NonExistentQueue", True),
        ("AccessDenied", False),
        ("Throttling", False),
    ],
)
def test_absence_codes_are_recognized_and_access_denied_is_not(code: str, is_absent: bool) -> None:
    assert is_absence(AwsError("", code=code)) is is_absent
