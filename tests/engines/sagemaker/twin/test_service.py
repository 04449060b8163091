"""Jobs of the emulation from their creation to their end, with real processes."""

from __future__ import annotations

import base64
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engines.sagemaker.twin.conftest import GRACE_SECONDS
from tests.engines.sagemaker.twin.jobs import ML, ended, kill, manager_pid, output, request, says, steps
from tests.helpers.until import until

from windlass.engines.sagemaker.service import IN_USE, VALIDATION, Refused
from windlass.engines.sagemaker.twin.hosts import _is_at
from windlass.engines.sagemaker.twin.job import STOP, JobFolder
from windlass.engines.sagemaker.twin.service import Twin

WAITS = 'trap "echo asked to end; exit 0" TERM; echo up; while :; do sleep 0.1; done'
"""Script of a container that ends at SIGTERM."""


def members(path: Path) -> dict[str, str]:
    """Returns the files of an archive with their content."""
    with tarfile.open(path) as tar:
        files = {one.name: tar.extractfile(one) for one in tar if one.isreg()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_a_job_runs_to_its_end_and_its_model_is_uploaded(twin: Twin, home: Path) -> None:
    script = f"""echo "hp $(cat {ML}/input/config/hyperparameters.json)"; echo oops >&2
                 mkdir {ML}/model/a; echo w > {ML}/model/a/w"""
    twin.create(request(home, "whole", script, HyperParameters={"lr": "0.1"}))
    found = ended(twin, "whole")
    assert found["TrainingJobStatus"] == found["SecondaryStatus"] == "Completed"
    assert steps(found) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert output(twin, "whole") == ['hp {"lr": "0.1"}', "oops"]
    assert found["ModelArtifacts"]["S3ModelArtifacts"] == f"file://{home}/store/whole/output/model.tar.gz"
    assert members(home / "store/whole/output/model.tar.gz") == {"a/w": "w\n"}
    assert {one.name for one in (home / "store/whole/output").iterdir()} == {"model.tar.gz"}
    assert found["TrainingJobArn"].endswith(":training-job/whole")
    assert found["HyperParameters"] == {"lr": "0.1"}
    times = [one[key] for one in found["SecondaryStatusTransitions"] for key in ("StartTime", "EndTime") if key in one]
    assert times == sorted(times)
    assert found["CreationTime"] <= found["TrainingStartTime"] <= found["TrainingEndTime"]


def test_failing_container_is_failure_reason_of_job(home: Path) -> None:
    twin = Twin(home, os.environ)
    script = f'printf "%02000d" 7 > {ML}/output/failure; echo d > {ML}/output/data/log; exit 3'
    twin.create(request(home, "fails", script))
    found = ended(twin, "fails")
    assert found["TrainingJobStatus"] == "Failed"
    assert found["FailureReason"] == f"AlgorithmError: {'0' * 1024}, exit code: 3"
    assert found["SecondaryStatusTransitions"][-1]["StatusMessage"] == found["FailureReason"]
    assert members(home / "store/fails/output/output.tar.gz") == {"log": "d\n"}


def test_missing_entry_point_fails_as_in_shell(home: Path) -> None:
    twin = Twin(home, os.environ)
    body = request(home, "absent", "")
    body["AlgorithmSpecification"]["ContainerEntrypoint"] = ["no-such-program"]
    twin.create(body)
    assert ended(twin, "absent")["FailureReason"] == "AlgorithmError: , exit code: 127"
    assert output(twin, "absent") == ["exec: no-such-program: No such file or directory"]


def test_a_stopped_job_may_save_its_model(twin: Twin, home: Path) -> None:
    saves = f"while [ ! -e {home}/seen ]; do sleep 0.05; done; echo saved > {ML}/model/w; exit 0"
    twin.create(request(home, "stopped", f'trap "{saves}" TERM; echo up; while :; do sleep 0.1; done'))
    says(twin, "stopped", "up")
    twin.stop("stopped")
    assert twin.describe("stopped")["TrainingJobStatus"] == "Stopping"
    (home / "seen").touch()
    found = ended(twin, "stopped")
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert steps(found)[2:] == ["Training", "Stopping", "Uploading", "Stopped"]
    assert members(home / "store/stopped/output/model.tar.gz") == {"w": "saved\n"}
    with pytest.raises(Refused, match="in status Stopped"):
        twin.stop("stopped")


def test_stop_during_container_start_is_delivered_when_signals_are_handled(home: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root: only the first process of a process table ignores what it does not handle")
    script = f"""echo up; while [ ! -e {home}/go ]; do sleep 0.01; done
                 trap "echo saved; exit 0" TERM; while :; do sleep 0.05; done"""
    twin = Twin(home, os.environ, grace_seconds=GRACE_SECONDS)
    twin.create(request(home, "early", script))
    says(twin, "early", "up")
    twin.stop("early")
    until(lambda: "Stopping" in steps(twin.describe("early")))
    (home / "go").touch()
    ended(twin, "early")
    assert output(twin, "early") == ["up", "saved"]


def test_a_container_that_ignores_sigterm_is_killed(home: Path) -> None:
    twin = Twin(home, os.environ, grace_seconds=0.1)
    twin.create(request(home, "deaf", 'trap "" TERM; echo up; while :; do sleep 0.1; done'))
    says(twin, "deaf", "up")
    twin.stop("deaf")
    assert ended(twin, "deaf")["TrainingJobStatus"] == "Stopped"


def test_first_process_of_container_has_pid_1_and_ignores_default_signals(home: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    twin = Twin(home, os.environ, grace_seconds=0.1)
    body = request(home, "first", "")
    body["AlgorithmSpecification"] |= {
        "ContainerEntrypoint": ["bash", "-c"],
        "ContainerArguments": ["echo $$; hostname"],
    }
    twin.create(body)
    found = ended(twin, "first")
    assert output(twin, "first") == ["1", "algo-1"]
    assert found["WindlassHosts"]["isolation"] == "namespaces"


def test_killing_manager_ends_hosts_and_fails_job(twin: Twin, home: Path) -> None:
    script = '(setsid bash -c "while :; do sleep 0.05; done" & echo left); echo up; while :; do sleep 0.1; done'
    twin.create(request(home, "orphan", script))
    says(twin, "orphan", "up")
    kill(manager_pid(home, "orphan"))
    found = ended(twin, "orphan")
    assert found["TrainingJobStatus"] == "Failed"
    assert found["FailureReason"].startswith("InternalServerError: the process that managed the job was killed")
    assert output(twin, "orphan") == ["left", "up"]
    folder = str(home / "sagemaker-local/orphan/starts").encode()
    alive = [one for one in Path("/proc").glob("[0-9]*") if folder in _of(one)]
    assert alive == []


def _of(path: Path) -> bytes:
    """Returns the mounts and the environment of a process, which show its host."""
    try:
        return (path / "mountinfo").read_bytes() + (path / "environ").read_bytes()
    except OSError:
        return b""


def test_other_folder_named_opt_ml_is_not_a_host() -> None:
    folder = "/root/.windlass/sagemaker/jobs/digits-1/starts/1/algo-1/opt/ml"
    assert _is_at(folder, folder)
    assert _is_at("/jobs/digits-1/starts/1/algo-1/opt/ml", folder), "its file system begins below /"
    assert not _is_at("/opt/ml", folder)
    assert not _is_at("/ml", folder)


def test_stop_may_be_requested_concurrently(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(job.mark, STOP) for _ in range(200)]
    assert [one.exception() for one in done if one.exception() is not None] == []
    assert job.is_marked(STOP)


def test_a_name_exists_once_until_its_job_is_deleted(home: Path) -> None:
    twin = Twin(home, os.environ, isolation="folders")
    twin.create(request(home, "once", WAITS))
    with pytest.raises(Refused) as refused:
        twin.create(request(home, "once", WAITS))
    assert refused.value.code == IN_USE
    with pytest.raises(Refused, match="stop it first"):
        twin.delete("once")
    says(twin, "once", "up")
    twin.stop("once")
    ended(twin, "once")
    twin.delete("once")
    with pytest.raises(Refused) as refused:
        twin.describe("once")
    assert refused.value.code == VALIDATION
    assert list((home / "sagemaker-local").iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "../once", "a/b", ".new-x", "a" * 64])
def test_names_that_are_paths_are_refused(home: Path, name: str) -> None:
    twin = Twin(home, {}, isolation="folders")
    for call in (twin.describe, twin.stop, twin.delete, twin.log_streams):
        with pytest.raises(Refused, match="no training job"):
            call(name)
    with pytest.raises(Refused):
        twin.read_log(f"{name}/algo-1-1")


def test_a_container_has_a_clean_environment(home: Path, isolation: str) -> None:
    environ = {"PATH": os.environ["PATH"], "SECRET_OF_THE_CALLER": "x", "AWS_REGION": "eu-north-1", "HOME": "/root"}
    twin = Twin(home, environ, isolation=isolation)
    twin.create(request(home, "clean", "env -0 | base64 -w0", Environment={"MODE": "fast", "AWS_REGION": "mine"}))
    ended(twin, "clean")
    text = base64.b64decode(output(twin, "clean")[0]).decode().rstrip("\0")
    found = dict(line.split("=", 1) for line in text.split("\0"))
    for name in ("PWD", "SHLVL", "_", "OLDPWD"):  # variables that bash sets
        found.pop(name, None)
    expected = {"PATH", "HOME", "LANG", "AWS_REGION", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "MODE"}
    assert set(found) == expected | ({"SAGEMAKER_BASE_DIR"} if isolation == "folders" else set())
    assert (found["AWS_REGION"], found["TRAINING_JOB_NAME"]) == ("mine", "clean")


@pytest.mark.slow
def test_exceeded_runtime_stops_job(home: Path) -> None:
    twin = Twin(home, os.environ, grace_seconds=60, isolation="folders")
    twin.create(request(home, "long", WAITS, StoppingCondition={"MaxRuntimeInSeconds": 1}))
    found = ended(twin, "long")
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert found["TrainingTimeInSeconds"] >= 1


def test_request_is_unreadable_for_other_users(home: Path) -> None:
    twin = Twin(home, os.environ, isolation="folders")
    twin.create(request(home, "private", "true", Environment={"TOKEN": "secret"}))
    ended(twin, "private")
    until(lambda: not (home / "sagemaker-local/private/starts").exists())  # the manager removes the folder last
    assert (home / "sagemaker-local/private").stat().st_mode & 0o077 == 0
    holders = [
        one.name
        for one in (home / "sagemaker-local/private").rglob("*")
        if one.is_file() and b"secret" in one.read_bytes()
    ]
    assert holders == ["request.json"]
    assert json.loads((home / "sagemaker-local/private/request.json").read_text())["Environment"] == {"TOKEN": "secret"}
