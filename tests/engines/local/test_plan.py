"""The local plan contains the notes and settings of a job before anything starts."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.actions.jobs import Parts, planned_job
from windlass.engines.local.backend import LocalBackend
from windlass.engines.local.facts import Facts, read_facts
from windlass.engines.local.plan import plan
from windlass.errors import PlanError
from windlass.plan.compose import compose
from windlass.plan.plan import Plan
from windlass.plan.steps import NodeStep, QueueStep, StageStep, UploadStep
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget


def facts_of(job: Job, folder: Path, **known: Any) -> Facts:
    (folder / "train.py").touch()
    facts = read_facts(job, base=folder, home=folder / "home", environ={})
    return dataclasses.replace(facts, **{"gpus": (), "num_cpus": 64, **known})


def plan_of(folder: Path, *, run: str = "train.py", known: dict[str, Any] | None = None, **fields: Any) -> Plan:
    job = Job(name="a", run=run, **fields)
    return plan(job, LocalTarget(name="local"), facts_of(job, folder, **(known or {})), "a-1")


def notes(plan: Plan) -> dict[str, str]:
    return {note.code: note.message for note in plan.notes}


def test_nodes_with_separate_gpus_get_no_note(tmp_path: Path) -> None:
    assert notes(plan_of(tmp_path, nodes=2, procs_per_node=2, known={"gpus": ("T4",) * 4})) == {}


@pytest.mark.parametrize(("gpus", "says"), [(1, "4 ranks and 1 GPU"), (3, "4 ranks and 3 GPUs")])
def test_shared_gpus_of_nodes_are_noted(tmp_path: Path, gpus: int, says: str) -> None:
    made = plan_of(tmp_path, nodes=2, procs_per_node=2, known={"gpus": ("T4",) * gpus})
    assert says in notes(made)["gpus-shared"]


@pytest.mark.parametrize("where", ["environ", "env"])
def test_nodes_share_gpus_chosen_by_user(tmp_path: Path, where: str) -> None:
    known: dict[str, Any] = {"gpus": ("T4",) * 4}
    fields: dict[str, Any] = {}
    if where == "environ":
        known["environ"] = frozenset({"CUDA_VISIBLE_DEVICES"})
    else:
        fields["env"] = {"CUDA_VISIBLE_DEVICES": "3"}
    made = plan_of(tmp_path, nodes=2, known=known, **fields)
    assert "CUDA_VISIBLE_DEVICES is set" in notes(made)["gpus-shared"]


@pytest.mark.parametrize(
    ("shell", "on_target", "in_job", "procs"),
    [
        (None, None, None, 8),
        ("0,1", None, None, 2),
        (None, "4,5,6", None, 3),
        (None, None, "0,1", 2),
        ("0,1", "0,1,2", "0", 1),
        ("", None, None, 1),
        ("0,1", None, "-1", 1),
        (",".join("012345678"), None, None, 8),
    ],
)
def test_auto_starts_one_rank_for_each_visible_gpu(
    tmp_path: Path, shell: str | None, on_target: str | None, in_job: str | None, procs: int
) -> None:
    environ, target_env, job_env = (
        {} if value is None else {"CUDA_VISIBLE_DEVICES": value} for value in (shell, on_target, in_job)
    )
    job = Job(name="a", run="train.py", procs_per_node="auto", env=job_env)
    facts = read_facts(job, base=tmp_path, home=tmp_path / "home", environ=environ)
    target = LocalTarget(name="local", env=target_env)
    assert plan(job, target, dataclasses.replace(facts, gpus=("T4",) * 8), "a-1").procs_per_node == procs


@pytest.mark.slow
def test_torch_warns_about_no_variable_of_ranks(tmp_path: Path) -> None:
    """With an NVIDIA GPU, ranks get the most variables. Which of them torch calls deprecated depends on its release."""
    made = plan_of(tmp_path, known={"gpus": ("T4",)})
    group = "import torch.distributed as d\nd.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)"
    done = subprocess.run(
        [sys.executable, "-c", f"{group}\nimport os; os._exit(0)"],
        env={**os.environ, **made.nodes.common},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("fields", [{"nodes": 1, "procs_per_node": 4}, {"nodes": 2, "procs_per_node": 1}])
def test_ranks_without_shared_gpus_get_no_note(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert "gpus-shared" not in notes(plan_of(tmp_path, known={"gpus": ("T4",) * 2}, **fields))
    assert "gpus-shared" not in notes(plan_of(tmp_path, **fields))


@pytest.mark.parametrize(
    ("fields", "known", "warned"),
    [
        ({"procs_per_node": 2}, {}, True),
        ({}, {}, False),
        ({"procs_per_node": 2, "env": {"ACCELERATE_USE_CPU": "true"}}, {}, False),
        ({"procs_per_node": 2, "launcher": "plain"}, {}, False),
        ({"procs_per_node": 2}, {"gpus": ("T4",) * 2}, False),
        ({"procs_per_node": 2}, {"script_imports": ("torch",)}, False),
    ],
)
def test_accelerate_ranks_that_would_train_separately_on_cpu_are_noted(
    tmp_path: Path, fields: dict[str, Any], known: dict[str, Any], warned: bool
) -> None:
    made = plan_of(tmp_path, known={"script_imports": ("accelerate",), "gpus": (), **known}, **fields)
    assert ("accelerate-alone" in notes(made)) == warned


def test_kubernetes_options_are_noted(tmp_path: Path) -> None:
    assert set(notes(plan_of(tmp_path, kubernetes={"via": "trainjob", "runtime": "torch"}))) == {
        "via-unused",
        "runtime-unused",
    }
    assert notes(plan_of(tmp_path, kubernetes={"via": "auto"})) == {}


def test_restart_causes_without_restarts_are_noted(tmp_path: Path) -> None:
    told = notes(plan_of(tmp_path, restarts={"on": ["node-loss"]}))["restarts-none"]
    assert "node-loss" in told
    assert "restarts-none" not in notes(plan_of(tmp_path, restarts={"on": ["node-loss"], "max": 1}))
    assert "restarts-none" not in notes(plan_of(tmp_path))


@pytest.mark.parametrize("source", ["s3://bucket/digits/", "file:///usr"])
def test_a_streamed_source_is_not_staged_and_reaches_the_script_as_its_address(tmp_path: Path, source: str) -> None:
    data = [{"name": "digits", "source": source, "via": "stream"}]
    made = plan_of(tmp_path, data=data, known={"has_data_extra": False})
    assert notes(made) == {}
    assert not made.every(StageStep)
    assert made.nodes.contract["WINDLASS_DATA_DIGITS"] == source


@pytest.mark.parametrize("to", ["s3://bucket/runs", "gs://bucket/runs/", "file:///mnt/runs"])
def test_outputs_in_a_store_are_uploaded_after_the_last_attempt(tmp_path: Path, to: str) -> None:
    made = plan_of(tmp_path, outputs=to, known={"has_data_extra": to.startswith("gs"), "bad_outputs": None})
    assert made.only(UploadStep).destination == f"{to.rstrip('/')}/a-1/"
    assert made.only(UploadStep).source == made.output_dir == f"{tmp_path}/home/runs/a-1/output"
    assert not any(note.blocks for note in made.notes)


def test_outputs_are_written_to_folder_in_outputs_field(tmp_path: Path) -> None:
    made = plan_of(tmp_path, outputs="results")
    assert (made.every(UploadStep), made.output_dir) == ([], f"{tmp_path}/results/a-1")


@pytest.mark.parametrize(
    ("to", "known", "code"),
    [
        ("ftp://host/runs", {}, "outputs-unknown"),
        ("gs://bucket/runs", {"has_data_extra": False}, "data-extra"),
        ("file://mnt/runs", {}, "outputs-unknown"),
    ],
)
def test_outputs_that_cannot_be_uploaded_block_the_plan(
    tmp_path: Path, to: str, known: dict[str, Any], code: str
) -> None:
    assert {note.code for note in plan_of(tmp_path, outputs=to, known=known).notes if note.blocks} == {code}


def test_store_that_refuses_credentials_blocks_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    [note] = [note for note in plan_of(tmp_path, outputs="s3://bucket/runs").notes if note.blocks]
    assert note.code == "outputs-store"
    assert note.message.startswith(
        "outputs: s3://bucket/runs/: no credentials for AWS were found: set AWS_ACCESS_KEY_ID"
    )
    assert note.fix == "check the credentials, and what they may do"


@pytest.mark.parametrize("source", ["ftp://host/digits", "file://mnt/digits"])
def test_data_that_cannot_be_staged_blocks_the_plan(tmp_path: Path, source: str) -> None:
    made = plan_of(tmp_path, data=[{"name": "digits", "source": source}])
    assert [note.code for note in made.notes if note.blocks] == ["data-unknown"]


def test_file_of_http_server_is_staged_like_data_set_of_store(tmp_path: Path) -> None:
    made = plan_of(tmp_path, data=[{"name": "digits", "source": "https://example.com/digits.tar"}])
    assert [note.code for note in made.notes if note.blocks] == []
    assert [step.request["source"] for step in made.steps if step.kind == "stage"] == ["https://example.com/digits.tar"]


@pytest.mark.parametrize(
    ("source", "via", "setup", "problem"),
    [
        ("nope", "copy", None, "{}/nope does not exist"),
        ("file://{}/nope", "copy", None, "{}/nope does not exist"),
        ("file://{}/nope", "stream", None, "{}/nope does not exist"),
        ("file://{}/train.py", "copy", None, "{}/train.py is no folder"),
        ("file://{}/nope", "copy", "./fetch", "{}/nope does not exist"),
        ("file://{}/nope", "stream", "./fetch", None),
        ("train.py", "copy", None, None),
        ("file://{}", "copy", None, None),
    ],
)
def test_missing_source_blocks_plan_unless_setup_may_create_it(
    tmp_path: Path, source: str, via: str, setup: str | None, problem: str | None
) -> None:
    made = plan_of(tmp_path, data=[{"name": "digits", "source": source.format(tmp_path), "via": via}], setup=setup)
    expected = [] if problem is None else [f"data digits: {problem.format(tmp_path)}"]
    assert [note.message for note in made.notes if note.code == "data-missing"] == expected


def test_checkpoints_in_a_store_have_a_prefix_for_each_run(tmp_path: Path) -> None:
    made = plan_of(tmp_path, checkpoint={"folder": "s3://bucket/saved/"})
    assert made.nodes.contract["WINDLASS_CHECKPOINT_DIR"] == "s3://bucket/saved/a-1"


@pytest.mark.parametrize(
    ("name", "refused"),
    [("python3.8", True), ("python2.7", True), ("python3.9", False), ("python3.13", False), ("python3", False)],
)
def test_too_old_interpreter_is_refused_by_its_file_name(tmp_path: Path, name: str, refused: bool) -> None:
    interpreter = tmp_path / "bin" / name
    interpreter.parent.mkdir()
    interpreter.touch(mode=0o755)
    (tmp_path / "python").symlink_to(interpreter)
    made = plan_of(tmp_path, python="./python")
    assert ("python-too-old" in notes(made)) == refused
    if refused:
        said = f"{tmp_path}/python is Python {name.removeprefix('python')}, and ranks need Python 3.9 or newer"
        assert notes(made)["python-too-old"] == said
    assert "python-too-old" not in notes(plan_of(tmp_path, python="./python", setup="./make-environment.sh"))


@pytest.mark.parametrize(("is_ours", "refused"), [(True, False), (False, True)])
def test_home_with_colon_is_refused_if_ranks_import_from_it(tmp_path: Path, is_ours: bool, refused: bool) -> None:
    known = {"home": f"{tmp_path}/a:b", "python": "/opt/python", "python_is_ours": is_ours}
    found = notes(plan_of(tmp_path, known=known)).get("home-colon", "")
    assert found.startswith(f"/opt/python imports nothing from below {tmp_path}/a:b:") == refused


@pytest.mark.parametrize("outputs", ["out", "new/out", "a-file", "a-file/out", "loop", "/proc/out"])
def test_outputs_that_cannot_be_written_are_refused(tmp_path: Path, outputs: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "a-file").touch()
    (tmp_path / "loop").symlink_to("loop")
    if os.geteuid() == 0 and outputs == "/proc/out":
        pytest.skip("root has the right to write there, and the kernel refuses it")
    wrong = {
        "a-file": "a-file is no folder",
        "a-file/out": "a-file is no folder",
        "loop": "loop is no folder",
        "/proc/out": "/proc cannot be written",
    }.get(outputs)
    for where, code in ((outputs, "outputs-folder"), (f"file://{tmp_path / outputs}", "outputs-store")):
        found = notes(plan_of(tmp_path, outputs=where)).get(code, "")
        assert found.endswith(wrong) if wrong else not found, found


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_script_that_is_not_a_file_is_refused_without_reading(tmp_path: Path, kind: str) -> None:
    script = tmp_path / "odd.py"
    if kind == "pipe":
        os.mkfifo(script)  # reading a FIFO blocks until a writer opens it
    else:
        script.symlink_to("/dev/zero" if kind == "device" else "odd.py")
    assert "odd.py is not in" in notes(plan_of(tmp_path, run="odd.py"))["script-missing"]


def test_interpreter_without_obstore_blocks_plan_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    job = Job(name="t", run="train.py", python=str(tmp_path / "python"), checkpoint={"folder": "gs://bucket/saved"})
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ={"PATH": os.environ["PATH"]})
    notes = {note.code: note for note in plan(job, LocalTarget(name="local"), facts, "t-1").notes}
    assert notes["obstore-missing"].blocks
    assert "pip install" in notes["obstore-missing"].fix


@pytest.mark.parametrize("fields", [{"launcher": "mpi"}, {"checkpoint": {"folder": "gs://bucket/saved"}}])
def test_a_plan_does_not_run_the_interpreter_that_a_job_file_names(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho True\n")
    (tmp_path / "python").chmod(0o755)
    job = Job(name="t", run="train.py", python="./python", **fields)
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ={"PATH": os.environ["PATH"]})
    made = plan(job, LocalTarget(name="local"), facts, "t-1")
    assert not (tmp_path / "ran").exists()
    assert "obstore-missing" not in notes(made)


@pytest.mark.parametrize("name", ["./prepare", "prepare.sh"])
def test_program_without_execute_permission_is_refused_with_chmod_command(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    [note] = plan_of(tmp_path, run=f"{name} --fast").notes
    assert (note.code, note.message) == ("program-not-executable", f"{name} is not executable")
    assert note.fix == f"chmod +x {name}"
    (tmp_path / name).chmod(0o755)
    assert not plan_of(tmp_path, run=f"{name} --fast").notes


def test_the_folder_of_the_code_may_be_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    facts = facts_of(Job(name="a", run="train.py", code="~/mine"), tmp_path)
    assert (facts.code_dir, facts.code_dir_found) == (str(tmp_path / "mine"), True)


@pytest.mark.parametrize("code", [".", "sub", "{}/sub", "~/sub"])
def test_checked_paths_are_relative_to_job_file(tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("job/sub", "job/digits", "sub", "home-digits"):
        (tmp_path / folder).mkdir(parents=True)
    data = [{"name": "digits", "source": "digits"}, {"name": "more", "source": "~/home-digits", "via": "stream"}]
    made = plan_of(
        tmp_path / "job", code=code.format(tmp_path), data=data, outputs="~/results", known={"script_found": True}
    )
    assert notes(made) == {}
    assert made.nodes.contract["WINDLASS_DATA_DIGITS"] == f"{tmp_path}/job/digits"
    assert made.nodes.contract["WINDLASS_DATA_MORE"] == f"{tmp_path}/home-digits"
    assert made.output_dir == made.nodes.contract["WINDLASS_OUTPUT_DIR"] == f"{tmp_path}/results/a-1"
    assert planned_job(made, {}).base == tmp_path / "job"


def test_a_recorded_job_is_filled_in_from_the_variables_of_its_next_run(tmp_path: Path) -> None:
    made = plan_of(tmp_path, run="train.py --lr $LR", env={"LR": "0.1"})
    assert made.every(NodeStep)[-1].spec.ranks[0].argv[-1] == "0.1"
    again = planned_job(made, {"env": Parts(LR="0.5")})
    assert again.job.script_argv == ("train.py", "--lr", "0.5")


# -- slots ------------------------------------------------------------------------------------------------------------


def with_slots(
    folder: Path, slots: int | None, *, gpus: int = 0, env: dict[str, str] | None = None, **fields: Any
) -> Plan:
    job = Job(name="a", run="train.py", env=env or {}, **fields)
    target = LocalTarget(name="local", slots=slots)
    return plan(job, target, facts_of(job, folder, gpus=("T4",) * gpus), "a-1")


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({}, 1),
        ({"nodes": 2, "procs_per_node": 2}, 4),
        ({"resources": {"gpus": 2}}, 2),
        ({"nodes": {"min": 1, "max": 3}}, 3),
        ({"nodes": 2, "procs_per_node": 4, "resources": {"gpus": 1}}, 2),
    ],
)
def test_run_needs_one_slot_per_requested_gpu_or_else_per_rank(
    tmp_path: Path, fields: dict[str, Any], takes: int
) -> None:
    request = with_slots(tmp_path, 4, **fields).only(QueueStep)
    assert (request.takes, request.of) == (takes, 4)


def test_a_target_without_slots_has_no_queue(tmp_path: Path) -> None:
    made = with_slots(tmp_path, None, priority="high")
    assert made.every(QueueStep) == []
    assert "runs start at once" in notes(made)["priority-unused"]


def test_run_that_needs_more_than_all_slots_is_refused(tmp_path: Path) -> None:
    made = with_slots(tmp_path, 4, nodes=5)
    assert notes(made)["slots-exceeded"] == "5 ranks take 5 slots, and target local has 4"
    with pytest.raises(PlanError):
        made.require_runnable()


@pytest.mark.parametrize(("name", "number"), [(None, 0), ("low", -1), ("normal", 0), ("high", 1), ("50", 50)])
def test_priorities_of_this_machine_are_names_or_numbers(tmp_path: Path, name: str | None, number: int) -> None:
    made = with_slots(tmp_path, 4, priority=name)
    assert made.only(QueueStep).priority == number
    assert notes(made) == {}


def test_a_priority_class_of_a_cluster_counts_as_normal(tmp_path: Path) -> None:
    made = with_slots(tmp_path, 4, priority="team-a")
    assert made.only(QueueStep).priority == 0
    assert "team-a counts as normal" in notes(made)["priority-unknown"]


@pytest.mark.parametrize(
    ("gpus", "env", "is_gpu"),
    [(0, {}, False), (3, {}, False), (4, {}, True), (4, {"CUDA_VISIBLE_DEVICES": "0"}, False)],
)
def test_slot_is_a_gpu_if_there_are_enough_and_user_chose_none(
    tmp_path: Path, gpus: int, env: dict[str, str], is_gpu: bool
) -> None:
    assert with_slots(tmp_path, 4, gpus=gpus, env=env).only(QueueStep).gpus is is_gpu


def test_each_node_sees_the_gpus_of_its_share_of_the_slots(tmp_path: Path) -> None:
    made = with_slots(tmp_path, 6, gpus=6, nodes=2, procs_per_node=2)
    backend = LocalBackend(made, tmp_path / "home" / "runs" / "a-1")
    backend.admission.numbers = (0, 2, 3, 5)
    assert [spec.env["CUDA_VISIBLE_DEVICES"] for spec in compose(backend.nodes())] == ["0,2", "3,5"]
