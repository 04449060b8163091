"""Packing code is reproducible, and excludes data and metadata of this machine."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections import UserDict
from collections.abc import ItemsView
from pathlib import Path

import pytest

from windlass.actions import serving
from windlass.code.pack import Packed, archive_of, pack
from windlass.code.selection import HOME
from windlass.errors import UsageError
from windlass.runs import private
from windlass.runs.private import service_folder
from windlass.runs.store import Store
from windlass.services import known

LIMIT = 1 << 20


def names(packed: Packed) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        return tar.getnames()


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "job", train_dot_py="print(1)", package__model_dot_py="x = 1", data__big_dot_bin="1" * 99)


def test_the_same_files_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = pack(folder, LIMIT, {})
    files = {"data__big_dot_bin": "1" * 99, "package__model_dot_py": "x = 1", "train_dot_py": "print(1)"}
    other = write(tmp_path / "other", **files)
    os.utime(other / "train.py", (1, 1))
    second = pack(other, LIMIT, {})
    assert (second.data, second.digest) == (first.data, first.digest)
    assert names(first) == ["code/data/big.bin", "code/package/model.py", "code/train.py"]
    assert first.files == (("data/big.bin", 99), ("package/model.py", 5), ("train.py", 8))
    assert (first.largest[0], first.num_bytes) == (("data/big.bin", 99), 112)


def test_changed_byte_changes_the_digest(folder: Path) -> None:
    before = pack(folder, LIMIT, {}).digest
    (folder / "train.py").write_text("print(2)")
    assert pack(folder, LIMIT, {}).digest != before


def test_circular_and_dangling_links_are_kept_as_links(folder: Path) -> None:
    for name, target in {"a": "b", "b": "a", "self": "self", "nowhere": "gone"}.items():
        (folder / name).symlink_to(target)
    with tarfile.open(fileobj=io.BytesIO(pack(folder, LIMIT, {}).data)) as tar:
        assert {entry.name for entry in tar if entry.issym()} == {
            f"code/{name}" for name in ("a", "b", "self", "nowhere")
        }


def test_archive_contains_no_metadata_of_this_machine(folder: Path) -> None:
    (folder / "train.py").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(pack(folder, LIMIT, {}).data)) as tar:
        found = {entry.name: entry for entry in tar}
    assert {(e.uid, e.gid, e.uname, e.mtime) for e in found.values()} == {(0, 0, "", 0)}
    assert found["code/train.py"].mode == 0o755
    assert found["code/package/model.py"].mode == 0o644


def test_ignore_files_match_as_in_git(folder: Path) -> None:
    write(folder, runs__a_dot_log="x", runs__keep_dot_log="x", sub__runs__b_dot_log="x", sub__c_dot_log="x")
    (folder / ".gitignore").write_text("*.log\n/data/\n!keep.log\n")
    (folder / "sub" / ".windlassignore").write_text("!c.log\n")
    found = names(pack(folder, LIMIT, {}))
    assert "code/runs/keep.log" in found
    assert "code/sub/c.log" in found
    assert not {"code/runs/a.log", "code/sub/runs/b.log", "code/data/big.bin"} & set(found)


def test_folders_at_the_top_that_git_ignores_are_packed_without_contents(folder: Path) -> None:
    write(folder, outputs__model_dot_pt="1", package__logs__a="1", wandb__run="1", _dot_venv__x="1", a_dot_log="1")
    (folder / ".gitignore").write_text("outputs/\nlogs/\n.venv/\n*.log\n")
    (folder / ".windlassignore").write_text("/data/\n/wandb/\n")
    packed = pack(folder, LIMIT, {})
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as tar:
        folders = [entry for entry in tar if entry.isdir()]
    assert [(entry.name, entry.mode, entry.mtime) for entry in folders] == [("code/outputs", 0o755, 0)]
    assert "outputs" not in dict(packed.files)


def test_git_data_caches_and_pipes_are_not_packed(folder: Path) -> None:
    write(folder, _dot_git__config="secret", __pycache__="x")
    (folder / "package" / "__pycache__").mkdir()
    (folder / "package" / "__pycache__" / "model.pyc").write_text("x")
    os.mkfifo(folder / "pipe")
    found = names(pack(folder, LIMIT, {}))
    assert not [name for name in found if ".git/" in name or "__pycache__/" in name or name.endswith("pipe")]


def test_a_link_inside_the_folder_stays_a_link(folder: Path) -> None:
    (folder / "latest.py").symlink_to(folder / "package" / "model.py")
    with tarfile.open(fileobj=io.BytesIO(pack(folder, LIMIT, {}).data)) as tar:
        entry = tar.getmember("code/latest.py")
    assert (entry.issym(), entry.linkname) == (True, "package/model.py")


def test_link_to_outside_the_folder_is_refused(folder: Path) -> None:
    (folder / "secrets").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"secrets is a link that leads out"):
        pack(folder, LIMIT, {})


@pytest.mark.parametrize(
    ("target", "rule", "hint"),
    [
        (".git/annex/objects/a.bin", "built-in rule .git excludes it", "data:"),
        ("cache/a.bin", ".gitignore:1 /cache/ excludes it", "!/cache in .windlassignore"),
        ("cache", ".gitignore:1 /cache/ excludes it", "!/cache in .windlassignore"),
        ("own.bin", ".windlassignore:1 own.bin excludes it", "!/own.bin in .windlassignore"),
        ("empty", "which is not sent", "data:"),
    ],
)
def test_link_to_a_file_that_is_not_packed_is_refused(folder: Path, target: str, rule: str, hint: str) -> None:
    write(folder, _dot_git__annex__objects__a_dot_bin="1", cache__a_dot_bin="1", own_dot_bin="1")
    write(folder, _dot_gitignore="/cache/\n", _dot_windlassignore="own.bin\n")
    (folder / "empty").mkdir()
    (folder / "data" / "train.bin").symlink_to(folder / target)
    with pytest.raises(
        UsageError, match=rf"train\.bin is a link to {re.escape(target)}, .*{re.escape(rule)}"
    ) as caught:
        pack(folder, LIMIT, {})
    assert hint in caught.value.hint


def test_links_to_packed_folders_stay_links(folder: Path) -> None:
    (folder / "module").symlink_to("package")
    (folder / "package" / "top").symlink_to("..")
    assert {"code/module", "code/package/top"} <= set(names(pack(folder, LIMIT, {})))


def test_oversized_folder_is_refused_before_reading_and_the_largest_files_are_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"the code is .* at most") as caught:
        pack(folder, 50, {})
    assert "data/big.bin" in caught.value.hint


def test_added_files_are_packed_next_to_the_folder_regardless_of_ignore_files(folder: Path, tmp_path: Path) -> None:
    package = write(tmp_path / "package", run_dot_py="1", sub__x_dot_py="2", _dot_gitignore="*\n", notes_dot_txt="x")
    packed = pack(folder, LIMIT, {}, {"travel/package": package, "travel/one.py": package / "run.py"})
    assert names(packed)[3:] == ["travel/one.py", "travel/package/run.py", "travel/package/sub/x.py"]
    assert (packed.num_added, packed.added_bytes, len(packed.files)) == (3, 3, 3)


def test_broken_link_in_an_added_package_is_skipped(folder: Path, tmp_path: Path) -> None:
    package = write(tmp_path / "package", run_dot_py="1")
    (package / ".#run.py").symlink_to("ada@laptop.4711")  # the lock of an editor
    assert pack(folder, LIMIT, {}, {"travel/package": package}).num_added == 1


class Removing(UserDict[str, Path]):
    """Files to add, which are listed after the files of the folder are selected; listing them removes `gone`."""

    gone: Path

    def items(self) -> ItemsView[str, Path]:
        self.gone.unlink()
        return super().items()


def test_file_that_is_removed_while_the_folder_is_packed_is_skipped(folder: Path) -> None:
    added = Removing(one=folder / "train.py")
    added.gone = folder / "package" / "model.py"
    packed = pack(folder, LIMIT, {}, added)
    assert names(packed) == ["code/data/big.bin", "code/train.py", "one"]
    assert [name for name, _ in packed.files] == ["data/big.bin", "train.py"]


def test_file_whose_folder_became_a_file_is_an_error_that_names_it(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"x cannot be read: Not a directory"):
        archive_of([("code/train.py", folder / "train.py" / "x")])


def test_credentials_are_refused_before_anything_is_packed(folder: Path) -> None:
    write(folder, _dot_env="TOKEN=1")
    with pytest.raises(UsageError, match=r"may hold credentials.*: \.env\n"):
        pack(folder, LIMIT, {})
    write(folder, _dot_windlassignore="!.env")
    assert "code/.env" in names(pack(folder, LIMIT, {}))


# -- records of runs in the folder ------------------------------------------------------------------------------------

CODE = ["code/data/big.bin", "code/package/model.py", "code/train.py"]
LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)  # "dead man's switch" of SQLite's WAL index
    except OSError:
        print("locked")
"""


@pytest.mark.parametrize("below", ["records", "."])
def test_records_in_the_folder_are_excluded_and_an_open_record_keeps_its_locks(folder: Path, below: str) -> None:
    # A packer that closes a file of the database drops the locks of its process. Another process then truncates the
    # index that this process has mapped, which ends with SIGBUS.
    with Store(folder / below) as store:
        store.run_dir("digits-1").mkdir()
        assert store.count() == 0
        assert names(pack(folder, LIMIT, {})) == CODE
        command = [sys.executable, "-c", LOCKED, str(store.home / "record.db-shm")]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"


def test_only_files_of_a_record_folder_are_excluded() -> None:
    assert {private.RECORD, *private.BESIDE_RECORD, *private.FOLDERS, "prices.json"} == HOME


def test_file_named_like_a_record_is_packed_without_the_other_record_files(tmp_path: Path) -> None:
    write(tmp_path / "job", record_dot_db="", train_dot_py="")
    assert names(pack(tmp_path / "job", LIMIT, {})) == ["code/record.db", "code/train.py"]


def test_folders_of_services_in_a_home_are_excluded() -> None:
    """They have tokens, and the files of models."""
    assert {known.FOLDER, serving.FOLDER, service_folder(Path("home"), "run").parent.name} <= HOME
