"""Archives of models: equal files give equal bytes, and nothing from outside the folder gets in."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from windlass.engines.sagemaker.model_archive import write_archive
from windlass.errors import UsageError


def model(folder: Path) -> Path:
    (folder / "code" / "__pycache__").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"weights")
    (folder / "code" / "inference.py").write_text("def model_fn(folder): ...\n")
    (folder / "code" / "__pycache__" / "inference.pyc").write_bytes(os.urandom(8))
    return folder


def test_equal_files_give_equal_bytes(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one"), model(tmp_path / "other")
    os.utime(other / "weights.bin", (1, 1))
    for folder in (one, other):
        write_archive(folder, tmp_path / f"{folder.name}.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "other.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        assert tar.getnames() == ["code/inference.py", "weights.bin"]


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="leads out"):
        write_archive(folder, tmp_path / "model.tar.gz")


def test_link_within_the_folder_becomes_a_file(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (folder / "best.bin").symlink_to("weights.bin")
    write_archive(folder, tmp_path / "model.tar.gz")
    with tarfile.open(tmp_path / "model.tar.gz") as tar:
        assert tar.getmember("best.bin").isreg()
