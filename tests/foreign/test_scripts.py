"""Scripts in the shape of public examples run unchanged, each from the command line that its own README gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
LIBRARIES = ROOT / ".cache" / "examples-env" / "bin"
WINDLASS = Path(sys.executable).with_name("windlass")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    subprocess.run([WINDLASS, "warm", "stop"], env=made.environ, capture_output=True, check=False)


class Run:
    """A folder with the scripts, and records of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "code"
        shutil.copytree(SCRIPTS, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        names = ("http_proxy", "HTTP_PROXY", "VIRTUAL_ENV", "CONDA_PREFIX")
        environ = {name: value for name, value in os.environ.items() if name not in names}
        self.environ = {**environ, "WINDLASS_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}

    def __call__(self, *words: str, programs: Path) -> str:
        """What `windlass run` with these words prints, where these programs are the first on the PATH."""
        environ = {**self.environ, "PATH": f"{programs}:{self.environ['PATH']}"}
        done = subprocess.run(
            [WINDLASS, "run", *words], cwd=self.folder, env=environ, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def libraries() -> Path:
    done = subprocess.run(["bash", "tools/examples-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return LIBRARIES


def test_mingpt_ddp_runs_from_the_line_of_torchrun_and_resumes_from_its_snapshot(run: Run) -> None:
    line = ("--", "torchrun", "--standalone", "--nproc_per_node=2", "--tee", "3", "mingpt_ddp.py", "--max_epochs")
    said = run(*line, "1", programs=WINDLASS.parent)
    assert "[RANK1] Epoch 1 | Iter 1" in said
    assert "--tee is not used" in said
    assert "Resuming training from snapshot at Epoch 1" in run(*line, "2", programs=WINDLASS.parent)


def test_nanogpt_takes_its_path_for_one_process_and_goes_on_after_a_kill(run: Run) -> None:
    (run.folder / "job.yaml").write_text(
        "name: nanogpt\n"
        "run: nanogpt.py --out_dir=$WINDLASS_CHECKPOINT_DIR --max_iters=12 --kill_at=6\n"
        "checkpoint: {find: ckpt.pt, resume: --init_from=resume}\n"
        "restarts: 1\n"
    )
    said = run(programs=WINDLASS.parent)
    assert "ddp False, init_from scratch" in said
    assert "ddp False, init_from resume" in said
    assert said.count("iter 3:") == 1
    assert said.count("iter 4:") == 2
    assert "iter 11:" in said


def test_accelerates_example_runs_with_a_configuration_file(run: Run, libraries: Path) -> None:
    line = ("accelerate", "launch", "--config_file", "two_processes.yaml", "nlp_example.py", "--cpu")
    said = run("--", *line, programs=libraries)
    assert "of 2 processes" in said


def test_lightnings_autoencoder_runs_by_the_python_of_the_path(run: Run, libraries: Path) -> None:
    assert "world size 1, epochs 2" in run("--", "python", "autoencoder.py", programs=libraries)


@pytest.mark.nightly
def test_run_clm_trains_on_two_ranks_of_torchrun(run: Run, libraries: Path) -> None:
    (run.folder / "train.txt").write_text("All work and no play makes Jack a dull boy. " * 40)
    options = [
        "--train_file=train.txt",
        "--do_train",
        "--output_dir=out",
        "--use_cpu",
        "--max_steps=4",
        "--save_strategy=no",
        "--report_to=none",
    ]
    line = ("env", "TOKENIZERS_PARALLELISM=false", "torchrun", "--nproc_per_node", "2", "run_clm.py", *options)
    assert "world size 2, steps 4" in run("--", *line, programs=libraries)


def test_a_demo_of_mpi4py_runs_from_the_line_of_mpirun(run: Run) -> None:
    said = run("--", "mpirun", "-n", "2", "python", "helloworld.py", programs=WINDLASS.parent)
    assert "I am process 1 of 2" in said
    assert "sum 3" in said
