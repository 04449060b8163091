"""A folder works as a store: files are complete or do not exist, and errors are those of any store."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from windlass.stores.errors import Changed, Missing, MissingBucket, StoreError
from windlass.stores.folder import FolderStore
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.store import Object


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    found = FolderStore(tmp_path / "store")
    for key, data in {"a/one": b"1", "a/b/two": b"", "a/b/c/three": b"333", "other": b"4"}.items():
        found.put(key, data)
    return found


def test_written_objects_are_listed_and_read(store: FolderStore) -> None:
    assert [one.key for one in store.listed("") if isinstance(one, Object)] == [
        "a/b/c/three",
        "a/b/two",
        "a/one",
        "other",
    ]
    assert [one if isinstance(one, str) else one.key for one in store.listed("a/", "/")] == ["a/b/", "a/one"]
    assert (store.get("a/b/c/three"), store.head("a/b/c/three").size) == (b"333", 3)
    assert store.read_once(store.head("a/b/c/three"), 1, 2) == b"33"
    assert [one.key for one in next(store.pages("", after="a/one")) if isinstance(one, Object)] == ["other"]


def test_new_file_replaces_no_other_and_concurrent_writers_leave_one(store: FolderStore, tmp_path: Path) -> None:
    store.put("other", b"4")
    with pytest.raises(Changed):
        store.put("other", b"5")
    store.write("other", [b"5"], is_new=False)
    assert store.get("other") == b"5"
    data = os.urandom(1 << 16)
    with ThreadPoolExecutor(8) as pool:
        assert [one.exception() for one in [pool.submit(store.put, "code", data) for _ in range(50)]] == [None] * 50
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["a", "code", "other"]


def test_large_file_is_removed_if_its_source_fails(store: FolderStore, tmp_path: Path) -> None:
    def pieces() -> object:
        yield bytes(STREAM_PART_BYTES)
        yield bytes(STREAM_PART_BYTES)
        raise RuntimeError("the source ends")

    with pytest.raises(RuntimeError, match="the source ends"):
        store.write("large", pieces())  # type: ignore[arg-type]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["a", "other"]
    store.write("large", [bytes(STREAM_PART_BYTES), b"last"])
    with store.open("large") as file:
        assert file.read() == bytes(STREAM_PART_BYTES) + b"last"
    store.fetch("large", str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_size == STREAM_PART_BYTES + 4


def test_file_changed_since_listing_is_not_read(store: FolderStore) -> None:
    found = store.head("other")
    store.write("other", [b"5"], is_new=False)
    with pytest.raises(Changed):
        store.read_once(found, 0, 1)


def test_missing_file_and_missing_folder_raise_different_errors(store: FolderStore, tmp_path: Path) -> None:
    for ask in (store.get, store.head):
        with pytest.raises(Missing) as caught:
            ask("nothing")
        assert not isinstance(caught.value, MissingBucket)
    assert not store.has("nothing", 1)
    assert store.has("other", 1)
    assert not store.has("other", 2)
    store.remove("nothing")
    with pytest.raises(MissingBucket, match="there is no such folder"):
        list(FolderStore(tmp_path / "nowhere").listed(""))
    with pytest.raises(MissingBucket, match="it is a file"):
        list(FolderStore(tmp_path / "store/other").listed(""))


def test_special_file_is_refused_by_path(store: FolderStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "store/pipe")
    with pytest.raises(StoreError, match="store/pipe: it is no regular file; remove it"):
        list(store.listed(""))


def test_objects_below_prefix_are_removed_with_their_folders(store: FolderStore, tmp_path: Path) -> None:
    store.remove_below("a/")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["other"]
    store.remove_below("")
    assert not (tmp_path / "store").exists()
    store.remove_below("")
