"""Output of commands for SageMaker targets on which nothing can be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.engines.sagemaker.planning import FIELDS
from tests.helpers.until import until


@pytest.fixture(autouse=True)
def targets(home: Path) -> None:
    aws = {name: value for name, value in FIELDS.items() if name != "name"}
    known = {"here": {"kind": "sagemaker-local"}, "aws": {"kind": "sagemaker", **aws}}
    Path("targets.yaml").write_text(json.dumps(known))
    Path("train.py").write_text("print(1)\n")


def test_local_hosts_need_no_permissions(windlass: Call) -> None:
    refused = windlass("check", "--on", "here", "--role")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: check --role is not supported by engine sagemaker-local\n"


def test_runs_on_this_machine_are_listed_without_a_target(windlass: Call) -> None:
    refused = windlass("ps", "--on", "here")
    assert (refused.code, "windlass ps lists the runs of this machine" in refused.err) == (2, True)


def test_missing_credentials_are_the_only_error(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    refused = windlass("run", "train.py", "--on", "aws", "-o", "json")
    error = json.loads(refused.err.splitlines()[-1])["error"]
    assert "no credentials for AWS were found" in error["message"]
    assert "may be left" not in error["hint"]
    assert windlass("ps", "-a", "-o", "json").json == []


@pytest.mark.slow
def test_stop_now_is_reported_as_unsupported_by_the_target(windlass: Call) -> None:
    Path("deaf.sh").write_text("trap '' TERM; echo ready; sleep 600\n")
    started = windlass("run", "--on", "here", "--set", "grace=1s", "-d", "-q", "--", "bash", "deaf.sh")
    assert started.code == 0, started.err
    until(lambda: "ready" in windlass("logs").out)
    assert "when the run has ended" in windlass("cp", f"{windlass('ps', '-q').out.strip()}:output", "here").err
    stopped = windlass("stop", "--now")
    assert "to exit: here has no faster stop" in stopped.err
    assert "without a grace period" not in windlass("events").out
    assert "without grace" not in windlass("why").out


def test_a_run_that_can_be_resumed_is_not_removed_with_its_checkpoints(windlass: Call, home: Path) -> None:
    Path("save.sh").write_text('echo 7 > "$WINDLASS_CHECKPOINT_DIR/step-7"; exit 1\n')
    assert windlass("run", "--on", "here", "-q", "--", "bash", "save.sh").code == 100
    [saved] = home.glob("sagemaker-storage/runs/*/checkpoints/step-7")
    refused = windlass("rm", saved.parent.parent.name)
    assert (refused.code, "can be resumed; with it would go what it has saved in" in refused.err) == (2, True)
    assert saved.exists()
    assert windlass("rm", "--force", saved.parent.parent.name).code == 0
    assert not saved.exists()
