"""The cache of data sets: they are fetched once, do not change under runs, and are removed where that may be."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from windlass.errors import StorageError, UsageError
from windlass.runs.store import Store
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.cache import DataCache

SET = {"a/1.bin": b"one", "a/2.bin": b"two!", "empty": b""}


def fill(folder: Path, files: dict[str, bytes]) -> Address:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return Address("folder", "", str(folder))


@pytest.fixture
def source(tmp_path: Path) -> Address:
    return fill(tmp_path / "source", SET)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


class Staged(NamedTuple):
    digest: str
    folder: Path
    num_files: int
    num_bytes: int
    num_moved: int


def stage(home: Path, source: Address, link: Path | None = None, bound: int = 1 << 40) -> Staged:
    found, moved = asyncio.run(DataCache(home, lambda _: bound).stage(source, link))
    return Staged(found.digest, found.folder, found.num_files, found.num_bytes, moved)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_set_is_fetched_once_and_has_no_file_of_ours(home: Path, source: Address, tmp_path: Path) -> None:
    first = stage(home, source, tmp_path / "run" / "digits")
    assert contents(tmp_path / "run" / "digits") == SET
    assert (first.num_files, first.num_bytes, first.num_moved) == (3, 7, 7)
    again = stage(home, source)
    assert (again.digest, again.folder, again.num_moved) == (first.digest, first.folder, 0)


def test_a_changed_source_is_another_set_and_only_what_differs_is_fetched(
    home: Path, source: Address, tmp_path: Path
) -> None:
    before = stage(home, source, tmp_path / "link")
    fill(Path(source.path), {"a/2.bin": b"other"})
    Path(source.path, "empty").unlink()
    after = stage(home, source)
    assert (after.num_moved, contents(after.folder)) == (5, {"a/1.bin": b"one", "a/2.bin": b"other"})
    assert contents(before.folder) == contents(tmp_path / "link") == SET


def test_a_run_reads_the_same_set_in_all_its_attempts(home: Path, source: Address, tmp_path: Path) -> None:
    before = stage(home, source, tmp_path / "link")
    fill(Path(source.path), {"a/2.bin": b"other"})
    assert stage(home, source, tmp_path / "link").digest == before.digest
    assert stage(home, source, tmp_path / "another").digest != before.digest


def test_what_a_script_has_changed_is_fetched_again(home: Path, source: Address, tmp_path: Path) -> None:
    staged = stage(home, source, tmp_path / "link")
    (staged.folder / "a" / "1.bin").write_bytes(b"ONE")
    again = stage(home, source, tmp_path / "link")
    assert (again.digest, again.num_moved, contents(tmp_path / "link")) == (staged.digest, 7, SET)


def test_equal_sources_share_a_set(home: Path, source: Address, tmp_path: Path) -> None:
    first, second = stage(home, source), stage(home, fill(tmp_path / "copy", SET))
    assert first.folder == second.folder
    assert len(DataCache(home).sets()) == 1


def test_two_at_once_fetch_it_once(home: Path, source: Address, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: stage(home, source, tmp_path / f"link-{number}"), range(4)))
    assert sorted(one.num_moved for one in found) == [0, 0, 0, 7]
    assert {one.digest for one in found} == {found[0].digest}


def test_what_was_fetched_before_a_kill_is_not_fetched_again(home: Path, source: Address) -> None:
    staged = stage(home, source)
    [staging] = {lock.with_suffix("") for lock in (home / "data" / "staging").glob("*.lock")}
    staged.folder.parent.rename(staging)  # as if it was killed before the set got its name
    (staging / "manifest.jsonl").rename(staging / "files" / manifests.IN_FOLDER)
    again = stage(home, source)
    assert (again.digest, again.num_moved, contents(again.folder)) == (staged.digest, 0, SET)


def test_the_set_that_was_not_used_for_longest_is_removed_unless_a_run_reads_it(home: Path, tmp_path: Path) -> None:
    sources = [fill(tmp_path / f"source-{number}", {"x": b"%05d" % number}) for number in range(3)]
    with Store(home) as store:
        store.create("r-1", name="r", target="local", output_dir="out", plan="{}", time=1.0).close()
        oldest = stage(home, sources[0], store.run_dir("r-1") / "data" / "x", bound=10)
    older = stage(home, sources[1], bound=10)
    for number, one in enumerate((oldest, older)):
        os.utime(one.folder.parent / "used", (1000.0 + number,) * 2)
    newest = stage(home, sources[2], bound=10)
    assert {one.digest for one in DataCache(home).sets()} == {oldest.digest, newest.digest}


def test_a_set_that_is_not_whole_is_none(home: Path, source: Address, tmp_path: Path) -> None:
    Path(source.path, "out").symlink_to("/etc/hostname")
    with pytest.raises(StorageError, match="out: it is a link to a place outside of the folder"):
        stage(home, source, tmp_path / "link")
    assert not (tmp_path / "link").exists()
    Path(source.path, "out").unlink()
    assert stage(home, source, tmp_path / "link").num_moved == 0


def test_a_source_without_files_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(StorageError, match="has no files"):
        stage(home, fill(tmp_path / "source", {}))


def test_a_set_is_removed_by_its_source_or_its_digest_unless_a_run_reads_it(
    home: Path, source: Address, tmp_path: Path
) -> None:
    cache = DataCache(home)
    with Store(home) as store:
        store.create("r-1", name="r", target="local", output_dir="out", plan="{}", time=1.0).close()
        staged = stage(home, source, store.run_dir("r-1") / "data" / "x")
    assert [one.sources for one in cache.sets()] == [(str(source),)]
    with pytest.raises(UsageError, match="is read by r-1"):
        cache.remove(str(source))
    with Store(home) as store:
        store.delete("r-1")
    assert cache.remove(staged.digest[:12]).digest == staged.digest
    assert cache.sets() == []
    with pytest.raises(UsageError, match="no set is in the cache"):
        cache.remove(str(source))
