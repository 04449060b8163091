"""Copies between folders and an S3 server give equal sets, move nothing twice, bound memory and detect damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.machine import WINDLASS
from tests.servers.faulty import FaultProxy
from tests.servers.s3 import S3Server
from tests.storage.sets import LARGE, Data, assert_equal, shape

pytestmark = pytest.mark.slow
MAX_BYTES = 200_000_000
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Prints the peak memory of a command in KiB. It is a small program, because a child starts with the size of its
parent."""


def test_a_set_goes_from_a_folder_through_two_buckets_and_back(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path
) -> None:
    one, two, back = f"s3://{bucket}/one", f"s3://{bucket}/deep/two/", str(tmp_path / "back")
    digests = {data.json("copy", *words)["digest"] for words in ((str(source), one), (one, two), (two, back))}
    assert len(digests) == 1
    assert_equal(source, tmp_path / "back")
    for there in (one, two, back):
        found = data.json("verify", there)
        assert (found["ok"], found["digest"]) == (True, *digests)
    listed = data.json("ls", two)
    assert listed["digest"] in digests
    assert len(listed["files"]) == shape().num_small + shape().num_large
    for words in ((str(source), one), (one, two), (two, back)):
        proxy.reset()
        again = data.json("copy", *words)
        assert (again["copied_files"], again["copied_bytes"], again["unchanged_files"]) == (0, 0, len(listed["files"]))
        assert proxy.num_bytes == 0
        assert not [one for one in proxy.requests if one.method not in ("GET", "HEAD")]
        pages = -(-len(listed["files"]) // 1000)
        assert len(proxy.requests) <= 2 * (pages + 2), "it asks for more than the lists and the manifests"


def test_damage_in_a_bucket_is_found_and_mended(
    data: Data, server: S3Server, source: Path, bucket: str, tmp_path: Path
) -> None:
    there = f"s3://{bucket}/set"
    data.json("copy", str(source), there)
    objects = server.folder / bucket / "set"
    with open(objects / "large-1.bin", "r+b") as file:
        file.seek(20_000_000)
        file.write(b"rot")
    (objects / "small/0/00000.bin").unlink()
    done = data.run("verify", there)
    assert done.returncode == 1
    assert "large-1.bin" in done.stdout
    assert "small/0/00000.bin" in done.stdout
    found = data.run("copy", there, str(tmp_path / "back"))
    assert found.returncode == 1
    assert "large-1.bin  damaged at its source" in found.stdout
    assert not (tmp_path / "back/large-1.bin").exists()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_memory_is_bounded_whatever_the_file(
    data: Data, bucket: str, tmp_path: Path, direction: str, server: S3Server
) -> None:
    one = tmp_path / "source/one.bin"
    one.parent.mkdir()
    with open(one, "wb") as file:
        for _ in range(1000 if shape() is LARGE else 300):
            file.write(os.urandom(1_000_000))
    there = f"s3://{bucket}/set"
    words = ("copy", str(one.parent), there)
    if direction == "down":
        data.json(*words)
        words = ("copy", there, str(tmp_path / "back"))
    command = [sys.executable, "-I", "-S", "-c", MEASURE, str(WINDLASS), "data", *words]
    environ = Data(tmp_path / "home", server).environ
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=True)
    assert 10_000_000 < int(done.stdout) * 1024 <= MAX_BYTES
