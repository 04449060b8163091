"""Files and digests of models, by which a repeated deploy knows its request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.engines.model_files import files_in, model_digest
from windlass.errors import UsageError


def model(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


FILES = {"weights.bin": b"weights", "code/inference.py": b"def model_fn(folder): ...\n"}


def test_equal_names_and_contents_give_equal_digests(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one", FILES), model(tmp_path / "other", FILES)
    os.utime(other / "weights.bin", (1, 1))
    assert model_digest(one) == model_digest(other)
    changed = ({"weights.bin": b"others."}, {"more.bin": b""}, {"code/weights.bin": b"weights"})
    others = [model(tmp_path / str(number), {**FILES, **files}) for number, files in enumerate(changed)]
    assert len({model_digest(one), *map(model_digest, others)}) == 4


def test_bytecode_that_a_server_left_is_no_part_of_a_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", FILES)
    before = model_digest(folder)
    model(folder, {"code/__pycache__/inference.pyc": b"bytecode"})
    assert model_digest(folder) == before
    assert [name for name, _ in files_in(folder)] == ["code/inference.py", "weights.bin"]


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no files"):
        model_digest(tmp_path)


def test_link_out_of_the_folder_is_refused_before_its_target_is_read(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", FILES)
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="leads out"):
        model_digest(folder)
