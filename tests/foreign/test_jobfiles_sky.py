"""Small equivalents of the shapes of SkyPilot's public examples: each is imported right, or refused with a reason."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import JobFileError
from windlass.importers.convert import Imported, import_text
from windlass.spec.parse import parse_job

FOLDER = Path(__file__).parent / "jobfiles"
GIBI = 1 << 30


def imported(name: str, document: str | None = None) -> Imported:
    path = FOLDER / f"sky-{name}.yaml"
    return import_text(path.read_text(), path.name, form="sky", document=document)


IMPORTED: dict[str, dict[str, Any]] = {
    "torchrun-venv": {"launcher": "pytorch", "nodes": 2, "procs": 2, "gpus": (2, "L4"), "setup": True},
    "torchrun-plain": {
        "run": '-m trainer.main --config "$CONFIG"', "launcher": "torchrun", "nodes": 2, "procs": 8,
        "gpus": (8, "H100"), "left": {"resources.accelerators"},
    },
    "torch-run-conda": {
        "launcher": "pytorch", "nodes": 3, "procs": 1, "gpus": (1, "A100-80GB"), "setup": True, "left": {"run"},
    },
    "torch-launch": {
        "launcher": "pytorch", "nodes": 2, "procs": 1, "gpus": (1, "V100"), "setup": True,
        "left": {"resources.use_spot"},
    },
    "accelerate": {
        "launcher": "plain", "nodes": 2, "procs": 1, "gpus": (8, "H100"), "left": {"run", "file_mounts./conf"},
    },
    "python-conda": {
        "launcher": "plain", "nodes": 1, "procs": 1, "gpus": (1, "T4"), "setup": True, "left": {"envs.WANDB_PROJECT"},
    },
    "python": {
        "run": "train.py --epochs 3", "launcher": "plain", "nodes": 1, "procs": 1, "gpus": (1, "L4"), "setup": True,
    },
    "list-of-gpus": {
        "run": "-m app.train", "launcher": "plain", "nodes": 1, "procs": 1, "gpus": (4, "A100-40GB"),
        "left": {"resources.accelerators[0]"},
    },
    "any-of": {
        "run": "-m app.train", "launcher": "plain", "nodes": 1, "procs": 1, "gpus": (2, "A10G"),
        "left": {"resources.any_of", "resources.any_of[0].accelerators"},
    },
    "here-document": {"launcher": "plain", "nodes": 2, "procs": 1, "gpus": (1, "V100")},
    "first-node-only": {"launcher": "plain", "nodes": 2, "procs": 1, "gpus": (0, None)},
    "mpi-one-node": {"launcher": "plain", "nodes": 1, "procs": 1, "gpus": (8, "A100"), "left": {"run"}},
    "varying-folder": {"launcher": "plain", "nodes": 1, "procs": 1, "gpus": (4, "A100"), "left": {"run"}},
    "buckets-and-docker": {
        "launcher": "plain", "nodes": 1, "procs": 1, "gpus": (4, "V100"),
        "left": {"run", "workdir", "file_mounts./inputs", "file_mounts./outputs", "file_mounts./set"},
    },
}  # fmt: skip
"""Name of the file, and what the job has; `left` are the fields about which the user may have to do something."""
REFUSED = {
    "mpi-hosts": "calls mpirun, which starts processes on the other nodes by ssh",
    "deepspeed-hosts": "calls deepspeed",
    "ray-template": "starts ~/sky_templates/ray/start_cluster, which only",
    "service": "is a service of SkyServe",
    "pool": "is a pool of workers",
    "setup-only": "has no run:",
    "half-gpu": "V100:0.5 is no number of GPUs",
    "tpu": "is tpu-v2-8, and a job file asks for GPUs of NVIDIA",
    "amd": "is MI300",
    "pipeline": "holds 2 documents, data, fit",
}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_task_of_this_shape_is_imported_right(name: str) -> None:
    made, expected = imported(name), IMPORTED[name]
    job = made.job
    assert (job.run, job.launcher, job.procs_per_node) == (
        expected.get("run"),
        expected["launcher"],
        expected["procs"],
    )
    assert (job.nodes.min, job.nodes.max) == (expected["nodes"], expected["nodes"])
    assert (job.resources.gpus, job.resources.gpu_type) == expected["gpus"]
    assert (job.setup is not None) == expected.get("setup", False)
    assert {one.field for one in made.actionable} == expected.get("left", set())
    assert parse_job(made.text) == job


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_job_of_this_kind_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(JobFileError) as refused:
        imported(f"refused-{name}")
    [problem] = refused.value.problems
    assert REFUSED[name] in problem.message
    assert problem.hint


def test_labels_of_the_machines_are_the_runs() -> None:
    assert imported("any-of").job.labels == {"team": "vision", "project": "tokens"}


def test_a_file_with_the_output_that_is_not_written_is_listed() -> None:
    assert "tee out.log keeps the output of torchrun" in [one.meaning for one in imported("torch-launch").unmapped]


def test_variables_that_setup_keeps_for_the_shell_of_run_are_listed() -> None:
    task = "setup: echo 'export A=1' >> ~/.bashrc\nrun: python fit.py\n"
    assert [one.meaning for one in import_text(task, "task.yaml", form="sky").actionable] == [
        "~/.bashrc: no shell here reads it before run:"
    ]


def test_there_is_an_outcome_for_each_file() -> None:
    names = {path.stem.removeprefix("sky-") for path in FOLDER.glob("sky-*.yaml")}
    assert names == {*IMPORTED, *(f"refused-{name}" for name in REFUSED)}


def test_a_task_of_a_pipeline_is_imported_by_its_name() -> None:
    assert imported("refused-pipeline", "fit").job.resources.gpus == 8


# -- the scripts, run by bash: `python3` and others are programs that print how they were called ----------------------

PRINTS = """#!/bin/bash
echo "$(basename "$0") $* [MASTER=$MASTER_ADDR:$MASTER_PORT LOCAL=$LOCAL_RANK LEVEL=$LOGLEVEL in $(basename "$PWD")]"
"""
RANK_3 = {
    "WINDLASS_NODE_RANK": "1",
    "WINDLASS_NUM_NODES": "2",
    "WINDLASS_HOSTS": "node-a,node-b",
    "WINDLASS_RUN_ID": "r-1",
    "WINDLASS_MASTER_ADDR": "node-a",
    "WINDLASS_MASTER_PORT": "29401",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29401",
    "LOCAL_RANK": "1",
    "OUT": "out",
}


def said(tmp_path: Path, script: str) -> list[str]:
    """What a script prints as rank 3, which is the second one of the second node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "python3", "pkill", "git", "torchrun", "conda"):
        (programs / name).write_text(PRINTS if name != "conda" else "#!/bin/bash\necho /conda\n")
        (programs / name).chmod(0o755)
    for folder in ("tokens/.venv/bin", "resnet"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tokens/.venv/bin/activate").write_text("")
    env = {**RANK_3, "PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_rank_finds_its_folder_its_peers_and_its_arguments_as_under_torchrun(tmp_path: Path) -> None:
    job = imported("torchrun-venv").job
    assert job.command is not None
    assert said(tmp_path, job.command[-1]) == [
        "head node: node-a",
        "python3 -u fit.py --name tokens --nodes 2 [MASTER=node-a:29401 LOCAL=1 LEVEL=INFO in tokens]",
    ]


def test_commands_with_an_effect_run_once_a_node_and_not_in_each_rank(tmp_path: Path) -> None:
    job = imported("torch-launch").job
    assert job.command is not None
    assert job.setup is not None
    assert said(tmp_path, job.command[-1]) == [
        "python3 -u fit_ddp.py --local-rank=1 --epochs 20 [MASTER=node-a:29401 LOCAL=1 LEVEL= in resnet]"
    ]
    (tmp_path / "once").mkdir()
    assert said(tmp_path / "once", job.setup)[0].startswith("git pull ")


def test_nodes_that_a_script_counts_are_those_of_the_run(tmp_path: Path) -> None:
    job = imported("first-node-only").job
    assert job.command is not None
    script = job.command[-1].replace("$WINDLASS_NODE_RANK", "0")
    assert said(tmp_path, script)[0].startswith("python tune.py --workers 2 ")
