"""Sets are copied to Azurite and an emulated Google Cloud Storage as to S3, but large uploads restart."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.helpers.machine import WINDLASS
from tests.helpers.until import until
from tests.servers.azurite import Azurite
from tests.servers.emulated_gcs import emulated_gcs
from tests.servers.faulty import BUSY, FORBIDDEN, HTML, PASS, Fault, Request
from tests.servers.s3 import S3Server
from tests.storage.other_stores import Gate, Store, journaled, num_parts
from tests.storage.sets import Data, Done, assert_equal, names
from tests.storage.test_s3_copies import MAX_BYTES, MEASURE
from tests.storage.test_s3_outputs import SCRIPT as WRITE
from tests.storage.test_s3_staging import SCRIPT as READ
from tests.storage.test_s3_staging import run_id, windlass

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.digest import combined
from windlass.storage.object_place import ObstorePlace
from windlass.storage.place import SourceChanged
from windlass.stores.part_sizes import COPY_PART_BYTES

pytestmark = pytest.mark.slow
NUM_SMALL, SMALL_BYTES, LARGE_BYTES = 20, 10_000, 30_000_000
NUM_FILES = NUM_SMALL + 1
LARGE = "large é+%.bin"
CLOSED = "http://127.0.0.1:9"
"""Address of the discard port, on which no server listens."""
NO_METADATA = {"GCE_METADATA_HOST": "127.0.0.1:9", "GCE_METADATA_IP": "127.0.0.1:9"}
"""Disables the metadata server, by which a Google machine that runs these tests would have credentials."""


BOTH = pytest.mark.parametrize("store", ["az", "gs"], indirect=True)
"""Runs a test for both stores in CI. Other tests of the second store, which differ only in error messages, run
nightly."""
AZURE = pytest.mark.parametrize("store", ["az"], indirect=True)
GOOGLE = pytest.mark.parametrize("store", ["gs"], indirect=True)


@pytest.fixture
def data(tmp_path: Path, store: Store) -> Data:
    return Data(tmp_path / "home", store.server, store.proxy.endpoint)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Creates small files in folders, with names that URLs must encode, and a large file."""
    rng = random.Random(1)
    folder = tmp_path / "source"
    for number in range(NUM_SMALL):
        path = folder / f"a folder/é+%{number % 3}/{number:02} %41 &?#=~[x].bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(SMALL_BYTES))
    (folder / LARGE).write_bytes(rng.randbytes(LARGE_BYTES))
    return folder


def small_names(folder: Path) -> set[str]:
    return names(folder) - {LARGE}


# -- whole copies -----------------------------------------------------------------------------------------------------


@BOTH
def test_a_set_goes_from_a_folder_through_two_prefixes_and_back(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    one, two, back = store.address("one"), store.address("deep/two/"), str(tmp_path / "back")
    ways = ((str(source), one), (one, two), (two, back))
    digests = {data.json("copy", *words)["digest"] for words in ways}
    assert len(digests) == 1
    assert_equal(source, tmp_path / "back")
    for there in (one, two, back):
        found = data.json("verify", there)
        assert (found["ok"], found["digest"]) == (True, *digests)
        listed = data.json("ls", there)
        assert (listed["digest"], len(listed["files"])) == (*digests, NUM_FILES)
    for words in ways:
        store.proxy.reset()
        again = data.json("copy", *words)
        assert (again["copied_files"], again["copied_bytes"], again["unchanged_files"]) == (0, 0, NUM_FILES)
        assert not store.moved("GET", "PUT", "POST")


def test_a_file_that_changed_is_the_only_one_copied(data: Data, store: Store, source: Path, tmp_path: Path) -> None:
    there, back = store.address(), tmp_path / "back"
    ways = ((str(source), there), (there, str(back)))
    for words in ways:
        data.json("copy", *words)
    name = min(small_names(source))
    (source / name).write_bytes(b"changed")
    store.proxy.reset()
    assert [data.json("copy", *words)["copied_files"] for words in ways] == [1, 1]
    assert store.moved("GET", "PUT", "POST") == [f"set/{name}"] * 3, "sent, verified, and fetched"
    assert_equal(source, back)


@AZURE
@pytest.mark.parametrize("is_large", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_an_upload_that_arrives_changed_is_sent_again_and_after_three_times_named(
    data: Data, store: Store, source: Path, tmp_path: Path, is_large: bool
) -> None:
    """The store receives no checksum, so its content is read back."""
    name, left = LARGE if is_large else min(small_names(source)), 99

    def flip(request: Request) -> Fault:
        nonlocal left
        if (
            request.method != "PUT"
            or not store.key_of(request).endswith(f"/{name}")
            or request.length < 9999
            or not left
        ):
            return PASS
        left -= 1
        return Fault(flips_request_at=9)

    store.proxy.fault = flip
    done = data.run("copy", str(source), store.address(), "-o", "json")
    [refused] = json.loads(done.stdout)["refused"]
    assert (done.returncode, refused["name"]) == (1, name)
    assert "and was sent with sha256" in refused["why"]
    assert f"set/{name}" not in store.listed()
    left = 1
    assert data.json("copy", str(source), store.address())["copied_files"] == 1
    data.json("copy", store.address(), str(tmp_path / "back"))
    assert_equal(source, tmp_path / "back")


@AZURE
def test_one_object_that_is_forbidden_is_named_and_all_others_are_copied(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    data.json("copy", str(source), store.address())
    name = min(small_names(source))
    store.proxy.fault = lambda request: FORBIDDEN if store.key_of(request).endswith(f"/{name}") else PASS
    done = data.run("copy", store.address(), str(tmp_path / "back"), "-o", "json")
    [refused] = json.loads(done.stdout)["refused"]
    assert (done.returncode, refused["name"]) == (1, name)
    assert names(tmp_path / "back") == names(source) - {name}


@AZURE
def test_an_upload_that_is_answered_by_html_is_no_upload(data: Data, store: Store, source: Path) -> None:
    store.proxy.fault = lambda request: HTML if request.method == "PUT" else PASS
    assert data.run("copy", str(source), store.address()).returncode == 1
    assert not store.listed()


def test_files_whose_size_is_that_of_parts_have_the_digests_of_a_folder(
    data: Data, store: Store, tmp_path: Path
) -> None:
    folder, back = tmp_path / "parts", tmp_path / "back"
    folder.mkdir()
    for size in (0, COPY_PART_BYTES, COPY_PART_BYTES + 1, 2 * COPY_PART_BYTES):
        (folder / f"{size}.bin").write_bytes(os.urandom(size))
    digest = data.json("copy", str(folder), store.address())["digest"]
    assert data.json("copy", store.address(), str(back))["digest"] == digest
    assert data.json("verify", store.address())["ok"]
    assert data.json("verify", str(back))["digest"] == digest
    assert_equal(folder, back)


def test_busy_answers_and_connections_that_are_cut_are_repeated(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    faults = {
        "busy": BUSY,
        "cut": Fault(cut_after=100),
        "late": Fault(cut_after=300_000),
        "lost": Fault(loses_answer=True),
    }
    rng, lock = random.Random(5), threading.Lock()
    met: Counter[str] = Counter()
    asked: Counter[str] = Counter()

    def fault(request: Request) -> Fault:
        with lock:
            asked[request.target] += 1
            # No request meets two faults in a row, because a listing is repeated only once.
            kind = rng.choice([*faults, "none", "none", "none"]) if asked[request.target] % 2 else "none"
            met[kind] += 1
        return faults.get(kind, PASS)

    store.proxy.fault = fault
    digest = data.json("copy", str(source), store.address())["digest"]
    assert data.json("copy", store.address(), str(tmp_path / "back"))["digest"] == digest
    assert data.json("verify", store.address())["digest"] == digest
    assert_equal(source, tmp_path / "back")
    assert all(met[kind] for kind in faults)


@BOTH
def test_an_upload_whose_last_answer_is_lost_ends_well(data: Data, store: Store, source: Path) -> None:
    left = [Fault(loses_answer=True)]

    def fault(request: Request) -> Fault:
        is_last = request.method == "POST" and "uploadId" in request.query
        return left.pop() if left and (is_last or request.query.get("comp") == ["blocklist"]) else PASS

    store.proxy.fault = fault
    assert data.json("copy", str(source), store.address())["copied_files"] == NUM_FILES
    assert not left
    assert data.json("verify", store.address())["ok"]


@GOOGLE
def test_a_part_that_fails_and_an_end_of_its_upload_that_is_lost_are_repeated(
    data: Data, store: Store, source: Path
) -> None:
    """Azure discards a failed upload by itself; Google's store is asked to abort it."""
    busy, lost, seen = [BUSY] * 10, [Fault(loses_answer=True)], []

    def fault(request: Request) -> Fault:
        seen.append(request.method)
        if request.method == "DELETE":
            return lost.pop() if lost else PASS
        is_part = store.key_of(request) == f"set/{LARGE}" and request.method == "PUT"
        return busy.pop() if is_part and busy and "DELETE" not in seen else PASS

    store.proxy.fault = fault
    assert data.json("copy", str(source), store.address())["copied_files"] == NUM_FILES
    assert data.json("verify", store.address())["ok"]


def test_answers_that_are_cut_again_and_again_are_repeated(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    data.json("copy", str(source), store.address())
    left = [Fault(cut_after=300_000)] * 10

    def fault(request: Request) -> Fault:
        return left.pop() if left and store.key_of(request) == f"set/{LARGE}" else PASS

    store.proxy.fault = fault
    assert data.json("copy", store.address(), str(tmp_path / "back"))["copied_files"] == NUM_FILES
    assert_equal(source, tmp_path / "back")


def test_lists_that_are_refused_again_and_again_are_repeated(data: Data, store: Store, source: Path) -> None:
    data.json("copy", str(source), store.address())
    left = [BUSY] * 3

    def fault(request: Request) -> Fault:
        return left.pop() if left and not store.key_of(request) else PASS

    store.proxy.fault = fault
    assert len(data.json("ls", store.address())["files"]) == NUM_FILES
    assert not left


@AZURE
def test_a_name_that_azure_would_change_is_refused_and_the_rest_is_copied(
    data: Data, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "set/x").mkdir(parents=True)
    for name in ("x/y", "x\\y", "good"):
        (tmp_path / "set" / name).write_text(name)
    done = data.run("copy", str(tmp_path / "set"), store.address())
    assert done.returncode == 1
    assert "Azure would take its \\ for /" in done.stdout + done.stderr
    assert {key for key in store.listed() if "/.windlass/" not in key} == {"set/x/y", "set/good"}


def test_a_busy_answer_is_none_about_credentials_whatever_the_name(data: Data, store: Store, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/credentials.json").write_bytes(b"{}")
    left = [BUSY] * 3

    def fault(request: Request) -> Fault:
        return left.pop() if left and store.key_of(request) == "set/credentials.json" else PASS

    store.proxy.fault = fault
    assert data.json("copy", str(tmp_path / "set"), store.address())["copied_files"] == 1


@pytest.mark.parametrize("is_large", [False, True])
def test_an_object_that_was_overwritten_is_found_and_mended(
    data: Data, store: Store, source: Path, tmp_path: Path, is_large: bool
) -> None:
    data.json("copy", str(source), store.address())
    name = LARGE if is_large else min(small_names(source))
    right = (source / name).read_bytes()
    store.put(f"set/{name}", right[:-1] + bytes([right[-1] ^ 1]))
    done = data.run("verify", store.address())
    assert done.returncode == 1
    assert name in done.stdout
    assert data.json("copy", str(source), store.address())["copied_files"] == 1
    assert data.json("verify", store.address())["ok"]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_memory_is_bounded_whatever_the_file(data: Data, store: Store, tmp_path: Path, direction: str) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    with open(folder / "one.bin", "wb") as file:
        for _ in range(200):
            file.write(os.urandom(1_000_000))
    words = ("copy", str(folder), store.address())
    direct = Data(data.home, store.server)
    if direction == "down":
        direct.json(*words)
        words = ("copy", store.address(), str(tmp_path / "back"))
    command = [sys.executable, "-I", "-S", "-c", MEASURE, str(WINDLASS), "data", *words]
    done = subprocess.run(command, env=direct.environ, capture_output=True, text=True, timeout=280, check=True)
    assert 10_000_000 < int(done.stdout) * 1024 <= MAX_BYTES


# -- files that change meanwhile --------------------------------------------------------------------------------------


def test_an_object_written_since_the_listing_is_never_mixed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 3_000_000
    store.put("set/a.bin", b"a" * size)
    place = opened(store, monkeypatch)
    (entry,) = asyncio.run(place.listed())
    assert b"".join(place.pieces(entry, 5, 1_500_000)) == b"a" * 1_500_000
    store.put("set/a.bin", b"b" * size)
    for start, length in ((0, size), (1_500_000, 1_500_000), (10, 10)):
        with pytest.raises(SourceChanged):
            list(place.pieces(entry, start, length))


def test_a_stream_that_fails_leaves_no_object(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(12):
            yield bytes(1 << 20)
        raise StorageError("the source has failed")

    place = opened(store, monkeypatch)
    with pytest.raises(StorageError, match="the source has failed"):
        place.put_stream("a.bin", pieces(), 5 << 20, str)
    assert store.listed() == set()
    data = b"x" * (6 << 20)
    place.put_stream("a.bin", iter([data]), 5 << 20, lambda: combined([hashlib.sha256(data).digest()]))
    assert [(one.name, one.size) for one in asyncio.run(place.listed())] == [("a.bin", 6 << 20)]


def opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> ObstorePlace:
    """Opens the set as the command does."""
    for name, value in store.server.environ().items():
        monkeypatch.setenv(name, value)
    return ObstorePlace(Address(store.kind, store.bucket, "set"))


def test_a_file_that_is_truncated_while_it_is_uploaded_leaves_no_object(
    data: Data, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "a.bin").write_bytes(os.urandom(80_000_000))
    (folder / "b.bin").write_bytes(b"b")
    gate = Gate(store, "a.bin", 2)
    popen = data.start("copy", str(folder), store.address())
    until(lambda: gate.num_held > 0)
    os.truncate(folder / "a.bin", 70_000_000)
    gate.release()
    out, err = popen.communicate()
    assert popen.returncode == 1, err
    assert "a.bin" in out + err
    assert "internal error" not in err
    assert {key for key in store.listed() if "/.windlass/" not in key} == {"set/b.bin"}


# -- kills ------------------------------------------------------------------------------------------------------------


def killed(data: Data, store: Store, is_ready: Callable[[], bool], *words: str) -> None:
    """Runs a copy until it is ready, with all but two requests for the large file blocked, and kills it."""
    gate = Gate(store, LARGE, 2)
    popen = data.start(*words)
    until(lambda: popen.poll() is not None or (gate.num_held > 0 and is_ready()))
    popen.kill()
    _, err = popen.communicate()
    assert popen.returncode == -signal.SIGKILL, err
    gate.release()
    until(lambda: store.proxy.num_open == 0, "the connections of a killed copy stay open")
    store.proxy.reset()


def test_a_killed_upload_keeps_whole_files_and_begins_the_large_one_anew(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    small = small_names(source)
    killed(data, store, lambda: journaled(data.home) == small, "copy", str(source), store.address())
    assert f"set/{LARGE}" not in store.listed()
    assert data.json("copy", str(source), store.address())["copied_files"] == 1
    assert set(store.moved("PUT")) == {f"set/{LARGE}"}
    assert data.json("verify", store.address())["ok"]
    data.json("copy", store.address(), str(tmp_path / "back"))
    assert_equal(source, tmp_path / "back")


def test_a_killed_download_goes_on_inside_the_large_file(
    data: Data, store: Store, source: Path, tmp_path: Path
) -> None:
    back, small = tmp_path / "back", small_names(source)
    digest = data.json("copy", str(source), store.address())["digest"]
    store.proxy.reset()
    words = ("copy", store.address(), str(back))
    killed(data, store, lambda: (journaled(back), num_parts(back)) == (small, 2), *words)
    assert not (back / LARGE).exists()
    found = data.json(*words)
    assert (found["copied_files"], found["digest"]) == (1, digest)
    assert set(store.moved("GET")) == {f"set/{LARGE}"}
    assert found["copied_bytes"] < LARGE_BYTES - COPY_PART_BYTES, "parts that were written are fetched again"
    assert_equal(source, back)
    assert [one.name for one in back.iterdir() if one.name.startswith(".windlass")] == [".windlass-manifest.jsonl"]


# -- what goes wrong before anything is copied ------------------------------------------------------------------------


Call = Callable[..., Done]


@pytest.fixture
def refused(tmp_path: Path, store: Store) -> Call:
    """Returns a call of a command that must exit with 1 and one clear sentence without secrets."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small/a.bin").write_bytes(b"a")
    secret = store.server.key if isinstance(store.server, Azurite) else '"private_key"'

    def run(*words: str, endpoint: str = "", **settings: str) -> Done:
        done = Data(tmp_path / "home", store.server, endpoint, {**NO_METADATA, **settings}).run(*words)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 2, done.stderr
        for word in (secret, "Traceback", "internal error", "Debug source"):
            assert word not in done.stdout + done.stderr
        return done

    return run


def commands(address: str, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    yield ("ls", address)
    yield ("verify", address)
    yield ("copy", str(tmp_path / "small"), address)
    yield ("copy", address, str(tmp_path / "to"))


def assert_nothing_done(store: Store, tmp_path: Path) -> None:
    assert store.listed() == set()
    assert not (tmp_path / "to").exists() or not names(tmp_path / "to")


@BOTH
def test_missing_bucket_is_named(refused: Call, store: Store, tmp_path: Path) -> None:
    word = "container" if store.kind == "az" else "bucket"
    for words in commands(f"{store.kind}://nothing/set", tmp_path):
        assert f"there is no {word} nothing\n  check its name" in refused(*words).stderr
    assert_nothing_done(store, tmp_path)


def test_prefix_without_objects_is_not_an_empty_set(refused: Call, store: Store, tmp_path: Path) -> None:
    done = refused("copy", store.address("typo"), str(tmp_path / "to"))
    assert f"{store.address('typo')}/: there is no object below it" in done.stderr
    assert_nothing_done(store, tmp_path)


@BOTH
def test_refused_key_is_reported(data: Data, store: Store, server: S3Server, refused: Call, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if store.kind == "az":
            settings, endpoint = {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}, ""
        else:  # the emulation accepts any credentials
            settings, endpoint = {}, stack.enter_context(emulated_gcs(server, secret_key="wrong")).endpoint
        for words in commands(store.address("credentials"), tmp_path):
            done = refused(*words, endpoint=endpoint, **settings)
            assert "the store does not allow it (403" in done.stderr
            assert "check the credentials, and what they may do" in done.stderr
    assert_nothing_done(store, tmp_path)


@BOTH
def test_missing_or_invalid_credentials_are_reported(refused: Call, store: Store, tmp_path: Path) -> None:
    hint = {"az": "AZURE_STORAGE_ACCOUNT_KEY", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}[store.kind]
    given = next(name for name in store.server.environ() if name.endswith("_KEY"))
    for settings in (dict.fromkeys(store.server.environ(), ""), {given: "no key"}):
        for words in commands(store.address(), tmp_path):
            done = refused(*words, **settings)
            assert "no credentials were found" in done.stderr
            assert hint in done.stderr
    assert_nothing_done(store, tmp_path)


def test_unreachable_server_is_reported(refused: Call, store: Store, tmp_path: Path) -> None:
    for words in (("ls", store.address()), ("copy", str(tmp_path / "small"), store.address())):
        done = refused(*words, endpoint=CLOSED)
        assert "the store does not answer\n  check its address, and the network" in done.stderr
    assert_nothing_done(store, tmp_path)


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes a job with its script."""

    def write(script: str, **fields: object) -> Path:
        folder = tmp_path / "job"
        folder.mkdir()
        (folder / "script.py").write_text(script)
        (folder / "job.yaml").write_text(json.dumps({"name": "one", "run": "script.py", **fields}))
        return folder / "job.yaml"

    return write


def test_a_run_reads_a_set_that_is_fetched_once(
    data: Data, store: Store, source: Path, job: Callable[..., Path]
) -> None:
    data.json("copy", str(source), store.address())
    written = job(READ, data=[{"name": "set", "source": store.address()}])
    for is_first in (True, False):
        store.proxy.reset()
        run = run_id(data, written)
        num_bytes = NUM_SMALL * SMALL_BYTES + LARGE_BYTES
        assert f"bytes {num_bytes}" in windlass(data, "logs", "-f", run).stdout
        assert json.loads(windlass(data, "status", run, "-o", "json").stdout)["phase"] == "succeeded"
        assert bool(store.moved("GET")) == is_first


def test_outputs_are_in_the_store_once_a_run_has_ended(
    data: Data, store: Store, source: Path, job: Callable[..., Path]
) -> None:
    run = run_id(data, job(WRITE, env={"SET": str(source)}, outputs=store.address("runs")))
    windlass(data, "logs", "-f", run)
    status = json.loads(windlass(data, "status", run, "-o", "json").stdout)
    to = f"{store.address('runs')}/{run}/"
    assert (status["phase"], status["outputs"]["destination"]) == ("succeeded", to)
    verified = data.json("verify", to)
    assert (verified["ok"], verified["digest"]) == (True, status["outputs"]["digest"])
    assert status["outputs"]["bytes"] == verified["bytes"] == NUM_SMALL * SMALL_BYTES + LARGE_BYTES
