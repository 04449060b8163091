"""Copies from HTTP servers: one file, resumed, verified, redirected; and what a server may do wrong."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.http_files import FileHost, Get, Reply, file_host

from windlass.actions import data
from windlass.runs.context import Context
from windlass.views.reports import DataCopied

PART = 8 << 20
BIG = random.Random(1).randbytes(3 * PART - 1000)
SMALL = b"small" * 100
SECRET = "X-Amz-Signature=5ec7e7"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def host() -> Iterator[FileHost]:
    with file_host({"d/big.tar": BIG, "d/small.bin": SMALL, "d/empty": b""}) as found:
        yield found


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


def context(to: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(to.parent / "home")}, to.parent)


def copied(host: FileHost, name: str, to: Path, stated: str = "") -> DataCopied:
    return data.copy(f"{host.address}/{name}", str(to), context(to), sha256=stated)


def bodies(host: FileHost) -> list[Get]:
    """Requests for more than the first byte."""
    return [one for one in host.gets if one.range != "bytes=0-0"]


def faults(host: FileHost, replies: list[Reply]) -> None:
    """The first requests for the content are answered so."""
    left = iter(replies)
    host.reply = lambda get: Reply() if get.range == "bytes=0-0" else next(left, Reply())


@pytest.mark.parametrize("name", ["d/big.tar", "d/small.bin", "d/empty"])
def test_a_file_of_a_server_is_copied_once(host: FileHost, to: Path, name: str) -> None:
    first = copied(host, name, to)
    assert (first.copied_files, (to / Path(name).name).read_bytes()) == (1, host.files[name])
    again = copied(host, name, to)
    assert (again.copied_files, again.unchanged_files, len(bodies(host))) == (0, 1, min(1, len(host.files[name])))


def test_a_second_file_is_added_to_the_manifest_of_the_folder(host: FileHost, to: Path) -> None:
    copied(host, "d/small.bin", to)
    done = copied(host, "d/big.tar", to)
    assert done.files == 2
    assert data.verify(str(to), context(to)).ok


def test_a_file_whose_connection_breaks_is_resumed_at_the_byte_where_it_ended(host: FileHost, to: Path) -> None:
    faults(host, [Reply(cut_after=PART + 300_000), Reply(cut_after=1 << 20)])
    copied(host, "d/big.tar", to, sha256(BIG))
    starts = [int(one.range.removeprefix("bytes=").partition("-")[0] or 0) for one in bodies(host)[1:]]
    assert (to / "big.tar").read_bytes() == BIG
    assert PART <= starts[0] <= PART + 300_000 < starts[1]


def test_a_wrong_sha256_leaves_no_file_and_names_both(host: FileHost, to: Path) -> None:
    for name, content in (("big.tar", BIG), ("small.bin", SMALL)):
        done = copied(host, f"d/{name}", to, sha256(b"other"))
        assert [one.name for one in done.refused] == [name]
        assert all(digest in done.refused[0].why for digest in (sha256(content), sha256(b"other")))
        assert not (to / name).exists()
    assert not (to / ".windlass").exists()


def test_no_file_has_the_query_of_a_url(host: FileHost, to: Path) -> None:
    copied(host, f"d/big.tar?{SECRET}", to)
    assert {one.query for one in host.gets} == {SECRET}
    for path in to.parent.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
