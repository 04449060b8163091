"""Runs of other machines are found by the tags of their training jobs. The list is pure, the rest uses an emulated
service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness
from tests.engines.sagemaker.emulated import emulated
from tests.engines.sagemaker.planning import FIELDS, ROLE
from tests.fakeaws.control_plane import ACCOUNT, ControlPlane
from tests.helpers.machine import Machine

from windlass.actions.runs import resume
from windlass.engines.sagemaker import layout, objects
from windlass.engines.sagemaker.preflight import policies
from windlass.engines.sagemaker.service import Absent
from windlass.engines.sagemaker.target import AccountRuns, runs
from windlass.errors import EngineError, NoSuchRun, UsageError
from windlass.plan.steps import ModelStep
from windlass.runs.context import here
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.targets import SageMakerTarget


def job(name: str, run_id: str, created: float, status: str = "InProgress", second: str = "Training") -> dict[str, Any]:
    tags = {layout.RUN_TAG: run_id, layout.JOB_TAG: "digits", layout.USER_TAG: "ada"}
    return {
        "TrainingJobName": name,
        "TrainingJobStatus": status,
        "SecondaryStatus": second,
        "CreationTime": created,
        "LastModifiedTime": created + 5,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def test_run_has_state_of_newest_job_and_start_of_first() -> None:
    found = runs([job("a-1", "a", 10, "Failed", "Failed"), job("a-2", "a", 20), job("b-1", "b", 15)])
    assert [(one.id, one.name, one.phase, one.created_at) for one in found] == [
        ("b", "b-1", Phase.TRAINING, 15),
        ("a", "a-2", Phase.TRAINING, 10),
    ]
    status = found[1].state("aws").status
    assert (status.name, status.about.user, status.target, status.times.ended_at) == ("digits", "ada", "aws", None)


def test_error_distinguishes_commands_that_need_record_from_unsupported_ones() -> None:
    said = {name: AccountRuns.unsupported(name).message for name in ("why", "data ls --on")}
    assert said == {
        "why": "why is not supported for runs that another machine started",
        "data ls --on": "data ls --on is not supported by engine sagemaker",
    }


@pytest.mark.parametrize("changes", [{}, {"nodes": 2}])
def test_a_run_of_another_machine_is_not_resumed(changes: dict[str, Any], tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        engine = AccountRuns.connect(store, SageMakerTarget(**FIELDS), here())
        with pytest.raises(UsageError, match="resume is not supported for runs that another machine started"):
            resume("digits-7f3k2", engine, here(), changes=changes)


def test_jobs_without_tags_of_windlass_are_ignored() -> None:
    untagged = {**job("c-1", "c", 1), "Tags": [{"Key": "team", "Value": "vision"}]}
    assert runs([untagged, job("another", "a", 1)]) == []


@pytest.mark.parametrize(
    ("status", "second", "phase"),
    [
        ("InProgress", "Starting", Phase.PROVISIONING),
        ("InProgress", "Downloading", Phase.PULLING),
        ("InProgress", "Interrupted", Phase.RESTARTING),
        ("InProgress", "Uploading", Phase.UPLOADING),
        ("Stopping", "Stopping", Phase.STOPPING),
        ("Stopped", "Stopped", Phase.STOPPED),
        ("Stopped", "MaxRuntimeExceeded", Phase.FAILED),
        ("Completed", "Completed", Phase.SUCCEEDED),
    ],
)
def test_phase_follows_from_secondary_status(status: str, second: str, phase: Phase) -> None:
    [found] = runs([job("a-1", "a", 1, status, second)])
    assert found.phase is phase


class Account:
    """Training jobs of an account: the index has some of them, and one that has been deleted since."""

    def __init__(self) -> None:
        running = {"TrainingJobStatus": "InProgress", "Environment": {layout.RUN_VARIABLE: "a"}}
        others = {**running, "Environment": {layout.RUN_VARIABLE: "b"}}
        self.jobs = {"a-2": running, "a-3": running, "a-4": others, "a-5": running}
        self.stopped: list[str] = []

    def tagged(self, _tag: str, _value: str) -> list[dict[str, Any]]:
        return [job("a-1", "a", 1), job("a-2", "a", 2)]

    def describe(self, name: str) -> dict[str, Any]:
        if name not in self.jobs:
            raise Absent("ValidationException", "Requested resource not found.")
        return self.jobs[name]

    def stop(self, name: str) -> None:
        self.stopped.append(name)


def test_stop_finds_jobs_missing_from_index_and_ignores_deleted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account()
    with Store(tmp_path) as store:
        engine = AccountRuns.connect(store, SageMakerTarget(**FIELDS), here())
        monkeypatch.setattr(AccountRuns, "_service", lambda _self: nullcontext(account))
        engine.stop("a")
    assert account.stopped == ["a-2", "a-3"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Harness, ControlPlane]]:
    with emulated(tmp_path / "aws") as made:
        yield made


@pytest.mark.slow
def test_commands_on_another_machine_show_and_stop_run(world: tuple[Harness, ControlPlane], machine: Machine) -> None:
    harness, _ = world
    run = harness.start("sleep", "600", nodes=2, launcher="plain").until_ready(2)
    fields = {**FIELDS, "kind": "sagemaker"}
    machine.write("targets.yaml", json.dumps({"aws": {name: fields[name] for name in fields if name != "name"}}))
    listed = machine.windlass("ps", "--on", "aws")
    assert listed.returncode == 0, listed.stderr
    titles, row = (line.split() for line in listed.stdout.splitlines())
    assert titles == ["ID", "NAME", "PHASE", "HOSTS", "ATTEMPT", "AGE", "RECORD"]
    assert [*row[:5], *row[6:]] == [run.id, "case", "training", "2/2", "1", "another", "machine"]
    [found] = json.loads(machine.windlass("ps", "--on", "aws", "-o", "json").stdout)
    assert (found["pods_ready"], found["kept"], found["namespace"]) == (2, "elsewhere", "")
    shown = machine.windlass("status", run.id, "--on", "aws")
    assert "hosts       2 of 2 ready" in shown.stdout, shown.stderr
    assert f"windlass logs -f {run.id} --on aws" in shown.stdout
    refused = machine.windlass("exec", run.id, "--on", "aws", "--", "ls")
    assert (refused.returncode, "exec is not supported" in refused.stderr) == (2, True), refused.stderr
    refused = machine.windlass("cp", f"{run.id}:output", "x", "--on", "aws")
    assert refused.stderr.startswith("error: cp is not supported for runs that another machine started\n"), refused
    for more in ((), ("--nodes", "2")):
        refused = machine.windlass("resume", run.id, "--on", "aws", *more)
        assert refused.stderr.startswith("error: resume is not supported for runs that another machine started\n"), more
    refused = machine.windlass("rm", run.id, "--on", "aws")
    assert f"windlass stop {run.id} --on aws, then remove it" in refused.stderr, refused
    stopped = machine.windlass("stop", run.id, "--on", "aws", "--now")
    assert "the ranks have 2m00s to exit: aws has no faster stop" in stopped.stderr
    assert f"{run.id}  stopped" in stopped.stdout, stopped.stderr
    assert run.wait().phase is Phase.FAILED


@pytest.mark.slow
def test_another_machine_lists_reads_and_stops_a_run(world: tuple[Harness, ControlPlane], tmp_path: Path) -> None:
    harness, plane = world
    login = plane.account.arn("user/ada")
    plane.account.policies[login] = policies.user_policy(SageMakerTarget(**FIELDS), ACCOUNT, ROLE)
    plane.account.caller = login  # the permissions in the printed policy are sufficient for all commands of this test
    run = harness.start("sleep", "600", nodes=2, launcher="plain").until_ready(2)
    with Store(tmp_path / "other") as store:
        other = AccountRuns.connect(store, SageMakerTarget(**FIELDS), here())
        [state] = other.list()
        assert (state.status.id, state.status.phase, state.is_recorded) == (run.id, Phase.TRAINING, False)
        assert other.find(run.id.rpartition("-")[0])[1] == run.id
        engine, run_id = other.find(run.id[:-1])
        assert (engine, run_id) == (other, run.id)
        with engine.logs(run_id) as (folder, follow):
            assert follow is None
            lines = [(line.rank, line.text) for line in RunLogs(folder).read()]
        assert sorted(lines) == [(0, "ready"), (1, "ready")]
        with pytest.raises(NoSuchRun, match="no run on aws has the id 'none'"):
            other.find("none")
        with pytest.raises(UsageError, match="cannot run commands in a running container"):
            other.exec(run_id, 0, None, ["ls"], None, None, None)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="accepts no connections to the containers of a training job"):
            other.ports(run_id)
        with pytest.raises(UsageError, match="is on the machine that started it"):
            other.write_note(run_id, "x")
        engine.stop(run_id)
        assert engine.wait(run_id, 120).phase is Phase.STOPPED
        assert run.wait().phase.is_terminal
        model = harness.store.plan(run_id).only(ModelStep)
        objects.remove(model.source.removesuffix("/output"), harness.home)  # as `windlass rm` does
        with pytest.raises(EngineError, match=f"the files of {run_id} were removed"), other.logs(run_id):
            pass
