"""`doctor --on` prints lines and JSON, sets exit codes, and asks before it files requests (emulated)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Result
from tests.cli.test_json import hold
from tests.fakeaws.emulator import Emulator, emulated_aws

CLUSTER = """
name: vision
region: us-east-1
gpus:
  - {name: a10g, instances: [g5.12xlarge], max: 1}
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulated_aws(tmp_path_factory.mktemp("aws"), environ={"FAKEAWS_QUOTAS": "L-1216C47A=64"}) as emulator:
        yield emulator


@pytest.fixture
def account(home: Path, aws: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    for name, value in aws.environ.items():
        monkeypatch.setenv(name, value)
    programs = home.parent / "bin"
    programs.mkdir()
    for name, version in {"aws": "aws-cli/2.31.0", "helm": "v3.19.0"}.items():
        (programs / name).write_text(f"#!/bin/sh\necho {version}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    Path("cluster.yaml").write_text(CLUSTER)
    return aws


def requests(aws: Emulator) -> list[float]:
    found = aws.client("service-quotas").list_requested_service_quota_change_history()["RequestedQuotas"]
    return [one["DesiredValue"] for one in found]


def line(result: Result, name: str) -> str:
    return next((one for one in result.out.splitlines() if one[6:].startswith(name)), "")


def test_account_checks_match_their_schema_emulated(windlass: Call, account: Emulator) -> None:
    result = windlass("doctor", "--on", "cluster.yaml", "-o", "json")
    hold("doctor", result.json)
    assert result.code == 1
    assert [one["name"] for one in result.json["checks"] if one["name"].startswith("quota")] == [
        "quota standard",
        "quota G/VT",
        "quota addresses",
        "quota VPCs",
    ]
    assert all(one["fix"] for one in result.json["checks"] if one["level"] == "fail")


@pytest.mark.slow
def test_quota_request_is_filed_only_after_consent_emulated(windlass: Call, account: Emulator) -> None:
    asked = windlass("doctor", "--on", "cluster.yaml", "--request")
    question = "Request 48 for quota Running On-Demand G and VT instances in us-east-1?"
    assert f"{question} There is no terminal to ask on; --yes agrees." in asked.err
    assert requests(account) == []
    filed = windlass("doctor", "--on", "cluster.yaml", "--request", "--yes")
    assert "requested 48 for Running On-Demand G and VT instances" in filed.out
    assert requests(account) == [48.0]
    again = windlass("doctor", "--on", "cluster.yaml", "--request", "--yes")
    assert "a request for 48 is open since" in line(again, "quota G/VT")
    assert requests(account) == [48.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--request"], "belong to --on"),
        (["--on", "lab", "--pod-role", "runs"], "no ARN of a role"),
        (["--on", "nope"], "no target is called 'nope'"),
        (["--on", "nope.yaml"], "there is no file nope.yaml"),
        (["--on", "local"], "target local is no Kubernetes cluster, but local"),
    ],
)
def test_invalid_doctor_arguments_are_refused(windlass: Call, words: list[str], message: str) -> None:
    result = windlass("doctor", *words)
    assert (result.code, message in result.err) == (2, True), result.err


def test_unreachable_cluster_is_one_failed_check(windlass: Call, home: Path) -> None:
    Path("config").write_text(
        '{"contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u"}],'
        '"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}]}'
    )
    Path("targets.yaml").write_text(
        f'{{"lab": {{"kind": "kubernetes", "context": "lab", "kubeconfig": "{Path("config").absolute()}"}}}}'
    )
    begun = time.monotonic()
    result = windlass("doctor", "--on", "lab")
    assert (result.code, result.out.splitlines()[-1]) == (1, "1 failure")
    assert "does not answer" in line(result, "api")
    assert time.monotonic() - begun < 60
