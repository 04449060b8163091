"""A killed and resumed run ends with exactly the weights of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers.machine import Machine, machine_in

from windlass.engines.local.facts import find_gpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("scripts") / "exact.py"
LAST_STEP = 3 * 15
HANG_SECONDS = 200
"""Seconds after which torchrun counts as hanging: ten times its usual duration."""
BIN = Path(sys.executable).parent
Undisturbed = Callable[..., str]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine_in(tmp_path_factory.mktemp("exact")) as made:
        yield made
        made.windlass("warm", "stop")


@pytest.fixture(scope="module")
def undisturbed(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Returns the digest of the weights of undisturbed runs, by loader and number of ranks."""
    known: dict[tuple[str, int], str] = {}

    def digest(loader: str, world_size: int = 2) -> str:
        if (loader, world_size) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[loader, world_size] = under_windlass(machine, folder, loader, [], 1, world_size)
            assert machine.status()["attempts"][-1]["number"] == 1
        return known[loader, world_size]

    return digest


def kills_of(seed: int) -> list[str]:
    """Returns steps and ranks to kill: one before or soon after the first checkpoint, and a later one."""
    rng = random.Random(seed)
    early, late = rng.randint(2, 20), rng.randint(21, LAST_STEP)
    return [f"{early}:{rng.randrange(2)}", f"{late}:{rng.randrange(2)}"]


def under_windlass(
    machine: Machine, folder: Path, loader: str, kills: list[str], nodes: int, procs: int, *more: str
) -> str:
    words = [str(SCRIPT), str(folder), "--loader", loader, *more]
    words += ["--kill", *kills] if kills else []
    job = machine.write(
        "job.yaml",
        json.dumps(
            {
                "name": "exact",
                "run": " ".join(words),
                "nodes": nodes,
                "procs_per_node": procs,
                "python": sys.executable,
                "restarts": 5,
                "env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
            }
        ),
    )
    done = machine.windlass("run", str(job))
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "digest").read_text()


@pytest.mark.parametrize("loader", ["sampler", "stateful"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
def test_kills_under_windlass_do_not_change_the_weights(
    seed: int, loader: str, machine: Machine, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    kills = kills_of(seed)
    nodes, procs = [(1, 2), (2, 1)][seed % 2]
    expected = undisturbed(loader)
    assert under_windlass(machine, tmp_path, loader, kills, nodes, procs) == expected
    attempts = machine.status()["attempts"]
    assert len(attempts) == 1 + len(kills)
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored, "all was trained again from the start"
    assert all(step % 7 == 0 and 0 < step < LAST_STEP for step in restored)


@pytest.mark.parametrize("loader", ["sampler", "stateful"])
def test_checkpoint_of_the_last_step_of_an_epoch_continues_with_the_next_epoch(
    loader: str, machine: Machine, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    expected = undisturbed(loader)
    kills = ["19:0", "33:1"]
    assert under_windlass(machine, tmp_path, loader, kills, 1, 2, "--every", "15", "--patient") == expected
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored == [15, 30]


def test_three_ranks_sum_their_gradients_in_the_same_order_after_a_kill(
    machine: Machine, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    expected = undisturbed("sampler", 3)
    assert under_windlass(machine, tmp_path, "sampler", ["10:1", "19:2"], 1, 3, "--patient") == expected
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored == [7, 14]


@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_three_ranks_sum_gradients_equally_after_a_kill_in_the_first_steps(
    every: int, machine: Machine, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    expected = undisturbed("sampler", 3)
    assert under_windlass(machine, tmp_path, "sampler", ["4:1"], 1, 3, "--every", str(every), "--patient") == expected


def by_torchrun(folder: Path, *words: str) -> tuple[int | None, str]:
    """Returns the exit code and output of torchrun; the code is None if it hangs, as ranks over gloo may after
    restarts.
    """
    command = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", str(SCRIPT)]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")},
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with (
        (folder / "said").open("w") as output,
        subprocess.Popen(
            [*command, str(folder), *words], cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT
        ) as torchrun,
    ):
        try:
            torchrun.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            torchrun.terminate()  # torchrun ends its ranks, and kills them after half a minute
    return torchrun.returncode, (folder / "said").read_text()


@pytest.mark.timeout(5 * HANG_SECONDS)
@pytest.mark.parametrize("loader", ["sampler", "stateful"])
@pytest.mark.nightly
def test_kills_under_torchrun_do_not_change_the_weights(loader: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    kills = kills_of(4)
    for _ in range(3):  # if torchrun hangs, start it again, as a user would
        code, said = by_torchrun(tmp_path, "--loader", loader, "--kill", *kills)
        if code is not None:
            break
    assert code == 0, said
    assert len(list(tmp_path.glob("killed-*"))) == len(kills)
    assert (tmp_path / "digest").read_text() == undisturbed(loader)


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="there is no GPU")
def test_kills_of_ranks_on_a_gpu_do_not_change_the_weights(machine: Machine, tmp_path: Path) -> None:
    """Two ranks on one GPU, with gloo. Dropout uses random numbers of the GPU."""
    (tmp_path / "undisturbed").mkdir()
    expected = under_windlass(machine, tmp_path / "undisturbed", "sampler", [], 1, 2, "--device", "cuda")
    words = ["--device", "cuda", "--patient"]
    assert under_windlass(machine, tmp_path, "sampler", ["10:1", "33:0"], 1, 2, *words) == expected
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored == [7, 28]
