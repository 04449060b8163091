"""Streams and checkpoints work in Azurite and an emulated Google Cloud Storage, in forks and through kills."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.machine import Machine, machine_in
from tests.helpers.until import until
from tests.servers.faulty import BUSY, PASS, Fault, Request
from tests.storage.other_stores import Store
from tests.storage.test_s3_streams import SCRIPT
from tests.train.checkpoint.saved import build, make
from tests.train.checkpoint.test_in_s3 import EXACT, LARGE, restored
from tests.train.stream.sources import assert_each_once, assert_pictures, pictures, shards
from torch.utils.data import DataLoader

from windlass.stores import retry
from windlass.stores.errors import Changed
from windlass.stores.gs_az import process as gs_az
from windlass.stores.gs_az.process import ProcessStore
from windlass.train import stream
from windlass.train.checkpoint import Checkpoint, files
from windlass.train.checkpoint.faults import UnreadableCheckpoint
from windlass.train.sampler import BatchSampler
from windlass.train.stream.errors import Busy, SourceChanged, StreamError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUM_SAMPLES = 118
BOTH = pytest.mark.parametrize("store", ["az", "gs"], indirect=True)


@pytest.fixture(autouse=True)
def environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configures this process and its children to reach the store through the proxy."""
    for name, value in store.server.environ(store.proxy.endpoint).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def opened(store: Store) -> ProcessStore:
    return ProcessStore(store.kind, store.bucket)


def upload(store: Store, found: Mapping[str, bytes], prefix: str = "a set/+ü&") -> str:
    for name, data in found.items():
        store.put(f"{prefix}/{name}", data)
    return store.address(prefix)


def process() -> Any:
    assert gs_az._running is not None
    return gs_az._running[1]


# -- the store itself -------------------------------------------------------------------------------------------------


@BOTH
def test_what_is_written_is_listed_and_read_and_nothing_is_overwritten(opened: ProcessStore, store: Store) -> None:
    content = {"a/one": b"1", "a/b/two": b"", "a/b/c/three": b"333", "other": b"4"}
    for key, data in content.items():
        opened.put(key, data)
        assert (opened.get(key), opened.head(key).size) == (data, len(data))
    assert {one.key for one in opened.listed("") if not isinstance(one, str)} == set(content)
    below = list(opened.listed("a/", "/"))
    assert ([one for one in below if isinstance(one, str)], below[0].key) == (["a/b/"], "a/one")  # type: ignore[union-attr]
    opened.put("other", b"4")  # simulates a lost response
    with pytest.raises(Changed):
        opened.put("other", b"5")
    opened.remove("other")
    opened.remove("other")
    assert store.listed() == set(content) - {"other"}


@BOTH
def test_a_large_object_is_there_as_a_whole_or_not_at_all(opened: ProcessStore, store: Store) -> None:
    pieces = [os.urandom(9 << 20) for _ in range(5)]

    def failing() -> Iterator[bytes]:
        yield from pieces
        raise RuntimeError("the source ends")

    with pytest.raises(RuntimeError, match="the source ends"):
        opened.write("large", failing())
    assert store.listed() == set()
    opened.write("large", pieces)
    assert store.get("large") == b"".join(pieces)
    with opened.open("large") as file:
        assert file.read() == b"".join(pieces)
        file.seek(-7, os.SEEK_END)
        assert file.read() == pieces[-1][-7:]


def test_a_process_that_is_killed_is_replaced_and_one_of_a_fork_is_its_own(opened: ProcessStore) -> None:
    opened.put("one", b"1")
    first = process()._popen.pid
    os.kill(first, signal.SIGKILL)
    assert opened.get("one") == b"1"
    second = process()._popen.pid
    assert second != first

    def in_fork(answers: Any) -> None:
        answers.put((opened.get("one"), process()._popen.pid, opened.get("one")))

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    fork = context.Process(target=in_fork, args=(answers,))
    fork.start()
    found, third, again = answers.get()
    fork.join()
    assert (found, again, fork.exitcode) == (b"1", b"1", 0)
    assert third != second
    until(lambda: not Path(f"/proc/{third}").exists(), "the process of the fork outlives it")
    assert (opened.get("one"), process()._popen.pid) == (b"1", second)


def test_its_process_ends_with_a_script_that_is_killed_though_a_fork_lives_on(opened: ProcessStore) -> None:
    opened.put("one", b"1")
    script = (
        "import os, signal, time\n"
        "from windlass.stores.gs_az import process as gs_az\n"
        f"gs_az.ProcessStore({opened._kind!r}, {opened._bucket!r}).get('one')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.close(1), os.close(2)  # which would not end for us\n"
        "    time.sleep(600)\n"
        "print(gs_az._running[1]._popen.pid, child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid, child = map(int, done.stdout.split())
    try:
        until(lambda: not Path(f"/proc/{pid}").exists(), "the process outlives its script")
    finally:
        os.kill(child, signal.SIGKILL)


# -- streams ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("layout", ["files", pytest.param("tar", marks=pytest.mark.nightly)])
def test_samples_are_those_of_the_store_also_in_forks(store: Store, layout: str, tmp_path: Path) -> None:
    content = dict(pictures(40)) if layout == "files" else shards(4, 10)
    found = stream(upload(store, content), cache=tmp_path, cache_bytes=0)
    assert_pictures([found[3]], [3])
    sampler = BatchSampler(40, 7, seed=3)
    loader: Any = DataLoader(found, batch_sampler=sampler, num_workers=2, collate_fn=list)
    assert_pictures([one for batch in loader for one in batch], [number for batch in sampler for number in batch])


def test_busy_answers_and_connections_that_are_cut_are_repeated(store: Store, tmp_path: Path) -> None:
    address = upload(store, dict(pictures(40)))
    numbers, faults = itertools.count(1), itertools.cycle([BUSY, Fault(cut_after=100), Fault(loses_answer=True)])
    store.proxy.fault = lambda _request: PASS if next(numbers) % 3 else next(faults)
    assert_pictures(list(stream(address, cache=tmp_path, cache_bytes=0)), range(40))


def test_a_store_that_stays_busy_ends_the_read_with_its_answer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.001)
    found = stream(upload(store, dict(pictures(1))), cache=tmp_path, cache_bytes=0)
    store.proxy.fault = lambda _request: BUSY
    with pytest.raises(Busy, match="503"):
        found[0]


@BOTH
def test_an_object_that_is_written_or_removed_in_mid_epoch_is_named(store: Store, tmp_path: Path) -> None:
    content = dict(pictures(10))
    found = stream(upload(store, content), cache=tmp_path, cache_bytes=0)
    name = max(content)
    upload(store, {name: content[name][:-1] + b"!"})
    with pytest.raises(SourceChanged, match=f"{name} was written since the stream was opened"):
        list(found)
    store.remove(f"a set/+ü&/{name}")
    with pytest.raises(SourceChanged, match=rf"{name} was (removed|written)"):  # Azurite responds with 412
        list(found)


def test_ranks_whose_checkpoints_are_in_the_store_share_an_index_there(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_RUN_ID", "digits-7f3k2")
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", store.address("saved/digits-7f3k2"))
    address = upload(store, shards(2, 10))
    first = stream(address, cache=tmp_path / "one")
    upload(store, {"shard-002.tar": b"it comes too late"})
    again = stream(address, cache=tmp_path / "other")
    assert again.digest == first.digest
    assert_pictures(again, range(20))


# -- what is wrong ----------------------------------------------------------------------------------------------------


@BOTH
def test_wrong_containers_and_keys_are_reported(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_CHECKPOINT_RETRY_SECONDS", "0")
    with pytest.raises(StreamError, match="has no files"):
        stream(store.address(), cache=tmp_path)
    what = "container" if store.kind == "az" else "bucket"
    with pytest.raises(StreamError, match=f"there is no {what} nowhere"):
        stream(f"{store.kind}://nowhere/set", cache=tmp_path)
    with pytest.raises((UnreadableCheckpoint, FileNotFoundError), match=f"there is no {what} nowhere"):
        restored(f"{store.kind}://nowhere/saved")


@pytest.mark.parametrize("store", ["az"], indirect=True)
def test_a_key_that_is_refused_fails_at_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = upload(store, dict(pictures(1)))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(StreamError, match=r"403.*check the credentials"):
        stream(address, cache=tmp_path)
    with pytest.raises(UnreadableCheckpoint, match="403"):
        restored(address)


@pytest.mark.parametrize("store", ["az"], indirect=True)
def test_an_interpreter_without_obstore_is_named(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gs_az, "_running", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(StreamError, match=f"obstore, which {sys.executable} lacks; pip install"):
        stream(store.address(), cache=tmp_path / "cache")
    monkeypatch.setattr(gs_az, "_running", None)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@BOTH
def test_checkpoints_are_restored_and_a_damaged_one_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.address("saved")
    weights = make(folder, 5, keep=2)
    step, found = restored(folder)
    assert (step, torch.equal(found, weights[-1])) == (5, True)
    assert [one.step for one in files.list_checkpoints(folder)] == [5, 4]
    newest = files.list_checkpoints(folder)[0]
    key = f"saved/{newest.name}/rank-0.safetensors"
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    monkeypatch.setenv("WINDLASS_RUN_ID", newest.run_id)
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1, when_busy="wait")
    assert (saved.restore(), torch.equal(model.weight, weights[3])) == (4, True)
    saved.step()  # sets the damaged checkpoint aside
    saved.close()
    aside = next(one for one in files.list_checkpoints(folder) if one.is_set_aside)
    assert aside.name == f"{newest.name}.damaged"


@pytest.mark.parametrize("fault", [BUSY, Fault(cut_after=100), Fault(loses_answer=True)], ids=["503", "cut", "silent"])
def test_a_store_that_fails_some_requests_costs_nothing_but_time(store: Store, fault: Fault) -> None:
    numbers = itertools.count(1)

    def every_third(_request: Request) -> Fault:
        return PASS if next(numbers) % 3 else fault

    store.proxy.fault = every_third
    folder = store.address("saved")
    weights = make(folder, 3)
    step, found = restored(folder)
    assert (step, torch.equal(found, weights[-1])) == (3, True)


def test_a_writer_that_is_killed_in_mid_upload_leaves_no_checkpoint(store: Store, tmp_path: Path) -> None:
    folder, script = store.address("saved"), tmp_path / "save.py"
    script.write_text(
        "import sys, torch\n"
        "from torch import nn\n"
        "from windlass.train.checkpoint import Checkpoint\n"
        f"model = nn.Linear({LARGE // 1000}, 1000, bias=False)\n"
        "saved = Checkpoint(model=model, folder=sys.argv[1], every=1, when_busy='wait')\n"
        "print(saved.restore(), flush=True)\n"
        "saved.step()\n"
        "saved.close()\n"
    )
    held, release, numbers = threading.Event(), threading.Event(), itertools.count(1)

    def hold(request: Request) -> Fault:
        if request.method == "PUT" and store.key_of(request).endswith(".safetensors") and next(numbers) == 2:
            held.set()
            release.wait(240)
        return PASS

    store.proxy.fault = hold
    with subprocess.Popen([sys.executable, str(script), folder], start_new_session=True) as training:
        assert held.wait(240)
        os.killpg(training.pid, signal.SIGKILL)
        release.set()
    until(lambda: store.proxy.num_open == 0, "the connections of the writer stay open")
    assert not [key for key in store.listed() if key.endswith(".safetensors")]
    assert [one for one in files.list_checkpoints(folder) if one.complete] == []
    done = subprocess.run([sys.executable, str(script), folder], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0"
    [whole] = [one for one in files.list_checkpoints(folder) if one.complete]
    assert (whole.step, files.examine(whole)) == (1, [])


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, store: Store) -> Iterator[Machine]:
    with machine_in(tmp_path / "machine", **store.server.environ()) as made:
        yield made
        made.windlass("warm", "stop")


def test_a_run_streams_and_saves_there_through_kills_and_another_world_size(
    machine: Machine, store: Store, tmp_path: Path
) -> None:
    """Each sample is seen once per epoch: a rank is killed by signal 9 until the run fails, which is resumed with one
    rank.
    """
    address = upload(store, dict(pictures(NUM_SAMPLES)), "set")
    folder, seen = store.address("saved"), tmp_path / "seen"
    seen.mkdir()
    kills = ["4:0:2", "11:1:2"]  # step, rank and world size
    job = machine.write(
        "job.yaml",
        json.dumps(
            {
                "name": "seen",
                "run": " ".join([str(SCRIPT), str(seen), "--kill", *kills]),
                "nodes": 2,
                "restarts": 1,
                "data": [{"name": "pictures", "source": address, "via": "stream"}],
                "checkpoint": {"folder": folder},
                "env": {"XDG_CACHE_HOME": str(tmp_path)},
                "python": sys.executable,
            }
        ),
    )
    assert machine.windlass("run", str(job)).returncode == 100, "the second kill is one more than restarts allow"
    run = str(machine.status()["id"])
    done = machine.windlass("resume", run, "--nodes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_each_once(seen, NUM_SAMPLES, {1, 2})

    shown = json.loads(machine.windlass("checkpoints", run, "-o", "json").stdout)
    assert (shown["folder"], bool(shown["checkpoints"])) == (f"{folder}/{run}", True)
    assert machine.windlass("checkpoints", run, "verify").returncode == 0
    exported = machine.windlass("checkpoints", run, "export", str(tmp_path / "model.safetensors"))
    assert exported.returncode == 0, exported.stderr
    machine.windlass("checkpoints", run, "prune", "--keep", "1")
    complete = [one for one in files.list_checkpoints(f"{folder}/{run}") if one.complete]
    assert len(complete) == 1


@pytest.mark.nightly
def test_a_run_that_is_killed_resumes_with_the_same_weights(machine: Machine, store: Store, tmp_path: Path) -> None:
    digests = []
    for kills in ([], ["12:1", "30:0"]):
        place = tmp_path / f"kills-{len(kills)}"
        place.mkdir()
        # With --patient, a kill waits for the checkpoint before it, however slow the upload is.
        words = [str(EXACT), str(place), "--patient", *(["--kill", *kills] if kills else [])]
        job = {
            "name": "exact",
            "run": " ".join(words),
            "procs_per_node": 2,
            "python": sys.executable,
            "restarts": 5,
            "checkpoint": {"folder": store.address("saved")},
        }
        done = machine.windlass("run", str(machine.write("job.yaml", json.dumps(job))))
        assert done.returncode == 0, done.stdout + done.stderr
        digests.append((place / "digest").read_text())
    assert digests[0] == digests[1]
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored == [7, 28]
