"""Copies from an HTTP server to object stores are verified before the object exists; to S3 they resume by parts."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.faulty import PASS, FaultProxy, refusal
from tests.servers.http_files import FileHost, file_host
from tests.storage.other_stores import Store
from tests.storage.sets import Data

pytestmark = pytest.mark.slow
BIG = random.Random(1).randbytes(30_000_000)
SECRET = "X-Amz-Signature=5ec7e7"
SHA256 = hashlib.sha256(BIG).hexdigest()


@pytest.fixture
def host() -> Iterator[FileHost]:
    with file_host({"d/big.tar": BIG}) as found:
        yield found


def test_a_file_of_a_server_is_copied_to_s3_and_verified(data: Data, host: FileHost, bucket: str) -> None:
    there = f"s3://{bucket}/set"
    done = data.json("copy", f"{host.address}/d/big.tar", there, "--sha256", SHA256)
    assert (done["copied_files"], done["files"]) == (1, 1)
    assert data.json("verify", there)["ok"]
    assert data.json("copy", f"{host.address}/d/big.tar", there, "--sha256", SHA256)["unchanged_files"] == 1


def test_a_file_with_another_sha256_is_no_object(data: Data, host: FileHost, bucket: str) -> None:
    there = f"s3://{bucket}/set"
    done = data.run("copy", f"{host.address}/d/big.tar", there, "--sha256", "0" * 64)
    assert done.returncode == 1
    assert f"its SHA-256 is {SHA256}" in done.stdout
    assert data.json("ls", there)["files"] == []


def test_a_copy_to_s3_goes_on_with_the_parts_that_s3_has(
    data: Data, host: FileHost, bucket: str, proxy: FaultProxy
) -> None:
    there, url = f"s3://{bucket}/set", f"{host.address}/d/big.tar?{SECRET}"
    denied = refusal(403, "ExpiredToken", "The provided token has expired.")
    proxy.fault = lambda request: denied if request.query.get("partNumber") == ["3"] else PASS
    assert data.run("copy", url, there, "--sha256", SHA256).returncode == 1
    notes = [one.read_bytes() for one in data.home.rglob("*") if one.is_file()]
    assert notes, "the upload is resumed by a note"
    assert not [one for one in notes if SECRET.encode() in one]
    proxy.reset()
    assert data.json("copy", url, there, "--sha256", SHA256)["copied_files"] == 1
    parts = [one.query["partNumber"] for one in proxy.data if one.method == "PUT" and "partNumber" in one.query]
    assert sorted(parts) == [["3"], ["4"]]
    assert data.json("verify", there)["ok"]


def test_a_file_of_a_server_is_copied_to_other_stores_by_one_request(
    store: Store, tmp_path: Path, host: FileHost
) -> None:
    data = Data(tmp_path / "home", store.server, store.proxy.endpoint)
    wrong = data.run("copy", f"{host.address}/d/big.tar", store.address("set"), "--sha256", "0" * 64)
    assert (wrong.returncode, f"has sha256:{SHA256}" in wrong.stdout) == (1, True)
    assert data.json("ls", store.address("set"))["files"] == []
    host.gets.clear()
    assert data.json("copy", f"{host.address}/d/big.tar", store.address("set"), "--sha256", SHA256)["copied_files"] == 1
    assert [one.range for one in host.gets] == ["bytes=0-0", ""]
    assert data.json("verify", store.address("set"))["ok"]
