"""Recovery finders share their search helpers, and cover all types of the cluster configuration."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.fakeaws.emulator import Emulator
from tests.helpers.clock import FakeClock

from windlass.clusters.aws import Aws, AwsError
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
