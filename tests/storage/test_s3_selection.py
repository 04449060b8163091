"""One object, patterns, and public buckets without credentials can be the source of a copy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.servers.faulty import FaultProxy
from tests.servers.s3 import S3Server
from tests.storage.sets import Data

pytestmark = pytest.mark.slow
OBJECTS = {"set/a.tar": b"a" * 100, "set/b.tar": b"b" * 10_000_000, "set/deep/c.jpg": b"c", "other.tar": b"o"}


@pytest.fixture
def there(server: S3Server, bucket: str) -> str:
    for key, body in OBJECTS.items():
        server.client().put_object(Bucket=bucket, Key=key, Body=body)
    return f"s3://{bucket}"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("set/a.tar",), {"a.tar"}),
        (("set/*.tar",), {"a.tar", "b.tar"}),
        (("set/**/?.*",), {"a.tar", "b.tar", "deep/c.jpg"}),
        (("*.tar",), {"other.tar"}),
        (("set", "--exclude", "*.tar"), {"deep/c.jpg"}),
        (("set/b.tar", "--sha256", hashlib.sha256(OBJECTS["set/b.tar"]).hexdigest()), {"b.tar"}),
    ],
)
def test_a_part_of_a_bucket_is_copied(
    data: Data, there: str, tmp_path: Path, words: tuple[str, ...], names: set[str]
) -> None:
    to = str(tmp_path / "to")
    done = data.json("copy", f"{there}/{words[0]}", to, *words[1:])
    assert done["copied_files"] == len(names)
    assert {one["name"] for one in data.json("ls", to)["files"]} == names
    assert data.json("verify", to)["ok"]
    assert data.json("copy", f"{there}/{words[0]}", to, *words[1:])["unchanged_files"] == len(names)


def test_an_object_does_not_get_the_name_of_the_destination(data: Data, there: str, tmp_path: Path) -> None:
    done = data.run("copy", f"{there}/set/a.tar", str(tmp_path / "a.tar"))
    assert (done.returncode, "the destination is a folder" in done.stderr) == (2, True)
    assert data.run("copy", f"{there}/set/no.tar", str(tmp_path / "to")).returncode == 1


def test_a_wrong_sha256_of_an_object_is_found_also_in_a_copy_to_another_bucket(data: Data, there: str) -> None:
    done = data.run("copy", f"{there}/set/b.tar", f"{there}/to/", "--sha256", "0" * 64)
    assert (done.returncode, "its SHA-256 is" in done.stdout) == (1, True)
    assert data.json("ls", f"{there}/to/")["files"] == []


def test_a_dry_run_sends_nothing_to_a_bucket(data: Data, there: str, proxy: FaultProxy, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/x").touch()
    found = data.json("copy", str(tmp_path / "from"), f"{there}/to/", "--dry-run")
    assert [one["name"] for one in found["files"]] == ["x"]
    assert {one.method for one in proxy.requests} <= {"GET", "HEAD"}
    assert not [one for one in data.home.rglob("*") if one.is_file()]


def test_a_public_bucket_is_read_without_credentials(
    data: Data, server: S3Server, there: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    bucket = there.removeprefix("s3://")
    allowed = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    server.client().put_bucket_policy(Bucket=bucket, Policy=policy)
    user = replace(data, settings={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    to = str(tmp_path / "to")
    assert user.run("copy", f"{there}/set/", to).returncode == 1
    proxy.reset()
    assert user.json("copy", f"{there}/set/", to, "--no-sign-request")["copied_files"] == 3
    assert not [one for one in proxy.requests if "authorization" in one.fields]
    assert user.run("copy", to, f"{there}/back/", "--no-sign-request").returncode == 2
