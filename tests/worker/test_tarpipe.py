"""A received stream of files is written to its destination, and cannot write outside of it."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.users import as_other_user, open_folder

from windlass.worker import tarpipe


def stream(*members: tuple[str, bytes | str | None]) -> io.BytesIO:
    """Creates a stream of files (bytes), links (text) and folders (None)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, what in members:
            info = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))
            else:
                info.type = tarfile.DIRTYPE if what is None else tarfile.SYMTYPE
                info.linkname = what or ""
                info.mode = 0o755
                tar.addfile(info)
    out.seek(0)
    return out


def copied(source: Path, destination: Path | str) -> tarpipe.Received:
    out = io.BytesIO()
    tarpipe.send(str(source), out)
    out.seek(0)
    return tarpipe.receive(out, str(destination), source.name)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_folder_arrives_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "output"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "model.pt").write_bytes(os.urandom(3_000_000))
    (source / "deep" / "er" / "run.sh").write_text("echo\n")
    (source / "deep" / "er" / "run.sh").chmod(0o755)
    (source / "newest").symlink_to("deep/er/run.sh")
    os.link(source / "model.pt", source / "again.pt")
    into = tmp_path / "here"
    into.mkdir()
    found = copied(source, into)
    assert found.path == str(into / "output")
    assert (found.files, found.left_out) == (3, [])
    assert names(into / "output") == names(source)
    assert (into / "output" / "again.pt").read_bytes() == (source / "model.pt").read_bytes()
    assert (into / "output" / "newest").readlink() == Path("deep/er/run.sh")
    assert (into / "output" / "deep" / "er" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_a_file_arrives_in_a_folder_or_under_a_new_name(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("a")
    (tmp_path / "into").mkdir()
    assert Path(copied(source, tmp_path / "into").path) == tmp_path / "into" / "a.txt"
    assert Path(copied(source, tmp_path / "b.txt").path).read_text() == "a"
    source.write_text("newer")
    assert Path(copied(source, tmp_path / "b.txt").path).read_text() == "newer"
    with pytest.raises(FileNotFoundError):
        copied(source, tmp_path / "not" / "there" / "b.txt")


def test_destination_with_trailing_slash_is_created_as_folder(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.mkdir()
    (source / "x").write_text("x")
    for _ in range(2):  # the result is the same whether or not the folder exists
        assert copied(source / "x", f"{tmp_path}/into/").path == f"{tmp_path}/into/x"
        assert copied(source, f"{tmp_path}/more/").path == f"{tmp_path}/more/a"
    assert names(tmp_path / "more") == {"a", "a/x"}
    with pytest.raises(FileNotFoundError):
        copied(source, f"{tmp_path}/not/there/")
    with pytest.raises(OSError, match="File exists"):
        copied(source / "x", f"{tmp_path}/into/x/")


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../evil", "root/../evil", "root/a/../../evil", "evil", "root//evil", "root/./evil", "rootevil"],
)
def test_name_leading_out_is_skipped(name: str, tmp_path: Path) -> None:
    into = tmp_path / "into"
    found = tarpipe.receive(stream(("root", None), (name, b"evil")), str(into), "x")
    assert found.left_out == [f"{name}: leads out"]
    assert names(tmp_path) == {"into"}


@pytest.mark.parametrize(
    ("at", "target"),
    [
        ("root/link", "/etc"),
        ("root/link", ".."),
        ("root/link", "../other"),
        ("root/a/link", "../../other"),
        ("root/link", "a/../../other"),
        ("root/link", "a/.."),
        ("root/link", ""),
        ("root", "elsewhere"),
    ],
)
def test_link_leading_out_is_skipped(at: str, target: str, tmp_path: Path) -> None:
    into = tmp_path / "into"
    found = tarpipe.receive(stream((at, target)), str(into), "x")
    assert len(found.left_out) == 1
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    into, outside = tmp_path / "into", tmp_path / "outside"
    outside.mkdir()
    into.mkdir()
    (into / "x").mkdir()
    (into / "x" / "door").symlink_to(outside)
    (into / "x" / "file").symlink_to(outside / "file")
    hostile = stream(("root", None), ("root/door/evil", b"evil"), ("root/door", None), ("root/file", b"mine"))
    found = tarpipe.receive(hostile, str(into), "x")
    assert names(outside) == set()
    assert found.left_out == ["door/evil: goes through a link", "door: a link is there"]
    assert not (into / "x" / "file").is_symlink()
    assert (into / "x" / "file").read_text() == "mine"


def test_links_are_created_after_all_files(tmp_path: Path) -> None:
    found = tarpipe.receive(
        stream(("root", None), ("root/a", "b"), ("root/a/evil", b"x"), ("root/b", None)), str(tmp_path / "into"), "x"
    )
    assert found.left_out == ["a: something else is there"]
    assert (tmp_path / "into" / "a" / "evil").read_text() == "x"


def test_devices_and_hard_links_are_skipped(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for kind, name in (
            (tarfile.LNKTYPE, "root/hard"),
            (tarfile.CHRTYPE, "root/null"),
            (tarfile.FIFOTYPE, "root/p"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    out.seek(0)
    found = tarpipe.receive(out, str(tmp_path / "into"), "x")
    assert len(found.left_out) == 3
    assert names(tmp_path) <= {"into"}


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def unix_socket(path: Path) -> Path:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(path))
    return path


def link_to_a_device(path: Path) -> Path:
    path.symlink_to("/dev/null")
    return path


@pytest.mark.parametrize("make", [pipe, unix_socket, link_to_a_device])
def test_special_file_as_source_or_destination_is_refused_unchanged(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    odd, plain = make(tmp_path / "odd"), tmp_path / "plain"
    plain.write_text("a")
    before = odd.lstat()
    for source, destination in ((odd, tmp_path / "new"), (plain, odd)):
        with pytest.raises(OSError, match="neither a file nor a folder"):
            copied(source, destination)
    assert not (tmp_path / "new").exists()
    assert (before.st_ino, before.st_mode) == (odd.lstat().st_ino, odd.lstat().st_mode)


def test_special_file_in_a_folder_is_skipped_and_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_text("a")
    pipe(source / "deep" / "pipe")
    unix_socket(source / "deep" / "socket")
    found = copied(source, tmp_path / "into")
    assert found.left_out == [f"deep/{name}: neither file, folder nor link" for name in ("pipe", "socket")]
    assert names(tmp_path / "into") == {"a", "deep"}
    (tmp_path / "into" / "a").unlink()
    pipe(tmp_path / "into" / "a")
    again = tarpipe.receive(stream(("root", None), ("root/a", b"a")), str(tmp_path), "into")
    assert (again.files, again.left_out) == (0, ["a: something else is there"])


def test_unreadable_file_is_skipped_in_a_folder_and_refused_alone() -> None:
    with open_folder() as folder:
        (folder / "of" / "shut").mkdir(parents=True)
        (folder / "of" / "shut").chmod(0o700)
        (folder / "of" / "a").write_text("a")
        (folder / "of" / "secret").touch(mode=0o600)
        (folder / "sent").touch()
        (folder / "sent").chmod(0o666)

        def send(name: str) -> None:
            with (folder / "sent").open("wb") as file:
                tarpipe.send(str(folder / name), file)

        assert as_other_user(lambda: send("of")) == ""
        with (folder / "sent").open("rb") as file:
            found = tarpipe.receive(file, str(folder / "into"), "x")
        assert ((folder / "into" / "a").read_text(), found.files, found.left_out) == (
            "a",
            1,
            ["secret: Permission denied", "shut: Permission denied"],
        )
        assert as_other_user(lambda: send("of/shut")).startswith("PermissionError: ")
        assert as_other_user(lambda: send("of/secret")).startswith("PermissionError: ")


def test_files_removed_during_the_copy_do_not_affect_others(tmp_path: Path) -> None:
    source = tmp_path / "output"
    source.mkdir()
    (source / "a").write_bytes(os.urandom(2 * tarpipe.BUFFER_BYTES))
    (source / "step-1").write_text("1")
    (source / "z").write_text("z")

    class Rotating(io.BytesIO):
        def write(self, data: Any, /) -> int:
            (source / "step-1").unlink(missing_ok=True)
            return super().write(data)

    out = Rotating()
    tarpipe.send(str(source), out)
    out.seek(0)
    found = tarpipe.receive(out, str(tmp_path / "into"), "x")
    assert (names(tmp_path / "into"), found.left_out) == ({"a", "z"}, [])


def test_names_as_long_as_a_file_system_allows_arrive(tmp_path: Path) -> None:
    source = tmp_path / "output"
    source.mkdir()
    for name in ("a" * 255, "日" * 85):
        (source / name).write_text(name)
    copied(source, tmp_path / "into")
    assert names(tmp_path / "into") == {"a" * 255, "日" * 85}


def test_truncated_stream_leaves_no_partial_file(tmp_path: Path) -> None:
    whole = stream(("root", None), ("root/a", b"a" * 100_000)).getvalue()
    with pytest.raises(tarfile.TarError):
        tarpipe.receive(io.BytesIO(whole[:60_000]), str(tmp_path / "into"), "x")
    assert names(tmp_path / "into") == set()
    with pytest.raises(tarfile.TarError):
        tarpipe.receive(io.BytesIO(b""), str(tmp_path / "into2"), "x")


def test_program_text_runs_without_windlass_installed(tmp_path: Path) -> None:
    text = Path(tarpipe.__file__).read_text()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("b")
    python = [sys.executable, "-I", "-S", "-c", text]
    sent = subprocess.run([*python, "send", str(tmp_path / "a")], capture_output=True, check=True, timeout=100)
    (tmp_path / "to").mkdir()
    done = subprocess.run(
        [*python, "receive", str(tmp_path / "to"), "a"], input=sent.stdout, capture_output=True, check=True, timeout=100
    )
    assert b'"files": 1' in done.stdout
    assert (tmp_path / "to" / "a" / "b").read_text() == "b"
    gone = subprocess.run([*python, "send", str(tmp_path / "nope")], capture_output=True, check=False, timeout=100)
    assert (gone.returncode, b"nope does not exist" in gone.stderr) == (3, True)
