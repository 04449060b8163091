"""Every example is a job that parses, says its idea, and does what its page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from windlass.spec.parse import parse_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if re.match(r"\d\d-", path.name))
HANG_SECONDS = 800
"""Within which a program has ended unless it hangs, however busy the machine is."""


def run_example(name: str, home: Path) -> subprocess.CompletedProcess[str]:
    """`windlass run` of one example, with records of its own."""
    windlass = Path(sys.executable).with_name("windlass")
    command = [str(windlass), "run", str(EXAMPLES / name / "job.yaml")]
    environ = {**os.environ, "WINDLASS_HOME": str(home)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS)


def outputs(home: Path) -> dict[str, Path]:
    return {path.name: path for path in home.glob("runs/*/output/*")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_job_file_parses(folder: Path) -> None:
    job = folder / "job.yaml"
    parse_job(job.read_text(), str(job))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_example_has_a_page_that_the_list_names(folder: Path) -> None:
    number = folder.name.split("-")[0]
    assert (folder / "README.md").read_text().startswith(f"# {number} ")
    assert f"{folder.name}/README.md" in (EXAMPLES / "README.md").read_text()


def test_numbers_have_no_gap() -> None:
    assert [int(folder.name[:2]) for folder in FOLDERS] == list(range(1, len(FOLDERS) + 1))


def accuracy(done: subprocess.CompletedProcess[str], world_size: int) -> float:
    """Percent that example 01 printed for so many ranks."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(rf"test accuracy ([\d.]+) % .*world size {world_size}\b", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


@pytest.mark.timeout(900)
@pytest.mark.slow  # `make demo` runs it too
@pytest.mark.nightly
def test_digits_reach_97_percent_on_two_nodes_of_two_ranks(tmp_path: Path) -> None:
    assert accuracy(run_example("01-digits", tmp_path), 4) >= 97
    assert outputs(tmp_path)["model.pt"].stat().st_size > 10_000


@pytest.mark.parametrize(("launcher", "world_size"), [("python", 1), ("torchrun --standalone --nproc-per-node 2", 2)])
@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
def test_digits_reach_97_percent_without_windlass(launcher: str, world_size: int, tmp_path: Path) -> None:
    program, *options = launcher.split()
    command = [str(Path(sys.executable).with_name(program)), *options, str(EXAMPLES / "01-digits" / "train.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert accuracy(done, world_size) >= 97
    assert (tmp_path / "outputs" / "model.pt").stat().st_size > 10_000


def test_plain_pipeline_counts_every_page_once(tmp_path: Path) -> None:
    done = run_example("02-plain", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = outputs(tmp_path)
    assert sorted(counts) == ["words-0.txt", "words-1.txt"]
    counted = sum(int(line.split()[0]) for path in counts.values() for line in path.read_text().splitlines())
    texts = (EXAMPLES / "02-plain").glob("logbook/*.txt")
    assert counted == sum(len(re.findall(r"[A-Za-z]+", text.read_text())) for text in texts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The weights of example 01 on two nodes of two ranks, and the accuracy that it printed."""
    home = tmp_path_factory.mktemp("trained")
    percent = accuracy(run_example("01-digits", home), 4)
    return outputs(home)["model.pt"], percent


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
def test_saved_weights_have_the_same_loss_and_accuracy_on_any_number_of_ranks(
    tmp_path: Path, trained: tuple[Path, float]
) -> None:
    weights = torch.load(trained[0], weights_only=True)
    torch.save(weights, tmp_path / "model.pt")
    torch.save({f"module.{name}": value for name, value in weights.items()}, tmp_path / "of-ddp.pt")
    found = []
    for ranks, name, batch in ((1, "model.pt", 360), (3, "of-ddp.pt", 50)):
        script = str(EXAMPLES / "09-evaluate" / "evaluate.py")
        words = ["--standalone", "--nproc-per-node", str(ranks), script, "--weights", name, "--batch-size", str(batch)]
        command = [str(Path(sys.executable).with_name("torchrun")), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr
        [figures] = re.findall(r"^test loss ([\d.]+), accuracy ([\d.]+) % of 360 images$", done.stdout, re.MULTILINE)
        found.append([float(figure) for figure in figures])
    loss, percent = found[0]
    assert [one[1] for one in found] == [percent] * 2
    assert [one[0] for one in found] == pytest.approx([loss] * 2, abs=1e-5)
    assert percent == pytest.approx(trained[1], abs=0.05)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_an_evaluation_reads_the_weights_as_its_data(tmp_path: Path, trained: tuple[Path, float]) -> None:
    shutil.copytree(EXAMPLES / "09-evaluate", tmp_path / "job", ignore=shutil.ignore_patterns("weights"))
    (tmp_path / "job" / "weights").mkdir()
    shutil.copy(trained[0], tmp_path / "job" / "weights")
    done = run_example(str(tmp_path / "job"), tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"test loss [\d.]+, accuracy 9[\d.]+ % of 360 images", done.stdout), done.stdout
