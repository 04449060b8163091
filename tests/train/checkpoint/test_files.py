from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.saved import build, flip, make

from windlass.train.checkpoint import Checkpoint, files
from windlass.train.checkpoint.chunks import export_safetensors
from windlass.train.checkpoint.export import read_tensors
from windlass.train.checkpoint.faults import NoSuchPart
from windlass.train.checkpoint.files import list_checkpoints
from windlass.train.checkpoint.storage import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path / "ck", 3)
    return tmp_path / "ck"


def newest(folder: Path) -> Path:
    return Path(list_checkpoints(folder)[0].path)


def change(path: Path, edit: Callable[[dict[str, object]], None]) -> None:
    manifest = files.read_manifest(Folder(str(path.parent)), path.name)
    del manifest[files.CHECKSUM]
    edit(manifest)
    (path / files.MANIFEST).write_bytes(files.seal(manifest))


def test_checkpoints_are_listed_newest_first_with_their_manifests(folder: Path) -> None:
    found = list_checkpoints(folder)
    assert [one.step for one in found] == [3, 2, 1]
    for one in found:
        assert one.complete
        assert one.bytes == sum(path.stat().st_size for path in Path(one.path).iterdir() if path.name != files.MANIFEST)
        assert files.examine(one) == []


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit": (lambda path: flip(path / "rank-0.safetensors"), "rank-0.safetensors is damaged"),
    "bit of a header": (lambda path: flip(path / "rank-0.safetensors", 20), "rank-0.safetensors is damaged"),
    "bit of own state": (lambda path: flip(path / "rank-0.json", 100), "rank-0.json is damaged"),
    "truncated": (lambda path: os.truncate(path / "rank-0.safetensors", 4100), "has 4100 bytes where"),
    "grown": (lambda path: os.truncate(path / "rank-0.safetensors", 1 << 20), "has 1048576 bytes where"),
    "missing": (lambda path: (path / "rank-0.safetensors").unlink(), "rank-0.safetensors is missing"),
    "no manifest": (lambda path: (path / files.MANIFEST).unlink(), "its save was not finished"),
    "half a manifest": (lambda path: os.truncate(path / files.MANIFEST, 40), "its manifest cannot be parsed"),
    "empty manifest": (lambda path: os.truncate(path / files.MANIFEST, 0), "its manifest cannot be parsed"),
    "bit of the manifest": (lambda path: flip(path / files.MANIFEST, 40), "its manifest"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_detected_and_the_previous_one_is_loaded(
    damage: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, says = DAMAGES[damage]
    spoil(newest(folder))
    problems = files.examine(list_checkpoints(folder)[0])
    assert len(problems) == 1
    assert says in problems[0].text
    weights = make(folder.parent / "other", 2)
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder)
    assert saved.restore() == 2
    assert torch.equal(model.weight, weights[1])
    saved.close()
    said = capfd.readouterr().out
    assert ("step 3 refused" in said) == (damage != "no manifest")
    assert "step 2 restored" in said


HOSTILE: dict[str, Callable[[dict[str, object]], None]] = {
    "name with a folder": lambda manifest: manifest["files"].update({"../x.json": {"bytes": 1, "crc32": "0"}}),  # type: ignore[attr-defined]
    "name elsewhere": lambda manifest: manifest["files"].update({"/etc/passwd": {"bytes": 1, "crc32": "0"}}),  # type: ignore[attr-defined]
    "other name": lambda manifest: manifest["files"].update({"evil.pt": {"bytes": 1, "crc32": "0"}}),  # type: ignore[attr-defined]
    "negative length": lambda manifest: manifest["files"]["rank-0.json"].update(bytes=-1),  # type: ignore[index]
    "length that is no number": lambda manifest: manifest["files"]["rank-0.json"].update(bytes="9"),  # type: ignore[index]
    "length of two": lambda manifest: manifest["files"]["rank-0.json"].update(bytes=True),  # type: ignore[index]
    "no checksum": lambda manifest: manifest["files"]["rank-0.json"].pop("crc32"),  # type: ignore[index]
    "many ranks": lambda manifest: manifest.update(world_size=10**14),
    "no ranks": lambda manifest: manifest.update(world_size=0),
    "more ranks than files": lambda manifest: manifest.update(world_size=2),
    "step of text": lambda manifest: manifest.update(step="3"),
    "another step": lambda manifest: manifest.update(step=4),
    "new format": lambda manifest: manifest.update(format=2),
    "files of a list": lambda manifest: manifest.update(files=[1]),
    "created never": lambda manifest: manifest.update(created_at=None),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_invalid_manifest_is_refused(how: str, folder: Path) -> None:
    path = newest(folder)
    change(path, lambda manifest: None)
    assert list_checkpoints(folder)[0].complete
    change(path, HOSTILE[how])
    first, second, _ = list_checkpoints(folder)
    assert (first.step, first.complete) == (3, False)
    assert "cannot be read" not in first.problem
    assert second.complete


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    path = newest(folder)
    (path / "rank-0.json").rename(tmp_path / "outside.json")
    (path / "rank-0.json").symlink_to(tmp_path / "outside.json")
    assert "rank-0.json" in files.examine(list_checkpoints(folder)[0])[0].text
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert [one.step for one in list_checkpoints(folder)] == [2, 1]


def test_link_in_place_of_a_manifest_is_reported(folder: Path, tmp_path: Path) -> None:
    path = newest(folder)
    (path / files.MANIFEST).rename(tmp_path / "outside.json")
    (path / files.MANIFEST).symlink_to(tmp_path / "outside.json")
    problem = list_checkpoints(folder)[0].problem
    assert "is a symbolic link" in problem
    assert "Errno" not in problem


def test_unfinished_checkpoints_are_sorted_by_step(folder: Path) -> None:
    third, second, first = (Path(found.path) for found in list_checkpoints(folder))
    for whole in (third, first):
        change(whole, lambda manifest: manifest.update(run_id="digits-7f3k2"))
    (second / files.MANIFEST).unlink()
    next(second.glob("run-*")).unlink()  # earlier versions wrote no such files
    os.utime(second, (time.time() + 100, time.time() + 100))  # changed last, but still of step 2
    assert [(found.step, found.complete) for found in list_checkpoints(folder)] == [(3, True), (2, False), (1, True)]


def test_pipe_in_place_of_a_file_is_refused_without_blocking(folder: Path) -> None:
    path = newest(folder)
    (path / "rank-0.json").unlink()
    os.mkfifo(path / "rank-0.json")
    assert "rank-0.json" in files.examine(list_checkpoints(folder)[0])[0].text


def test_nothing_is_unpickled_unless_the_user_allows_it(tmp_path: Path) -> None:
    folder, mark = tmp_path / "ck", tmp_path / "executed"
    make(folder, 1, mine={"thing": 1})
    path = newest(folder)
    evil = pickle.dumps(Evil(str(mark)))
    for name in ("model.pt", "rank-0.pkl", ".metadata", "data.pkl"):
        (path / name).write_bytes(evil)
    own = json.loads((path / "rank-0.json").read_text())
    own["common"]["parts"]["mine"]["thing"] = {"$": "pickle", "v": base64.b64encode(evil).decode()}
    rewrite(path, "rank-0.json", json.dumps(own).encode())
    assert files.examine(list_checkpoints(folder)[0]) == []
    model, optimizer = build()
    before = model.weight.detach().clone()
    saved = Checkpoint(model=model, optimizer=optimizer, mine={}, folder=folder)
    with pytest.raises(ValueError, match=r"mine\.thing was stored by pickle"):
        saved.restore()
    saved.close()
    assert not mark.exists()
    assert torch.equal(model.weight, before)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.mark),)


def rewrite(path: Path, name: str, data: bytes) -> None:
    """Replaces a file and updates the manifest accordingly."""
    (path / name).write_bytes(data)
    facts = {"bytes": len(data), files.CHECKSUM: f"{zlib.crc32(data):08x}"}
    change(path, lambda manifest: manifest["files"].update({name: facts}))  # type: ignore[attr-defined]


INDEXES: dict[str, dict[str, object]] = {
    "beyond the file": {"begin": 10**9},
    "before the file": {"begin": -1},
    "another shape": {"shape": [1000, 1000]},
    "outside": {"offsets": [5, 0]},
    "no type": {"dtype": "nn"},
    "another name": {"name": "model.other"},
}


@pytest.mark.parametrize("how", INDEXES)
def test_index_that_does_not_match_the_files_is_refused_before_loading(how: str, folder: Path) -> None:
    path = newest(folder)
    own = json.loads((path / "rank-0.json").read_text())
    own["tensors"]["model.weight"].update(INDEXES[how])
    rewrite(path, "rank-0.json", json.dumps(own).encode())
    model, optimizer = build()
    before = model.weight.detach().clone()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder)
    with pytest.raises(ValueError, match=r"model\.(weight|other)"):
        saved.restore()
    saved.close()
    assert torch.equal(model.weight, before)


def test_a_later_attempt_is_newer_whatever_its_steps_are(tmp_path: Path) -> None:
    make(tmp_path, 3)
    (tmp_path / "unrelated").mkdir()
    for _ in range(2):
        make(tmp_path, 1)
    assert [(one.attempt, one.step) for one in list_checkpoints(tmp_path)] == [(3, 1), (2, 1), (1, 3), (1, 2), (1, 1)]


def test_empty_and_missing_folders_have_no_checkpoints(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path) == []
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_export_without_torch_gives_the_tensors_of_one_part(tmp_path: Path) -> None:
    weights = make(tmp_path / "ck", 2)
    target = tmp_path / "model.safetensors"
    program = (
        "import sys; from windlass.train.checkpoint import chunks, files\n"
        "found = files.list_checkpoints(sys.argv[1])[0]\n"
        "assert files.examine(found) == []\n"
        "chunks.export_safetensors(found, sys.argv[2])\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "ck"), str(target)], check=True)
    tensors = read_tensors(str(target))
    assert sorted(tensors) == ["bias", "weight"]
    assert torch.equal(tensors["weight"], weights[-1])


def test_export_of_an_unknown_part_leaves_no_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchPart, match="no tensors of a part named 'teacher', only of model"):
        export_safetensors(list_checkpoints(folder)[0], tmp_path / "x.safetensors", "teacher")
    assert not [path for path in tmp_path.iterdir() if "x.safetensors" in path.name]
