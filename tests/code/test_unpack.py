"""An untrusted archive is extracted into its folder, or refused before anything is written."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from windlass.code.unpack import extract, extract_permitted, move_into

Entry = tuple[str, bytes, str]


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Entry:
    return name, kind, target


def unpacked(entries: list[Entry], folder: Path, mode: int = 0o644) -> None:
    with packed(entries, mode) as tar:
        extract(tar, tar.getmembers(), folder)


def unpacked_permitted(entries: list[Entry], folder: Path) -> list[str]:
    with packed(entries, 0o755) as tar:
        return extract_permitted(tar, folder)


def packed(entries: list[Entry], mode: int) -> tarfile.TarFile:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, target in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.uid, info.uname = kind, target, 12345, "root"
            info.mode, info.size = mode, 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"x") if info.size else None)
    out.seek(0)
    return tarfile.open(fileobj=out)


def test_files_folders_and_inner_links_are_extracted_with_the_users_ownership(tmp_path: Path) -> None:
    links = [entry("a/new", tarfile.SYMTYPE, "model.pt"), entry("a/b/up", tarfile.SYMTYPE, "../model.pt")]
    files = [entry("./a", tarfile.DIRTYPE), entry("a/model.pt"), entry("a/b/c")]
    unpacked([*files, *links, entry("two", tarfile.LNKTYPE, "a/model.pt")], tmp_path, mode=0o4755)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "model.pt", "new", "two", "up"]
    assert (tmp_path / "a/b/up").read_text() == (tmp_path / "two").read_text() == "x"
    found = (tmp_path / "a/model.pt").stat()
    assert (found.st_uid, found.st_mode & 0o7777) == (os.getuid(), 0o755)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([entry("../x")], "leads out"),
        ([entry("a/../../x")], "leads out"),
        ([entry("/x")], "leads out"),
        ([entry("x", tarfile.LNKTYPE, "../secret")], "leads out"),
        ([entry("x", tarfile.SYMTYPE, "../secret")], "a link that leads out, to ../secret"),
        ([entry("x", tarfile.SYMTYPE, "/etc")], "a link that leads out, to /etc"),
        ([entry("a/x", tarfile.SYMTYPE, "y/../../..")], "a link that leads out"),
        ([entry("d", tarfile.SYMTYPE, "."), entry("d/x")], "goes through a link"),
        ([entry("d", tarfile.SYMTYPE, "."), entry("x", tarfile.LNKTYPE, "d")], "goes through a link"),
        ([entry("x", tarfile.CHRTYPE)], "neither file, folder nor link"),
        ([entry("x", tarfile.FIFOTYPE)], "neither file, folder nor link"),
    ],
)
def test_hostile_members_are_refused_before_extraction(entries: list[Entry], why: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(tarfile.TarError, match=why):
        unpacked([entry("first"), *entries], folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_archive_members_that_lead_out_are_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("old")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/model.pt").write_text("old")
    left_out = unpacked_permitted(
        [
            entry("step"),
            entry("best", tarfile.SYMTYPE, "step"),
            entry("away", tarfile.SYMTYPE, "/opt/ml/model/step"),
            entry("again", tarfile.LNKTYPE, "away"),
            entry("latest", tarfile.DIRTYPE),
            entry("latest/model.pt"),
        ],
        tmp_path,
    )
    assert left_out == [
        "away: a link that leads out, to /opt/ml/model/step",
        "again: another name of away, which is left out",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "latest", "old", "step"]
    assert ((tmp_path / "old/model.pt").read_text(), (tmp_path / "latest/model.pt").read_text()) == ("old", "x")


def test_moved_files_replace_existing_files_and_keep_others(tmp_path: Path) -> None:
    home, new, outside = tmp_path / "home", tmp_path / "new", tmp_path / "outside"
    written(home, "old", "a", "b", "file", "folder/x")
    written(outside, "s", "secret")
    (home / "out").symlink_to(outside)
    written(new, "new", "a", "file/below", "folder", "out/secret")
    move_into(new, home)
    found = {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}
    assert found == {"a": "new", "b": "old", "file/below": "new", "folder": "new", "out/secret": "new"}
    assert (outside / "secret").read_text() == "s"


def written(folder: Path, text: str, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
