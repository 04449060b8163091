"""If existing checkpoints cannot be read, no rank continues without them, and none is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from tests.helpers.clock import FakeClock
from tests.helpers.failing_disk import failing_reads
from tests.train.checkpoint.saved import build, flip, make
from tests.train.checkpoint.test_files import change, newest
from tests.train.checkpoint.test_retention import steps

from windlass.train.checkpoint import Checkpoint, files, restore, retention
from windlass.train.checkpoint.consensus import World
from windlass.train.checkpoint.faults import Fault, UnknownFormat, UnreadableCheckpoint
from windlass.train.checkpoint.retry import Retry
from windlass.train.checkpoint.storage import Folder

ALONE = World(0, 1)
SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINDLASS_RUN_ID", "digits-7f3k2")
    make(tmp_path / "ck", 3)
    return tmp_path / "ck"


class Disk(Folder):
    """Folder with some files that cannot be opened."""

    def __init__(self, path: Path, number: int, file: str) -> None:
        super().__init__(str(path))
        self._number, self._file = number, file

    def open(self, checkpoint: str, file: str) -> BinaryIO:
        if file == self._file:
            path = self._within(checkpoint, file)
            raise OSError(self._number, os.strerror(self._number), path)
        return super().open(checkpoint, file)


@contextlib.contextmanager
def without_descriptors() -> Iterator[tuple[int, int]]:
    """Makes this process unable to open files (EMFILE); yields the limits to restore."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM])
def test_unreadable_manifest_is_neither_damaged_nor_unfinished(folder: Path, number: int) -> None:
    for found in files.list_checkpoints(Disk(folder, number, files.MANIFEST)):
        assert (found.complete, found.fault) == (False, Fault.UNREADABLE)
        assert os.strerror(number) in found.problem
        assert errno.errorcode[number] in found.problem
        assert found.path in found.problem
        assert retention.to_prune([found] * 9, found.run_id, 1, 0.001, 1e12) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_unreadable_file_is_not_damage(folder: Path, number: int) -> None:
    found = files.list_checkpoints(folder)[0]
    problem = files.verify_file(Disk(folder, number, "rank-0.json"), found, "rank-0.json")
    assert problem is not None
    assert problem.fault is Fault.UNREADABLE
    assert errno.errorcode[number] in problem.text


def test_checkpoint_removed_while_it_is_read_is_not_damage(folder: Path, tmp_path: Path) -> None:
    found = files.list_checkpoints(folder)[0]
    Path(found.path).rename(tmp_path / "elsewhere")
    assert {problem.fault for problem in files.examine(found)} == {Fault.UNREADABLE}


def test_restore_without_free_descriptors_waits_and_continues(folder: Path, clock: FakeClock) -> None:
    with without_descriptors() as limits:
        clock.at(10, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
        found, refused = restore.choose(str(folder), ALONE, Retry(60))
    assert found is not None
    assert (found.step, refused) == (3, [])
    assert 10 < clock.now < 20


def test_restore_without_free_descriptors_finally_fails_and_names_the_folder(folder: Path, clock: FakeClock) -> None:
    with (
        without_descriptors(),
        pytest.raises(UnreadableCheckpoint, match=r"Too many open files \(EMFILE\)") as raised,
    ):
        restore.choose(str(folder), ALONE, Retry(60))
    assert str(folder) in str(raised.value)
    assert "windlass resume --from NAME" in str(raised.value)
    assert clock.now == pytest.approx(60)
    assert steps(folder) == [3, 2, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_folder_on_a_failing_file_system_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("WINDLASS_CHECKPOINT_RETRY_SECONDS", "0.1")
    (tmp_path / "saved").mkdir()
    with failing_reads(tmp_path / "saved", number), pytest.raises(UnreadableCheckpoint, match="saved cannot be read"):
        Checkpoint(folder=tmp_path / "saved", model=torch.nn.Linear(2, 2))


def test_older_checkpoint_is_restored_in_place_of_an_unknown_format(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_RUN_ID")  # output for the user
    change(newest(folder), lambda manifest: manifest.update(format=2))
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1, keep=1, when_busy="wait")
    assert saved.restore() == 2
    saved.step()
    saved.step()
    saved.close()
    assert "it has format 2, and this version of Windlass reads 1" in capfd.readouterr().out
    assert sorted(steps(folder)) == [3, 4], "the format that is not known stays"


def test_restore_fails_if_all_formats_are_unknown(folder: Path) -> None:
    for number, one in enumerate(files.list_checkpoints(folder)):
        if number:
            change(Path(one.path), lambda manifest: manifest.update(format=2))
        else:
            flip(Path(one.path) / "rank-0.safetensors")
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder)
    with pytest.raises(UnknownFormat, match=r"none of the 3 checkpoints in .* can be loaded, and nothing was changed"):
        saved.restore()
    saved.close()
    assert steps(folder) == [3, 2, 1]


def test_script_continuing_after_a_failed_restore_removes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_CHECKPOINT_RETRY_SECONDS", "0")
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1, keep=1, when_busy="wait")
    with without_descriptors(), pytest.raises(UnreadableCheckpoint):
        saved.restore()
    for _ in range(3):
        saved.step()
    saved.close()
    assert sorted(steps(folder)) == [1, 1, 2, 2, 3, 3]


def test_run_prefers_its_own_checkpoints(folder: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_RUN_ID", "other")
    make(folder, 1)
    for run_id, step in (("digits-7f3k2", 3), ("other", 1), ("new", 1)):
        found, _ = restore.choose(str(folder), ALONE, Retry(60), run_id)
        assert found is not None
        assert found.step == step, run_id
    manifest = newest(folder) / files.MANIFEST
    manifest.unlink()
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(manifest.parent):
        listener.bind(files.MANIFEST)  # cannot be opened: ENXIO
    found, _ = restore.choose(str(folder), ALONE, Retry(60), "digits-7f3k2")
    assert found is not None
    assert found.step == 3
    for run_id in ("other", "new"):
        with pytest.raises(UnreadableCheckpoint, match="ENXIO"):
            restore.choose(str(folder), ALONE, Retry(60), run_id)
