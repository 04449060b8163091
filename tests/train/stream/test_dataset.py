"""A stream returns samples by number, from files and tar shards, and reads no more than it needs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.train.stream.sources import Memory, assert_pictures, open_in, pictures, shards, tar_of
from torch.utils.data import DataLoader

from windlass.train import stream
from windlass.train.sampler import BatchSampler
from windlass.train.stream.dataset import address_of, cache_folder
from windlass.train.stream.errors import Busy, SourceChanged, StreamError
from windlass.train.stream.grouping import key_and_field

ORDER = [5, 0, 39, 5, 17, -1]


@pytest.mark.parametrize(
    ("name", "key", "field"),
    [
        ("0001.jpg", "0001", "jpg"),
        ("a/0001.seg.PNG", "a/0001", "seg.png"),
        ("a.b/0001.jpg", "a.b/0001", "jpg"),
        ("README", "README", "data"),
        (".hidden", ".hidden", "data"),
        ("a/b.", "a/b.", "data"),
    ],
)
def test_names_are_split_as_webdataset_does(name: str, key: str, field: str) -> None:
    assert key_and_field(name) == (key, field)


@pytest.mark.parametrize("files", [dict(pictures(40)), shards(4, 10)], ids=["files", "tar"])
def test_samples_are_read_by_number_from_a_store(tmp_path: Path, files: dict[str, bytes]) -> None:
    found = open_in(tmp_path, Memory(files))
    assert len(found) == 40
    assert_pictures(found.__getitems__(ORDER), [number % 40 for number in ORDER])
    assert_pictures([found[3]], [3])
    assert_pictures(found, range(40))


@pytest.mark.parametrize("files", [dict(pictures(40)), shards(4, 10)], ids=["files", "tar"])
def test_samples_are_read_by_number_from_a_folder(tmp_path: Path, files: dict[str, bytes]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / ".windlass-manifest.jsonl").write_text("as `windlass data copy` writes it")
    found = stream(folder, cache=tmp_path / "cache")
    assert_pictures(found.__getitems__(ORDER), [number % 40 for number in ORDER])
    assert not list((tmp_path / "cache").rglob("blocks")), "files of this machine are not cached"
    (folder / min(files)).write_bytes(b"x")
    with pytest.raises(SourceChanged, match="was written since the stream was opened"):
        list(found)


def test_samples_without_groups_are_single_files(tmp_path: Path) -> None:
    found = open_in(tmp_path, Memory(dict(pictures(2))), group=False)
    assert [one["__key__"] for one in found] == ["00000.cls", "00000.jpg", "00001.cls", "00001.jpg"]
    assert found[0]["cls"] == b"0"


def test_transform_replaces_the_sample(tmp_path: Path) -> None:
    found = open_in(tmp_path, Memory(shards(1, 10)), transform=lambda one: int(one["cls"]))
    assert found.__getitems__([7, 2]) == [7, 2]


@pytest.mark.parametrize("number", [40, -41])
def test_a_number_out_of_range_is_an_index_error(tmp_path: Path, number: int) -> None:
    with pytest.raises(IndexError, match=f"sample {number} of 40"):
        open_in(tmp_path, Memory(shards(4, 10)))[number]


def test_an_empty_file_is_a_sample(tmp_path: Path) -> None:
    assert open_in(tmp_path, Memory({"a.txt": b"", "b.txt": b"b"}))[0] == {"__key__": "a", "txt": b""}


# -- how much is read -------------------------------------------------------------------------------------------------


def test_a_second_epoch_reads_nothing_of_the_store(tmp_path: Path) -> None:
    source = Memory(shards(4, 10))
    assert_pictures(list(open_in(tmp_path, source)), range(40))
    source.reads.clear()
    assert_pictures(list(open_in(tmp_path, source)), range(40))
    assert source.reads == []


def test_without_cache_space_each_sample_is_one_request_shared_by_neighbours(tmp_path: Path) -> None:
    source = Memory(shards(1, 1000, 10_000))
    found = open_in(tmp_path, source, cache_bytes=0)
    source.reads.clear()
    assert_pictures(found.__getitems__([500, 20, 21]), [500, 20, 21], 10_000)
    assert len(source.reads) == 2
    assert sum(length for _, _, length in source.reads) < 40_000


def test_only_headers_are_read_of_shards_with_large_members(tmp_path: Path) -> None:
    large = {"a.tar": tar_of([(f"{number}.bin", bytes(20_000_000)) for number in range(3)])}
    source = Memory(large)
    assert len(open_in(tmp_path, source)) == 3
    assert sum(length for _, _, length in source.reads) < 1_000_000


def test_only_new_shards_are_indexed(tmp_path: Path) -> None:
    source = Memory(shards(3, 10))
    open_in(tmp_path, source, cache_bytes=0)
    source.reads.clear()
    source.write("shard-003.tar", tar_of(pictures(10, first=30)))
    found = open_in(tmp_path, source, cache_bytes=0)
    assert {name for name, _, _ in source.reads} == {"shard-003.tar"}
    assert_pictures(list(found), range(40))


def test_blocks_of_removed_objects_are_removed_from_the_cache(tmp_path: Path) -> None:
    source = Memory(dict(pictures(10, 50_000)))
    list(open_in(tmp_path, source))
    source.write("00003.jpg", b"new")
    list(open_in(tmp_path, source))
    kept = sum(one.stat().st_size for one in (tmp_path / "cache").rglob("blocks/*"))
    assert kept == sum(map(len, source.files.values()))


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_overwritten_object_is_named(tmp_path: Path) -> None:
    source = Memory(dict(pictures(3)))
    found = open_in(tmp_path, source)
    source.write("00001.jpg", b"other")
    with pytest.raises(SourceChanged, match=r"00001\.jpg"):
        list(found)


def test_request_to_a_busy_store_is_retried(tmp_path: Path) -> None:
    source = Memory(dict(pictures(3)))
    found = open_in(tmp_path, source)
    refused: list[str] = []

    def busy_once(name: str) -> None:
        if name not in refused:
            refused.append(name)
            raise Busy("503 SlowDown")

    source.fault = busy_once
    assert_pictures(list(found), range(3))
    assert len(refused) == 6


@pytest.mark.parametrize(
    ("files", "settings", "says"),
    [
        ({}, {}, "has no files"),
        ({"a.tar": b"", "b.txt": b""}, {}, r"1 \.tar files among 2: give format='tar'"),
        ({"a.tar.gz": b""}, {}, r"a\.tar\.gz is compressed"),
        ({"a.jpg": b"", "a.JPG": b""}, {}, "the sample a has two files jpg"),
        ({"a.txt": b""}, {"format": "tar"}, r"has no \.tar files"),
        ({"a.txt": b""}, {"format": "zip"}, "known are files, tar, parquet"),
        ({"a.txt": b""}, {"columns": ["a"]}, "is not Parquet"),
        ({"a.tar": b"x" * 2000}, {}, r"a\.tar cannot be read as a tar file"),
        ({"a.tar": tar_of(pictures(3))[:2000]}, {}, r"a\.tar cannot be read as a tar file"),
    ],
)
def test_invalid_stream_is_refused(
    tmp_path: Path, files: dict[str, bytes], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(StreamError, match=says):
        open_in(tmp_path, Memory(files), **settings)


def test_damaged_header_in_the_middle_of_a_shard_is_not_its_end(tmp_path: Path) -> None:
    whole = bytearray(tar_of(pictures(10)))
    at = whole.index(b"00005.jpg")
    whole[at] ^= 1
    with pytest.raises(StreamError, match=f"a header is damaged at byte {at}"):
        open_in(tmp_path, Memory({"a.tar": bytes(whole)}))


def test_a_source_that_has_changed_since_the_checkpoint_is_refused(tmp_path: Path) -> None:
    source = Memory(shards(2, 10))
    saved = open_in(tmp_path, source).state_dict()
    open_in(tmp_path, source).load_state_dict(saved)
    source.write("shard-002.tar", tar_of(pictures(5, first=20)))
    with pytest.raises(SourceChanged, match="it had 20 samples, and has 25"):
        open_in(tmp_path, source).load_state_dict(saved)


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_read_the_samples_of_a_sampler(tmp_path: Path, context: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, data in shards(4, 10).items():
        (folder / name).write_bytes(data)
    (folder / ".windlass-manifest.jsonl").write_text("as `windlass data copy` writes it")
    found = stream(folder, cache=tmp_path / "cache")
    list(found)  # its threads do not exist in a fork
    loader = DataLoader(
        found,
        batch_sampler=BatchSampler(40, 7, seed=3),
        num_workers=2,
        collate_fn=list,
        multiprocessing_context=context,
    )
    order = [number for batch in BatchSampler(40, 7, seed=3) for number in batch]
    assert_pictures([one for batch in loader for one in batch], order)


def test_fork_reads_with_its_own_threads(tmp_path: Path) -> None:
    found = open_in(tmp_path, Memory(shards(4, 10)), cache_bytes=0)
    list(found)
    child = os.fork()
    if not child:
        try:
            assert_pictures(found.__getitems__(ORDER), [number % 40 for number in ORDER])
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_stream_is_pickled_without_its_index(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, data in shards(4, 100).items():
        (folder / name).write_bytes(data)
    made = pickle.dumps(stream(folder, cache=tmp_path / "cache"))
    assert len(made) < 2000
    assert_pictures(pickle.loads(made), range(400))


# -- runs -------------------------------------------------------------------------------------------------------------


def test_run_continues_with_its_first_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on another node, and although the source has grown: nothing is listed or indexed again."""
    monkeypatch.setenv("WINDLASS_RUN_ID", "digits-7f3k2")
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", str(tmp_path))
    source = Memory(shards(4, 10))
    open_in(tmp_path / "one", source, cache_bytes=0)
    source.write("shard-004.tar", tar_of(pictures(10, first=40)))
    source.num_listings = 0
    source.reads.clear()
    again = open_in(tmp_path / "other", source, cache_bytes=0)
    assert (source.num_listings, source.reads) == (0, [])
    assert_pictures(list(again), range(40))
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", str(tmp_path / "of-another-run"))
    assert len(open_in(tmp_path / "one", source, cache_bytes=0)) == 50


def test_only_names_of_data_sets_are_looked_up() -> None:
    environ = {"WINDLASS_DATA_MY_SET": "s3://bucket/set"}
    assert address_of("my-set", environ) == "s3://bucket/set"
    assert address_of("./my-set", environ) == "./my-set"
    assert address_of("s3://bucket/other", environ) == "s3://bucket/other"
    assert address_of(Path("my-set"), environ) == "my-set"
    with pytest.raises(StreamError, match=r"\$WINDLASS_DATA_OTHER is not set"):
        address_of("other", environ)


def test_cache_folder_comes_from_the_environment() -> None:
    assert cache_folder({}) == Path("~/.cache/windlass/stream").expanduser()
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/windlass/stream")


@pytest.mark.parametrize("address", ["gs://bucket/set", "s3://", "/nowhere/at/all"])
def test_invalid_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(StreamError, match=address):
        stream(address, cache=tmp_path)


def test_import_loads_no_heavy_modules() -> None:
    program = (
        "import sys; from windlass.train import stream\n"
        "heavy = ('torch', 'http.client', 'pyarrow', 'windlass.train.stream.dataset')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
