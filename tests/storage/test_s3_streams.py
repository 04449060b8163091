"""Streams from an S3 server are correct through faults, and through kills of the ranks that train on them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.machine import Machine, machine_in
from tests.servers.faulty import BUSY, PASS, Fault, FaultProxy, Request
from tests.servers.s3 import S3Server
from tests.storage.sets import Data
from tests.train.stream.sources import assert_each_once, assert_pictures, pictures, shards
from torch.utils.data import DataLoader

from windlass.stores import retry
from windlass.train import stream
from windlass.train.sampler import BatchSampler
from windlass.train.stream.errors import Busy, SourceChanged, StreamError

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("scripts") / "seen.py"
NUM_SAMPLES = 118


@pytest.fixture(params=["files", "tar"])
def files(request: pytest.FixtureRequest) -> dict[str, bytes]:
    return dict(pictures(40)) if request.param == "files" else shards(4, 10)


@pytest.fixture
def address(server: S3Server, bucket: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the address of an empty prefix, behind the proxy."""
    for name, value in server.environ(proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/a set/+ü&"


def upload(server: S3Server, address: str, files: dict[str, bytes]) -> str:
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    for name, data in files.items():
        server.client().put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=data)
    return address


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_are_those_of_the_store_also_in_forks(
    server: S3Server, address: str, files: dict[str, bytes], num_workers: int, tmp_path: Path
) -> None:
    found = stream(upload(server, address, files), cache=tmp_path, cache_bytes=0)
    assert len(found) == 40
    assert_pictures([found[3]], [3])  # children do not use the connection of this process
    sampler = BatchSampler(40, 7, seed=3)
    loader: Any = DataLoader(found, batch_sampler=sampler, num_workers=num_workers, collate_fn=list)
    assert_pictures([one for batch in loader for one in batch], [number for batch in sampler for number in batch])


def test_a_set_that_was_copied_has_a_manifest_and_is_not_listed(
    server: S3Server,
    bucket: str,
    proxy: FaultProxy,
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    copier = Data(tmp_path / "home", server, proxy.endpoint)
    copier.json("copy", str(folder), f"s3://{bucket}/set")
    proxy.reset()
    for name, value in copier.environ.items():
        monkeypatch.setenv(name, value)
    found = stream(f"s3://{bucket}/set", cache=tmp_path / "cache")
    assert_pictures(list(found), range(40))
    assert not [one for one in proxy.requests if "list-type" in one.query]
    name = min(files)
    (server.folder / bucket / "set" / name).write_bytes(files[name][:-1] + b"!")  # the gateway keeps the ETag
    with pytest.raises(StreamError, match=r"does not match its manifest|was written since"):
        list(stream(f"s3://{bucket}/set", cache=tmp_path / "other"))
    upload(server, f"s3://{bucket}/set", {name: files[name] + b"!"})
    with pytest.raises(SourceChanged, match="or since `windlass data copy` wrote the set"):
        list(stream(f"s3://{bucket}/set", cache=tmp_path / "another"))


@pytest.mark.nightly
def test_a_listing_of_many_pages_is_read_to_its_end(server: S3Server, address: str, tmp_path: Path) -> None:
    names = {f"{number:05}.txt": b"" for number in range(1100)}
    assert len(stream(upload(server, address, names), cache=tmp_path)) == 1100


def test_busy_answers_and_connections_that_are_cut_are_repeated(
    server: S3Server, address: str, proxy: FaultProxy, files: dict[str, bytes], tmp_path: Path
) -> None:
    upload(server, address, files)
    rng, lock = random.Random(5), threading.Lock()
    faults: Counter[str] = Counter()
    asked: Counter[str] = Counter()

    def fault(request: Request) -> Fault:
        with lock:
            asked[request.target] += 1
            # The assignment of faults to requests varies between runs; no request meets as many in a row as it is
            # repeated.
            is_random = asked[request.target] % (retry.TRIES // 2)
            kind = rng.choice(["busy", "cut", "lost", "pass", "pass", "pass"]) if is_random else "pass"
            faults[kind] += 1
        return {"busy": BUSY, "cut": Fault(cut_after=100), "lost": Fault(loses_answer=True), "pass": PASS}[kind]

    proxy.fault = fault
    assert_pictures(list(stream(address, cache=tmp_path, cache_bytes=0)), range(40))
    assert min(faults[kind] for kind in ("busy", "cut", "lost")) >= 1


def test_a_store_that_stays_busy_ends_the_read_with_its_answer(
    server: S3Server, address: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)
    found = stream(upload(server, address, dict(pictures(1))), cache=tmp_path, cache_bytes=0)
    proxy.reset()
    proxy.fault = lambda _request: BUSY
    with pytest.raises(Busy, match="503 SlowDown"):
        found[0]
    assert retry.TRIES <= len(proxy.requests) <= 2 * retry.TRIES, "of two files at once"


def test_an_object_that_is_written_or_removed_in_mid_epoch_is_named(
    server: S3Server, address: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    found = stream(upload(server, address, files), cache=tmp_path, cache_bytes=0)
    name = max(files)
    upload(server, address, {name: files[name][:-1] + b"!"})
    with pytest.raises(SourceChanged, match=f"{name} was written since the stream was opened"):
        list(found)
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    server.client().delete_object(Bucket=bucket, Key=f"{prefix}/{name}")
    with pytest.raises(SourceChanged, match=f"{name} was removed"):
        list(found)


def test_ranks_whose_checkpoints_are_in_the_store_share_an_index_there(
    server: S3Server, address: str, bucket: str, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_RUN_ID", "digits-7f3k2")
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", f"s3://{bucket}/saved/digits-7f3k2")
    upload(server, address, shards(2, 10))
    first = stream(address, cache=tmp_path / "one")
    upload(server, address, {"shard-002.tar": b"it comes too late"})
    proxy.reset()
    again = stream(address, cache=tmp_path / "other")
    assert [one.path for one in proxy.requests] == [one.path for one in proxy.requests if "/saved/" in one.path]
    assert again.digest == first.digest
    assert_pictures(again, range(20))


def test_wrong_keys_and_buckets_are_reported(
    server: S3Server, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StreamError, match="has no files"):
        stream(address, cache=tmp_path)
    with pytest.raises(StreamError, match="there is no bucket nowhere"):
        stream("s3://nowhere/set", cache=tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StreamError, match=r"403 .*check the credentials"):
        stream(upload(server, address, dict(pictures(1))), cache=tmp_path)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, server: S3Server) -> Iterator[Machine]:
    with machine_in(tmp_path / "machine", **server.environ()) as made:
        yield made
        made.windlass("warm", "stop")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["files", pytest.param("tar", marks=pytest.mark.nightly)])
def test_each_sample_is_trained_on_once_per_epoch_through_kills_and_another_world_size(
    layout: str, machine: Machine, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Ranks are killed by signal 9 until the run fails; it is resumed with one rank, fails again, then with three."""
    files = dict(pictures(NUM_SAMPLES)) if layout == "files" else shards(2, NUM_SAMPLES // 2)
    address = upload(server, f"s3://{bucket}/set", files)
    seen = tmp_path / "seen"
    seen.mkdir()
    kills = ["4:0:2", "11:1:2", "13:0:1", "16:0:1"]  # step, rank and world size
    job = machine.write(
        "job.yaml",
        json.dumps(
            {
                "name": "seen",
                "run": " ".join([str(SCRIPT), str(seen), "--kill", *kills]),
                "nodes": 2,
                "restarts": 1,
                "data": [{"name": "pictures", "source": address, "via": "stream"}],
                "env": {"XDG_CACHE_HOME": str(tmp_path)},
            }
        ),
    )
    assert machine.windlass("run", str(job)).returncode == 100, "the second kill is one more than restarts allow"
    run = machine.status()["id"]
    assert machine.windlass("resume", run, "--nodes", "1").returncode == 100
    done = machine.windlass("resume", run, "--nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(one.name for one in seen.glob("killed-*")) == sorted(f"killed-{kill}" for kill in kills)

    assert_each_once(seen, NUM_SAMPLES, {1, 2, 3})
