"""Results of a probe pod are converted to checks of role, S3 access, claims and image pulls."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from windlass.engines.kubernetes.objects.quantity import duration
from windlass.engines.kubernetes.reading.preflight.pod_findings import (
    Association,
    folder_check,
    image_check,
    ladder_check,
    pull,
    role_check,
    role_name,
)

RUN = "arn:aws:iam::123456789012:role/team/vision-run"
SESSION = "arn:aws:sts::123456789012:assumed-role/vision-run/eks-vision-pod"
WANTED = Association("default", RUN, "aws eks create-pod-identity-association …")


def test_session_of_the_expected_role_passes_with_any_path() -> None:
    assert role_name(SESSION) == role_name(RUN)
    found = role_check({"arn": SESSION, "by": "AWS_CONTAINER_CREDENTIALS_FULL_URI"}, WANTED, needs_role=True)
    assert (found.level, found.found) == ("ok", f"{SESSION}, by AWS_CONTAINER_CREDENTIALS_FULL_URI")


@pytest.mark.parametrize(
    "other",
    [
        SESSION.replace("vision-run", "other"),
        SESSION.replace("123456789012", "210987654321"),
        "arn:aws:iam::123456789012:user/ana",
    ],
)
def test_unexpected_role_fails_with_association_as_fix(other: str) -> None:
    found = role_check({"arn": other, "by": "x"}, WANTED, needs_role=True)
    assert (found.level, found.fix) == ("fail", WANTED.fix)
    assert RUN in found.found


def test_missing_role_fails_only_if_role_or_bucket_is_expected() -> None:
    none = {"kind": "none", "error": "the pod has no role and no keys"}
    assert role_check(none, WANTED, needs_role=False).level == "fail"
    assert role_check(none, Association(), needs_role=True).level == "fail"
    assert role_check(none, Association(), needs_role=False).level == "warn"
    assert "windlass" not in role_check(none, Association(), needs_role=True).fix


def test_unresponsive_agent_is_not_reported_as_missing_association() -> None:
    silent = {"kind": "unreachable", "error": "169.254.170.23, which gives credentials, does not answer"}
    assert "eks-pod-identity-agent" in role_check(silent, WANTED, needs_role=True).fix


def rung(name: str, kind: str = "", error: str = "") -> dict[str, Any]:
    return {"rung": name, "seconds": 0.01, **({"kind": kind, "error": error} if kind else {})}


def test_denied_operations_give_one_policy() -> None:
    rungs = [
        rung("list", "denied", "403 AccessDenied"),
        rung("write"),
        rung("read", "denied", "403 AccessDenied"),
        rung("delete", "denied", "403 AccessDenied"),
    ]
    found = ladder_check(rungs, "data", "windlass/doctor/", RUN)
    assert found.level == "fail"
    assert found.found.endswith("; write passed")
    text = found.fix.partition(": ")[2].partition(" (a bucket")[0]
    assert json.loads(text) == [
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": "arn:aws:s3:::data"},
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:DeleteObject"], "Resource": "arn:aws:s3:::data/windlass/*"},
    ]
    assert found.fix.startswith(f"allow it to {RUN}")


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("unreachable", "gateway endpoint"),
        ("no-bucket", "aws s3 mb s3://data"),
        ("keys", "pod role"),
        ("other", "aws s3 cp FILE s3://data/windlass/doctor/"),
    ],
)
def test_other_s3_failures_have_their_own_fix(kind: str, fix: str) -> None:
    assert fix in ladder_check([rung("list", kind, "said")], "data", "windlass/doctor/", "").fix


def test_complete_s3_access_is_one_line() -> None:
    found = ladder_check([rung(name) for name in ("list", "write", "read", "delete")], "data", "windlass/doctor/", "")
    assert (found.level, found.found) == (
        "ok",
        "a pod can list, write, read, delete in s3://data/windlass/doctor/ (40 ms)",
    )


@pytest.mark.parametrize(
    ("number", "owner", "fix"),
    [
        (errno.EROFS, "0:0", "read-only"),
        (errno.EACCES, "0:0", "access point"),
        (errno.EACCES, "1234:0", "user: 1234"),
        (errno.ENOSPC, "0:0", "full"),
        (errno.EIO, "0:0", "describe pvc"),
    ],
)
def test_unwritable_claim_has_a_fix(number: int, owner: str, fix: str) -> None:
    answer = {"step": "write", "error": "said", "errno": number, "owner": owner, "mode": "0o755", "user": 1000}
    found = folder_check("efs", answer)
    assert (found.name, found.level, fix in found.fix) == ("claim efs", "fail", True)


def test_size_of_unlimited_file_system_is_not_shown() -> None:
    assert "free" not in folder_check("efs", {"seconds": 0.1, "free_bytes": 2**63}).found
    assert folder_check("fsx", {"seconds": 0.1, "free_bytes": 2**40}).found.endswith(", 1,024 GiB free")


def event(reason: str, message: str, at: str = "2026-11-25T01:00:00Z") -> dict[str, Any]:
    return {"reason": reason, "message": message, "firstTimestamp": at, "metadata": {}}


PULLED = 'Successfully pulled image "a" in 1m2.5s (1m3s including waiting). Image size: 9400000000 bytes.'


def test_pull_time_is_read_from_the_kubelet_message() -> None:
    found = image_check("a", "node1", [event("Pulled", PULLED), event("Pulling", "")])
    assert (found.level, found.found) == ("ok", "a was pulled in 62.5 s on node node1 (9.4 GB)")


def test_pull_time_falls_back_to_time_between_events() -> None:
    events = [event("Pulled", "pulled", "2026-11-25T01:05:00Z"), event("Pulling", "", "2026-11-25T01:00:00Z")]
    assert pull(events) == (300.0, "")
    assert image_check("a", "node1", events).level == "warn"


def test_image_already_on_the_node_has_no_pull_time() -> None:
    present = [event("Pulled", 'Container image "a" already present on machine')]
    assert "already" in image_check("a", "node1", present).found
    assert pull([]) == (None, "")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5s", 1.5), ("850ms", 0.85), ("1h2m3s", 3723.0), ("soon", None), ("3", None)]
)
def test_go_durations_are_parsed(text: str, seconds: float | None) -> None:
    assert duration(text) == (pytest.approx(seconds) if seconds is not None else None)
