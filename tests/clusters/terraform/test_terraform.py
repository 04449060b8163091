"""The driver runs the real Terraform and provider with a small configuration, against an emulated AWS."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.clusters.recovery import program
from tests.fakeaws.emulator import Emulator

from windlass.clusters.recovery import needs_recovery
from windlass.clusters.terraform import (
    Action,
    Event,
    Interrupted,
    StalePlan,
    StopRequests,
    Terraform,
    TerraformFailed,
    TerraformNote,
)
from windlass.clusters.terraform.errors import StateLocked
from windlass.clusters.terraform.events import ResourceStarted
from windlass.clusters.terraform.folder import ClusterFolder, LocalBackend, S3Backend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROLE = "aws_iam_role.node"
KEY = "a/terraform.tfstate"
SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


@dataclass
class Scene:
    """A cluster of the small configuration with its state in S3."""

    folder: ClusterFolder
    environ: Mapping[str, str]
    aws: Emulator
    stop: StopRequests = field(default_factory=StopRequests)
    events: list[Event] = field(default_factory=list)

    def terraform(self) -> Terraform:
        """Returns a new driver, as each command creates one."""
        return program.terraform_of(self.folder, self.environ, on_event=self.events.append, stop=self.stop)


@pytest.fixture
def scene(shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path) -> Iterator[Scene]:
    """Yields an initialized folder without resources; objects left by a test disappear with the emulator."""
    name = f"drive-{abs(hash(tmp_path)) % 10**9}"
    shared_aws.client("s3").create_bucket(Bucket=f"{name}-state")
    environ = {**terraform, **shared_aws.environ}
    scene = Scene(ClusterFolder.of(tmp_path, name), environ, shared_aws)
    backend = S3Backend(f"{name}-state", KEY, "us-east-1", endpoint=shared_aws.url)
    with scene.folder.locked("test"):
        program.prepare(scene.terraform(), backend)
        yield scene


def test_emulated_up_recovery_drift_and_down_store_no_credentials(scene: Scene) -> None:
    scene.environ = {**scene.environ, "AWS_SECRET_ACCESS_KEY": SECRET}
    terraform = scene.terraform()
    assert terraform.init() is False
    plan = terraform.plan()
    assert {one.action for one in plan.summary.changes} == {Action.CREATE}
    assert stat.S_IMODE(plan.path.stat().st_mode) == 0o600
    result = terraform.apply(plan)
    assert result.added == plan.summary.add == len(terraform.state())
    assert terraform.outputs()["vpc_id"].startswith("vpc-")
    files = [path for path in scene.folder.path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        if ".terraform/providers" not in str(path):
            assert SECRET.encode() not in path.read_bytes(), path
    before = {one.address: one.id for one in terraform.state()}
    scene.aws.client("s3").delete_object(Bucket=f"{scene.folder.name}-state", Key=KEY)
    report = program.recovered(terraform, scene.environ)
    assert report.is_clean
    assert {one.address for one in report.imported} == set(before)
    assert {one.address: one.id for one in terraform.state()} == before
    assert not needs_recovery(scene.folder)
    assert terraform.plan().summary.is_empty
    assert terraform.drift() == ()
    scene.aws.client("iam").delete_role_policy(
        RoleName=f"{scene.folder.name}-node", PolicyName=f"{scene.folder.name}-node"
    )
    assert [(one.address, one.action) for one in terraform.drift()] == [("aws_iam_role_policy.node", Action.DELETE)]
    assert terraform.apply(terraform.plan(destroy=True)).destroyed == result.added - 1
    assert terraform.state() == []
    assert not needs_recovery(scene.folder)


@pytest.mark.nightly
def test_emulated_plan_is_stale_after_another_apply(scene: Scene) -> None:
    terraform = scene.terraform()
    first, second = terraform.plan(targets=[ROLE]), terraform.plan(targets=[ROLE])
    terraform.apply(first)
    with pytest.raises(StalePlan):
        terraform.apply(second)
    assert not needs_recovery(scene.folder)
    terraform.apply(terraform.plan(destroy=True))


@pytest.mark.nightly
def test_emulated_held_lock_is_reported_and_not_released_without_proof(scene: Scene) -> None:
    terraform = scene.terraform()
    lock = {
        "ID": "8d0ae5c5-5e4d-9d4d-9f3b-0d1f7b7c9f6a",
        "Operation": "OperationTypeApply",
        "Info": "",
        "Who": "kim@laptop",
        "Version": "1.11.4",
        "Created": "2026-11-25T01:12:27.628984248Z",
        "Path": f"{scene.folder.name}-state/a/terraform.tfstate",
    }
    key = {"Bucket": f"{scene.folder.name}-state", "Key": "a/terraform.tfstate.tflock"}
    scene.aws.client("s3").put_object(**key, Body=json.dumps(lock).encode())
    with pytest.raises(StateLocked, match=r"locked by kim@laptop since 2026-11-25 01:12:27 UTC \(apply\)"):
        terraform.plan()
    with pytest.raises(StateLocked) as found:
        program.recovered(terraform, scene.environ)
    assert "it is held from laptop" in found.value.hint
    assert "--break-lock" in found.value.hint
    report = program.recovered(terraform, scene.environ, break_lock=True)
    assert report.lock == found.value.lock
    assert terraform.plan().summary.add


@pytest.mark.nightly
def test_emulated_existing_name_is_a_clear_error(scene: Scene) -> None:
    name = f"{scene.folder.name}-node"
    scene.aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    terraform = scene.terraform()
    with pytest.raises(TerraformFailed, match=f"Role with name {name} already exists") as found:
        terraform.apply(terraform.plan(targets=[ROLE]))
    assert f"{ROLE} in " in found.value.message
    assert "cluster up --recover" in found.value.hint
    assert not needs_recovery(scene.folder)
    # the resource lacks the cluster's tag, so it must not be destroyed
    report = program.recovered(terraform, scene.environ)
    assert [(one.address, one.id) for one in report.foreign] == [(ROLE, name)]
    assert not report.is_clean


@pytest.mark.nightly
def test_emulated_interrupted_creation_is_complete_after_recovery(scene: Scene) -> None:
    """The provider waits 25 s for a queue. A stop in that time taints the queue, and recovery finds it complete."""
    with scene.folder.path.joinpath("terraform.tfvars.json").open() as file:
        variables = json.load(file)
    (scene.folder.path / "terraform.tfvars.json").write_text(json.dumps({**variables, "queue": True}))
    stop, queue = scene.stop, "aws_sqs_queue.interruptions[0]"

    def on_event(event: Event) -> None:
        scene.events.append(event)
        if isinstance(event, ResourceStarted) and event.address == queue and not stop.count:
            stop.count += 1

    terraform = program.terraform_of(scene.folder, scene.environ, on_event=on_event, stop=stop)
    plan = terraform.plan(targets=[queue])
    with pytest.raises(Interrupted):
        terraform.apply(plan)
    assert any(isinstance(one, TerraformNote) and "stopping: terraform finishes" in one.text for one in scene.events)
    assert needs_recovery(scene.folder)
    scene.stop = StopRequests()
    terraform = scene.terraform()
    report = program.recovered(terraform, scene.environ)
    # A provider that is stopped before it reports the queue leaves it out of the state; then it is imported.
    mended = [*report.untainted, *(one.address for one in report.imported)]
    assert mended == ([queue] if any(one.address == queue for one in terraform.state()) else [])
    assert not terraform.plan(targets=[queue]).summary.replace
    terraform.apply(terraform.plan(destroy=True))


@pytest.mark.nightly
def test_emulated_local_state_is_in_the_folder(shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path) -> None:
    environ = {**terraform, **shared_aws.environ}
    driver = program.terraform_of(ClusterFolder.of(tmp_path, "local-state"), environ)
    with driver.folder.locked("test"):
        program.prepare(driver, LocalBackend())
        driver.apply(driver.plan(targets=[ROLE]))
        assert [one.address for one in driver.state()] == [ROLE]
        state = driver.folder.path / "terraform.tfstate"
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        state.write_bytes(state.read_bytes()[:200])
        with pytest.raises(TerraformFailed) as refused:
            driver.state()
        assert "cluster up --recover" in refused.value.hint
        assert [one.address for one in program.recovered(driver, environ).imported] == [ROLE]
        assert state.with_name("terraform.tfstate.damaged").stat().st_size == 200
        driver.apply(driver.plan(destroy=True))
        driver.folder.remove()
    assert not driver.folder.path.exists()
