"""Another process resumes a file in parts by its journal, or by its bytes if the journal may be outdated."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.storage.digest import Parts
from windlass.storage.folder_file import FolderFile
from windlass.storage.place import Entry
from windlass.stores.part_sizes import COPY_PART_BYTES
from windlass.worker import process

SIZE = 2 * COPY_PART_BYTES + 100
CONTENT = random.Random(2).randbytes(SIZE)
ENTRY = Entry("large.bin", SIZE, "1")
PARTS = Parts.of(SIZE)


class Cut(Exception):
    """The connection is broken."""


def opened(folder: Path, source: str = "s3://bucket/ 1") -> FolderFile:
    return FolderFile(folder / "large.bin", folder / "part", ENTRY, PARTS, source)


def note_boot(folder: Path, boot: str) -> None:
    """Replaces the boot id in the journal of a file, as if written before a reboot or on another machine."""
    first, *others = (folder / "part.parts").read_text().splitlines()
    (folder / "part.parts").write_text("\n".join([json.dumps({**json.loads(first), "boot": boot}), *others, ""]))


def pieces(number: int, begun: int = 0, cut_after: int | None = None) -> Iterator[bytes]:
    """Yields the rest of a part after its first bytes."""
    start, length = PARTS.span(number)
    for at in range(begun, length, 1 << 20):
        if cut_after is not None and at >= cut_after:
            raise Cut
        yield CONTENT[start + at : start + min(length, at + (1 << 20))]


def sha256(number: int) -> bytes:
    start, length = PARTS.span(number)
    return hashlib.sha256(CONTENT[start : start + length]).digest()


def finished(file: FolderFile) -> None:
    digests = [file.done.get(number) or file.write(number, pieces(number, file.begun(number))) for number in range(3)]
    assert digests == [sha256(number) for number in range(3)]
    asyncio.run(file.finish(digests))


def begun(folder: Path) -> None:
    """Creates a file with one complete part and one that was interrupted after 3 MiB."""
    first = opened(folder)
    first.write(0, pieces(0))
    with pytest.raises(Cut):
        first.write(1, pieces(1, cut_after=3 << 20))


def test_whole_parts_and_the_beginning_of_others_are_kept(tmp_path: Path) -> None:
    begun(tmp_path)
    again = opened(tmp_path)
    assert again.done == {0: sha256(0)}
    assert (again.begun(1), again.begun(2)) == (3 << 20, 0)
    assert not (tmp_path / "large.bin").exists()
    finished(again)
    assert (tmp_path / "large.bin").read_bytes() == CONTENT


def test_after_a_restart_of_the_machine_parts_are_read_again(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(0, pieces(0))
    first.write(2, pieces(2))
    with pytest.raises(Cut):
        first.write(1, pieces(1, cut_after=3 << 20))
    with open(tmp_path / "part", "r+b") as file:
        file.write(b"\0" * 4096)  # bytes that had not reached the disk
    note_boot(tmp_path, "before")
    again = opened(tmp_path)
    assert again.done == {2: sha256(2)}
    assert again.begun(1) == 0
    finished(again)
    assert (tmp_path / "large.bin").read_bytes() == CONTENT


def test_nodes_that_share_a_disk_do_not_trust_notes_of_each_other(tmp_path: Path) -> None:
    """The second node loses power after writing its journal but before its data is on disk; then the first node
    continues.
    """
    begun(tmp_path)
    note_boot(tmp_path, "of the first")
    of_second = opened(tmp_path)
    of_second.write(1, pieces(1))
    start, length = PARTS.span(1)
    with open(tmp_path / "part", "r+b") as file:
        file.seek(start)
        file.write(b"\0" * length)
    note_boot(tmp_path, "of the second")
    again = opened(tmp_path)
    assert (again.done, again.begun(1)) == ({0: sha256(0)}, 0)
    finished(again)
    assert (tmp_path / "large.bin").read_bytes() == CONTENT


def test_another_version_of_the_source_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path)
    again = opened(tmp_path, "s3://bucket/ 2")
    assert (again.done, again.begun(1)) == ({}, 0)


def test_a_file_that_has_its_name_and_was_not_noted_is_known_again(tmp_path: Path) -> None:
    finished(opened(tmp_path))
    again = opened(tmp_path)
    assert again.done == {number: sha256(number) for number in range(3)}
    finished(again)
    again.forget()
    assert [one.name for one in tmp_path.iterdir()] == ["large.bin"]


def test_finished_file_changed_meanwhile_is_written_again(tmp_path: Path) -> None:
    finished(opened(tmp_path))
    with open(tmp_path / "large.bin", "r+b") as file:
        file.write(b"changed")
    again = opened(tmp_path)
    assert again.done == {}
    finished(again)
    assert (tmp_path / "large.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("note", ["", "[]", "no json\n0 ff\n", f'{{"boot": "{process.boot_id()}"}}\n', "\0\n"])
def test_unreadable_journal_is_ignored(tmp_path: Path, note: str) -> None:
    begun(tmp_path)
    (tmp_path / "part.parts").write_text(note)
    assert opened(tmp_path).done == {}


def test_link_in_place_of_the_partial_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"of the user")
    (tmp_path / "part").symlink_to(tmp_path / "other")
    file = opened(tmp_path)
    digests = [file.write(number, pieces(number)) for number in range(len(PARTS))]
    asyncio.run(file.finish(digests))
    assert (tmp_path / "other").read_bytes() == b"of the user"
    assert not (tmp_path / "large.bin").is_symlink()
    assert (tmp_path / "large.bin").read_bytes() == CONTENT


def test_truncated_journal_lines_are_skipped(tmp_path: Path) -> None:
    begun(tmp_path)
    with (tmp_path / "part.parts").open("a") as file:
        file.write("1 +99999999999\n7 +1\n2 abc\nx +1\n1 +3+4\n2")
    again = opened(tmp_path)
    assert (again.done, again.begun(1), again.begun(2)) == ({0: sha256(0)}, 3 << 20, 0)
