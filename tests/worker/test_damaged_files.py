"""A truncated file is found if a rank failed while loading it, and only then."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from windlass.worker.damaged_files import damaged_files, problem_of_end

SAFETENSORS = "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata"
NUMPY = '  File "/env/numpy/lib/_npyio_impl.py", line 4, in load\nzipfile.BadZipFile: File is not a zip file'
TORCH = '  File "/env/torch/serialization.py", line 4, in load\nOSError: [Errno 22] Invalid argument'
DCP = '  File "/env/torch/distributed/checkpoint/filesystem.py", line 4, in f\nEOFError'


def output(error: str, before: str = "") -> str:
    return (
        f'{before}Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n    f()\n{error}\n'
    )


def write(path: Path, share: float = 1.0) -> Path:
    """Writes a file in the format of its suffix, truncated to `share` of its length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    elif path.suffix in (".pkl", ".metadata"):
        path.write_bytes(pickle.dumps({"step": "a" * 400}))
    else:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data.pkl", bytes(1000))
    os.truncate(path, int(path.stat().st_size * share))
    return path


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.npz", "__0_0.distcp", "m.pkl", "m.metadata"])
def test_truncated_files_have_a_problem_and_complete_files_have_none(tmp_path: Path, name: str) -> None:
    assert problem_of_end(str(write(tmp_path / name))) == ""
    for share in (0.0, 0.02, 0.5, 0.99):
        assert problem_of_end(str(write(tmp_path / name, share))), share


def test_file_of_an_unknown_kind_has_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(b"tokens")
    assert problem_of_end(str(path)) == ""


def test_legacy_file_of_torch_ends_with_its_numbers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "weights.pkl"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert path.read_bytes()[-1:] != b"."
    assert problem_of_end(str(path)) == ""


def test_zip_archive_with_a_comment_is_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "set.zip")
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"made on Monday" * 100
    assert problem_of_end(str(path)) == ""
    os.truncate(path, 500)
    assert problem_of_end(str(path))


def test_files_are_not_searched_after_an_error_in_a_process_of_joblib(tmp_path: Path) -> None:
    write(tmp_path / "model.pkl", 0.5)
    loads = '  File "/env/joblib/numpy_pickle.py", line 4, in load\nEOFError'
    runs = '  File "/env/joblib/parallel.py", line 4, in __call__\nValueError: bad batch'
    assert damaged_files(output(loads), [str(tmp_path)])
    assert damaged_files(output(runs), [str(tmp_path)]) == []


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [('{"global_step": 10, "log', True), ("[1, 2", True), ('{"a": 1}\n', False), ("\0" * 20, True), ("12", False)],
)
def test_json_without_last_bracket_is_truncated(tmp_path: Path, text: str, is_cut: bool) -> None:
    (tmp_path / "trainer_state.json").write_text(text)
    found = damaged_files(output("json.decoder.JSONDecodeError: Expecting value"), [str(tmp_path)])
    assert bool(found) == is_cut


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (SAFETENSORS, "model.safetensors"),
        (NUMPY, "model.npz"),
        (TORCH, "model.pt"),
        (DCP, "__0_0.distcp"),
        (DCP, ".metadata"),
    ],
)
def test_damaged_file_is_found_by_the_failed_library(tmp_path: Path, error: str, name: str) -> None:
    for other in ("model.safetensors", "model.npz", "model.pt", "__0_0.distcp", ".metadata"):
        write(tmp_path / "whole" / other)
        write(tmp_path / "cut" / other, 0.5 if other != name and other[-4:] not in name else 1.0)
    path = write(tmp_path / "saved" / "checkpoint-15" / name, 0.5)
    paths = {one.path for one in damaged_files(output(error), [str(tmp_path)])}
    assert str(path) in paths
    assert {Path(one).suffix for one in paths} <= {Path(name).suffix, Path("__0_0.distcp").suffix, ""}


def test_file_named_in_the_output_comes_first_and_may_be_in_any_folder(tmp_path: Path) -> None:
    write(tmp_path / "out" / "step-9" / "model.pt", 0.5)
    named = write(tmp_path / "elsewhere" / "step-8" / "model.pt", 0.5)
    said = output(TORCH, f"resuming from {named.parent}\n")
    assert damaged_files(said, [str(tmp_path / "out")])[0].path == str(named)


def test_other_failures_have_no_damaged_files(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", 0.5)
    assert damaged_files(output("ValueError: bad batch"), [str(tmp_path)]) == []
    assert damaged_files("killed\n", [str(tmp_path)]) == []


def test_file_that_could_not_be_saved_is_not_a_damaged_file(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", 0.5)
    place = '  File "/env/site-packages/torch/serialization.py", line 943, in save\n'
    for error in (
        "RuntimeError: inline_container.cc:671] . unexpected pos 704 vs 598",
        "RuntimeError: basic_ios::clear",
    ):
        said = output(f"{place}{error}")
        assert "in save" in said
        assert damaged_files(said, [str(tmp_path)]) == []
