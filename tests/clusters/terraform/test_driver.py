"""The driver handles stops, kills and leftovers of a stand-in for the terraform program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.clusters.recovery import needs_recovery
from windlass.clusters.terraform import (
    Event,
    Interrupted,
    Plan,
    ResourceProgress,
    Result,
    StalePlan,
    StopRequests,
    Terraform,
    TerraformError,
    TerraformNote,
    find_program,
    process,
)
from windlass.clusters.terraform.folder import ClusterFolder, LocalBackend
from windlass.clusters.terraform.program import environment
from windlass.errors import MissingExtra
from windlass.worker.process import of_session, send

FAKE = Path(__file__).with_name("fake_terraform.py")


def install(folder: Path, version: str = "1.11.4", name: str = "terraform") -> dict[str, str]:
    """Installs a stand-in with this version; returns an environment that finds it."""
    folder.mkdir()
    (folder / "fake.py").write_text(FAKE.read_text())
    (folder / "VERSION").write_text(version)
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/fake.py "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@dataclass
class Scene:
    """A cluster whose terraform program is the stand-in."""

    environ: dict[str, str]
    folder: ClusterFolder
    stop: StopRequests = field(default_factory=StopRequests)
    events: list[Event] = field(default_factory=list)

    def terraform(self) -> Terraform:
        """Returns a new driver, as each command creates one."""
        return Terraform(
            find_program(self.environ), self.folder, self.environ, on_event=self.events.append, stop=self.stop
        )

    def notes(self) -> list[str]:
        """Returns the notes that the driver has reported."""
        return [one.text for one in self.events if isinstance(one, TerraformNote)]

    def finish(self) -> None:
        """Lets the stand-in finish."""
        (self.folder.path / "finish").touch()

    def finish_when_followed(self) -> None:
        """Lets the stand-in finish once a driver waits for it."""
        until(lambda: any("following it" in note for note in self.notes()))
        self.finish()

    @contextmanager
    def applying(self, plan: Plan) -> Iterator[list[Result | TerraformError]]:
        """Runs an apply in a thread during the block; afterwards the list contains its result."""
        outcome: list[Result | TerraformError] = []
        terraform = self.terraform()

        def work() -> None:
            try:
                outcome.append(terraform.apply(plan))
            except TerraformError as error:
                outcome.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: (self.folder.path / "started").exists() and self.record().pid)
            yield outcome
        finally:
            self.finish()
            thread.join(100)

    def record(self) -> process.RunningCommand:
        """Returns the record of the running process."""
        found = process.record_of(self.folder.path)
        assert found is not None
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Yields a folder with a configuration; a stand-in that still runs at the end of the test is finished."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "main.tf").touch()
    folder = ClusterFolder.of(tmp_path / "home", "dev")
    folder.write(package, {}, LocalBackend())
    yield Scene(install(tmp_path / "bin"), folder)
    (folder.path / "finish").touch()


def test_the_program_and_its_version_are_found(tmp_path: Path) -> None:
    found = find_program(install(tmp_path / "bin", "1.10.0-beta1"))
    assert (found.text, found.path) == ("terraform 1.10.0", tmp_path / "bin" / "terraform")


def test_opentofu_is_found_if_terraform_is_missing(tmp_path: Path) -> None:
    assert find_program(install(tmp_path / "bin", "1.10.6", "tofu")).text == "tofu 1.10.6"


def test_error_for_a_missing_program_explains_its_installation(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"terraform is not installed") as found:
        find_program({"PATH": str(tmp_path)})
    assert "https://developer.hashicorp.com/terraform/install" in found.value.hint


def test_a_version_without_lock_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"is terraform 1\.9\.8; Windlass needs 1\.10\.0 or newer"):
        find_program(install(tmp_path / "bin", "1.9.8"))


def test_settings_that_change_what_a_command_does_are_not_inherited() -> None:
    found = environment({"TF_CLI_ARGS_apply": "-x", "TF_LOG": "TRACE", "TF_CLI_CONFIG_FILE": "a", "AWS_REGION": "b"})
    assert not {"TF_CLI_ARGS_apply", "TF_LOG"} & set(found)
    assert (found["TF_CLI_CONFIG_FILE"], found["AWS_REGION"], found["TF_IN_AUTOMATION"]) == ("a", "b", "1")


def test_an_apply_reports_progress_and_its_result(scene: Scene) -> None:
    plan = scene.terraform().plan()
    with scene.applying(plan) as outcome:
        assert needs_recovery(scene.folder)
    (result,) = outcome
    assert isinstance(result, Result)
    assert result.added == 1
    assert ResourceProgress("aws_eks_cluster.main", "create", 10.0) in scene.events
    assert not plan.path.exists()
    assert not needs_recovery(scene.folder)


def test_a_plan_that_was_changed_or_deleted_is_refused(scene: Scene) -> None:
    terraform = scene.terraform()
    plan = terraform.plan()
    plan.path.write_text("another plan")
    with pytest.raises(StalePlan, match="has changed since it was shown"):
        terraform.apply(plan)
    plan.path.unlink()
    with pytest.raises(StalePlan, match="does not exist any more"):
        terraform.apply(plan)
    assert not needs_recovery(scene.folder)


def test_error_output_without_a_heading_is_reported(scene: Scene) -> None:
    with pytest.raises(TerraformError) as failed:
        scene.terraform().force_unlock("b3a0ba6e")
    assert failed.value.message == "terraform force-unlock failed: Failed to unlock state: LocalState not locked"
    assert "wait for it, or end it" in failed.value.hint


def test_terraform_runs_in_a_separate_session(scene: Scene) -> None:
    with scene.applying(scene.terraform().plan()):
        assert os.getsid(scene.record().pid) == scene.record().pid != os.getsid(0)


def test_first_stop_terminates_and_second_explains_the_cost_of_a_kill(scene: Scene) -> None:
    with scene.applying(scene.terraform().plan()) as outcome:
        scene.stop.count += 1
        until(lambda: any("stopping: terraform finishes" in note for note in scene.notes()))
        assert any("aws_eks_cluster.main (create)" in note for note in scene.notes())
        scene.stop.count += 1
        until(lambda: any("would exist and bill" in note for note in scene.notes()))
        assert scene.record().is_alive
    (error,) = outcome
    assert isinstance(error, Interrupted)
    assert error.exit_code == 130
    assert needs_recovery(scene.folder)  # interrupted resources are tainted


def test_a_stop_before_an_apply_starts_nothing(scene: Scene) -> None:
    plan = scene.terraform().plan()
    scene.stop.count += 1
    with pytest.raises(Interrupted, match="stopped before terraform apply started"):
        scene.terraform().apply(plan)
    assert plan.path.exists()


def test_signals_of_this_process_are_counted(scene: Scene) -> None:
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: stop.count == 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_ends_interruptible_work_at_once_and_prevents_further_work() -> None:
    done: list[str] = []

    def work(number: int, text: str) -> None:
        with stop.interruptible(text):
            signal.raise_signal(number)
            done.append(text)

    with StopRequests() as stop:
        for text in ("stopped while draining", "stopped before the removal"):
            with pytest.raises(Interrupted, match=text):
                work(signal.SIGTERM, text)
        assert (stop.count, done) == (1, [])
        signal.raise_signal(signal.SIGINT)
        assert stop.count == 2


def test_killed_terraform_leaves_a_marker_file(scene: Scene) -> None:
    with scene.applying(scene.terraform().plan()) as outcome:
        send(scene.record().pid, signal.SIGKILL)
        for pid in of_session(scene.record().pid):
            send(pid, signal.SIGKILL)
    (error,) = outcome
    assert isinstance(error, TerraformError)
    assert "was killed by signal 9" in error.message
    assert needs_recovery(scene.folder)


def test_record_of_a_killed_terraform_outlives_further_commands(scene: Scene) -> None:
    with scene.applying(scene.terraform().plan()):
        killed = scene.record()
        for pid in of_session(killed.pid):
            send(pid, signal.SIGKILL)
    scene.terraform().plan()
    assert process.killed_in(scene.folder.path) == [killed]
    scene.terraform().mark_recovered()
    assert not needs_recovery(scene.folder)


KILLED = """
import json, sys
from pathlib import Path
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.clusters.terraform import Terraform, find_program
environ = json.loads(sys.argv[2])
terraform = Terraform(find_program(environ), ClusterFolder.of(Path(sys.argv[1]), "dev"), environ)
terraform.apply(terraform.plan())
"""


def orphan(scene: Scene) -> subprocess.Popen[bytes]:
    """Starts a Windlass process that is killed while its Terraform runs."""
    import json

    argv = [sys.executable, "-c", KILLED, str(scene.folder.home), json.dumps(scene.environ)]
    child = subprocess.Popen(argv)
    until(lambda: (scene.folder.path / "started").exists() and scene.record().pid)
    child.kill()
    child.wait()
    return child


def test_terraform_outlives_windlass_and_the_next_command_follows_it(scene: Scene) -> None:
    orphan(scene)
    terraform = scene.terraform()
    assert scene.record().is_alive
    thread = threading.Thread(target=scene.finish_when_followed)
    thread.start()
    result = terraform.follow()
    thread.join()
    assert isinstance(result, Result)
    assert result.added == 1
    assert any("of an earlier command still runs" in note for note in scene.notes())
    assert ResourceProgress("aws_eks_cluster.main", "create", 10.0) in scene.events
    assert process.record_of(scene.folder.path) is None
    assert not needs_recovery(scene.folder)


def test_stop_reaches_a_followed_terraform(scene: Scene) -> None:
    orphan(scene)

    def stop() -> None:
        until(lambda: any("following it" in note for note in scene.notes()))
        scene.stop.count += 1
        until(lambda: any("stopping" in note for note in scene.notes()))
        scene.finish()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted):
        scene.terraform().follow()
    thread.join()
    assert needs_recovery(scene.folder)


def test_terraform_that_finished_after_the_kill_needs_no_recovery(scene: Scene) -> None:
    orphan(scene)
    scene.finish()
    until(lambda: not process.is_held(scene.folder.path))
    assert needs_recovery(scene.folder)
    result = scene.terraform().follow()
    assert isinstance(result, Result)
    assert result.added == 1
    assert not needs_recovery(scene.folder)


def test_following_a_killed_terraform_returns_no_result(scene: Scene) -> None:
    orphan(scene)
    for pid in of_session(scene.record().pid):
        send(pid, signal.SIGKILL)
    assert scene.terraform().follow() is None
    assert needs_recovery(scene.folder)


def test_a_plan_waits_for_the_terraform_of_a_killed_windlass(scene: Scene) -> None:
    orphan(scene)
    thread = threading.Thread(target=scene.finish_when_followed)
    thread.start()
    scene.terraform().plan()
    thread.join()
    assert not needs_recovery(scene.folder)


def test_orphaned_provider_does_not_block_the_next_command(scene: Scene) -> None:
    """Regression: a provider ran forever after kill -9 of Terraform, and held the inherited lock."""
    with scene.applying(scene.terraform().plan()):
        record = scene.record()
        provider = until(lambda: [pid for pid in of_session(record.pid) if pid != record.pid])
        send(record.pid, signal.SIGKILL)
    assert until(lambda: not record.is_alive)
    scene.terraform().plan()
    until(lambda: not of_session(record.pid))  # a process drops its lock before it exits
    assert provider
