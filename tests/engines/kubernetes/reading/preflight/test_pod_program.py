"""The probe program tests a real S3 server, emulated roles and folders, and runs from its zip file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.ports import quiet_port
from tests.servers.emulated_roles import emulated_roles
from tests.servers.s3 import S3Server, s3_server

from windlass.engines.kubernetes.objects.package import RUNNER
from windlass.engines.kubernetes.reading.preflight.pod_program import answer, folder
from windlass.engines.kubernetes.reading.preflight.probes import archive

ASKED = {"bucket": "runs", "prefix": "windlass/doctor/"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "store") as found:
        found.client().create_bucket(Bucket="runs")
        yield found


def kinds(found: dict[str, object]) -> dict[str, str]:
    rungs = found["ladder"]
    assert isinstance(rungs, list)
    return {one["rung"]: one.get("kind", "ok") for one in rungs}


@pytest.mark.slow
def test_complete_s3_test_leaves_no_object(server: S3Server) -> None:
    assert kinds(answer(ASKED, server.environ())) == dict.fromkeys(("list", "write", "read", "delete"), "ok")
    assert "Contents" not in server.client().list_objects_v2(Bucket="runs")


@pytest.mark.slow
def test_missing_bucket_ends_the_s3_test(server: S3Server) -> None:
    assert kinds(answer({**ASKED, "bucket": "none"}, server.environ())) == {"list": "no-bucket"}


@pytest.mark.slow
def test_wrong_keys_are_not_reported_as_missing_permission(server: S3Server) -> None:
    wrong = {**server.environ(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    assert kinds(answer(ASKED, wrong)) == {"list": "keys"}


@pytest.mark.slow
def test_unreachable_store_is_reported_as_such(server: S3Server) -> None:
    away = server.environ(f"http://127.0.0.1:{quiet_port()}")
    assert kinds(answer(ASKED, away)) == {"list": "unreachable"}


def test_pod_without_role_and_keys_is_reported() -> None:
    assert answer({"role": True}, {})["role"]["kind"] == "none"


def test_refusal_of_the_pod_identity_agent_is_reported() -> None:
    with emulated_roles() as agent:
        agent.status = 403
        environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.address}/v1/credentials"}
        found = answer({"role": True}, environ)["role"]
    assert found["kind"] == "keys"
    assert "the agent for credentials" in found["error"]


def test_folder_test_leaves_folder_unchanged(tmp_path: Path) -> None:
    found = folder(str(tmp_path))
    assert "error" not in found
    assert found["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_reported_with_reason() -> None:
    found = folder("/proc/self")
    assert (found["step"], bool(found["error"])) == ("write", True)


@pytest.mark.slow
def test_probe_program_runs_from_its_zip_file_alone(server: S3Server, tmp_path: Path) -> None:
    program = archive()
    question = json.dumps({**ASKED, "folder": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUNNER, str(len(program)), "{}", question],
        input=program,
        env={"PATH": os.environ["PATH"], **server.environ()},
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert kinds(found) == dict.fromkeys(("list", "write", "read", "delete"), "ok")
    assert "error" not in found["folder"]
