"""Downloads over HTTP that are cut, refused, changed meanwhile or damaged; resumed inside the file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recipes.tiny import checksums
from tests.servers.http_files import FileHost, Get, Reply, file_host

from windlass.errors import StorageError, UsageError
from windlass.recipes import download
from windlass.recipes.download import Downloaded, Downloading
from windlass.recipes.recipe import Download
from windlass.recipes.source import Interrupted, SafeRedirects, source_of
from windlass.storage.progress import Progress

NAME = "set.zip"
DATA = random.Random(1).randbytes(1_500_000)
WITH = Download(NAME, "unused", len(DATA), checksums(DATA), "its author")
WITHOUT = Download(NAME, "unused")


@pytest.fixture
def host() -> Iterator[FileHost]:
    with file_host({NAME: DATA}) as found:
        yield found


class Scene:
    """A folder of downloads, with what was waited."""

    def __init__(self, folder: Path, host: FileHost) -> None:
        self.folder, self.host = folder, host
        self.pauses: list[float] = []
        self.progress = Progress()

    def fetch(
        self, what: Download = WITH, mirror: str = "", boot: str = "b1", sync_bytes: int = download.SYNC_BYTES
    ) -> Downloaded:
        self.pauses.clear()
        self.progress = Progress()
        found = source_of(NAME, "unused", mirror or self.host.address)
        return Downloading(what, found, self.folder, self.progress, self.pauses.append, boot, sync_bytes).run()

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.folder.iterdir()}

    @property
    def ranges(self) -> list[str]:
        return [one.range for one in self.host.gets]


@pytest.fixture
def scene(tmp_path: Path, host: FileHost) -> Scene:
    return Scene(tmp_path, host)


def test_a_file_is_verified_and_a_second_download_asks_for_nothing(scene: Scene) -> None:
    done = scene.fetch()
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert done == Downloaded(NAME, f"{scene.host.address}/{NAME}", len(DATA), sha256, "its author")
    assert (scene.folder / NAME).read_bytes() == DATA
    assert (scene.progress.bytes_done, scene.progress.bytes_moved) == (len(DATA), len(DATA))
    assert scene.fetch() == done
    assert (len(scene.host.gets), scene.progress.bytes_done, scene.progress.bytes_moved) == (1, len(DATA), 0)


@pytest.mark.parametrize("what", [WITH, WITHOUT])
def test_a_connection_that_is_cut_is_gone_on_with_where_it_was(scene: Scene, what: Download) -> None:
    cuts = iter((400_000, 400_000, 0, 300_000))
    scene.host.reply = lambda _get: Reply(cut_after=next(cuts, None))
    assert scene.fetch(what).sha256 == hashlib.sha256(DATA).hexdigest()
    assert scene.host.num_bytes == len(DATA)
    assert scene.ranges == ["", "bytes=400000-", "bytes=800000-", "bytes=800000-", "bytes=1100000-"]
    assert len(scene.pauses) == 4
    assert (scene.progress.num_bytes, scene.progress.bytes_done) == (0 if what is WITH else len(DATA), len(DATA))


def test_a_connection_may_be_cut_any_number_of_times_as_long_as_bytes_come(scene: Scene) -> None:
    scene.host.reply = lambda _get: Reply(cut_after=100_000)
    scene.fetch()
    assert (len(scene.host.gets), scene.host.num_bytes) == (15, len(DATA))


def test_a_busy_host_is_asked_again_after_the_pause_it_wants(scene: Scene) -> None:
    replies = iter((Reply(503, (("Retry-After", "7"),)), Reply(429, (("Retry-After", "9999"),)), Reply(500)))
    scene.host.reply = lambda _get: next(replies, Reply())
    scene.fetch()
    assert scene.pauses[:2] == [7.0, download.MAX_ASKED_PAUSE_SECONDS]
    assert scene.pauses[2] < 1


def test_a_host_that_stays_busy_ends_the_download_and_what_is_there_is_kept(scene: Scene) -> None:
    scene.host.reply = lambda get: Reply(503) if get.range else Reply(cut_after=500_000)
    with pytest.raises(Interrupted, match="the host answers 503"):
        scene.fetch()
    assert len(scene.pauses) == 7
    assert (scene.folder / f"{NAME}.partial").read_bytes() == DATA[:500_000]
    scene.host.reply = lambda _get: Reply()
    scene.fetch()
    assert scene.host.num_bytes == len(DATA)


def test_a_host_without_ranges_that_always_cuts_is_given_up(scene: Scene) -> None:
    scene.host.reply = lambda _get: Reply(ignores_range=True, cut_after=500_000)
    with pytest.raises(Interrupted, match="1,000,000 bytes before the end"):
        scene.fetch()
    assert len(scene.host.gets) == 8
    assert scene.progress.bytes_done == 500_000


@pytest.mark.parametrize(("ignores", "ranges"), [(False, ["", "bytes=900000-"]), (True, ["", "bytes=900000-", ""])])
def test_a_file_that_is_changed_meanwhile_is_fetched_anew(scene: Scene, ignores: bool, ranges: list[str]) -> None:
    cuts = iter((900_000,))
    scene.host.reply = lambda _get: Reply(cut_after=next(cuts, None), ignores_if_range=ignores)
    other = DATA[::-1]

    def change(num_bytes: int) -> None:
        scene.host.files[NAME] = other

    scene.host.sent = change
    assert scene.fetch(WITHOUT).sha256 == hashlib.sha256(other).hexdigest()
    assert scene.ranges == ranges
    assert (scene.folder / NAME).read_bytes() == other
    assert scene.progress.bytes_done == len(DATA)


def test_without_a_version_or_a_checksum_nothing_is_put_together_of_two_answers(scene: Scene) -> None:
    cuts = iter((900_000,))
    scene.host.reply = lambda _get: Reply(cut_after=next(cuts, None), has_version=False)
    scene.fetch(WITHOUT)
    assert scene.ranges == ["", ""]
    cuts = iter((900_000,))
    (scene.folder / NAME).unlink()
    scene.host.gets.clear()
    scene.fetch(WITH)
    assert scene.ranges == ["", "bytes=900000-"], "a checksum shows what a version would"


def test_another_mirror_goes_on_with_what_a_checksum_proves(scene: Scene, tmp_path: Path) -> None:
    scene.host.reply = lambda get: Reply(503) if get.range else Reply(cut_after=900_000)
    with pytest.raises(Interrupted):
        scene.fetch()
    with file_host({NAME: DATA}) as other:
        done = scene.fetch(mirror=f"{other.address}/")
        assert [one.range for one in other.gets] == ["bytes=900000-"]
    assert done.url == f"{other.address}/{NAME}"


def test_a_damaged_file_is_removed_with_both_checksums_in_the_message(scene: Scene) -> None:
    scene.host.files[NAME] = DATA[:-1] + bytes((DATA[-1] ^ 1,))
    with pytest.raises(StorageError) as refused:
        scene.fetch()
    found = hashlib.sha256(scene.host.files[NAME]).hexdigest()
    assert f"its sha256 is {found}, and its author publishes {hashlib.sha256(DATA).hexdigest()}" in str(refused.value)
    assert scene.names == set()
    scene.host.files[NAME] = DATA
    scene.fetch()
    assert scene.ranges == ["", ""]


def test_all_checksums_of_a_recipe_must_match(scene: Scene) -> None:
    good, bad = WITH.checksums[0], f"md5:{hashlib.md5(b'other').hexdigest()}"
    with pytest.raises(StorageError, match="its md5 is"):
        scene.fetch(Download(NAME, "", None, (good, bad), "x"))


def test_a_file_of_another_size_is_refused_before_it_is_read(scene: Scene) -> None:
    scene.host.files[NAME] = DATA + b"x"
    with pytest.raises(StorageError, match="has 1,500,001 bytes, and the file of the recipe 1,500,000"):
        scene.fetch()
    assert scene.names == set()


def test_a_file_that_was_removed_or_replaced_by_a_page_is_refused_at_once(scene: Scene) -> None:
    scene.host.reply = lambda _get: Reply(404)
    with pytest.raises(StorageError, match="the host answers 404"):
        scene.fetch()
    scene.host.reply = lambda _get: Reply(headers=(("Content-Type", "text/html; charset=utf-8"),))
    with pytest.raises(StorageError, match=r"answers with a page, not with the file\n.*--from FOLDER"):
        scene.fetch(WITHOUT)
    assert (len(scene.host.gets), scene.pauses) == (2, [])


def test_a_gzip_file_that_its_host_calls_an_encoding_is_kept_as_it_is(scene: Scene) -> None:
    scene.host.reply = lambda _get: Reply(headers=(("Content-Encoding", "x-gzip"),))  # as Apache does
    scene.fetch()
    assert (scene.folder / NAME).read_bytes() == DATA


def test_a_host_that_cannot_be_reached_is_named_with_what_to_try(scene: Scene) -> None:
    with pytest.raises(Interrupted) as failed:
        scene.fetch(mirror="http://127.0.0.1:9")
    assert failed.value.message == f"http://127.0.0.1:9/{NAME}: the host cannot be reached: Connection refused"
    assert "--from URL" in failed.value.hint
    assert len(scene.pauses) == 7


def test_what_was_not_synced_before_a_restart_of_the_machine_is_fetched_again(
    scene: Scene,
) -> None:
    scene.host.reply = lambda get: Reply(503) if get.range else Reply(cut_after=900_000)
    for boot, at in (("b1", 900_000), ("b2", 1 << 19)):
        scene.host.gets.clear()
        with pytest.raises(Interrupted):
            scene.fetch(boot=boot, sync_bytes=1 << 19)
        assert scene.ranges[-1] == f"bytes={at}-" if boot == "b1" else scene.ranges[0] == f"bytes={at}-"
    assert (scene.folder / f"{NAME}.partial").stat().st_size == 1 << 19
    scene.host.reply = lambda _get: Reply(cut_after=1) if len(scene.host.gets) == 1 else Reply(503)
    for boot in ("b2", "b3"):
        scene.host.gets.clear()
        with pytest.raises(Interrupted):
            scene.fetch(boot=boot)
    assert scene.ranges[0] == f"bytes={1 << 19}-", "what was there before is on the disk when it is gone on with"


@pytest.mark.parametrize("state", [b"", b"[]", b'{"version": 7', b'{"boot": "b1", "version": 5, "size": "x"}'])
def test_a_damaged_state_costs_no_more_than_the_bytes(scene: Scene, state: bytes) -> None:
    (scene.folder / f"{NAME}.state").write_bytes(state)
    (scene.folder / f"{NAME}.partial").write_bytes(b"?" * 5000)
    assert scene.fetch(WITHOUT).sha256 == hashlib.sha256(DATA).hexdigest()


def test_a_partial_file_beyond_the_end_is_fetched_anew(scene: Scene) -> None:
    (scene.folder / f"{NAME}.state").write_text(json.dumps({"boot": "b1"}))
    (scene.folder / f"{NAME}.partial").write_bytes(b"?" * (len(DATA) + 5))
    scene.fetch()
    assert scene.ranges == [f"bytes={len(DATA) + 5}-", ""]


def test_a_file_that_needs_more_space_than_there_is_is_refused_before_it_is_read(
    scene: Scene,
) -> None:
    disk = os.statvfs(scene.folder)
    scene.host.reply = lambda _get: Reply(states=2 * disk.f_frsize * disk.f_blocks)
    with pytest.raises(StorageError, match=r"needs [\d,]+ bytes more, and .* has [\d,]+ free"):
        scene.fetch(WITHOUT)
    assert scene.progress.bytes_moved == 0


# -- addresses --------------------------------------------------------------------------------------------------------


def test_a_folder_or_its_url_may_have_the_files(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("a mirror")
    (there / NAME).write_bytes(DATA)
    done = scene.fetch(WITHOUT, mirror=str(there))
    assert (done.url, done.num_bytes) == ((there / NAME).as_uri(), len(DATA))
    (scene.folder / NAME).unlink()
    assert scene.fetch(mirror=there.as_uri()).verified_by == "its author"
    (there / NAME).unlink()
    (scene.folder / NAME).unlink()
    with pytest.raises(StorageError, match="No such file"):
        scene.fetch(mirror=str(there))


@pytest.mark.parametrize(
    ("mirror", "said"),
    [
        ("ftp://host/x", "ftp:// is no address of a mirror"),
        ("s3://bucket/x", "s3:// is no address of a mirror"),
        ("http:///x", "http:// is no address of a mirror"),
        ("https://me:secret@host/x", "has no user, password, query or fragment"),
        ("https://host/x?token=secret", "has no user, password, query or fragment"),
    ],
)
def test_addresses_that_cannot_be_or_would_be_kept_with_a_secret_are_refused(mirror: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        source_of(NAME, "https://host/set.zip", mirror)
    assert said in refused.value.message
    assert "secret" not in str(refused.value)


def test_redirects_are_followed_to_http_alone(scene: Scene, tmp_path: Path) -> None:
    with file_host({}) as first:
        for to, said in (("file:///etc/passwd", "is not allowed"), ("ftp://host/x", "redirects to ftp://")):
            first.reply = lambda _get, to=to: Reply(302, (("Location", to),))  # type: ignore[misc]
            with pytest.raises(StorageError, match=said):
                scene.fetch(mirror=first.address)
        first.reply = lambda get: Reply(302, (("Location", f"{scene.host.address}/{NAME}"),))
        scene.host.reply = lambda get: Reply(cut_after=None if get.range else 900_000)
        scene.fetch(mirror=first.address)
    assert scene.ranges == ["", "bytes=900000-"]
    assert all(one == Get(NAME, one.range, one.if_range) for one in scene.host.gets)


def test_no_redirect_leads_from_https_to_http() -> None:
    request = urllib.request.Request("https://host/set.zip")
    with pytest.raises(StorageError, match="the host redirects to http://, which is not followed"):
        SafeRedirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, "http://host/set.zip")
