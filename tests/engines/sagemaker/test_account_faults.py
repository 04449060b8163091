"""Faults of an account are caused through an emulated control plane and a real S3 server, and `why` names each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness, Run
from tests.engines.sagemaker.planning import FIELDS, ROLE
from tests.fakeaws.control_plane import ACCOUNT, ControlPlane
from tests.helpers.until import until

from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.preflight import policies
from windlass.engines.sagemaker.twin.service import Twin
from windlass.errors import UsageError
from windlass.runs.ledger import Cost
from windlass.runs.phase import Phase
from windlass.spec.targets import SageMakerTarget

INSTANCE = "ml.m5.xlarge"
USE = f"{INSTANCE} for training job usage"
NO_CAPACITY = ("Starting", "Insufficient capacity error from EC2 while launching instances, retrying!")
FULL = "with open('/dev/full', 'w') as file: file.write('x')\n"
QUOTED = 'it\'s; touch /tmp/never "$(id)" `id`'
WORDS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['SM_HP_TITLE']]))\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def plane(world: tuple[Harness, ControlPlane]) -> Iterator[ControlPlane]:
    plane = world[1]
    yield plane
    plane.provide()
    plane.has_logs, account = True, plane.account
    account.caller = ""
    for named in (account.roles, account.policies, account.quotas, account.images):
        named.clear()


def run_windlass(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "windlass", *words], cwd=folder, capture_output=True, text=True)


def job_of(run: Run) -> str:
    return layout.job_name(run.id, 1)


# -- what the account does not have, or does not allow ----------------------------------------------------------------


def no_quota(plane: ControlPlane) -> None:
    plane.account.quotas = {USE: 0.0}


def no_trust(plane: ControlPlane) -> None:
    principal = {"Service": "ec2.amazonaws.com"}
    plane.account.roles = {"training": {"Statement": [{"Effect": "Allow", "Principal": principal}]}}


def no_image(plane: ControlPlane) -> None:
    plane.account.images = {"train:2"}


def no_right_to_pass_the_role(plane: ControlPlane) -> None:
    login = plane.account.arn("user/ada")
    policy = policies.user_policy(SageMakerTarget(**FIELDS), ACCOUNT, ROLE)
    plane.account.policies[login] = {"Statement": [one for one in policy["Statement"] if one["Sid"] != "Role"]}
    plane.account.caller = login


@pytest.mark.parametrize(
    ("cause", "verdict", "part"),
    [
        (no_quota, "quota-exceeded", USE),
        (no_trust, "role-not-assumed", "sagemaker.amazonaws.com"),
        (no_image, "image-not-found", "train:1"),
        (no_right_to_pass_the_role, "rights-missing", "iam:PassRole"),
    ],
)
def test_faults_of_account_have_verdicts(
    harness: Harness, plane: ControlPlane, cause: Any, verdict: str, part: str
) -> None:
    cause(plane)
    run = harness.start("leave", "0")
    assert run.wait().phase is Phase.FAILED
    found = run.verdict
    assert (found.code, part in f"{found.summary} {found.evidence}", bool(found.fix)) == (verdict, True, True), found
    assert job_of(run) not in plane.jobs()


def test_role_without_permissions_on_store_has_verdict(harness: Harness, plane: ControlPlane) -> None:
    whole = plane.twin
    plane.twin = Twin(plane.home, {**plane.container_environ, "AWS_SECRET_ACCESS_KEY": "of-another"})
    try:
        run = harness.start("leave", "0")
        assert run.wait().phase.is_terminal
    finally:
        plane.twin = whole
    found = run.verdict
    assert (found.code, ROLE in found.summary) == ("s3-denied", True), found


def test_full_disk_has_verdict(harness: Harness, plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    run = harness.start("full.py", base=tmp_path)
    assert run.wait().phase is Phase.FAILED
    assert (run.verdict.code, run.verdict.rank) == ("disk-full", 0), run.verdict


def test_hyperparameter_with_quotes_is_one_argument_of_script(
    harness: Harness, plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    run = harness.start("words.py", "--title", QUOTED, base=tmp_path)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert run.json_of_ranks() == {0: [["--title", QUOTED], QUOTED]}
    assert "HyperParameters" not in plane.bodies[job_of(run)]


# -- jobs that wait for instances -------------------------------------------------------------------------------------


def test_job_that_waits_for_capacity_is_explained_and_trains_later(harness: Harness, plane: ControlPlane) -> None:
    plane.waits_with = NO_CAPACITY
    run = harness.start("leave", "0").until(lambda run: run.status.phase is Phase.PROVISIONING)
    found = run.verdict
    assert (found.code, found.evidence, INSTANCE in found.summary) == ("no-capacity-yet", (NO_CAPACITY[1],), True)
    plane.provide()
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert [one.number for one in run.status.attempts] == [1]


def test_wait_for_training_plan_differs_from_wait_for_capacity(harness: Harness, plane: ControlPlane) -> None:
    plane.waits_with = ("Pending", "")
    run = harness.start("leave", "0").until(lambda run: job_of(run) in plane.waiting)
    run.until(lambda run: run.verdict.code == "waiting-for-capacity")
    plane.provide()
    assert run.wait().phase is Phase.SUCCEEDED, run.text()


def test_waiting_job_can_be_stopped(harness: Harness, plane: ControlPlane) -> None:
    plane.waits_with = NO_CAPACITY
    run = harness.start("leave", "0").until(lambda run: run.status.phase is Phase.PROVISIONING)
    harness.engine.stop(run.id)
    assert run.wait().phase is Phase.STOPPED
    assert plane.waiting[job_of(run)]["TrainingJobStatus"] == "Stopped"
    assert run.verdict.code == "stopped"


# -- logs that lag ----------------------------------------------------------------------------------------------------


def test_logs_that_arrive_after_job_has_ended_are_complete(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("work_until", "lag", nodes=2, launcher="plain").until_ready(2)
    plane.has_logs = False
    (harness.home / "cases" / run.id / "lag").touch()
    until(lambda: plane.twin.describe(job_of(run))["TrainingJobStatus"] == "Completed")
    seen = plane.calls["GetLogEvents"]
    until(lambda: plane.calls["GetLogEvents"] > seen + 4)
    assert not run.status.phase.is_terminal
    plane.has_logs = True
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert [sorted(line.text for line in run.lines(ranks=[rank])) for rank in (0, 1)] == [["done", "ready"]] * 2


# -- what is kept, and what it costs ----------------------------------------------------------------------------------


def test_checkpoint_saved_within_grace_period_survives_stop(
    harness: Harness, plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "save.py").write_text(
        "import os, signal, sys, time\n"
        "path = os.path.join(os.environ['WINDLASS_CHECKPOINT_DIR'], 'last')\n"
        "if os.path.exists(path):\n"
        "    sys.exit(print('resumed', open(path).read()))\n"
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    open(path, 'w').write('step 7')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    run = harness.start("save.py", base=tmp_path, grace=60).until_ready()
    harness.engine.stop(run.id)
    assert run.wait().phase is Phase.STOPPED, run.text()
    assert run.verdict.code == "stopped"
    harness.engine.resume(run.id)
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    assert run.text(attempt=2) == "resumed step 7\n"
    folder = harness.engine.checkpoint_dir(run.id)
    with pytest.raises(UsageError) as caught:
        harness.engine.fetch(run.id, 0, "checkpoints", tmp_path, lambda _: None)
    assert caught.value.hint == f"windlass data copy {folder} FOLDER"
    stored = run_windlass(tmp_path, "data", "copy", folder, "home")
    assert (stored.returncode, (tmp_path / "home/last").read_text()) == (0, "step 7"), stored.stderr


def test_next_job_uses_instances_of_warm_pool(harness: Harness, plane: ControlPlane) -> None:
    runs = [harness.start("leave", "0", sagemaker={"warm_pool": "10min"}) for _ in range(1)]
    assert runs[0].wait().phase is Phase.SUCCEEDED
    runs.append(harness.start("leave", "0", sagemaker={"warm_pool": "10min"}))
    assert runs[1].wait().phase is Phase.SUCCEEDED
    pool = plane.answer("sagemaker", "DescribeTrainingJob", {"TrainingJobName": job_of(runs[0])})["WarmPoolStatus"]
    assert pool == {"Status": "Reused", "ReusedByJob": job_of(runs[1])}


def test_billed_time_covers_all_hosts_and_attempts(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("fail_until", "2", nodes=2, restarts=1, launcher="plain")
    assert run.wait().phase is Phase.SUCCEEDED, run.text()
    seconds = [2 * plane.twin.describe(layout.job_name(run.id, number))["BillableTimeInSeconds"] for number in (1, 2)]
    for cost, expected in ((None, None), (Cost(7200.0, "USD", "target aws", {}), 2.0 * sum(seconds))):
        billed = harness.engine.billed(harness.engine.store.run_dir(run.id), cost)
        assert billed is not None
        assert (billed.node_seconds, billed.cost) == (sum(seconds), expected)


def test_exec_in_container_and_connections_to_it_are_refused(harness: Harness, plane: ControlPlane) -> None:
    run = harness.start("sleep", "600").until_ready()
    with pytest.raises(UsageError, match="cannot run commands in a running container"), open(os.devnull, "wb") as out:
        harness.engine.exec(run.id, 0, None, ["ls"], None, out, out)
    with pytest.raises(UsageError, match="accepts no connections to the containers of a training job"):
        harness.engine.ports(run.id)
    harness.engine.stop(run.id)
    assert run.wait().phase is Phase.STOPPED
