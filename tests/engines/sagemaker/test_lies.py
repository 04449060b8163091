"""Runs behind proxies that falsify responses of the control plane and the store leave no job and lose no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.engines.harness import Harness, Run
from tests.engines.sagemaker.emulated import emulated
from tests.engines.sagemaker.planning import FIELDS
from tests.fakeaws.control_plane import ControlPlane
from tests.helpers.until import until
from tests.servers.faulty import BARE_400, FORBIDDEN, HTML, PASS, Fault, FaultProxy, Request, fault_proxy, refusal

from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.service import ENDED
from windlass.runs.phase import Phase
from windlass.runs.store import LEFTOVERS
from windlass.supervise.process import supervisor_pid

LOST = Fault(loses_answer=True)
EXPIRED = refusal(400, "ExpiredToken", "The provided token has expired.")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
World = tuple[Harness, ControlPlane, FaultProxy, FaultProxy]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with emulated(tmp_path_factory.mktemp("aws")) as (harness, plane), pytest.MonkeyPatch.context() as patch:
        port = urlsplit(os.environ["AWS_ENDPOINT_URL_S3"]).port
        assert port is not None
        with fault_proxy(plane._port) as control, fault_proxy(port) as store:
            for name in plane.environ:
                if name.startswith("AWS_ENDPOINT_URL"):
                    patch.setenv(name, control.endpoint)
            patch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
            yield harness, plane, control, store
            control.reset()
            store.reset()


def job_of(run: Run, number: int = 1) -> str:
    return layout.job_name(run.id, number)


def status_of(plane: ControlPlane, name: str) -> str:
    return str(plane.twin.describe(name)["TrainingJobStatus"])


def lies(**faults: Fault) -> Callable[[Request], Fault]:
    """Returns a function that chooses the fault by operation."""
    return lambda request: faults.get(request.operation, PASS)


def windlass(harness: Harness, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "WINDLASS_HOME": str(harness.home)}
    return subprocess.run(
        [sys.executable, "-m", "windlass", *words], cwd=folder, env=environ, capture_output=True, text=True
    )


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_job_whose_creation_got_no_response_is_stopped_later(world: World, is_killed: bool) -> None:
    harness, plane, control, _ = world
    control.fault = lies(CreateTrainingJob=LOST, DescribeTrainingJob=FORBIDDEN, StopTrainingJob=FORBIDDEN)
    run = harness.start("sleep", "600")
    until(lambda: job_of(run) in plane.jobs())
    if is_killed:
        pid = supervisor_pid(run.dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    harness.engine.stop(run.id)
    run.until(lambda run: run.status.supervision.condition is not None and run.status.phase is Phase.STOPPING)
    until(lambda: any(one.operation == "DescribeTrainingJob" for one in control.requests))
    assert status_of(plane, job_of(run)) == "InProgress"
    control.reset()
    assert run.wait().phase is Phase.STOPPED, run.text()
    assert status_of(plane, job_of(run)) in ENDED
    assert [name for name in plane.jobs() if name.startswith(f"{run.id}-")] == [job_of(run)]


@pytest.mark.nightly
@pytest.mark.parametrize("lie", [LOST, HTML, FORBIDDEN], ids=["lost", "html", "forbidden"])
@pytest.mark.parametrize("operation", ["CreateTrainingJob", "DescribeTrainingJob", "StopTrainingJob", ""])
def test_stopped_run_leaves_no_job_despite_false_responses(world: World, operation: str, lie: Fault) -> None:
    """Twelve false responses are more than twice the tries of boto3."""
    harness, plane, control, _ = world
    left = iter(range(12))

    def fault(request: Request) -> Fault:
        is_meant = request.operation == operation if operation else request.operation.endswith("TrainingJob")
        return lie if is_meant and next(left, None) is not None else PASS

    control.reset()
    control.fault = fault
    run = harness.start("sleep", "600")
    until(lambda: any(request.operation == "CreateTrainingJob" for request in control.requests))
    harness.engine.stop(run.id)
    assert run.wait().phase is Phase.STOPPED, run.text()
    for name in plane.jobs():
        if name.startswith(f"{run.id}-"):
            until(lambda name=name: status_of(plane, name) in ENDED)  # type: ignore[misc]


def test_stop_with_target_queries_aws_despite_record(world: World, tmp_path: Path) -> None:
    harness, plane, control, _ = world
    control.reset()
    fields = {name: value for name, value in FIELDS.items() if name != "name"}
    (tmp_path / "targets.yaml").write_text(json.dumps({"aws": {**fields, "kind": "sagemaker"}}))
    run = harness.start("leave", "0").succeeded()
    body = {**plane.bodies[job_of(run)], "TrainingJobName": job_of(run, 7)}
    waits, plane.waits_with = plane.waits_with, ("Starting", "Preparing the instances for training")
    plane.answer("sagemaker", "CreateTrainingJob", body)
    plane.waits_with = waits
    said = windlass(harness, tmp_path, "stop", run.id, "--on", "aws")
    assert (said.returncode, plane.waiting[job_of(run, 7)]["TrainingJobStatus"]) == (0, "Stopped"), said.stderr
    assert f"training jobs that still ran were stopped: {job_of(run, 7)}" in said.stdout + said.stderr
    control.fault = lies(Search=FORBIDDEN)
    assert windlass(harness, tmp_path, "stop", run.id, "--on", "aws").returncode == 1


@pytest.mark.parametrize("way", ["status", pytest.param("cp", marks=pytest.mark.nightly)])
def test_unfetched_model_is_named_and_fetched_by_later_command(world: World, tmp_path: Path, way: str) -> None:
    harness, _, control, store = world
    control.reset()
    (tmp_path / "save.py").write_text("open('/opt/ml/model/weights', 'w').write('all of them')\n")
    store.fault = _expired
    run = harness.start("save.py", base=tmp_path)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    for command in ("status", "artifacts", "why"):
        said = windlass(harness, tmp_path, command, run.id)
        text = "".join(said.stdout.split())  # the output may be wrapped anywhere
        assert f"output/{job_of(run)}/output" in text, said
        assert f"windlasscp{run.id}:output." in text, said
    failed = windlass(harness, tmp_path, "cp", f"{run.id}:output", "never")
    assert (failed.returncode, "ExpiredToken" in failed.stderr) == (2, True), failed.stderr
    assert "log in again" in failed.stderr
    assert windlass(harness, tmp_path, "rm", run.id).returncode != 0
    store.reset()
    if way == "status":
        os.utime(run.dir / LEFTOVERS, (0, 0))
        assert windlass(harness, tmp_path, "status", run.id).returncode == 0
        until(lambda: not (run.dir / LEFTOVERS).exists())
    copied = windlass(harness, tmp_path, "cp", f"{run.id}:output", "home")
    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "home/weights").read_text() == "all of them"
    assert harness.engine.status(run.id).supervision.condition is None


def _expired(request: Request) -> Fault:
    """Answers like S3 with an expired token, only for the model: hosts have another login than this machine."""
    if not request.path.endswith("model.tar.gz") or request.method == "PUT":
        return PASS
    return BARE_400 if request.method == "HEAD" else EXPIRED


@pytest.mark.nightly
def test_lines_that_arrive_after_the_run_has_ended_are_read_by_the_command_that_shows_them(world: World) -> None:
    harness, plane, control, _ = world
    control.reset()
    run = harness.start("lines", "20", "1").until(lambda run: job_of(run) in plane.jobs())
    plane.has_logs = False
    run.wait()
    assert len(run.text().splitlines()) < 20
    plane.has_logs = True
    assert len(run.text().splitlines()) >= 20


@pytest.mark.nightly
def test_deleted_job_ends_run(world: World) -> None:
    harness, plane, control, _ = world
    control.reset()
    run = harness.start("sleep", "600").until_ready()
    pid = supervisor_pid(run.dir)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    plane.twin.stop(job_of(run))
    until(lambda: status_of(plane, job_of(run)) in ENDED)
    plane.twin.delete(job_of(run))
    assert run.wait().phase in (Phase.FAILED, Phase.LOST)
    assert run.verdict.code == "job-deleted", run.verdict
