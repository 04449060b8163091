"""The cache fetches data sets once, does not change them under runs, and removes only unused ones."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.helpers.disk import small_disk
from tests.helpers.until import BOUND_SECONDS, until
from tests.helpers.users import OTHER

from windlass.errors import StorageError, UsageError
from windlass.runs.data import unfinished_readers
from windlass.runs.store import Store
from windlass.storage import cache
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.cache import DataCache, staging_lock
from windlass.storage.digest import Parts
from windlass.storage.folder import Folder
from windlass.storage.opening import open_place
from windlass.storage.place import Entry
from windlass.storage.progress import Progress
from windlass.stores.part_sizes import COPY_PART_BYTES

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


def cache_of(home: Path, bound: int = 1 << 40) -> DataCache:
    return DataCache(home / "data", lambda: unfinished_readers(home), lambda _: bound)


class Staged(NamedTuple):
    digest: str
    folder: Path
    num_files: int
    num_bytes: int
    num_moved: int


def stage(home: Path, source: Address, link: Path | None = None, bound: int = 1 << 40) -> Staged:
    found, moved = asyncio.run(cache_of(home, bound).stage(source, link))
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


def test_files_changed_by_script_are_fetched_again(home: Path, source: Address, tmp_path: Path) -> None:
    staged = stage(home, source, tmp_path / "link")
    (staged.folder / "a" / "1.bin").write_bytes(b"ONE")
    (staged.folder / "a" / "more").symlink_to("nothing")
    again = stage(home, source, tmp_path / "link")
    assert (again.digest, again.num_moved, contents(tmp_path / "link")) == (staged.digest, 3, SET)
    (again.folder / "empty").unlink()
    assert stage(home, source, tmp_path / "link").num_moved == 0
    assert contents(tmp_path / "link") == SET
    assert not (tmp_path / "link" / "a" / "more").is_symlink()


def names(folder: Path) -> set[str]:
    """Returns the names of all files and folders."""
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


def test_a_set_has_no_folder_that_its_source_no_longer_has(home: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"cat/1": b"cat", "dog/1": b"dog", "a": b"file", "b/1": b"in a folder"})
    stage(home, source)
    shutil.rmtree(tmp_path / "source" / "cat")
    shutil.rmtree(tmp_path / "source" / "b")
    (tmp_path / "source" / "a").unlink()
    fill(tmp_path / "source", {"a/1": b"in a folder", "b": b"file"})
    again = stage(home, source)
    assert again.num_moved == len(b"in a folder") + len(b"file")
    assert names(again.folder) == {"dog", "dog/1", "a", "a/1", "b"}
    assert again.digest == stage(tmp_path / "another", source).digest


def test_what_was_fetched_of_files_that_the_source_no_longer_has_is_no_part_of_the_set(
    home: Path, tmp_path: Path
) -> None:
    source = fill(tmp_path / "source", {"large": b"x" * (COPY_PART_BYTES + 1), "a/1": b"other"})
    files = staging_lock(home / "data", source).with_suffix("") / "files"
    fill(files, {"a": b"fetched", "cat/1": b"fetched"})
    entries = asyncio.run(open_place(source, home).listed())
    [large] = [one for one in entries if one.name == "large"]
    begun = Folder(Address("folder", "", str(files))).begin(large, Parts.of(large.size), f"{source} {large.version}")
    asyncio.run(begun)
    (tmp_path / "source" / "large").unlink()
    assert names(stage(home, source).folder) == {"a", "a/1"}


def test_equal_sources_share_a_set(home: Path, source: Address, tmp_path: Path) -> None:
    first, second = stage(home, source), stage(home, fill(tmp_path / "copy", SET))
    assert first.folder == second.folder
    assert len(cache_of(home).sets()) == 1


def test_sources_of_a_set_are_fetched_again_only_where_they_change(home: Path, source: Address, tmp_path: Path) -> None:
    second = fill(tmp_path / "copy", SET)
    assert [stage(home, one).num_moved for one in (source, second, source, second)] == [7, 7, 0, 0]
    os.utime(Path(second.path, "a/1.bin"), (1, 1))
    assert [stage(home, one).num_moved for one in (source, second, source, second)] == [0, 3, 0, 0]
    fill(Path(second.path), {"a/2.bin": b"other"})
    after = stage(home, second)
    assert (after.num_moved, contents(after.folder)) == (5, {**SET, "a/2.bin": b"other"})
    assert [stage(home, one).num_moved for one in (source, second)] == [0, 0]


def test_concurrent_stagings_fetch_set_once(home: Path, source: Address, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: stage(home, source, tmp_path / f"link-{number}"), range(4)))
    assert sorted(one.num_moved for one in found) == [0, 0, 0, 7]
    assert {one.digest for one in found} == {found[0].digest}


@contextmanager
def held(source: Address, home: Path, text: str = "") -> Iterator[None]:
    """Holds the lock of a source in another process during the block."""
    with open(staging_lock(home / "data", source), "a+") as lock:
        lock.truncate(0)
        lock.write(text)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_set_that_is_whole_is_read_while_another_process_cannot_reach_its_store(
    home: Path, source: Address, tmp_path: Path
) -> None:
    """The other process lists the store endlessly, and may hold the lock."""
    stage(home, source)
    with held(source, home), ThreadPoolExecutor(1) as pool:
        assert pool.submit(stage, home, source, tmp_path / "link").result(BOUND_SECONDS).num_moved == 0
    assert contents(tmp_path / "link") == SET


def test_no_lock_is_held_while_source_is_listed(home: Path, source: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[bool] = []

    class Watched(Folder):
        async def listed(self, cuts: Sequence[str] = ()) -> list[Entry]:
            if not listed:  # otherwise a copy has started
                with open(staging_lock(home / "data", source), "a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listed.append(True)
            return await super().listed(cuts)

    (home / "data" / "staging").mkdir(parents=True)
    monkeypatch.setattr(cache, "open_place", lambda address, _home: Watched(address))
    assert stage(home, source).num_moved == 7
    assert listed


def test_wait_for_lock_names_its_holder(home: Path, source: Address) -> None:
    (home / "data" / "staging").mkdir(parents=True)
    progress = Progress()
    with ThreadPoolExecutor(1) as pool:
        with held(source, home, f"{source}\nprocess 1 on digits-7f3k2-data-x"):
            work = pool.submit(lambda: asyncio.run(cache_of(home).stage(source, None, progress)))
            until(lambda: progress.waits_for == "process 1 on digits-7f3k2-data-x")
        found, moved = work.result(BOUND_SECONDS)
    assert (found.num_files, moved, progress.waits_for) == (3, 7, "")


def test_files_fetched_before_kill_are_not_fetched_again(home: Path, source: Address) -> None:
    staged = stage(home, source)
    [staging] = {lock.with_suffix("") for lock in (home / "data" / "staging").glob("*.lock")}
    staged.folder.parent.rename(staging)  # simulates a kill before the set got its final name
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
    assert {one.digest for one in cache_of(home).sets()} == {oldest.digest, newest.digest}


def test_the_set_that_a_source_had_makes_room_for_the_one_it_has_and_what_both_have_is_kept(
    home: Path, source: Address
) -> None:
    stage(home, source, bound=10)
    fill(Path(source.path), {"a/2.bin": b"other"})
    after = stage(home, source, bound=10)
    assert (after.num_moved, contents(after.folder)) == (5, {**SET, "a/2.bin": b"other"})
    assert [one.digest for one in cache_of(home).sets()] == [after.digest]


def test_incomplete_set_is_not_used(home: Path, source: Address, tmp_path: Path) -> None:
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
    cache = cache_of(home)
    with Store(home) as store:
        store.create("r-1", name="r", target="local", output_dir="out", plan="{}", time=1.0).close()
        staged = stage(home, source, store.run_dir("r-1") / "data" / "x")
    assert [one.sources for one in cache.sets()] == [(str(source),)]
    with pytest.raises(UsageError, match="is read by r-1"):
        cache.remove(str(source))
    with Store(home) as store:
        store.delete("r-1")
    for nothing in ("", "set:"):
        with pytest.raises(UsageError, match="no set is in the cache"):
            cache.remove(nothing)
    assert cache.remove(staged.digest[:12]).digest == staged.digest
    assert cache.sets() == []
    with pytest.raises(UsageError, match="no set is in the cache"):
        cache.remove(str(source))


def begin(home: Path, source: Address) -> Path:
    """Stages a set and kills the process before it is complete. Returns the lock file of the source."""
    staged = stage(home, source)
    lock = staging_lock(home / "data", source)
    staged.folder.parent.rename(lock.with_suffix(""))
    return lock


def test_incomplete_set_is_listed_and_removed(home: Path, source: Address) -> None:
    lock, cache = begin(home, source), cache_of(home)
    assert [(one.digest, one.num_files, one.sources) for one in cache.sets()] == [("", 3, (str(source),))]
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being fetched"):
            cache.remove(str(source))
    assert cache.remove(str(source)).digest == ""
    assert cache.sets() == []
    assert not lock.with_suffix("").exists()


def test_incomplete_set_is_evicted_for_another(home: Path, tmp_path: Path) -> None:
    begun, other = (fill(tmp_path / f"source-{number}", {"x": b"%05d" % number}) for number in range(2))
    lock = begin(home, begun)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stage(home, other, bound=10)
    assert lock.with_suffix("").exists()
    cache_of(home).remove(str(other))
    stage(home, other, bound=10)
    assert not lock.with_suffix("").exists()


# -- a volume that pods share -----------------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Iterator[None]:
    """Sets the umask of pods."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture
def volume(tmp_path: Path, umask: None) -> Path:
    return tmp_path / "volume" / "data"


def stage_in(volume: Path, source: Address, link: Path | None = None) -> Staged:
    found, moved = asyncio.run(DataCache(volume, None, lambda _: 0).stage(source, link))
    return Staged(found.digest, found.folder, found.num_files, found.num_bytes, moved)


def test_a_volume_may_be_mounted_elsewhere(volume: Path, source: Address, tmp_path: Path) -> None:
    stage_in(volume, source, volume / "runs" / "r-1" / "digits")
    volume.parent.rename(tmp_path / "elsewhere")
    assert contents(tmp_path / "elsewhere/data/runs/r-1/digits") == SET
    again = stage_in(tmp_path / "elsewhere/data", source, tmp_path / "elsewhere/data/runs/r-2/digits")
    assert again.num_moved == 0


def test_set_on_volume_is_never_evicted(volume: Path, tmp_path: Path) -> None:
    staged = [stage_in(volume, fill(tmp_path / f"source-{number}", {"x": b"%d" % number})) for number in range(3)]
    assert {one.digest for one in DataCache(volume, None).sets()} == {one.digest for one in staged}


def test_a_volume_is_open_to_its_group_and_the_cache_of_this_machine_to_none(
    volume: Path, home: Path, source: Address
) -> None:
    stage_in(volume, source, volume / "runs" / "r-1" / "digits")
    for path in [volume, *volume.rglob("*")]:
        wanted = 0o070 if path.is_dir() else 0o060
        assert path.stat().st_mode & wanted == wanted, path
    stage(home, source)
    for path in (home / "data").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


OTHER_USER = """
import asyncio, os, sys
from pathlib import Path
from windlass.storage.address import Address
from windlass.storage.cache import DataCache

def stage(root, source):
    return asyncio.run(DataCache(Path(root), None).stage(Address("folder", "", source), Path(root, "runs/r-2/x")))[1]

os.umask(0o002)
volume, source, elsewhere = sys.argv[1:]
stage(elsewhere, source)  # all modules are imported while this is the user that may read them
os.chdir(volume)
os.setresgid(20000, 20000, 20000)
os.setgroups([])
os.setresuid(10002, 10002, 10002)
print(stage(".", source))
"""


@pytest.mark.usefixtures("umask")
def test_a_pod_of_another_user_goes_on_with_what_was_begun() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become other users")
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are not accessible to other users
        disk = Path(name)
        disk.chmod(0o755)
        source, volume = fill(disk / "source", SET), disk / "volume"
        volume.mkdir()
        os.chown(volume, 0, 20000)
        volume.chmod(0o2775)
        staged = stage_in(volume, source)
        [staging] = {lock.with_suffix("") for lock in (volume / "staging").glob("*.lock")}
        staged.folder.parent.rename(staging)  # simulates a kill before the set got its final name
        (staging / "manifest.jsonl").rename(staging / "files" / manifests.IN_FOLDER)
        (staging / "files" / "a" / "1.bin").unlink()
        for path in [volume, *volume.rglob("*")]:
            os.chown(path, 10001, 20000)
        command = [sys.executable, "-c", OTHER_USER, str(volume), str(source), str(disk / "elsewhere")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("3\n", "")
        assert contents(volume / "runs/r-2/x") == SET


def test_a_set_that_does_not_fit_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    source = fill(tmp_path / "source", {"small": b"x" * 1000, "large": b"y" * 3_000_000})
    with small_disk(tmp_path / "disk", 2_000) as disk:
        with pytest.raises(StorageError, match=r"needs 3,001,000 bytes more below .*/data, and [\d,]+ are free"):
            stage_in(disk / "data", source)
        assert not list((disk / "data").rglob("small"))
        subprocess.run(["mount", "-o", "remount,size=4000k", str(disk)], check=True)
        assert stage_in(disk / "data", source).num_moved == 3_001_000
        fill(Path(source.path), {"small": b"z" * 1000})
        assert stage_in(disk / "data", source).num_moved == 1000


def test_set_that_cannot_fit_evicts_no_other(tmp_path: Path) -> None:
    small, larger = (fill(tmp_path / name, {"x": b"x" * size}) for name, size in (("a", 400_000), ("b", 500_000)))
    fits, never = (fill(tmp_path / name, {"x": b"y" * size}) for name, size in (("c", 1_500_000), ("d", 2_100_000)))
    with small_disk(tmp_path / "disk", 2_000) as disk:
        cache = DataCache(disk / "data", dict)
        kept = {asyncio.run(cache.stage(one))[0].digest for one in (small, larger)}
        with pytest.raises(StorageError, match="needs 2,100,000 bytes more"):
            asyncio.run(cache.stage(never))
        assert {one.digest for one in cache.sets()} == kept
        found, _ = asyncio.run(cache.stage(fits))
        assert [one.digest for one in cache.sets()] == [found.digest]


@pytest.mark.parametrize("num_sources", [1, 2])
def test_a_set_that_verify_has_found_damaged_is_not_read_by_the_next_attempt(
    home: Path, source: Address, tmp_path: Path, num_sources: int
) -> None:
    link = tmp_path / "link"
    staged = stage(home, source, link)
    if num_sources > 1:
        source = fill(tmp_path / "copy", SET)
        stage(home, source)
    file = staged.folder / "a/1.bin"
    kept = file.stat()
    file.write_bytes(b"eno")
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    found = asyncio.run(cache_of(home).verify(staged.digest, Progress()))
    assert found is not None
    assert [one.name for one in found[1].problems] == ["a/1.bin"]
    again = stage(home, source, link)
    assert (again.num_moved, contents(again.folder), contents(link)) == (3, SET, SET)
    assert asyncio.run(cache_of(home).verify("set:", Progress())) is not None


def test_nothing_is_fetched_into_a_folder_of_another_user(home: Path, source: Address) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    (home / "data").mkdir(parents=True)
    os.chown(home / "data", OTHER, OTHER)
    with pytest.raises(StorageError, match=f"{home}/data belongs to another user"):
        stage(home, source)
    assert list((home / "data").iterdir()) == []
