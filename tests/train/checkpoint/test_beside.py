"""Copies made beside the training: they are the state of the moment of the save, or there is no such checkpoint."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.beside import FEWEST_BYTES, CopyBeside, Piece, is_wanted, pages_of, watched
from windlass.train.checkpoint.files import list_checkpoints, verify
from windlass.train.checkpoint.to_torch import read_tensors
from windlass.train.checkpoint.watch import Watch

SCRIPT = Path(__file__).with_name("scripts") / "beside.py"


def _can_watch() -> bool:
    try:
        Watch().end()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _can_watch(), reason="this kernel cannot watch memory: it takes Linux 6.7")


@pytest.mark.parametrize(("environ", "beside"), [({}, True), ({"WINDLASS_CHECKPOINT_COPY": "at-once"}, False)])
def test_it_is_done_unless_told_otherwise(environ: dict[str, str], beside: bool) -> None:
    assert is_wanted(environ) is beside


def large() -> torch.Tensor:
    return torch.full((FEWEST_BYTES // 4 // 1024 + 1, 1024), 1.0)


def piece_of(tensor: torch.Tensor) -> Piece:
    piece = pages_of(tensor, tensor.numel() * tensor.element_size(), 0)
    assert piece is not None
    return piece


def read_zeros_into(tensor: torch.Tensor) -> None:
    with open("/dev/zero", "rb", buffering=0) as file:
        file.readinto(tensor.numpy()[1000:1001].data)


def write_on_a_thread(tensor: torch.Tensor) -> None:
    thread = threading.Thread(target=lambda: tensor.data[1000].zero_())
    thread.start()
    thread.join()


def take_the_pages(tensor: torch.Tensor) -> None:
    """As a C library does that gives memory back: it reads as zeros from then on."""
    import ctypes

    piece = piece_of(tensor)
    taken = ctypes.CDLL(None).madvise(ctypes.c_void_p(piece.begin), ctypes.c_size_t(mmap.PAGESIZE), mmap.MADV_DONTNEED)
    assert taken == 0


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda tensor: tensor.add_(1),
    "by .data": lambda tensor: tensor.data[1000, 7].fill_(5),
    "by NumPy": lambda tensor: tensor.numpy()[1000, 7:8].fill(5),
    "the same value": lambda tensor: tensor[1000, 7].fill_(1.0),
    "foreach": lambda tensor: torch._foreach_mul_([tensor], 2.0),
    "by read(2)": read_zeros_into,
    "on a thread": write_on_a_thread,
    "taken away": take_the_pages,
    "resized": lambda tensor: tensor.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_whoever_writes_the_copy_is_known_to_be_worth_nothing(write: Callable[[torch.Tensor], object]) -> None:
    tensor = large()
    piece = piece_of(tensor)
    watch = watched([piece], prove=True)
    assert watch is not None
    write(tensor)
    sent: list[float] = []
    beside = CopyBeside([piece], watch, mmap.mmap(-1, 2 * FEWEST_BYTES), sent.append)
    beside.wait()
    assert beside.was_written
    assert beside.reason
    assert not sent


def test_a_copy_is_good_when_the_state_was_only_read() -> None:
    tensor = large()
    piece = piece_of(tensor)
    watch = watched([piece], prove=True)
    assert watch is not None
    tensor.sum()
    sent: list[float] = []
    memory = mmap.mmap(-1, 2 * FEWEST_BYTES)
    beside = CopyBeside([piece], watch, memory, sent.append)
    beside.wait()
    assert not beside.was_written
    assert not beside.reason
    assert len(sent) == 1
    assert (
        memory[piece.to : piece.to + piece.num_bytes] == tensor.numpy().tobytes()[piece.to : piece.to + piece.num_bytes]
    )


def test_memory_that_others_may_write_to_is_not_copied_later(tmp_path: Path) -> None:
    shared = large().share_memory_()  # type: ignore[no-untyped-call]
    assert pages_of(shared, FEWEST_BYTES, 0) is None
    anonymous = torch.frombuffer(mmap.mmap(-1, 2 * FEWEST_BYTES), dtype=torch.float32).fill_(1)
    assert watched([piece_of(anonymous)], prove=True) is None
    torch.save({"a": large()}, tmp_path / "a.pt")
    of_a_file = torch.load(tmp_path / "a.pt", mmap=True)["a"]
    assert watched([piece_of(of_a_file)], prove=True) is None


def test_a_forked_child_that_writes_to_its_own_memory_spoils_nothing(tmp_path: Path) -> None:
    tensor = large()
    watch = watched([piece_of(tensor)], prove=True)
    assert watch is not None
    child = os.fork()
    if child == 0:
        tensor.numpy()[1000] = 9
        os._exit(0)
    os.waitpid(child, 0)
    assert watch.is_unwritten()
    watch.end()


def build() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(2048, 2048)
    return model, torch.optim.Adam(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, 2048)).square().sum().backward()
    optimizer.step()


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


def kept(folder: Path) -> dict[int, dict[str, str]]:
    """By step: the digests of the tensors in the checkpoints that verify."""
    whole = [found for found in list_checkpoints(folder) if found.complete and not verify(found)]
    read = {found.step: read_tensors(str(folder / found.name / "rank-0.safetensors")) for found in whole}
    return {step: {name: digest(tensor) for name, tensor in tensors.items()} for step, tensors in read.items()}


def test_each_save_is_the_state_of_its_step_while_training_goes_on(tmp_path: Path) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=1, keep=20, when_busy="wait")
    weights, moments = {}, {}
    began_beside = 0
    for step in range(1, 9):
        train(model, optimizer)
        weights[step], moments[step] = digest(model.weight), digest(optimizer.state[model.weight]["exp_avg"])
        saved.step()
        began_beside += saved._beside is not None
    saved.close()
    assert began_beside == 8
    found = kept(tmp_path)
    assert sorted(found) == list(range(1, 9))
    assert {step: one["model.weight"] for step, one in found.items()} == weights
    assert {step: one["optimizer.state.weight.exp_avg"] for step, one in found.items()} == moments


@contextmanager
def writing_all_the_time(tensor: torch.Tensor) -> Iterator[None]:
    """What nothing but the kernel sees."""
    end = threading.Event()

    def write() -> None:
        array = tensor.detach().numpy()
        while not end.is_set():
            array[-2, -2] = 5

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_spoiled_copy_is_told_and_made_again_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6, keep=20)
    train(model, optimizer)
    saved.step()
    assert saved.save()
    saved._await_writer()
    give_up = time.monotonic() + 100
    with writing_all_the_time(model.weight):
        while saved._copies_beside:
            assert time.monotonic() < give_up
            saved.steps += 1
            saved.save()
            saved._await_writer()
    spoiled = saved.steps
    train(model, optimizer)
    weights = digest(model.weight)
    saved.step()
    assert saved._beside is None
    saved.close()
    found = kept(tmp_path)
    assert spoiled not in found
    assert found[spoiled + 1]["model.weight"] == weights
    said = capfd.readouterr().out
    assert f"step {spoiled} failed" in said
    assert "was written to while it was copied" in said


@pytest.mark.slow
def test_ranks_agree_to_save_again_what_one_of_them_spoiled(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "src"
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS")}
    env.update(PYTHONPATH=str(source), OMP_NUM_THREADS="1")
    words = ["--standalone", "--nproc-per-node", "2", str(SCRIPT), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    spoiled = int(done.stdout.split("spoiled at step ")[1].split()[0])
    assert f"step {spoiled} failed" in done.stdout
    assert "rank 1: the state was written to" in done.stdout
    steps = [found.step for found in list_checkpoints(tmp_path) if found.complete and not verify(found)]
    assert spoiled not in steps
    assert min(step for step in steps if step > spoiled) <= spoiled + 2
    assert "restored bit for bit on rank 0" in done.stdout
    assert "restored bit for bit on rank 1" in done.stdout
