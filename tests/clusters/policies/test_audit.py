"""The audit's policy is built from the declared operations of finders, and is read-only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clusters.audit.recorded import Recorded

import windlass.clusters.audit.finders
from windlass.clusters.audit.calls import AuditCalls, FinderCalls
from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.aws import Aws
from windlass.clusters.policies.audit import audit_actions, audit_statements
from windlass.errors import WindlassError


def test_all_actions_only_read() -> None:
    assert [one for one in audit_actions() if not re.fullmatch(r"[a-z0-9-]+:(Describe|List|Get|View)\w+", one)] == []


def test_statements_name_each_action_once_and_a_service_each() -> None:
    statements = audit_statements()
    actions = [action for one in statements for action in one["Action"]]
    assert sorted(actions) == list(audit_actions())
    for one in statements:
        assert re.fullmatch(r"Audit[A-Za-z0-9]+", one["Sid"])
        assert len({action.split(":")[0] for action in one["Action"]}) == 1
        assert one["Effect"] == "Allow"


def test_actions_use_iam_prefixes() -> None:
    actions = audit_actions()
    assert "elasticloadbalancing:DescribeLoadBalancers" in actions
    assert "elasticfilesystem:DescribeFileSystems" in actions
    assert "s3:ListAllMyBuckets" in actions
    assert "budgets:ViewBudget" in actions
    assert not any(one.startswith(("elb", "efs:")) for one in actions)


def test_each_declared_call_is_an_operation_that_boto3_knows() -> None:
    import botocore.session

    session = botocore.session.get_session()
    for finder in FINDERS:
        for call in finder.operations:
            client, operation = call.split(":")
            assert operation in session.get_service_model(client).operation_names, call


LISTED = re.compile(r"""calls\.(?:items|tags)\(\s*"([\w-]+)", "(\w+)", ("\w+"|key)""")
TOKENS = {"NextToken", "nextToken", "Marker", "NextMarker", "IsTruncated", "ContinuationToken"}


def listings() -> set[tuple[str, str, str]]:
    """Returns client, operation and member of each listing in the finders' source code."""
    folder = Path(windlass.clusters.audit.finders.__file__).parent
    files = [*folder.glob("*.py"), folder.parent / "locate.py"]
    return {found for path in files for found in LISTED.findall(path.read_text())}


def test_each_listing_is_paginated_and_reads_an_existing_member() -> None:
    found = listings()
    assert len(found) > 40
    with Aws("us-east-1", environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}) as aws:
        for service, operation, member in found:
            client = aws.client(service)
            shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).output_shape
            assert member == "key" or member.strip('"') in shape.members, operation
            assert client.can_paginate(operation) or not TOKENS & set(shape.members), operation


def test_each_kind_is_in_the_table_once() -> None:
    names = [(one.service, one.kind) for one in FINDERS]
    assert len(names) == len(set(names))


def test_undeclared_call_of_a_finder_is_refused() -> None:
    with Aws("us-east-1", environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}) as aws:
        calls = FinderCalls(AuditCalls(aws, None), "ec2", "volume", ("ec2:DescribeVolumes",))  # type: ignore[arg-type]
        with pytest.raises(WindlassError, match="does not declare ec2:DeleteVolume"):
            calls.get("ec2", "delete_volume", VolumeId="vol-1")


def test_recorded_stub_has_all_call_methods() -> None:
    calls = {name for name, value in vars(FinderCalls).items() if callable(value) and not name.startswith("_")}
    assert {"items", "get", "tags", "each"} <= calls
    assert {"items", "get", "tags", "each"} <= set(vars(Recorded))


def test_boto3_is_imported_only_for_the_first_client() -> None:
    """Commands that do not use AWS start without importing boto3."""
    code = "import sys, windlass.clusters.audit; print([m for m in ('boto3', 'botocore') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
