"""Copies survive an S3 server that is busy, breaks connections, changes its objects or lists hostile names."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from tests.helpers.disk import small_disk
from tests.servers.faulty import BUSY, PASS, XML, Fault, FaultProxy, Request
from tests.servers.s3 import S3Server
from tests.storage.sets import QUICK, Data, Done, assert_equal, names, shape, write_set

from windlass.stores.part_sizes import COPY_PART_BYTES

pytestmark = pytest.mark.slow


def refused(done: Done) -> dict[str, str]:
    """Returns the reasons for which files were not copied, by name."""
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {one["name"]: one["why"] for one in found["refused"]}


def every(number: int, faults: tuple[Fault, ...]) -> Callable[[Request], Fault]:
    """Returns a function that injects a fault, in turn, into every nth request."""
    lock, counted, chosen = threading.Lock(), itertools.count(1), itertools.cycle(faults)

    def decide(_request: Request) -> Fault:
        with lock:
            return next(chosen) if next(counted) % number == 0 else PASS

    return decide


def test_nothing_is_lost_where_one_request_of_twenty_fails(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path
) -> None:
    there, back, size = f"s3://{bucket}/set", tmp_path / "back", shape().num_bytes
    faults = (BUSY, Fault(cut_after=0), Fault(cut_after=50_000), BUSY, Fault(cut_after=3 << 20))
    proxy.fault = every(20, faults)
    data.json("copy", str(source), there)
    proxy.reset()
    proxy.fault = every(20, faults)
    data.json("copy", there, str(back))
    assert proxy.num_bytes <= 1.02 * size
    assert_equal(source, back)
    assert data.json("verify", there)["ok"]
    proxy.reset()
    assert data.json("verify", str(back))["ok"]


def test_an_upload_whose_completion_is_not_answered_is_not_sent_again(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path
) -> None:
    lost: list[Request] = []
    lock = threading.Lock()

    def lose(request: Request) -> Fault:
        with lock:
            if request.method != "POST" or "uploadId" not in request.query or len(lost) == 2:
                return PASS
            lost.append(request)
        return Fault(loses_answer=True)

    proxy.fault = lose
    there = f"s3://{bucket}/set"
    data.json("copy", str(source), there)
    assert len(lost) == 2
    assert proxy.num_bytes == shape().num_bytes
    data.json("copy", there, str(tmp_path / "back"))
    assert_equal(source, tmp_path / "back")


def test_a_store_that_takes_four_requests_at_once_gets_everything(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path
) -> None:
    there, back = f"s3://{bucket}/set", tmp_path / "back"
    for words in (("copy", str(source), there), ("copy", there, str(back))):
        proxy.reset()
        proxy.fault = lambda _request: BUSY if proxy.num_open > 4 else PASS
        data.json(*words)
        assert any(one.status == 0 for one in proxy.requests), "it was never busy"
    assert_equal(source, back)


def test_a_full_disk_ends_the_copy_and_a_larger_one_lets_it_go_on(
    data: Data, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    source, there = write_set(tmp_path / "source", QUICK), f"s3://{bucket}/set"
    data.json("copy", str(source), there)
    with small_disk(tmp_path / "disk", 60_000) as disk:
        done = data.run("copy", there, str(disk / "back"))
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "free some space, and copy again" in done.stderr
        for name in names(disk / "back"):
            assert (disk / "back" / name).read_bytes() == (source / name).read_bytes()
        subprocess.run(["mount", "-o", "remount,size=200000k", str(disk)], check=True)
        proxy.reset()
        data.json("copy", there, str(disk / "back"))
        assert proxy.num_bytes <= QUICK.num_bytes
        assert_equal(source, disk / "back")


def test_an_upload_whose_own_notes_find_no_space_says_so(data: Data, bucket: str, tmp_path: Path) -> None:
    source = write_set(tmp_path / "source", QUICK)
    with small_disk(data.home, 4) as home:
        (home / "filler").write_bytes(b"x" * 4096)
        done = data.run("copy", str(source), f"s3://{bucket}/set")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "internal error" not in done.stderr


def test_a_file_that_changes_while_it_is_sent_is_refused_by_name(
    data: Data, server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    source, there = write_set(tmp_path / "source", QUICK), f"s3://{bucket}/set"
    os.truncate(source / "large-0.bin", 20 * COPY_PART_BYTES)  # more bytes than are in flight at once

    def change(request: Request) -> Fault:
        if "large-0.bin" in request.path and "partNumber" in request.query:
            with open(source / "large-0.bin", "r+b") as file:
                file.write(b"changed")
        return PASS

    proxy.fault = change
    assert refused(data.run("copy", str(source), there, "-o", "json")) == {
        "large-0.bin": "large-0.bin was changed while it was copied"
    }
    proxy.reset()
    assert "large-0.bin" not in [one["name"] for one in data.json("ls", there)["files"]]
    assert data.json("copy", str(source), there)["copied_files"] == 1
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket=bucket)
    data.json("copy", there, str(tmp_path / "back"))
    assert_equal(source, tmp_path / "back")


@pytest.mark.parametrize("name", ["large-0.bin", "small/3/00003.bin"])
def test_an_object_that_changes_while_it_is_fetched_is_refused_by_name(
    data: Data, server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path, name: str
) -> None:
    source, there, back = write_set(tmp_path / "source", QUICK), f"s3://{bucket}/set", tmp_path / "back"
    data.json("copy", str(source), there)
    changed = threading.Lock()

    def change(request: Request) -> Fault:
        if request.path.endswith(name) and changed.acquire(blocking=False):
            server.client().put_object(Bucket=bucket, Key=f"set/{name}", Body=b"new")
        return PASS

    proxy.fault = change
    assert refused(data.run("copy", there, str(back), "-o", "json")) == {
        name: f"{name} was changed while it was copied"
    }
    assert names(back) == names(source) - {name}


def listing(keys: list[str]) -> str:
    """Returns S3's response to a list request with `encoding-type=url`."""
    found = "".join(
        f"<Contents><Key>{escape(quote(key))}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;none&quot;</ETag><Size>4</Size></Contents>"
        for key in keys
    )
    return (
        "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        f"<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>{found}</ListBucketResult>"
    )


def test_hostile_names_in_a_bucket_are_refused_one_by_one(
    data: Data, server: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    """The names are injected into the listing, because the server's own folder could not hold them."""
    etag = server.client().put_object(Bucket=bucket, Key="set/good.bin", Body=b"good")["ETag"]
    hostile = ["../up", "/abs", "a\0b", "x" * 300, "a//b", "deep/../../up", "a\nb", "./c", "slash/"]
    keys = [f"set/{name}" for name in ["good.bin", *hostile]]
    body = listing(keys).replace("&quot;none&quot;", escape(etag), 1)
    proxy.fault = lambda request: Fault(status=200, answer=body, fields=XML) if "list-type" in request.query else PASS
    back = tmp_path / "deep" / "back"
    found = refused(data.run("copy", f"s3://{bucket}/set", str(back), "-o", "json"))
    assert set(found) == set(hostile)
    assert "leads out of the folder" in found["../up"]
    assert "absolute" in found["/abs"]
    assert "NUL" in found["a\0b"]
    assert "longer than 255 bytes" in found["x" * 300]
    assert names(tmp_path / "deep") - {one for one in names(tmp_path / "deep") if ".windlass" in one} == {
        "back/good.bin"
    }
    shown = data.run("copy", f"s3://{bucket}/set", str(back))
    assert shown.returncode == 1
    assert "\0" not in shown.stdout


def test_names_that_differ_in_case_alone_are_refused_where_they_are_files(
    data: Data, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    client = server.client()
    for key in ("Case.bin", "case.bin", "other.bin", "folder/"):
        client.put_object(Bucket=bucket, Key=f"set/{key}", Body=b"" if key.endswith("/") else key.encode())
    there, back = f"s3://{bucket}/set", tmp_path / "back"
    found = refused(data.run("copy", there, str(back), "-o", "json"))
    assert set(found) == {"case.bin"}
    assert names(back) == {"Case.bin", "other.bin"}
    copied = data.json("copy", there, f"s3://{bucket}/other")
    assert copied["copied_files"] == 3


def test_a_link_out_of_the_folder_is_refused_and_all_names_that_can_be_come_back(
    data: Data, bucket: str, tmp_path: Path
) -> None:
    source, there, back = tmp_path / "source", f"s3://{bucket}/set", tmp_path / "back"
    source.mkdir()
    strange = ["a b", "ü", "%41", "a#b?c", "+", "~", "*[x]{y}", "back\\slash", "q'\"&<>", "🎉", "a=b;c:@,$!", "%2F.."]
    for name in strange:
        (source / name).write_text(name)
    (source / "out").symlink_to("/etc/hostname")
    assert set(refused(data.run("copy", str(source), there, "-o", "json"))) == {"out"}
    (source / "out").unlink()
    data.json("copy", there, str(back))
    assert_equal(source, back)
