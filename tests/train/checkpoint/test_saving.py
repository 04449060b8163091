"""Failures of one rank while a checkpoint is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.disk import fill, small_disk
from tests.helpers.machine import lives
from tests.helpers.until import until
from tests.train.checkpoint.saved import build, make, steps_of, train

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.consensus import Flags


def test_full_disk_only_skips_the_save(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        model, optimizer = build()
        saved = Checkpoint(model=model, optimizer=optimizer, folder=disk / "ck", every=10**6)
        train(model, optimizer)
        saved.step()
        assert saved.save(wait=True)
        filler = fill(disk)
        train(model, optimizer)
        saved.step()
        assert not saved.save(wait=True)
        assert steps_of(disk / "ck") == [1]
        assert len(list((disk / "ck").iterdir())) == 1, "the half of it is gone"
        filler.unlink()
        train(model, optimizer)
        saved.step()
        assert saved.save(wait=True)
        saved.close()
        assert steps_of(disk / "ck") == [3, 1]
    said = capfd.readouterr().out
    assert "step 2 failed" in said
    assert "No space left on device" in said


def test_missing_folder_skips_saves_until_it_returns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path / "ck", every=10**6)
    train(model, optimizer)
    saved.step()
    shutil.rmtree(tmp_path / "ck")
    assert not saved.save(wait=True)
    assert not (tmp_path / "ck").exists(), "a disk that is gone must not be written to under its mount point"
    (tmp_path / "ck").mkdir()
    assert saved.save(wait=True)
    saved.close()
    assert steps_of(tmp_path / "ck") == [1]
    assert "step 1 failed" in capfd.readouterr().out


def test_killed_writer_of_a_single_rank_skips_one_save(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6)
    train(model, optimizer)
    saved.step()
    os.kill(saved._saver.writer.pid, signal.SIGSTOP)
    saved.save()
    (tmp_path / saved._saver._name).mkdir()
    os.kill(saved._saver.writer.pid, signal.SIGKILL)
    train(model, optimizer)
    saved.step()
    assert saved.save(wait=True)
    saved.close()
    assert steps_of(tmp_path) == [2]
    assert len(list(tmp_path.iterdir())) == 1
    assert "failed: the writer process died" in capfd.readouterr().out


def test_save_in_progress_makes_the_next_one_skip_or_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6)
    os.kill(saved._saver.writer.pid, signal.SIGSTOP)
    for _ in range(3):
        train(model, optimizer)
        saved.step()
        saved.save()
    os.kill(saved._saver.writer.pid, signal.SIGCONT)
    assert saved.save(wait=True)
    saved.close()
    assert steps_of(tmp_path) == [3, 1]
    said = capfd.readouterr().out
    assert said.count("skipped") == 2


def test_saved_state_is_a_snapshot_unaffected_by_later_training(tmp_path: Path) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6)
    train(model, optimizer)
    saved.step()
    kept = model.weight.detach().clone()
    os.kill(saved._saver.writer.pid, signal.SIGSTOP)
    saved.save()
    with torch.no_grad():
        model.weight.fill_(7.0)
    os.kill(saved._saver.writer.pid, signal.SIGCONT)
    saved.close()
    other, its_optimizer = build()
    again = Checkpoint(model=other, optimizer=its_optimizer, folder=tmp_path)
    assert again.restore() == 1
    again.close()
    assert torch.equal(other.weight, kept)


@pytest.mark.parametrize(
    ("others", "steps"), [(Flags(busy=True), [2]), (Flags(unplanned=True), [2, 1]), (Flags(), [2, 1])]
)
def test_state_is_copied_during_the_exchange_and_the_result_of_the_ranks_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Flags, steps: list[int]
) -> None:
    """A save that another rank cannot make now is skipped; if another rank must plan, all ranks plan."""
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6)
    train(model, optimizer)
    saved.step()
    kept = model.weight.detach().clone()
    saver = saved._saver
    copies: list[torch.Tensor] = []

    def begin_reduce(mine: Flags) -> Callable[[], Flags]:
        def answer() -> Flags:
            copies.extend(view.clone() for view in saver._copier._views if view.shape == kept.shape)
            return others

        return answer

    with monkeypatch.context() as patched:
        patched.setattr(saver._world, "begin_reduce", begin_reduce)
        assert saved.save() is not others.busy
    assert any(torch.equal(copy, kept) for copy in copies)
    saver.await_writer()
    train(model, optimizer)
    saved.step()
    assert saved.save(wait=True)
    saved.close()
    assert steps_of(tmp_path) == steps


def test_growing_state_is_planned_again(tmp_path: Path) -> None:
    mine: dict[str, Any] = {"history": torch.zeros(1)}
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, mine=mine, folder=tmp_path, every=10**6)
    for size in (1, 1000, 100_000, 3):
        mine["history"] = torch.arange(size)
        mine["text"] = "x" * size
        train(model, optimizer)
        saved.step()
        assert saved.save(wait=True)
        other: dict[str, Any] = {}
        model_again, optimizer_again = build()
        again = Checkpoint(model=model_again, optimizer=optimizer_again, mine=other, folder=tmp_path)
        again.restore()
        again.close()
        assert torch.equal(other["history"], mine["history"])
        assert other["text"] == mine["text"]
    saved.close()


def test_retention_keeps_the_requested_number(tmp_path: Path) -> None:
    make(tmp_path, 6, keep=2)
    assert steps_of(tmp_path) == [6, 5]


def test_unsupported_object_is_reported_at_the_first_step(tmp_path: Path) -> None:
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, mine={"f": build}, folder=tmp_path)
    train(model, optimizer)
    with pytest.raises(TypeError, match=r"mine\.f cannot be kept in a checkpoint: it is a builtins\.function"):
        saved.step()
    saved.close()
    with pytest.raises(TypeError, match=r"Checkpoint\(wrong=\.\.\.\)"):
        Checkpoint(wrong=3, folder=tmp_path)


def test_rank_stopped_with_the_others_survives_its_own_late_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    try:
        model, optimizer = build()
        saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=10**6)
        monkeypatch.setattr(saved._world, "exchange", lambda _: Flags(stop=True))  # another rank has received SIGTERM
        train(model, optimizer)
        with pytest.raises(SystemExit) as left:
            saved.step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert steps_of(tmp_path) == [1]


TRAINER = """
import os, signal, sys, time
from tests.train.checkpoint.saved import build, train
from windlass.train.checkpoint import Checkpoint

def begin(folder):
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=10**6)
    train(model, optimizer)
    saved.step()
    return saved

read, write = os.pipe()
child = os.fork()
if child == 0:
    saved = begin(sys.argv[1] + "/killed")
    os.kill(saved._saver.writer.pid, signal.SIGSTOP)
    saved.save()
    os.write(write, str(saved._saver.writer.pid).encode())
    time.sleep(600)
print(os.read(read, 100).decode(), flush=True)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
begin(sys.argv[1] + "/ends").save()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """Runs a script of which one process is killed in a save and one exits; returns its folder and the killed one's
    writer.
    """
    root, folder = Path(__file__).parents[3], tmp_path_factory.mktemp("trained")
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    with (folder / "said").open("w") as said:  # no pipe: the stopped writer would keep it open
        subprocess.run([sys.executable, "-c", TRAINER, str(folder)], env=env, stdout=said, check=True, timeout=100)
    writer = int((folder / "said").read_text().split()[0])
    yield folder, writer
    with contextlib.suppress(ProcessLookupError):  # still stopped if no test has continued it
        os.kill(writer, signal.SIGKILL)


@pytest.mark.slow
def test_writer_of_a_killed_rank_finishes_its_save_and_ends(trained: tuple[Path, int]) -> None:
    folder, writer = trained
    os.kill(writer, signal.SIGCONT)
    until(lambda: steps_of(folder / "killed") == [1])
    until(lambda: not lives(writer))


@pytest.mark.slow
def test_script_that_ends_has_its_last_save(trained: tuple[Path, int]) -> None:
    assert steps_of(trained[0] / "ends") == [1]
