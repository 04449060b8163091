"""What commands print of targets on SageMaker where nothing can be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.engines.sagemaker.planning import FIELDS


@pytest.fixture(autouse=True)
def targets(home: Path) -> None:
    aws = {name: value for name, value in FIELDS.items() if name != "name"}
    known = {"here": {"kind": "sagemaker-local"}, "aws": {"kind": "sagemaker", **aws}}
    Path("targets.yaml").write_text(json.dumps(known))
    Path("train.py").write_text("print(1)\n")


def test_hosts_on_this_machine_need_no_rights(windlass: Call) -> None:
    refused = windlass("check", "--on", "here", "--role")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: check --role is not supported by engine sagemaker-local\n"


def test_without_credentials_the_error_is_that_alone(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    refused = windlass("run", "train.py", "--on", "aws", "-o", "json")
    error = json.loads(refused.err.splitlines()[-1])["error"]
    assert "no credentials for S3 were found" in error["message"]
    assert "may be left" not in error["hint"]
    assert windlass("ps", "-a", "-o", "json").json == []
