"""`cluster policy` prints policies as text, data and files; without a login it needs the account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

ACCOUNT = ("--account", "123456789012")


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def _file(windlass: Call) -> None:  # the policies go into a separate folder
    Path("cluster.yaml").write_text("name: vision\nregion: us-east-1\n")


@pytest.mark.usefixtures("_file")
def test_up_is_several_documents_and_the_audit(windlass: Call) -> None:
    said = windlass("cluster", "policy", *ACCOUNT, "-o", "json")
    assert said.code == 0
    found = json.loads(said.out)
    names = [one["name"] for one in found["policies"]]
    assert names[-1] == "windlass-vision-audit"
    assert names[:-1] == [f"windlass-vision-up-{number}" for number in range(1, len(names))]
    assert all(one["size"] <= 6144 and one["document"]["Version"] == "2012-10-17" for one in found["policies"])


@pytest.mark.usefixtures("_file")
def test_policy_text_shows_users_and_reasons(windlass: Call) -> None:
    said = windlass("cluster", "policy", *ACCOUNT, "--for", "runs")
    assert said.code == 0
    assert "# windlass-vision-runs: for users who start runs" in said.out
    assert "# windlass-vision-pods: for the pods of runs: Terraform creates this role" in said.out
    assert "# Login: does not support resources" in said.out
    assert '"Sid": "Objects"' in said.out


@pytest.mark.usefixtures("_file")
def test_policy_files_are_valid_for_iam(windlass: Call) -> None:
    said = windlass("cluster", "policy", *ACCOUNT, "--for", "doctor", "--into", "policies")
    assert said.code == 0
    assert "policies/windlass-vision-doctor.json written" in said.out
    found = json.loads(Path("policies/windlass-vision-doctor.json").read_text())
    assert {one["Sid"] for one in found["Statement"]} >= {"ReadQuotas", "SimulateOwnRights"}


@pytest.mark.usefixtures("_file")
def test_policy_without_a_login_needs_the_account_option(windlass: Call) -> None:
    said = windlass("cluster", "policy")
    assert said.code == 2
    assert "the policies name an account, and which one is not known" in said.err
    assert "--account 123456789012" in said.err
    assert windlass("cluster", "policy", "--account", "12").code == 2
