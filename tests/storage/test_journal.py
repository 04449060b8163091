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


def test_after_a_kill_all_is_known(path: Path) -> None:
    written(path)
    with Journal(path) as journal:
        assert list(journal.files.values()) == [ONE, TWO]


def test_after_a_restart_of_the_machine_only_what_was_settled(path: Path) -> None:
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


def test_what_another_process_has_added_stays_though_its_answer_has_not_come(path: Path) -> None:
    with Journal(path) as journal:
        append(journal.descriptor, ONE)
    with Journal(path) as journal:
        assert list(journal.files.values()) == [ONE]


def test_one_to_which_nothing_was_added_is_removed(path: Path) -> None:
    with Journal(path):
        pass
    assert not path.exists()


def test_a_line_that_was_cut_off_is_left_out(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        with Journal(path) as journal:
            assert list(journal.files.values())[:1] == [ONE]


def test_a_line_after_one_that_was_cut_off_is_read(path: Path) -> None:
    written(path)
    path.write_bytes(path.read_bytes()[:-5])
    with Journal(path) as journal:
        journal.add(THREE)
    with Journal(path) as journal:
        assert journal.files["three"] == THREE


def test_hostile_lines_are_left_out(path: Path) -> None:
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
