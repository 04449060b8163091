"""Faults of runs on SageMaker, through an emulated control plane, have the expected phase and verdict."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness, Run
from tests.fakeaws.control_plane import CAPACITY, ControlPlane
from tests.helpers import machine
from tests.helpers.until import until
from tests.statuses import cause_of

from windlass.actions.runs import require_removable
from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.attempt import LOG_SECONDS
from windlass.errors import UsageError
from windlass.runs.phase import Phase

CREATE = "CreateTrainingJob"
QUOTA = (
    "The account-level service limit 'ml.m5.xlarge for training job usage' is 0 Instances, with current utilization "
    "of 0 Instances and a request delta of 1 Instances."
)
NO_ROLE = "Could not assume role arn:aws:iam::123456789012:role/training. Please ensure that the role exists"
UNTIL_TERM = "sleep", "600"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def plane(world: tuple[Harness, ControlPlane]) -> Iterator[ControlPlane]:
    plane = world[1]
    plane.calls.clear()
    yield plane
    plane.fails_with, plane.is_login_expired, plane.has_logs = "", False, True
    plane.errors.clear()
    plane.on_call = plane.on_answer = lambda operation: None


def assert_time_was_over(run: Run) -> None:
    """Asserts that the run reached its time limit. On a busy machine, ranks may not have started, which changes the
    verdict.
    """
    expected = ("timeout",) if "ready" in run.text() else ("never-started", "never-printed")
    assert run.verdict.code in expected, (run.verdict, run.text())


def assert_known_at_once(run: Run, plane: ControlPlane) -> None:
    """Asserts that the run ended without waiting for more logs, because the logs of all hosts have their ends."""
    ended = plane.twin.describe(layout.job_name(run.id, 1))["TrainingEndTime"]
    assert run.status.times.ended_at is not None
    assert run.status.times.ended_at - ended < LOG_SECONDS - 5


def warnings(run: Run) -> list[str]:
    return [str(event.data["message"]) for event in run.events if event.kind == "warning"]


def mark(run: Run, name: str) -> None:
    """Creates a file in the folder that the ranks of a run share with the test."""
    (run.harness.home / "cases" / run.id / name).touch()


# -- what SageMaker refuses, or cannot do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message", "verdict"),
    [
        ("ResourceLimitExceeded", QUOTA, "quota-exceeded"),
        ("ValidationException", NO_ROLE, "role-not-assumed"),
        ("ValidationException", "Cannot find repository: train in registry ID: 123456789012.", "image-not-found"),
        (
            "AccessDeniedException",
            "User: arn:aws:iam::1:user/ada is not authorized to perform: iam:PassRole on resource: training",
            "rights-missing",
        ),
        ("ValidationException", "Training plan arn:aws:p is not Active.", "training-plan-not-active"),
    ],
)
def test_a_job_that_is_refused_fails_at_once(
    harness: Harness, plane: ControlPlane, code: str, message: str, verdict: str
) -> None:
    plane.refuse(CREATE, code, message)
    run = harness.start("leave", "0")
    assert run.wait().phase is Phase.FAILED
    found = run.verdict
    assert (found.code, message in found.evidence[0]) == (verdict, True), found
    assert plane.calls[CREATE] == 1


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (CAPACITY, "no-capacity"),
        (
            "ClientError: Cannot pull algorithm container. Either the image does not exist or its permissions are "
            "incorrect.",
            "image-pull-failed",
        ),
        (
            "ClientError: Data download failed:Unable to download object s3://b/x (AccessDenied: Access Denied)",
            "s3-denied",
        ),
        ("ClientError: Data download failed: write /opt/ml/input/data/x: no space left on device", "disk-full"),
        ("InternalServerError: We encountered an internal error. Please try again.", "sagemaker-internal"),
    ],
)
def test_job_that_fails_before_training_has_verdict(
    harness: Harness, plane: ControlPlane, reason: str, verdict: str
) -> None:
    plane.fails_with = reason
    run = harness.start("leave", "0")
    assert run.wait().phase in (Phase.FAILED, Phase.LOST)
    found = run.verdict
    assert (found.code, found.evidence[0]) == (verdict, reason), found
    assert run.status.cause is None or run.status.cause.rank is None


def test_job_without_capacity_is_restarted(harness: Harness, plane: ControlPlane) -> None:
    plane.fails_with = CAPACITY

    def give(operation: str) -> None:
        if operation == CREATE and plane.calls[CREATE] == 2:
            plane.fails_with = ""

    plane.on_call = give
    run = harness.start("leave", "0", restarts={"max": 3, "on": ["node-loss"]})
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert [one.reason for one in run.status.attempts] == ["node-loss", None]


def test_missing_data_has_verdict(harness: Harness, plane: ControlPlane) -> None:
    data = [{"name": "train", "source": "s3://no-such-bucket-of-ours/train/"}]
    run = harness.start("leave", "0", data=data)
    assert run.wait().phase in (Phase.FAILED, Phase.LOST)
    assert run.verdict.code == "data-missing", run.verdict


def test_secrets_reach_only_the_ranks(harness: Harness, plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "length.py").write_text("import os; print(len(os.environ['API_TOKEN']), os.environ['API_TOKEN'])")
    plane.account.secrets["tokens"] = '{"API_TOKEN": "of-no-log-4711"}'
    run = harness.start("length.py", base=tmp_path, secrets=["tokens"])
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert run.text().splitlines() == ["14 ***"]
    # In another process: closing a file of the record's database here would release this process's locks on it.
    command, environ = ["grep", "-rlF", "of-no-log-4711", str(harness.home.parent)], {**os.environ, "LC_ALL": "C"}
    found = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert found.returncode != 0, found
    # Files may disappear during the search: the folders of hosts are removed when the job has ended.
    unread = [line for line in found.stderr.splitlines() if not line.endswith(": No such file or directory")]
    assert (found.stdout, unread) == ("", []), found


def test_missing_secret_has_verdict(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("leave", "0", secrets=["none"])
    assert run.wait().phase is Phase.FAILED
    found = run.verdict
    assert (found.code, "there is none of that name" in found.summary) == ("secret-missing", True), found
    assert "secret none: there is none" in cause_of(run.status).summary
    assert_known_at_once(run, plane)


def test_unreadable_code_has_verdict(harness: Harness, plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("print('of this test alone')")  # makes the archive of this test unique
    known = set((harness.home.parent / "s3").rglob("code.tar.gz"))

    def damage(operation: str) -> None:
        if operation == CREATE:
            [archive] = set((harness.home.parent / "s3").rglob("code.tar.gz")) - known
            archive.write_bytes(b"damaged")

    plane.on_call = damage
    run = harness.start("alone.py", base=tmp_path, nodes=2)
    assert run.wait().phase is Phase.FAILED
    found = run.verdict
    assert (found.code, "the code is damaged" in found.summary) == ("host-failed", True), found
    assert any("has failed: the code is damaged" in one for one in warnings(run)), warnings(run)
    assert_known_at_once(run, plane)


# -- while it trains --------------------------------------------------------------------------------------------------


def test_first_failing_rank_is_root_cause(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("one_raises", "1", nodes=2, launcher="plain")
    status = run.wait()
    assert (status.phase, status.cause and status.cause.rank) == (Phase.FAILED, 1), run.text()
    assert run.verdict.rank == 1
    name = layout.job_name(run.id, 1)
    assert plane.twin.describe(name)["FailureReason"].startswith("AlgorithmError")


def test_time_limit_ends_job(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start(*UNTIL_TERM, timeout="15s")
    assert run.wait().phase is Phase.FAILED
    assert_time_was_over(run)


@pytest.mark.nightly
def test_time_limit_ends_job_without_supervisor(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("last_words", "0", timeout="15s")
    name = layout.job_name(run.id, 1)
    until(lambda: name in plane.jobs() and plane.twin.describe(name)["SecondaryStatus"] == "Training")
    machine.kill(int((run.dir / "supervisor.pid").read_text().split()[0]))
    until(lambda: plane.twin.describe(name)["SecondaryStatus"] == "MaxRuntimeExceeded")
    assert run.wait().phase is Phase.FAILED
    assert_time_was_over(run)


@pytest.mark.parametrize("host", ["algo-1", pytest.param("algo-2", marks=pytest.mark.nightly)])
def test_killed_host_has_verdict(harness: Harness, plane: ControlPlane, host: str) -> None:
    run = harness.start(*UNTIL_TERM, nodes=2, launcher="plain").until_ready(2)
    for pid in _containers(run, host):
        machine.kill(pid)  # the first process of the namespace, whose end kills the others
    assert run.wait().phase in (Phase.FAILED, Phase.LOST)
    assert run.verdict.code == "host-killed", run.verdict
    assert_known_at_once(run, plane)


@pytest.mark.parametrize("words", [UNTIL_TERM, ("last_words", "0")], ids=["killed", "exits with 0"])
def test_job_stopped_from_outside_has_verdict(harness: Harness, plane: ControlPlane, words: tuple[str, ...]) -> None:
    run = harness.start(*words).until_ready()
    plane.twin.stop(layout.job_name(run.id, 1))
    assert run.wait().phase is Phase.FAILED
    assert run.verdict.code == "stopped-outside", run.verdict


def test_a_stop_lets_ranks_save(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("last_words", "0").until_ready()
    harness.engine.stop(run.id)
    assert run.wait().phase is Phase.STOPPED
    assert run.verdict.code == "stopped"


def test_run_with_checkpoints_in_store_is_not_deleted(harness: Harness, plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text("import os, sys\nopen(sys.argv[1], 'w').close()\nsys.exit(int(sys.argv[2]))\n")
    for folder, code, kept in (("checkpoints", "1", True), ("checkpoints", "0", False), ("model", "1", False)):
        run = harness.start("save.py", f"/opt/ml/{folder}/step-7", code, base=tmp_path)
        run.wait()
        assert bool(harness.engine.only_copy(run.id)) is kept, run.text()


def test_run_with_unfetched_model_is_not_deleted(harness: Harness, plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(
        "import os, time\nprint('ready', flush=True)\nopen('/opt/ml/model/weights', 'w').close()\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.1)\n"
    )
    run = harness.start("save.py", base=tmp_path).until_ready()
    shutil.rmtree(run.dir / "output", ignore_errors=True)
    (run.dir / "output").write_text("in its place")
    (tmp_path / "go").touch()
    run.succeeded()
    with pytest.raises(UsageError, match=r"has ended as succeeded; with it would go its model, which is in .*/output"):
        require_removable(harness.engine, run.id)


def test_spot_interruption_restarts_job(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("interrupted_once", "spot", sagemaker={"spot": True}).until_ready()
    plane.twin.interrupt(layout.job_name(run.id, 1))
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert [one.number for one in run.status.attempts] == [1]
    assert any("Interrupted" in one or "reclaimed" in one for one in warnings(run)), warnings(run)
    assert run.text().splitlines().count("done") == 1


# -- a service that does not answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        "DescribeLogStreams",
        *(pytest.param(one, marks=pytest.mark.nightly) for one in ("DescribeTrainingJob", "GetLogEvents")),
    ],
)
def test_throttled_calls_lose_nothing(harness: Harness, plane: ControlPlane, operation: str) -> None:
    plane.refuse(operation, "ThrottlingException", "Rate exceeded", times=4)
    run = harness.start("lines", "50", "1")
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    texts = [line.text for line in run.lines(ranks=[0])]
    assert len(texts) == len(set(texts)) >= 50


def test_login_that_expires_during_run_is_a_condition(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("work_until", "login").until_ready()
    plane.is_login_expired = True
    seen = plane.calls["DescribeTrainingJob"]
    until(lambda: plane.calls["DescribeTrainingJob"] > seen + 1)
    mark(run, "login")
    plane.is_login_expired = False
    assert run.wait().phase is Phase.SUCCEEDED, run.text()


@pytest.mark.parametrize("moment", ["mid-run", "end"])
def test_run_survives_outage_of_control_plane(harness: Harness, plane: ControlPlane, moment: str) -> None:
    run = harness.start("work_until", moment).until_ready()
    plane.stop()
    try:
        if moment == "end":
            mark(run, moment)
            name = layout.job_name(run.id, 1)
            until(lambda: plane.twin.describe(name)["TrainingJobStatus"] == "Completed")
    finally:
        plane.start()
    mark(run, moment)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()


# -- a job is created once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after"])
def test_supervisor_killed_while_creating_job_is_replaced(harness: Harness, plane: ControlPlane, moment: str) -> None:
    killed: list[int] = []

    def kill(operation: str) -> None:
        if operation == CREATE and not killed:
            [run] = [path for path in (harness.home / "runs").iterdir() if path.name not in known]
            killed.append(int((run / "supervisor.pid").read_text().split()[0]))
            os.kill(killed[0], signal.SIGKILL)

    known = {path.name for path in (harness.home / "runs").iterdir()} if (harness.home / "runs").exists() else set()
    if moment == "before":
        plane.on_call = kill
    else:
        plane.on_answer = kill
    run = harness.start("leave", "0")
    until(lambda: killed)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert [name for name in plane.jobs() if name.startswith(f"{run.id}-")] == [layout.job_name(run.id, 1)]


def _containers(run: Run, host: str) -> list[int]:
    """Returns the pids of a host's processes, found by the environment of its ranks."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            environ: Any = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SM_CURRENT_HOST={host}".encode() in environ and f"WINDLASS_RUN={run.id}".encode() in environ:
            found.append(int(entry.parent.name))
    return found
