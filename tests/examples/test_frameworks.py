"""Examples of the libraries beside plain torch: the real ones, whose ranks find each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.ports import quiet_port

from windlass.spec.parse import parse_job

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ROOT / "examples" / "frameworks"
FOLDERS = sorted(path.parent for path in FRAMEWORKS.glob("*/job.yaml"))
ENDS = {
    "deepspeed": [rf"rank {rank} of 2, local rank {rank}: weights (7\.99|8\.00)" for rank in (0, 1)],
    "jax": ["accuracy 100.0 % on 1024 samples of 2 processes"],
    "lightgbm": [r"rank 0 of 2: 30 trees, error 0.0\d+", r"rank 1 of 2: 30 trees, error 0.0\d+"],
    "ray": ["8 tasks, pi 3.14"],
    "tensorflow": [r"worker 0 of 2: weights (7.99\d+|8.00\d+)", r"worker 1 of 2: weights (7.99\d+|8.00\d+)"],
    "ultralytics": [r"6 epochs, accuracy (0\.9|1\.0)"],
    "xgboost": [r"2 workers, 30 rounds, error 0.00\d+"],
}
"""What the scripts print last, where all ranks have trained together."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_job_file_parses_and_the_list_names_the_example(folder: Path) -> None:
    job = folder / "job.yaml"
    parse_job(job.read_text(), str(job))
    assert f"[{folder.name}]({folder.name}/job.yaml)" in (FRAMEWORKS / "README.md").read_text()


@pytest.mark.nightly  # 3 GB of libraries
@pytest.mark.slow
@pytest.mark.timeout(2500)  # the first time the libraries are installed
def test_ranks_of_each_library_train_together(tmp_path: Path) -> None:
    made = subprocess.run(["bash", "tools/frameworks-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert sorted(ENDS) == [folder.name for folder in FOLDERS]
    # The operator that DeepSpeed compiles on a CPU is kept with the environment, and removed with it.
    extensions = str(ROOT / ".cache" / "frameworks-env" / "torch-extensions")
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": extensions}
    windlass = str(Path(sys.executable).with_name("windlass"))
    for folder in FOLDERS:
        # The ranks of LightGBM listen at the ports from this one on, of which the kernel must give none to others.
        words = ["--set", f"local.port={quiet_port()}"] if folder.name == "lightgbm" else []
        command = [windlass, "run", "--cold", str(folder / "job.yaml"), *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for line in ENDS[folder.name]:
            assert re.search(rf"^(\[\d\] )?{line}", done.stdout, re.MULTILINE), done.stdout
