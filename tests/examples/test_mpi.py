"""Examples 03 and 04 end with their accuracy, here and under the launchers that they were written for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROOT = EXAMPLES.parent
HOROVOD = ROOT / ".cache" / "horovod-env" / "bin"
BARE = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
"""What Windlass sees to, for launchers without it."""
HANG_SECONDS = 800
"""Within which a program has ended unless it hangs, however busy the machine is."""

if shutil.which("mpirun") is None and "CI" not in os.environ:
    pytest.skip("no mpirun: bash tools/apt.sh installs Open MPI", allow_module_level=True)


def accuracy(command: list[str], folder: Path, world_size: int) -> float:
    """Percent that an example has printed for so many ranks; its records and its model go into `folder`."""
    environ = {**os.environ, **BARE, "WINDLASS_HOME": str(folder / "home")}
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(rf"test accuracy ([\d.]+) % .*world size {world_size}\b", done.stdout)
    assert found is not None, done.stdout
    [model] = [*folder.glob("home/runs/*/output/model.pt"), *folder.glob("outputs/model.pt")]
    assert model.stat().st_size > 10_000
    return float(found[1])


def windlass_run(name: str) -> list[str]:
    return [str(Path(sys.executable).with_name("windlass")), "run", str(EXAMPLES / name / "job.yaml")]


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly  # CI runs the contract by mpirun
def test_mpi_digits_reach_97_percent(tmp_path: Path) -> None:
    assert accuracy(windlass_run("03-mpi-digits"), tmp_path, 4) >= 97


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
def test_mpi_digits_reach_97_percent_under_bare_mpirun(tmp_path: Path) -> None:
    script = str(EXAMPLES / "03-mpi-digits" / "train.py")
    assert (
        accuracy(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable, script], tmp_path, 2)
        >= 97
    )


@pytest.mark.slow
@pytest.mark.nightly  # the first time Horovod is built, for ten minutes of both cores; CI has mpirun with mpi4py
@pytest.mark.timeout(2500)
class TestHorovod:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _built(cls) -> None:
        done = subprocess.run(["bash", "tools/horovod.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_horovod_digits_reach_97_percent(self, tmp_path: Path) -> None:
        assert accuracy(windlass_run("04-horovod-digits"), tmp_path, 2) >= 97

    def test_horovod_digits_reach_97_percent_under_horovodrun(self, tmp_path: Path) -> None:
        script = str(EXAMPLES / "04-horovod-digits" / "train.py")
        command = [str(HOROVOD / "horovodrun"), "--mpi", "-np", "2", str(HOROVOD / "python"), script]
        assert accuracy(command, tmp_path, 2) >= 97

    def test_a_horovod_rank_that_raises_is_the_first_cause(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(
            "import horovod.torch as hvd, torch\n"
            "hvd.init()\n"
            "hvd.allreduce(torch.ones(2), name='a')\n"
            "if hvd.rank() == 1:\n    raise ValueError('no such batch')\n"
            "hvd.allreduce(torch.ones(2), name='b')\n"
        )
        job = f"name: h\nrun: train.py\nlauncher: mpi\nprocs_per_node: 2\npython: {HOROVOD / 'python'}\n"
        (tmp_path / "job.yaml").write_text(job)
        command = [windlass_run("")[0], "run", "job.yaml"]
        environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 100, done.stdout + done.stderr
        assert "rank 1 failed first" in done.stderr
        assert "ValueError: no such batch" in done.stderr
