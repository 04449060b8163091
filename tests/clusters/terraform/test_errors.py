"""Errors of Terraform, recorded or in AWS's wording, become messages with hints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clusters.terraform.test_events import events

from windlass.clusters.terraform.errors import StalePlan, StateLocked, TerraformError, TerraformFailed, failure
from windlass.clusters.terraform.events import Diagnostic

LOG = Path("apply.log")
API = "operation error {}, https response error StatusCode: {}, RequestID: 4f2a-11, api error {}"


def recorded(name: str) -> TerraformError:
    """Returns the error of a recorded command."""
    return failure("apply", [one for one in events(name) if isinstance(one, Diagnostic)], LOG)


def worded(operation: str, status: int, error: str, doing: str = "creating it") -> TerraformFailed:
    """Returns the error for one provider failure."""
    summary = f"{doing}: {API.format(operation, status, error)}"
    found = failure("apply", [Diagnostic("error", summary, address="aws_vpc.main", file="vpc.tf", line=3)], LOG)
    assert isinstance(found, TerraformFailed)
    return found


def test_error_for_missing_credentials_explains_how_to_log_in() -> None:
    found = recorded("credentials")
    assert "aws sso login" in found.hint


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "InvalidClientTokenId", "AuthFailure"])
def test_error_for_invalid_credentials_explains_how_to_log_in(code: str) -> None:
    found = worded("STS: GetCallerIdentity", 403, f"{code}: The security token included in the request is expired")
    assert "aws sso login" in found.hint


def test_access_denied_error_names_the_action() -> None:
    message = (
        "UnauthorizedOperation: You are not authorized to perform this operation. User: "
        "arn:aws:iam::123456789012:user/x is not authorized to perform: ec2:CreateVpc on resource: "
        "arn:aws:ec2:us-east-1:123456789012:vpc/* because no identity-based policy allows the "
        "ec2:CreateVpc action. Encoded authorization failure message: R0lGODlhAQAB"
    )
    found = worded("EC2: CreateVpc", 403, message)
    assert "aws_vpc.main in vpc.tf:3" in found.message
    assert found.hint.startswith("allow ec2:CreateVpc")
    assert "R0lGODlhAQAB" not in found.message


def test_access_denied_error_without_an_action_names_the_operation() -> None:
    assert worded("EKS: CreateAddon", 403, "AccessDeniedException: ").hint.startswith("allow eks:CreateAddon")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("VpcLimitExceeded: The maximum number of VPCs has been reached.", "ask for a higher quota"),
        ("AddressLimitExceeded: The maximum number of addresses has been reached.", "ask for a higher quota"),
        ("ResourceLimitExceeded: Too many clusters", "ask for a higher quota"),
        ("InsufficientInstanceCapacity: no p5.48xlarge", "choose other zones"),
        ("UnsupportedAvailabilityZoneException: us-east-1e", "choose other zones"),
        (
            "DependencyViolation: The vpc 'vpc-1' has dependencies and cannot be deleted.",
            "a resource created outside Terraform",
        ),
        (
            "DeleteConflict: Cannot delete entity, must detach all policies first.",
            "a resource created outside Terraform",
        ),
        ("Throttling: Rate exceeded", "try again in a few minutes"),
        ("InvalidSubnetID.NotFound: The subnet ID 'subnet-1' does not exist", "a resource needed by the configuration"),
        ('requested bucket from "eu-west-1", actual location "us-east-1"', "name the region of that bucket"),
        ("Whatever: else", "see apply.log"),
    ],
)
def test_failure_has_a_hint(error: str, hint: str) -> None:
    assert worded("EC2: Do", 400, error).hint.startswith(hint)


def test_error_lists_all_existing_names() -> None:
    found = recorded("exists")
    assert "cluster up --recover" in found.hint
    assert (
        "aws_iam_role.node in main.tf:33: creating IAM Role (small-node): Role with name small-node already exists."
        in (found.message)
    )
    assert "RequestID" not in found.message


def test_state_locked_error_shows_holder_and_time() -> None:
    found = recorded("locked")
    assert isinstance(found, StateLocked)
    assert found.lock.id == "47263ab1-a052-0c5d-8451-2a8ae7a0cdd1"
    assert (found.lock.host, found.lock.doing) == ("vm", "apply")
    assert "locked by root@vm since 2026-11-25 01:12:27 UTC (apply)" in found.message


def test_stale_plan_error_suggests_a_new_plan() -> None:
    assert isinstance(recorded("stale"), StalePlan)


def test_missing_state_bucket_is_reported() -> None:
    found = recorded("nobucket")
    assert '"absent-state" does not exist' in found.message
    assert "create the bucket" in found.hint


def test_configuration_error_has_its_position() -> None:
    found = recorded("configuration")
    assert "bad.tf:2: Unsupported argument" in found.message


def test_unreachable_service_is_reported_as_a_network_problem() -> None:
    found = recorded("refused")
    assert "check the network" in found.hint
    assert len(found.message) < 700


def test_failure_without_diagnostics_points_to_the_log() -> None:
    found = failure("apply", [], LOG, "panic: oh")
    assert "panic: oh" in found.message
    assert str(LOG) in found.hint
