"""Copies detect a lying endpoint: nothing counts as stored that is not, and one bad object does not end a copy."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers.faulty import BARE_400, FORBIDDEN, HTML, PASS, Fault, FaultProxy, Request, throttled
from tests.servers.s3 import S3Server
from tests.storage.sets import Data, Done, Shape, assert_equal, names, write_set
from tests.storage.test_s3_outputs import SCRIPT as WRITE
from tests.storage.test_s3_staging import run_id, windlass

from windlass.stores.errors import StoreError
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.s3 import bucket as bucket_module
from windlass.stores.s3.store import S3Store

pytestmark = pytest.mark.slow
SET = Shape(12, 50_000, 1, 20_000_000)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_set(tmp_path / "source", SET)


def refused(done: Done) -> dict[str, str]:
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {one["name"]: one["why"] for one in found["refused"]}


def first(number: int, fault: Fault, fits: Callable[[Request], bool]) -> Callable[[Request], Fault]:
    """Returns a function that injects a fault into the first matching requests of each path."""
    counts: dict[str, itertools.count[int]] = {}
    lock = threading.Lock()

    def decide(request: Request) -> Fault:
        with lock:
            count = counts.setdefault(request.target, itertools.count(1))
            return fault if fits(request) and next(count) <= number else PASS

    return decide


WRITES: dict[str, Callable[[Request], bool]] = {
    "everything": lambda _request: True,
    "every write": lambda request: request.method != "GET" or "list-type" not in request.query,
    "small objects": lambda request: request.method == "PUT" and "partNumber" not in request.query,
    "parts": lambda request: "partNumber" in request.query,
    "completions": lambda request: request.method == "POST" and "uploadId" in request.query,
}


@pytest.mark.parametrize(
    "which", [pytest.param(one, marks=pytest.mark.nightly) if one == "every write" else one for one in WRITES]
)
def test_an_upload_that_is_answered_by_html_has_stored_nothing_and_says_so(
    data: Data, proxy: FaultProxy, files: Path, bucket: str, tmp_path: Path, which: str
) -> None:
    there = f"s3://{bucket}/set"
    proxy.fault = lambda request: HTML if WRITES[which](request) else PASS
    done = data.run("copy", str(files), there, "-o", "json")
    assert done.returncode == 1, done.stdout
    proxy.reset()
    data.json("copy", str(files), there)
    data.json("copy", there, str(tmp_path / "back"))
    assert_equal(files, tmp_path / "back")


@pytest.mark.parametrize("lie", ["HTML", "no ETag"])
def test_an_object_in_parts_that_was_never_put_together_is_no_checkpoint(
    server: S3Server, proxy: FaultProxy, bucket: str, lie: str
) -> None:
    store = S3Store(bucket, server.environ(proxy.endpoint))
    proxy.fault = lambda request: (HTML if lie == "HTML" else Fault(status=200)) if request.method != "GET" else PASS
    for parts in ([b"small"], [bytes(STREAM_PART_BYTES), b"last"]):
        with pytest.raises(StoreError):
            store.write("key", parts)
    proxy.reset()
    assert not list(store.listed(""))
    store.write("key", [bytes(STREAM_PART_BYTES), b"last"])
    assert store.open("key").read() == bytes(STREAM_PART_BYTES) + b"last"


@pytest.mark.parametrize("up", [True, False])
def test_one_object_that_is_forbidden_is_named_and_all_others_are_copied(
    data: Data, proxy: FaultProxy, files: Path, bucket: str, tmp_path: Path, up: bool
) -> None:
    there, back, name = f"s3://{bucket}/set", tmp_path / "back", "small/3/00003.bin"
    if not up:
        data.json("copy", str(files), there)
    words = (str(files), there) if up else (there, str(back))
    proxy.fault = lambda request: FORBIDDEN if request.path.endswith(name) else PASS
    found = refused(data.run("copy", *words, "-o", "json"))
    assert set(found) == {name}
    assert "403 AccessDenied" in found[name]
    if not up:
        assert names(back) == names(files) - {name}
    proxy.reset()
    assert data.json("copy", *words)["copied_files"] == 1


def test_an_object_whose_head_is_answered_by_a_bare_400_is_named_and_all_others_are_copied(
    data: Data, proxy: FaultProxy, files: Path, bucket: str, tmp_path: Path
) -> None:
    there = f"s3://{bucket}/set"
    data.json("copy", str(files), there)
    proxy.fault = lambda request: BARE_400 if request.method == "HEAD" else PASS
    found = refused(data.run("copy", there, str(tmp_path / "back"), "-o", "json"))
    assert set(found) == {"large-0.bin"}
    assert "the token may have expired" in found["large-0.bin"]


@pytest.mark.parametrize("name", ["large-0.bin", "small/3/00003.bin"])
@pytest.mark.parametrize("up", [True, False])
def test_a_byte_that_is_changed_on_its_way_is_sent_again_and_after_three_times_named(
    data: Data, proxy: FaultProxy, files: Path, bucket: str, tmp_path: Path, up: bool, name: str
) -> None:
    there, back = f"s3://{bucket}/set", tmp_path / "back"
    fault = Fault(flips_request_at=9) if up else Fault(flips_answer_at=9)

    def fits(request: Request) -> bool:
        is_first = request.query.get("partNumber", ["1"]) == ["1"]
        is_first &= request.fields.get("range", "bytes=0-").startswith("bytes=0-")
        return request.path.endswith(name) and request.method == ("PUT" if up else "GET") and is_first

    if not up:
        data.json("copy", str(files), there)
    words = (str(files), there) if up else (there, str(back))
    proxy.fault = first(99, fault, fits)
    found = refused(data.run("copy", *words, "-o", "json"))
    assert set(found) == {name}
    assert ("XAmzContentSHA256Mismatch" if up else "in each of 3 tries") in found[name]
    assert sum(fits(request) for request in proxy.requests) == 3
    proxy.reset()
    proxy.fault = first(2, fault, fits)
    assert data.json("copy", *words)["copied_files"] == 1
    proxy.reset()
    if up:
        data.json("copy", there, str(back))
    assert_equal(files, back)


def test_a_store_that_asks_for_a_pause_gets_few_requests_meanwhile(
    data: Data, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    files, there, until = write_set(tmp_path / "many", Shape(300, 100, 0, 0)), f"s3://{bucket}/set", 0.0

    def busy(request: Request) -> Fault:
        nonlocal until
        if request.method == "PUT" and not until:
            until = time.monotonic() + 2
        return throttled(2) if time.monotonic() < until else PASS

    proxy.fault = busy
    data.json("copy", str(files), there)
    refused = [one for one in proxy.requests if not one.status]
    assert 1 <= len(refused) <= 64, "those that were under way, and no other"
    assert len(proxy.requests) < 300 + 64 + 20


def test_an_answer_that_comes_late_is_no_second_object_and_no_loss(
    server: S3Server, proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the client has given up each request and repeated it."""
    monkeypatch.setattr(bucket_module, "SECONDS", 1)
    proxy.fault = first(1, Fault(delay_seconds=30), lambda request: request.method != "GET")
    store = S3Store(bucket, server.environ(proxy.endpoint))
    parts = [bytes(STREAM_PART_BYTES), b"last"]
    for key in ("large", "small"):
        store.write(key, parts if key == "large" else parts[1:])
    assert [one.key for one in store.listed("") if not isinstance(one, str)] == ["large", "small"]
    assert store.open("large").read() == b"".join(parts)


def test_outputs_of_which_one_is_refused_are_uploaded_without_it_and_the_run_fails(
    data: Data, proxy: FaultProxy, files: Path, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "write.py").write_text(WRITE)
    fields = {"name": "w", "run": "write.py", "env": {"SET": str(files)}, "outputs": f"s3://{bucket}/runs"}
    (tmp_path / "job" / "job.yaml").write_text(json.dumps(fields))
    name = "small/3/00003.bin"
    proxy.fault = lambda request: FORBIDDEN if request.path.endswith(name) else PASS
    run = run_id(data, tmp_path / "job" / "job.yaml")
    windlass(data, "logs", "-f", run)
    status = json.loads(windlass(data, "status", run, "-o", "json").stdout)
    assert status["phase"] == "failed"
    assert f"1 of the files were not taken, the first: {name}: the store answered 403" in json.dumps(status)
    assert status["outputs"]["files"] == SET.num_small + SET.num_large - 1
    proxy.reset()
    windlass(data, "resume", run)
    assert json.loads(windlass(data, "status", run, "-o", "json").stdout)["phase"] == "succeeded"
    assert data.json("verify", f"s3://{bucket}/runs/{run}/")["files"] == SET.num_small + SET.num_large


def test_a_clock_that_is_an_hour_off_is_corrected(server: S3Server, bucket: str) -> None:
    for seconds in (-3600, 3600):
        store = S3Store(bucket, server.environ())
        store._bucket._skew = float(seconds)
        store.write(f"key{seconds}", [b"data"])
        assert store.open(f"key{seconds}").read() == b"data"


def test_no_request_is_made_for_what_the_answers_confirm(
    data: Data, proxy: FaultProxy, files: Path, bucket: str
) -> None:
    data.json("copy", str(files), f"s3://{bucket}/set")
    num_parts = 3
    # Further requests: create, parts and completion of large files; reads and writes of the manifest, and a listing.
    assert len([one for one in proxy.requests if one.is_data]) == SET.num_small + num_parts
    assert len(proxy.requests) <= SET.num_small + num_parts + 2 + 5
