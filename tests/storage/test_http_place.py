"""Copies from HTTP servers are resumed, verified and redirected, and faulty servers are detected."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import threading
import time
import traceback
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.kubernetes.wire import Authority
from tests.helpers.machine import WINDLASS
from tests.helpers.until import until
from tests.servers.faulty import PASS, Fault, Request, fault_proxy
from tests.servers.http_files import FileHost, Get, Reply, file_host
from tests.storage.pods import Pods

from windlass.actions import data
from windlass.errors import StorageError, UsageError
from windlass.runs.context import Context
from windlass.storage.address import Address
from windlass.storage.progress import Copied, Progress
from windlass.storage.selection import Selection
from windlass.stores.url import Url

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


def copied(host: FileHost, name: str, to: Path, stated: str = "") -> Copied:
    return data.copy(f"{host.address}/{name}", str(to), context(to), selection=Selection(sha256=stated)).copied


def assert_no_secret(folder: Path) -> None:
    """Asserts that no file below the folder contains the query of a URL."""
    for path in folder.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def bodies(host: FileHost) -> list[Get]:
    """Returns the requests for more than the first byte."""
    return [one for one in host.gets if one.range != "bytes=0-0"]


def faults(host: FileHost, replies: list[Reply]) -> None:
    """Answers the first requests for the content with these replies."""
    left = iter(replies)
    host.reply = lambda get: Reply() if get.range == "bytes=0-0" else next(left, Reply())


@pytest.mark.parametrize("name", ["d/big.tar", "d/small.bin", "d/empty"])
def test_a_file_of_a_server_is_copied_once(host: FileHost, to: Path, name: str) -> None:
    first = copied(host, name, to)
    assert (first.num_copied, (to / Path(name).name).read_bytes()) == (1, host.files[name])
    again = copied(host, name, to)
    assert (again.num_copied, again.num_unchanged, len(bodies(host))) == (0, 1, min(1, len(host.files[name])))


def test_a_second_file_is_added_to_the_manifest_of_the_folder(host: FileHost, to: Path) -> None:
    copied(host, "d/small.bin", to)
    done = copied(host, "d/big.tar", to)
    assert done.num_files == 2
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


@pytest.mark.parametrize("name", ["big.tar", "small.bin"])
def test_a_stated_sha256_that_is_left_out_or_stated_again_does_not_fetch_an_unchanged_file(
    host: FileHost, to: Path, name: str
) -> None:
    content = host.files[f"d/{name}"]
    digests = ("", sha256(content), "", sha256(content), sha256(b"other"))
    fetched = [copied(host, f"d/{name}", to, stated).num_copied for stated in digests[:-1]]
    assert (fetched, len(bodies(host))) == ([1, 1, 0, 0], 2), "before the second copy, nobody had compared the file"
    assert [one.name for one in copied(host, f"d/{name}", to, digests[-1]).refused] == [name]


def test_a_file_whose_etag_changes_is_fetched_again_unless_its_stated_sha256_is_the_same(
    host: FileHost, to: Path
) -> None:
    def tagged(tag: str) -> None:
        host.reply = lambda _get: Reply(has_version=False, headers=(("ETag", f'"{tag}"'),))

    tagged("one")
    copied(host, "d/small.bin", to, sha256(SMALL))
    tagged("two")
    assert copied(host, "d/small.bin", to, sha256(SMALL)).num_copied == 0
    assert copied(host, "d/small.bin", to).num_copied == 1


def test_a_file_of_this_machine_is_not_copied_again_without_its_sha256(to: Path) -> None:
    to.parent.joinpath("x").write_bytes(SMALL)
    stated = Selection(sha256=sha256(SMALL))
    fetched = [data.copy("x", str(to), context(to), selection=one).copied.num_copied for one in (stated, Selection())]
    assert fetched == [1, 0]


def test_a_list_cannot_name_the_files_that_windlass_keeps_beside_a_set(host: FileHost, to: Path) -> None:
    own = (".windlass-manifest.jsonl", ".windlass/journal.jsonl", ".windlass/manifest.jsonl")
    lines = [f"{sha256(SMALL)}  {name}\n" for name in (*own, "small.bin")]
    host.files |= {f"d/{name}": SMALL for name in own} | {"d/SHA256SUMS": "".join(lines).encode()}
    done = copied(host, "d/SHA256SUMS", to)
    assert (done.num_copied, tuple(one.name for one in done.refused)) == (1, own)
    assert "Windlass keeps a file of its own under its name" in done.refused[0].why
    assert data.verify(str(to), context(to)).ok


def test_escaped_names_of_a_list_are_those_that_sha256sum_has_escaped(host: FileHost, to: Path) -> None:
    host.files |= {"d/a\\nb": SMALL, "d/SHA256SUMS": f"\\{sha256(SMALL)}  a\\\\nb\n".encode()}
    assert copied(host, "d/SHA256SUMS", to).refused == ()
    assert (to / "a\\nb").read_bytes() == SMALL


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
    assert (done.num_copied, done.refused) == (4, ())
    assert (to / "deep/small.bin").read_bytes() == (to / "small.bin").read_bytes() == SMALL
    assert copied(host, "d/SHA256SUMS", to).num_unchanged == 4
    part = data.copy(
        f"{host.address}/d/SHA256SUMS", str(to.parent / "part"), context(to), selection=Selection(("*.tar",))
    )
    assert (part.copied.num_copied, (to.parent / "part/big.tar").read_bytes()) == (1, BIG)
    assert_no_secret(to.parent)


def test_a_list_of_this_machine_names_urls(host: FileHost, to: Path) -> None:
    to.parent.joinpath("set.sha256").write_text(f"{sha256(SMALL)}  {host.address}/d/small.bin?{SECRET}\n")
    done = data.copy("set.sha256", str(to), context(to)).copied
    assert (done.num_copied, (to / "small.bin").read_bytes()) == (1, SMALL)
    to.parent.joinpath("set.sha256").unlink()
    assert_no_secret(to.parent)


def test_no_request_is_sent_for_files_of_a_list_that_are_not_selected(host: FileHost, to: Path) -> None:
    lines = (f"{sha256(SMALL)}  small.bin", f"{sha256(BIG)}  big.tar", f"{'0' * 64}  http://127.0.0.1:9/gone/x")
    host.files["d/SHA256SUMS"] = "\n".join(lines).encode()

    def narrowed(selection: Selection) -> Copied:
        return data.copy(f"{host.address}/d/SHA256SUMS", str(to), context(to), selection=selection).copied

    assert narrowed(Selection(exclude=("x", "*.tar"))).num_copied == 1
    assert {one.name for one in host.gets} == {"d/SHA256SUMS", "d/small.bin"}
    with pytest.raises(StorageError, match="none of its 3 files is selected"):
        narrowed(Selection(include=("y",)))
    with pytest.raises(StorageError, match="its only file is not selected"):
        data.copy(f"{host.address}/d/small.bin", str(to), context(to), selection=Selection(exclude=("*.bin",)))


def test_a_list_of_files_on_this_machine_is_copied_as_a_file(to: Path) -> None:
    to.parent.joinpath("SHA256SUMS").write_text(f"{sha256(SMALL)}  small.bin\n")
    assert data.copy("SHA256SUMS", str(to), context(to)).copied.num_copied == 1
    assert (to / "SHA256SUMS").exists()


def test_files_of_a_list_that_are_missing_or_differ_are_refused_by_name_and_the_others_copied(
    host: FileHost, to: Path
) -> None:
    lines = (f"{sha256(SMALL)}  small.bin", f"{sha256(SMALL)}  big.tar", f"{sha256(SMALL)}  gone", f"{'0' * 64}  ../x")
    host.files["d/all.sha256"] = "\n".join(lines).encode()
    done = copied(host, "d/all.sha256", to)
    assert (done.num_copied, [one.name for one in done.refused]) == (1, ["../x", "big.tar", "gone"])
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


@pytest.mark.slow
def test_a_pod_stages_a_file_or_a_list_by_python_alone(host: FileHost, tmp_path: Path) -> None:
    host.files["d/SHA256SUMS"] = f"{sha256(SMALL)}  small.bin\n{sha256(BIG)}  big.tar\n".encode()
    pods = Pods(tmp_path)
    one = pods.stage(f"{host.address}/d/small.bin").ended()
    assert (one.code, one.err, (pods.link() / "small.bin").read_bytes()) == (0, "", SMALL)
    some = pods.stage(f"{host.address}/d/SHA256SUMS", "r-2").ended()
    assert (some.outcome["results"][0]["files"], (pods.link("r-2") / "big.tar").read_bytes()) == (2, BIG)
    assert pods.stage(f"{host.address}/d/SHA256SUMS", "r-3").ended().outcome["results"][0]["moved"] == 0


def test_a_url_with_a_query_is_staged_on_this_machine_and_not_in_a_cluster(host: FileHost, to: Path) -> None:
    staged = data.stage(f"{host.address}/d/small.bin?{SECRET}", context(to))
    assert (staged.files, staged.sources) == (1, (f"{host.address}/d/small.bin",))
    assert_no_secret(to.parent)
    with pytest.raises(UsageError, match="has a query or a login, which objects of the cluster would keep") as raised:
        data.stage_in_claim(
            f"{host.address}/d/small.bin?{SECRET}", "lab", None, context(to), progress=Progress(), on_line=print
        )
    assert SECRET not in str(raised.value)


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_copied_is_begun_again_and_is_not_mixed(host: FileHost, to: Path) -> None:
    other = bytes(reversed(BIG))

    def change(_get: Get) -> Reply:
        if len(bodies(host)) == 2:
            host.files["d/big.tar"] = other
        return Reply(cut_after=PART + 10) if len(bodies(host)) == 1 else Reply()

    host.reply = change
    assert copied(host, "d/big.tar", to).num_copied == 1
    assert (to / "big.tar").read_bytes() == other


@pytest.mark.slow
def test_a_server_that_ignores_if_range_is_found_out_by_the_version_of_its_answer(host: FileHost, to: Path) -> None:
    other = bytes(reversed(BIG))

    def change(_get: Get) -> Reply:
        if len(bodies(host)) == 2:
            host.files["d/big.tar"] = other
        return Reply(cut_after=PART + 10) if len(bodies(host)) == 1 else Reply(ignores_if_range=True)

    host.reply = change
    assert copied(host, "d/big.tar", to).num_copied == 1
    assert (to / "big.tar").read_bytes() == other


def test_a_server_without_ranges_sends_the_file_again_and_what_is_there_is_kept(host: FileHost, to: Path) -> None:
    left = iter([Reply(ignores_range=True), Reply(ignores_range=True, cut_after=PART + 10)])
    host.reply = lambda _get: next(left, Reply(ignores_range=True))
    assert copied(host, "d/big.tar", to, sha256(BIG)).num_copied == 1
    assert (to / "big.tar").read_bytes() == BIG
    assert [one.range for one in bodies(host)] == ["", ""]


def test_contents_are_compared_by_one_request_also_where_a_server_has_no_ranges(host: FileHost, to: Path) -> None:
    host.reply = lambda _get: Reply(ignores_range=True)
    copied(host, "d/big.tar", to)
    host.gets.clear()
    done = data.copy(f"{host.address}/d/big.tar", str(to), context(to), by_content=True)
    assert (done.copied.num_unchanged, len(bodies(host))) == (1, 1)


def test_without_a_version_and_a_sha256_a_broken_download_begins_again(host: FileHost, to: Path) -> None:
    left = iter([Reply(has_version=False), Reply(has_version=False, cut_after=2 * PART)])
    host.reply = lambda _get: next(left, Reply(has_version=False))
    assert copied(host, "d/big.tar", to).num_copied == 1
    assert (to / "big.tar").read_bytes() == BIG
    assert copied(host, "d/big.tar", to).num_copied == 1, "nothing shows that it is the same file"


def test_a_server_that_is_busy_is_asked_again_after_the_pause_that_it_asks_for(host: FileHost, to: Path) -> None:
    times: list[float] = []

    def busy(_get: Get) -> Reply:
        times.append(time.monotonic())
        return Reply(status=429, headers=(("Retry-After", "1"),)) if len(times) in (1, 3) else Reply()

    host.reply = busy
    assert copied(host, "d/small.bin", to).num_copied == 1
    assert times[1] - times[0] >= 1
    assert times[3] - times[2] >= 1


def test_a_redirect_is_followed_and_the_login_goes_to_its_host_alone(host: FileHost, to: Path) -> None:
    login = host.address.replace("http://", "http://me:5ec7e7@")
    with file_host({"there/x": SMALL}) as other:
        to_other = (("Location", f"{other.address}/there/x?{SECRET}"),)
        host.reply = lambda get: Reply(302, to_other) if get.name == "d/x" else Reply()
        done = data.copy(f"{login}/d/x", str(to), context(to))
        assert (done.source, (to / "x").read_bytes()) == (f"{host.address}/d/x", SMALL)
        assert {one.authorization for one in host.gets} == {f"Basic {b64encode(b'me:5ec7e7').decode()}"}
        assert {(one.authorization, one.query) for one in other.gets} == {("", SECRET)}
        host.reply = lambda get: Reply(307, (("Location", "/d/small.bin"),)) if get.name == "d/y" else Reply()
        data.copy(f"{login}/d/y", str(to), context(to))
        assert "" not in {one.authorization for one in host.gets}
    for path in to.parent.rglob("*"):
        assert path.is_dir() or not re.search(rb"5ec7e7|there", path.read_bytes()), path


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/d/x", "redirects more than 10 times"),
        ("ftp://host/x", "redirects to an address that is not http or https"),
        ("file:///etc/passwd", "redirects to an address that is not http or https"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_an_error(host: FileHost, to: Path, location: str, said: str) -> None:
    host.reply = lambda _get: Reply(302, (("Location", location),))
    with pytest.raises(StorageError, match=said):
        copied(host, "d/x", to)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "the server answers 404 Not Found"),
        (403, "403 Forbidden: it may need a login, or the URL may have expired"),
        (501, "the server answers 501"),
    ],
)
def test_a_refusal_of_a_server_is_an_error_at_once_without_the_query(
    host: FileHost, to: Path, status: int, said: str
) -> None:
    host.reply = lambda _get: Reply(status)
    with pytest.raises(StorageError) as raised:
        copied(host, f"d/x?{SECRET}", to)
    assert said in raised.value.message
    assert str(raised.value).startswith(f"{host.address}/d/x: ")
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert len(host.gets) == 1


def test_a_page_in_place_of_a_file_is_refused(host: FileHost, to: Path) -> None:
    host.files["d/page"] = host.files["d/page.html"] = b"<html>Please log in</html>"
    host.reply = lambda _get: Reply(headers=(("Content-Type", "text/html; charset=utf-8"),))
    with pytest.raises(StorageError, match="answers with an HTML page, which may ask for a login"):
        copied(host, "d/page", to)
    assert copied(host, "d/page.html", to).num_copied == 1
    done = copied(host, "d/page", to, sha256(SMALL))
    assert (done.num_copied, "damaged at its source" in done.refused[0].why) == (0, True)


def test_a_byte_that_is_changed_on_its_way_is_found_by_the_sha256(host: FileHost, to: Path) -> None:
    port = int(host.address.rpartition(":")[2])
    with fault_proxy(port) as proxy:
        for name, content in (("small.bin", SMALL), ("big.tar", BIG)):
            changed = iter([Fault(flips_answer_at=7)])

            def fault(request: Request, left: Iterator[Fault] = changed) -> Fault:
                return PASS if request.fields.get("range") == "bytes=0-0" else next(left, PASS)

            proxy.fault = fault
            done = data.copy(
                f"{proxy.endpoint}/d/{name}", str(to), context(to), selection=Selection(sha256=sha256(content))
            )
            assert (done.copied.num_copied, (to / name).read_bytes()) == (1, content)


@pytest.mark.slow
def test_connections_that_break_again_and_again_do_not_end_a_copy_that_gets_on(host: FileHost, to: Path) -> None:
    host.reply = lambda get: Reply() if get.range == "bytes=0-0" else Reply(cut_after=2 << 20)
    assert copied(host, "d/big.tar", to).num_copied == 1
    assert (to / "big.tar").read_bytes() == BIG


def test_connections_that_break_again_and_again_do_not_end_the_copy_of_a_file_without_parts(
    host: FileHost, to: Path
) -> None:
    host.files["d/one.bin"] = BIG[: 6 << 20]
    host.reply = lambda get: Reply() if get.range == "bytes=0-0" else Reply(cut_after=1 << 20)
    assert copied(host, "d/one.bin", to).num_copied == 1
    assert (to / "one.bin").read_bytes() == BIG[: 6 << 20]


def test_a_server_that_nothing_listens_for_is_an_error_after_some_tries(to: Path) -> None:
    with pytest.raises(StorageError, match="the server does not answer: Connection refused"):
        data.copy("http://127.0.0.1:9/x", str(to), context(to))


@pytest.mark.slow
def test_a_copy_that_was_killed_goes_on_where_it_ended(host: FileHost, to: Path) -> None:
    environ = {**os.environ, "WINDLASS_HOME": str(to.parent / "home")}
    command = [str(WINDLASS), "data", "copy", f"{host.address}/d/big.tar?{SECRET}", str(to), "--sha256", sha256(BIG)]
    killed = threading.Event()

    def wait(num_bytes: int) -> None:
        if num_bytes > 2 * PART:
            killed.wait()

    host.sent = wait
    popen = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: host.num_bytes > 2 * PART)
    popen.kill()
    popen.wait()
    killed.set()
    assert_no_secret(to.parent)
    before = len(host.gets)
    assert subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0
    assert (to / "big.tar").read_bytes() == BIG
    # Bytes sent are no measure: the server may send a piece to the killed process after its end.
    spans = [get.range.removeprefix("bytes=").partition("-") for get in host.gets[before:]]
    asked_for = sum(int(end or len(BIG) - 1) + 1 - int(start) for start, _, end in spans)
    assert asked_for < len(BIG) - PART, "only what was missing is fetched"
    assert_no_secret(to.parent)


def test_the_certificate_of_a_server_is_verified(to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    authority = Authority(tmp_path / "keys")
    with file_host({"x": SMALL}, authority.serve("proxy")) as host:
        with pytest.raises(StorageError, match="the certificate of the server is not valid") as raised:
            copied(host, f"x?{SECRET}", to)
        assert SECRET not in str(raised.value)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert copied(host, "x", to).num_copied == 1
        with file_host({}) as plain:
            host.reply = lambda _get: Reply(302, (("Location", f"{plain.address}/x"),))
            with pytest.raises(StorageError, match="redirects from https to http"):
                copied(host, "y", to)


def test_a_server_is_reached_by_the_proxy_of_the_environment(to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file_host({"http://files.invalid/d/x": SMALL}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        assert data.copy("http://files.invalid/d/x", str(to), context(to)).copied.num_copied == 1
    assert (to / "x").read_bytes() == SMALL


def test_a_dry_run_shows_what_is_left_of_an_interrupted_copy_and_fetches_nothing(host: FileHost, to: Path) -> None:
    lines = f"{sha256(SMALL)}  small.bin\n{sha256(BIG)}  big.tar\n{sha256(b'')}  gone\n"
    host.files["d/SHA256SUMS"] = lines.encode()
    copied(host, "d/small.bin", to, sha256(SMALL))
    host.gets.clear()
    found = data.preview_copy(f"{host.address}/d/SHA256SUMS", str(to), context(to))
    assert ([one.name for one in found.files], found.bytes, found.unchanged_files) == (["big.tar"], len(BIG), 1)
    assert [one.name for one in found.refused] == ["gone"]
    assert [one.name for one in bodies(host)] == ["d/SHA256SUMS"]


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("https://host/a b/ü.tar#part", "https://host/a%20b/%C3%BC.tar", "ü.tar"),
        ("HTTPS://Host:8443/x%2Fy?q=5ec7e7", "https://host:8443/x%2Fy", "x/y"),
        ("https://bücher.example/x", "https://xn--bcher-kva.example/x", "x"),
        ("http://[::1]:80/x", "http://[::1]:80/x", "x"),
        ("https://me:5ec7e7@host", "https://host/", ""),
    ],
)
def test_the_text_of_a_url_has_no_secret_and_can_be_sent(text: str, url: str, name: str) -> None:
    found = Url.parse(text)
    assert (str(found), found.name, found.target.isascii()) == (url, name, True)
    assert "5ec7e7" not in repr(found) + str(Address.parse(text, Path())) + repr(Address.parse(text, Path()))


@pytest.mark.parametrize(
    "text",
    [
        "https:///x",
        "https://ho st/x",
        "https://host:99999/x",
        "ftp://host/x",
        "https://[::1/x",
        "https://h\r\nx/",
        "https://me:5ec7e7@℀/x",
    ],
)
def test_invalid_url_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it |^its ") as raised:
        Url.parse(f"{text}?{SECRET}")
    assert "5ec7e7" not in str(raised.value)
