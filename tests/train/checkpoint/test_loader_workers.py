"""Signals to the whole process group of a rank with data loader workers, as torchrun sends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.train.checkpoint.saved import steps_of

from windlass.worker import process

ROOT = Path(__file__).parents[3]
TRAINER = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

class Numbers(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return index

def seeded(number):
    torch.manual_seed(number)

if __name__ == "__main__":
    folder, how = sys.argv[1:]
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    sampler = BatchSampler(len(Numbers()), batch_size=1)
    loader = DataLoader(
        Numbers(), batch_sampler=sampler, num_workers=2, multiprocessing_context=how, worker_init_fn=seeded
    )
    saved = Checkpoint(model=torch.nn.Linear(1, 1), sampler=sampler, folder=folder, every=10**6)
    for epoch in saved.epochs(1):
        for numbers in saved.batches(loader):
            if saved.steps == 4:
                os.write(1, b"trains\\n")  # whole, also where ranks share a pipe and write unbuffered
            time.sleep(0.05)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a training in a new session, and waits until it has made some steps."""
    begun: list[subprocess.Popen[str]] = []

    def start(*command: str, how: str = "fork") -> subprocess.Popen[str]:
        (tmp_path / "train.py").write_text(TRAINER)
        words = [sys.executable, *command, str(tmp_path / "train.py"), str(tmp_path / "ck"), how]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        popen = subprocess.Popen(words, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)
        begun.append(popen)
        assert popen.stdout is not None
        assert popen.stdout.readline() == "trains\n"
        return popen

    yield start
    for popen in begun:
        process.kill_session(popen.pid)
        popen.wait()
        assert popen.stdout is not None
        popen.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_sigterm_to_the_process_group_of_a_rank_saves_a_step(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: str
) -> None:
    popen = start(how=how)
    os.killpg(popen.pid, signal.SIGTERM)
    popen.communicate()
    assert popen.returncode == 143
    assert len(steps_of(tmp_path / "ck")) == 1
    until(lambda: not process.of_session(popen.pid), "a worker has outlived its rank")


@pytest.mark.slow
def test_sigkill_to_the_process_group_of_a_rank_ends_its_workers(start: Callable[..., subprocess.Popen[str]]) -> None:
    popen = start()
    os.killpg(popen.pid, signal.SIGKILL)
    popen.communicate()
    until(lambda: not process.of_session(popen.pid), "a worker has outlived its rank")


@pytest.mark.slow
def test_ranks_save_when_torchrun_is_terminated(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    popen = start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    popen.terminate()
    popen.communicate()
    assert len(steps_of(tmp_path / "ck")) == 1
