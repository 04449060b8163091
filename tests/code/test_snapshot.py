"""The code of a run is kept, shared, compared and extracted again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.code import snapshot
from windlass.code.kept import FILE, NOT_KEPT, why_not_kept
from windlass.code.pack import pack
from windlass.code.snapshot import differing, extract_snapshot, keep_sent, keep_snapshot
from windlass.errors import UsageError

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "models" / "net.py").write_text("net = 1")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "digits-7"
    folder.mkdir(parents=True)
    return folder


def test_kept_code_is_extracted_again(code: Path, run: Path, tmp_path: Path) -> None:
    keep_snapshot(code, run, ENVIRON)
    assert extract_snapshot(run, ".", tmp_path / "then") == (2, 15)
    assert (tmp_path / "then" / "models" / "net.py").read_text() == "net = 1"
    assert extract_snapshot(run, "models", tmp_path / "models") == (1, 7)
    assert extract_snapshot(run, "train.py", tmp_path / "t.py") == (1, 8)
    assert names(tmp_path) == ["code", "models", "runs", "t.py", "then"]


def test_snapshot_is_readable_only_by_the_user(code: Path, run: Path) -> None:
    keep_snapshot(code, run, ENVIRON)
    assert (run / FILE).stat().st_mode & 0o777 == 0o600


def test_runs_of_the_same_code_share_a_file(code: Path, run: Path) -> None:
    later = run.with_name("digits-8")
    later.mkdir()
    keep_snapshot(code, run, ENVIRON)
    keep_snapshot(code, later, ENVIRON, [run.with_name("gone"), run])
    assert (later / FILE).samefile(run / FILE)
    (code / "train.py").write_text("print(2)")
    third = run.with_name("digits-9")
    third.mkdir()
    keep_snapshot(code, third, ENVIRON, [run, later])
    assert not (third / FILE).samefile(run / FILE)


def test_changed_files_are_listed(code: Path, run: Path) -> None:
    assert differing(code, run, ENVIRON) is None, "there is no snapshot"
    keep_snapshot(code, run, ENVIRON)
    assert differing(code, run, ENVIRON) == []
    (code / "train.py").write_text("print(2)")
    (code / "new.py").write_text("")
    (code / "models" / "net.py").unlink()
    assert differing(code, run, ENVIRON) == ["models/net.py", "new.py", "train.py"]


def test_code_of_a_sent_archive_is_kept_as_the_same_file(code: Path, run: Path, tmp_path: Path) -> None:
    (code / "latest.py").symlink_to("train.py")
    (code / ("long" * 30 + "é.py")).write_text("2")
    (code / "outputs").mkdir()
    (code / ".gitignore").write_text("outputs/\n")
    sent = pack(code, 1 << 20, ENVIRON, {"travel/windlass": Path(snapshot.__file__).parent})
    keep_snapshot(code, run, ENVIRON)
    later = run.with_name("digits-8")
    later.mkdir()
    (code / "train.py").write_text("print(2)")
    keep_sent(sent.data, sent.num_bytes, later, [run])
    assert (later / FILE).samefile(run / FILE)


def test_oversized_sent_code_is_not_kept(run: Path) -> None:
    keep_sent(b"", snapshot.LIMIT_BYTES + 1, run)
    assert why_not_kept(run).startswith("the code is 16.0 MB; at most 16 MB are kept")


def test_secrets_and_links_to_outside_are_excluded(code: Path, run: Path, tmp_path: Path) -> None:
    (code / ".env").write_text("HF_TOKEN=hf_" + "a" * 34)
    (tmp_path / "data").mkdir()
    (code / "data").symlink_to(tmp_path / "data")
    (code / "latest.py").symlink_to("train.py")
    keep_snapshot(code, run, ENVIRON)
    extract_snapshot(run, ".", tmp_path / "then")
    assert names(tmp_path / "then") == ["latest.py", "models", "train.py"]
    assert (tmp_path / "then" / "latest.py").readlink() == Path("train.py")


def test_oversized_code_is_not_kept_and_the_reason_is_recorded(code: Path, run: Path, tmp_path: Path) -> None:
    with (code / "data.bin").open("wb") as file:
        file.truncate(snapshot.LIMIT_BYTES + 1)
    keep_snapshot(code, run, ENVIRON)
    assert not (run / FILE).exists()
    with pytest.raises(UsageError, match=r"was not kept here: the code is 16\.0 MB; at most 16 MB are kept"):
        extract_snapshot(run, ".", tmp_path / "then")
    assert not (tmp_path / "then").exists()
    (run / NOT_KEPT).unlink()
    keep_snapshot(code, run, ENVIRON, max_entries=2)
    assert (run / NOT_KEPT).read_text() == "the folder has more than 2 entries (ignore them in .windlassignore)\n"


def test_nothing_is_overwritten_and_a_wrong_name_writes_nothing(code: Path, run: Path, tmp_path: Path) -> None:
    keep_snapshot(code, run, ENVIRON)
    with pytest.raises(UsageError, match="already exists"):
        extract_snapshot(run, ".", code)
    with pytest.raises(UsageError, match=r"has no nothing\.py"):
        extract_snapshot(run, "nothing.py", tmp_path / "x")
    assert names(tmp_path) == ["code", "runs"]


def test_missing_code_folder_does_not_prevent_a_run(run: Path, tmp_path: Path) -> None:
    keep_snapshot(tmp_path / "gone", run, ENVIRON)
    assert "gone cannot be read" in (run / NOT_KEPT).read_text()


def test_reason_may_contain_a_path_that_is_not_utf_8(run: Path, tmp_path: Path) -> None:
    keep_snapshot(tmp_path / os.fsdecode(b"gone\xff"), run, ENVIRON)
    assert r"gone\udcff" in why_not_kept(run)
