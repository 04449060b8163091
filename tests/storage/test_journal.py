"""Journals record what a killed copy has written, except for files that a power failure may have lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.journal import Journal, append
from windlass.storage.manifest import File
from windlass.storage.opening import journal_for
from windlass.worker import process

DIGEST = "sha256:" + "0" * 64
ONE, TWO, THREE = (File(name, 1, DIGEST, "s", "v") for name in ("one", "two", "three"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own" / "journal.jsonl"


def written(path: Path) -> None:
    with Journal(path) as journal:
        journal.add(ONE)
        with journal.settling():
            journal.add(TWO)  # too late for this sync


def restart(path: Path) -> None:
    """Simulates a reboot: the lines of the journal get another boot id."""
    path.write_text(path.read_text().replace(process.boot_id(), f"before {process.boot_id()}"))


def test_journal_is_complete_after_kill(path: Path) -> None:
    written(path)
    with Journal(path) as journal:
        assert list(journal.files.values()) == [ONE, TWO]


def test_only_synced_entries_count_after_reboot(path: Path) -> None:
    written(path)
    restart(path)
    with Journal(path) as journal:
        assert list(journal.files.values()) == [ONE]
        journal.add(THREE)
    with Journal(path) as journal:
        assert TWO not in journal.files.values()
        with journal.settling():
            pass
    restart(path)
    with Journal(path) as journal:
        assert set(journal.files.values()) == {ONE, THREE}


def test_entries_of_other_process_are_kept_before_its_response(path: Path) -> None:
    with Journal(path) as journal:
        append(journal.descriptor, ONE)
    with Journal(path) as journal:
        assert list(journal.files.values()) == [ONE]


def test_empty_journal_is_removed(path: Path) -> None:
    with Journal(path):
        pass
    assert not path.exists()


def test_truncated_line_is_skipped(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        with Journal(path) as journal:
            assert list(journal.files.values())[:1] == [ONE]


def test_line_after_truncated_line_is_read(path: Path) -> None:
    written(path)
    path.write_bytes(path.read_bytes()[:-5])
    with Journal(path) as journal:
        journal.add(THREE)
    with Journal(path) as journal:
        assert journal.files["three"] == THREE


def test_hostile_lines_are_skipped(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"name":"../x","size":1,"digest":"' + DIGEST + '"}\n[]\n7\n\0\n{"settled":true}\n')
    with Journal(path) as journal:
        assert journal.files == {}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_copy_that_fails_before_its_first_file_leaves_nothing(tmp_path: Path, is_there: bool) -> None:
    source, to = (Address("folder", "", str(tmp_path / name)) for name in ("source", "to"))
    if is_there:
        Path(to.path).mkdir()
    with pytest.raises(StorageError), journal_for(source, to, tmp_path / "home"):
        raise StorageError("there is no such bucket")
    assert list(tmp_path.rglob("*")) == [Path(to.path)] * is_there
