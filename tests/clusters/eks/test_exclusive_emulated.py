"""Policies attached to roles outside Terraform are drift, and an apply removes them (emulated)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.eks.configuration import SERVICES, Terraform, copied_to
from tests.fakeaws.emulator import Emulator
from tests.fakeaws.emulator.fixtures import aws, terraform

__all__ = ["aws", "terraform"]
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]
EXCLUSIVE = ("aws_iam_role_policies_exclusive.main", "aws_iam_role_policy_attachments_exclusive.main")
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"


def test_foreign_policies_on_roles_are_drift_and_removed_emulated(
    tmp_path: Path, terraform: dict[str, str], aws: Emulator
) -> None:
    iam = aws.client("iam")
    login = {name: value for name, value in aws.environ.items() if name != "AWS_ENDPOINT_URL"}
    made = Terraform(copied_to(tmp_path), terraform | login)
    made.variables(
        {
            "name": "vision",
            "region": "us-east-1",
            "zones": ["us-east-1a", "us-east-1b"],
            "sagemaker": True,
            "efs": {},
            "s3_mountpoint": True,
            "endpoints": dict.fromkeys(SERVICES, aws.url),
        }
    )
    made.run("init", "-no-color")
    targets = [f"-target={address}" for address in EXCLUSIVE]
    made.run("apply", "-auto-approve", "-no-color", *targets)
    made.run("plan", "-detailed-exitcode", "-no-color", *targets)  # exits with 2 if there are changes
    before = rights(iam)
    assert before["vision-run"] == (["bucket"], [])

    iam.attach_role_policy(RoleName="vision-run", PolicyArn=ADMINISTRATOR)
    iam.put_role_policy(
        RoleName="vision-node",
        PolicyName="more",
        PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        ),
    )
    made.run("plan", "-no-color", "-out", "plan", *targets)
    plan = json.loads(made.run("show", "-json", "plan"))
    changed = {one["address"] for one in plan["resource_changes"] if one["change"]["actions"] == ["update"]}
    assert changed == {f'{EXCLUSIVE[0]}["node"]', f'{EXCLUSIVE[1]}["run"]'}
    assert changed <= {one["address"] for one in plan["resource_drift"]}
    made.run("apply", "-no-color", "plan")
    assert rights(iam) == before


def rights(iam: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Returns the inline and attached policies of each role."""
    return {
        name: (
            sorted(iam.list_role_policies(RoleName=name)["PolicyNames"]),
            sorted(one["PolicyArn"] for one in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]),
        )
        for name in (one["RoleName"] for one in iam.list_roles()["Roles"])
    }
