"""The file system without space is found on a real full file system."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.helpers.disk import fill, small_disk

from windlass.worker.file_systems import without_space

TORCH = "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/0\n"


def test_error_without_a_path_names_the_full_file_system(tmp_path: Path) -> None:
    with small_disk(tmp_path / "scratch disk", 512) as disk:
        assert str(disk) not in [one.mount for one in without_space(TORCH, "/")], "it is empty"
        fill(disk)
        [found] = [one for one in without_space(TORCH, "/") if one.mount == str(disk)]
    assert (found.free_bytes, found.bytes) == (0, 512 << 10)


@pytest.mark.parametrize("path", ["{disk}/runs/model.pt", "scratch/model.pt"])
def test_error_with_a_path_names_only_its_file_system(path: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "scratch", 512) as disk:
        error = OSError(errno.ENOSPC, "No space left on device", path.format(disk=disk))
        [found] = without_space(f"OSError: {error}\n", str(tmp_path))
    assert found.mount == str(disk)


def test_error_with_two_paths_names_the_file_system_of_the_copy(tmp_path: Path) -> None:
    with small_disk(tmp_path / "scratch", 512) as disk:
        copy = disk / "model.pt"
        error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "model.pt"), None, str(copy))
        [found] = without_space(f"OSError: {error}\n", str(tmp_path))
    assert found.mount == str(disk)


def test_other_failures_read_no_file_system() -> None:
    assert without_space("ValueError: no space\n", "/") == []
