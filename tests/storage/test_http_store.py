"""Copies from HTTP servers: one file, resumed, verified, redirected; and what a server may do wrong."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.http_files import FileHost, Get, Reply, file_host

from windlass.actions import data
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.storage.selection import Selection
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
    return data.copy(f"{host.address}/{name}", str(to), context(to), selection=Selection(sha256=stated))


def assert_no_secret(folder: Path) -> None:
    """No file below it has the query of a URL."""
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


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
    assert_no_secret(to.parent)


def test_the_files_of_a_list_are_copied_by_their_names_and_verified(host: FileHost, to: Path) -> None:
    host.files["d/SHA256SUMS"] = "".join(
        [
            "# of the publisher\n",
            f"{sha256(BIG)}  big.tar\n",
            f"{sha256(SMALL).upper()} *./deep/small.bin\n",
            f"SHA256 (empty) = {sha256(b'')}\n",
            f"{sha256(SMALL)}  {host.address}/d/small.bin?{SECRET}\n",
        ]
    ).encode()
    host.files["d/deep/small.bin"] = SMALL
    done = copied(host, "d/SHA256SUMS", to)
    assert (done.copied_files, done.refused) == (4, ())
    assert (to / "deep/small.bin").read_bytes() == (to / "small.bin").read_bytes() == SMALL
    assert copied(host, "d/SHA256SUMS", to).unchanged_files == 4
    part = data.copy(
        f"{host.address}/d/SHA256SUMS", str(to.parent / "part"), context(to), selection=Selection(("*.tar",))
    )
    assert (part.copied_files, (to.parent / "part/big.tar").read_bytes()) == (1, BIG)
    assert_no_secret(to.parent)


def test_a_list_of_this_machine_names_urls(host: FileHost, to: Path) -> None:
    to.parent.joinpath("set.sha256").write_text(f"{sha256(SMALL)}  {host.address}/d/small.bin?{SECRET}\n")
    done = data.copy("set.sha256", str(to), context(to))
    assert (done.copied_files, (to / "small.bin").read_bytes()) == (1, SMALL)
    to.parent.joinpath("set.sha256").unlink()
    assert_no_secret(to.parent)


def test_a_list_of_files_on_this_machine_is_copied_as_a_file(to: Path) -> None:
    to.parent.joinpath("SHA256SUMS").write_text(f"{sha256(SMALL)}  small.bin\n")
    assert data.copy("SHA256SUMS", str(to), context(to)).copied_files == 1
    assert (to / "SHA256SUMS").exists()


def test_files_of_a_list_that_are_missing_or_differ_are_refused_by_name_and_the_others_copied(
    host: FileHost, to: Path
) -> None:
    lines = (f"{sha256(SMALL)}  small.bin", f"{sha256(SMALL)}  big.tar", f"{sha256(SMALL)}  gone", f"{'0' * 64}  ../x")
    host.files["d/all.sha256"] = "\n".join(lines).encode()
    done = copied(host, "d/all.sha256", to)
    assert (done.copied_files, [one.name for one in done.refused]) == (1, ["../x", "big.tar", "gone"])
    assert "404" in done.refused[2].why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no files"),
        ("abc  x", "line 1 is not of the form: SHA256  NAME"),
        (f"{'0' * 64}  x\n\n{'1' * 64}  x", "line 3: two different files have the name x"),
        (f"{'0' * 64}  https://host/", "line 1: the URL names no file"),
        (f"{'0' * 64}  https://host:x/f?{SECRET}", "line 1: the URL cannot be used: its port is not a number"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_its_line(host: FileHost, to: Path, text: str, said: str) -> None:
    host.files["d/SHA256SUMS"] = text.encode()
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        copied(host, "d/SHA256SUMS", to)
    assert SECRET not in str(raised.value)
