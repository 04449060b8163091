"""The note of an earlier copy shows that nothing has to be copied, as long as both places are unchanged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from windlass.storage import folder
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.copy import Copy
from windlass.storage.copy_note import MIN_NAMES, RANGES, CopyNoteFile, cuts
from windlass.storage.folder import Folder
from windlass.storage.opening import journal_for
from windlass.storage.place import Entry
from windlass.storage.progress import Copied
from windlass.storage.walk import digest_beside, digest_of, walk


class Asked(Folder):
    """Folder that counts its listings and records their cuts."""

    def __init__(self, path: Path) -> None:
        super().__init__(Address("folder", "", str(path)))
        self.cuts: list[Sequence[str]] = []

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        self.cuts.append(cuts)
        async for batch in super().entries(cuts):
            yield batch


class Set:
    """Source and destination folders, and copies between them."""

    def __init__(self, path: Path) -> None:
        self.source, self.to, self.note = path / "source", path / "to", path / "home/notes/one.json"
        (self.source / "deep").mkdir(parents=True)
        for name in ("a.bin", "b.bin", "deep/c.bin"):
            (self.source / name).write_bytes(name.encode())

    def copy(self) -> Copied:
        self.places = Asked(self.source), Asked(self.to)
        with journal_for(self.places[0].address, self.places[1].address, self.source) as journal:
            return asyncio.run(Copy(*self.places, journal, noted=CopyNoteFile(self.note)).run())

    @property
    def is_known(self) -> bool:
        """Whether a copy finds nothing to do by the note alone, without reading any file of the manifest."""
        done = self.copy()
        assert (done.num_unchanged, done.num_copied) == (3, 0)
        assert [len(one.cuts) for one in self.places] == ([1, 1] if not done.files else [1, len(self.places[1].cuts)])
        return not done.files


@pytest.fixture
def both(tmp_path: Path) -> Set:
    found = Set(tmp_path)
    assert found.copy().num_copied == 3
    return found


def test_second_copy_finds_nothing_to_do_by_note(both: Set) -> None:
    first = both.copy()
    assert (first.num_files, first.set_bytes, first.num_unchanged, first.refused) == (3, 20, 3, ())
    stored = manifests.Manifest.from_bytes((both.to / manifests.IN_FOLDER).read_bytes())
    assert first.digest == stored.digest
    assert both.is_known


@pytest.mark.parametrize("name", ["a.bin", "deep/c.bin"])
def test_file_written_after_note_is_copied(both: Set, name: str) -> None:
    path = both.source / name
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert both.copy().num_copied == 1
    assert (both.to / name).read_bytes() == path.read_bytes()
    assert both.is_known


@pytest.mark.parametrize("change", ["removed", "written", "renamed"])
def test_file_missing_at_destination_is_copied(both: Set, change: str) -> None:
    path = both.to / "b.bin"
    if change == "removed":
        path.unlink()
    elif change == "written":
        path.write_bytes(b"other")
    else:
        path.rename(both.to / "c.bin")
    assert both.copy().num_copied == 1
    assert path.read_bytes() == b"b.bin"


def test_a_file_that_was_added_is_copied(both: Set) -> None:
    (both.source / "new").touch()
    assert (both.copy().num_copied, both.copy().num_unchanged) == (1, 4)


def test_other_files_at_the_destination_cost_one_look_at_the_manifest(both: Set) -> None:
    (both.to / "other").touch()
    assert [both.is_known, both.is_known] == [False, True]


def test_a_manifest_that_was_changed_is_read(both: Set) -> None:
    path = both.to / manifests.IN_FOLDER
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version": 1'))
    assert [both.is_known, both.is_known] == [False, True]
    path.unlink()
    assert both.copy().num_copied == 3


def test_damaged_note_is_ignored(both: Set) -> None:
    both.note.write_text('{"source": 1}')
    assert [both.is_known, both.is_known] == [False, True]


def test_copy_with_refused_file_writes_no_note(both: Set) -> None:
    both.note.unlink()
    (both.source / "out").symlink_to("/etc/hostname")
    for _ in range(2):
        assert [one.name for one in both.copy().refused] == ["out"]
    assert not both.note.exists()


def test_large_destination_is_listed_by_separate_process(both: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    (both.to / "a b é").mkdir()
    (both.to / "a b é" / os.fsdecode(b"\xff")).touch()
    (both.to / "out").symlink_to("/etc/hostname")
    (both.to / "in").symlink_to("a.bin")
    assert digest_beside(both.to) == digest_of(walk(both.to))
    assert digest_beside(both.to / "nowhere") == ""
    monkeypatch.setattr(folder, "MANY", 0)
    assert [both.copy().num_unchanged for _ in range(2)] == [3, 3]
    assert [len(one.cuts) for one in both.places] == [1, 0]
    (both.to / "a.bin").write_bytes(b"other")
    assert both.copy().num_copied == 1


@pytest.mark.parametrize(("number", "ranges"), [(0, 1), (MIN_NAMES, 1), (3 * MIN_NAMES, 3), (100 * MIN_NAMES, RANGES)])
def test_a_listing_is_cut_into_ranges_of_many_names(number: int, ranges: int) -> None:
    names = [f"{one:06}" for one in range(number)]
    found = cuts(names)
    assert len(found) == ranges - 1
    assert sorted(set(found)) == list(found)
