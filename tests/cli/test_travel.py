"""`windlass plan --on CLUSTER` lists the files to upload, even if the cluster is unreachable."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from tests.cli.conftest import Call
from tests.engines.kubernetes.api import config_of

from windlass.views.schema import schema_of


@pytest.fixture(autouse=True)
def job(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provides a job in the working folder, and a target whose cluster refuses connections."""
    Path("train.py").write_text("print(1)\n")
    Path("job.yaml").write_text("name: digits\nrun: train.py\n")
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: lab, namespace: a, image: 'x:1'}\n")
    monkeypatch.setenv("KUBECONFIG", str(home.parent / "kubeconfig"))
    with socket.socket() as held:  # bound but not listening
        held.bind(("127.0.0.1", 0))
        config_of(held.getsockname()[1], home.parent, context="lab")
        yield


def test_plan_is_blocked_by_possible_credentials_until_they_are_ignored_or_permitted(windlass: Call) -> None:
    Path(".env").write_text("TOKEN=1\n")
    said = windlass("plan", "job.yaml", "--on", "lab").out
    assert "error:   1 file in " in said
    assert "may hold credentials, which would travel to the cluster: .env\n" in said
    assert "ignore them in .gitignore or .windlassignore" in said
    Path(".windlassignore").write_text("!/.env\n")
    assert "credentials" not in windlass("plan", "job.yaml", "--on", "lab").out
    Path(".windlassignore").write_text(".env\n")
    said = windlass("plan", "job.yaml", "--on", "lab").out
    assert "credentials" not in said
    assert "left out  1 by .windlassignore:1 .env" in said


@pytest.mark.parametrize("target", ["lab", "twin"])
def test_plan_is_blocked_if_an_ignore_file_excludes_the_script(windlass: Call, target: str) -> None:
    Path("targets.yaml").write_text(Path("targets.yaml").read_text() + "twin: {kind: sagemaker-local}\n")
    Path(".gitignore").write_text("train*\n")
    Path(".windlassignore").write_text("train*\n")
    said = windlass("plan", "job.yaml", "--on", target).out
    assert "an ignore file leaves train.py out of what travels with the job" in said
    Path(".windlassignore").write_text("!/train.py\n")
    assert "leaves train.py out" not in windlass("plan", "job.yaml", "--on", target).out


def test_local_run_uploads_nothing_and_refuses_nothing(windlass: Call) -> None:
    Path(".env").write_text("TOKEN=1\n")
    done = windlass("plan", "job.yaml")
    assert (done.code, "credentials" in done.out) == (0, False)


def test_uploaded_files_are_part_of_the_json_plan(windlass: Call) -> None:
    found = json.loads(windlass("plan", "job.yaml", "--on", "lab", "-o", "json").out)
    jsonschema.Draft202012Validator(schema_of("plan")).validate(found)
    [code] = [step["request"] for step in found["steps"] if step["kind"] == "code"]
    assert [one["name"] for one in code["files"]] == ["job.yaml", "targets.yaml", "train.py"]
    assert code["files"][2]["bytes"] == 9
    assert code["added"]["files"] > 10
    assert "train.py (9 B)" in windlass("plan", "job.yaml", "--on", "lab", "-v").out
