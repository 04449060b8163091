"""A model and its functions are gathered in one folder, without a second copy of the weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.errors import UsageError
from windlass.services.model_folder import stage_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "deep" / "labels.json").write_text("[]")
    return folder


def test_functions_are_put_beside_the_files_of_the_model(model: Path, tmp_path: Path) -> None:
    code = tmp_path / "predict.py"
    code.write_text("def load(folder): ...")
    stage_model(model, code, tmp_path / "staged")
    staged = tmp_path / "staged"
    assert (staged / "code" / "predict.py").read_text() == code.read_text()
    assert (staged / "deep" / "labels.json").is_file()
    assert (staged / "model.safetensors").stat().st_ino == (model / "model.safetensors").stat().st_ino


def test_functions_in_the_folder_of_the_model_are_moved_to_code_in_the_copy_alone(model: Path, tmp_path: Path) -> None:
    (model / "inference.py").write_text("def model_fn(folder): ...")
    stage_model(model, None, tmp_path / "staged")
    assert (tmp_path / "staged" / "code" / "inference.py").is_file()
    assert not (tmp_path / "staged" / "inference.py").exists()
    assert (model / "inference.py").is_file()


def test_code_that_the_model_brings_is_kept(model: Path, tmp_path: Path) -> None:
    (model / "code").mkdir()
    (model / "code" / "inference.py").write_text("def model_fn(folder): ...")
    stage_model(model, None, tmp_path / "staged")
    assert (tmp_path / "staged" / "code" / "inference.py").is_file()


def test_model_without_functions_is_refused_and_nothing_is_left(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing says how to serve"):
        stage_model(model, None, tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


def test_what_an_earlier_attempt_left_is_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "old.bin").write_bytes(b"old")
    code = tmp_path / "predict.py"
    code.write_text("")
    stage_model(model, code, tmp_path / "staged")
    assert not (tmp_path / "staged" / "old.bin").exists()


def test_writes_to_the_copy_of_a_replaced_file_do_not_reach_the_original(model: Path, tmp_path: Path) -> None:
    (model / "code").mkdir()
    (model / "code" / "predict.py").write_text("of the model")
    code = tmp_path / "predict.py"
    code.write_text("given")
    stage_model(model, code, tmp_path / "staged")
    assert (tmp_path / "staged" / "code" / "predict.py").read_text() == "given"
    assert (model / "code" / "predict.py").read_text() == "of the model"


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (pipe, "neither a file nor a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "neither a file nor a folder"),
        (lambda path: path.symlink_to("nowhere"), "is a link to nothing"),
        (lambda path: path.symlink_to("."), "a folder that contains the link"),
        (lambda path: path.symlink_to(path), "a folder that contains the link"),
    ],
)
def test_what_cannot_be_copied_to_its_end_is_named(
    make: Callable[[Path], None], reason: str, model: Path, tmp_path: Path
) -> None:
    make(model / "deep" / "odd")
    with pytest.raises(UsageError, match=f"deep/odd .*{reason}"):
        stage_model(model, None, tmp_path / "staged", needs_handler=False)


def test_folder_is_not_copied_into_itself(model: Path) -> None:
    with pytest.raises(UsageError, match="contains the records of Windlass"):
        stage_model(model, None, model / "home" / "staged", needs_handler=False)


def test_links_to_files_and_other_folders_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "latest").symlink_to("deep")
    stage_model(model, None, tmp_path / "staged", needs_handler=False)
    assert (tmp_path / "staged" / "latest" / "labels.json").is_file()
