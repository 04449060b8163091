"""Copies between folders and from failing places verify each file, or refuse it by name."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.users import as_other_user, open_folder

from windlass.errors import StorageError
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.copy import FORBIDDEN_MOST, NOTHING, Copy
from windlass.storage.copy_note import CopyNoteFile
from windlass.storage.digest import Parts, combined
from windlass.storage.failure import first_of
from windlass.storage.folder import LIST_BATCH, Folder
from windlass.storage.manifest import File, Manifest
from windlass.storage.opening import journal_for
from windlass.storage.place import Buffer, Entry, Forbidden, Place, SourceChanged, Throttled
from windlass.storage.progress import Copied, Progress
from windlass.storage.verify import verify
from windlass.storage.walk import walk
from windlass.storage.window import Window
from windlass.stores.part_sizes import COPY_PART_BYTES


def folder(path: Path) -> Folder:
    return Folder(Address("folder", "", str(path)))


def copied(
    source: Place,
    to: Path,
    window: Window | None = None,
    noted: CopyNoteFile = NOTHING,
    progress: Progress | None = None,
) -> Copied:
    destination = folder(to)
    with journal_for(source.address, destination.address, to) as journal:
        return asyncio.run(Copy(source, destination, journal, progress, window, noted=noted).run())


def refusals(done: Copied) -> dict[str, str]:
    return {one.name: one.why for one in done.refused}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Creates small files, an empty file, and a file of three parts."""
    rng, path = random.Random(7), tmp_path / "source"
    for number in range(40):
        (path / f"f{number % 4}").mkdir(parents=True, exist_ok=True)
        (path / f"f{number % 4}" / f"{number}.bin").write_bytes(rng.randbytes(1000 + number))
    (path / "empty").touch()
    (path / "large.bin").write_bytes(rng.randbytes(2 * COPY_PART_BYTES + 5))
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and not one.name.startswith(".windlass")
    }


def test_a_copy_has_all_bytes_and_a_second_one_moves_nothing(source: Path, tmp_path: Path) -> None:
    first = copied(folder(source), tmp_path / "to")
    assert (first.num_copied, first.refused) == (42, ())
    assert contents(tmp_path / "to") == contents(source)
    second = copied(folder(source), tmp_path / "to")
    assert (second.num_copied, second.num_bytes, second.num_unchanged) == (0, 0, 42)
    assert (second.digest, second.files) == (first.digest, first.files)
    assert [one.name for one in (tmp_path / "to").iterdir() if one.name.startswith(".")] == [manifests.IN_FOLDER]


def test_a_folder_lists_every_file_of_more_than_one_batch(tmp_path: Path) -> None:
    for number in range(LIST_BATCH + 5):
        (tmp_path / f"{number}.txt").touch()
    assert len({one.name for one in asyncio.run(folder(tmp_path).listed())}) == LIST_BATCH + 5


def test_what_has_changed_is_copied_again_and_nothing_is_deleted(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    copied(folder(source), to)
    (source / "f0/0.bin").write_bytes(b"new")
    (source / "f1/1.bin").unlink()
    (to / "f2/2.bin").write_bytes(b"spoilt")
    (to / "mine").write_text("kept")
    again = copied(folder(source), to)
    assert again.num_copied == 2
    assert (to / "f1/1.bin").exists()
    assert (to / "mine").read_text() == "kept"
    assert (to / "f2/2.bin").read_bytes() == (source / "f2/2.bin").read_bytes()


def test_equal_sets_have_equal_digests(source: Path, tmp_path: Path) -> None:
    one = copied(folder(source), tmp_path / "one")
    two = copied(folder(tmp_path / "one"), tmp_path / "two")
    assert one.digest == two.digest


def test_verifying_finds_what_is_missing_changed_or_added(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    copied(folder(source), to)
    assert asyncio.run(verify(folder(to), Progress())).problems == ()
    spoilt = to / "large.bin"
    before = spoilt.stat()
    with open(spoilt, "r+b") as file:
        file.seek(COPY_PART_BYTES + 3)
        file.write(b"!!!!")
    os.utime(spoilt, ns=(before.st_atime_ns, before.st_mtime_ns))
    (to / "f0/0.bin").unlink()
    (to / "extra").touch()
    found = asyncio.run(verify(folder(to), Progress()))
    assert {one.name for one in found.problems} == {"large.bin", "f0/0.bin"}
    assert found.extra == ("extra",)


def test_links_are_followed_inside_and_refused_by_name_outside(source: Path, tmp_path: Path) -> None:
    (source / "inside").symlink_to("f0/0.bin")
    (source / "outside").symlink_to("/etc/hostname")
    (source / "nowhere").symlink_to("missing")
    (source / "loop").symlink_to("f0")
    os.mkfifo(source / "pipe")
    done = copied(folder(source), tmp_path / "to")
    assert set(refusals(done)) == {"outside", "nowhere", "loop", "pipe"}
    assert (tmp_path / "to/inside").read_bytes() == (source / "f0/0.bin").read_bytes()
    assert done.num_copied == 43


def test_a_folder_that_is_removed_while_others_are_listed_ends_no_listing(source: Path) -> None:
    (source / "gone").mkdir()
    found = walk(source)
    first = next(found)
    (source / "gone").rmdir()
    assert len([first, *found]) == 42


def test_a_link_in_the_destination_does_not_lead_out_of_it(source: Path, tmp_path: Path) -> None:
    to, elsewhere = tmp_path / "to", tmp_path / "elsewhere"
    to.mkdir()
    elsewhere.mkdir()
    (to / "f0").symlink_to(elsewhere)
    done = copied(folder(source), to)
    assert set(refusals(done)) == {f"f0/{number}.bin" for number in range(0, 40, 4)}
    assert not list(elsewhere.iterdir())


def test_a_file_in_the_place_of_a_folder_is_named_and_the_others_are_copied(source: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to/f0").write_text("a file")
    done = copied(folder(source), tmp_path / "to")
    assert len(done.refused) == 10
    assert done.num_copied == 32


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
@pytest.mark.parametrize("name", ["open", "link"])
def test_a_file_system_without_nameless_files_gets_small_files_under_other_names_first(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """NFS cannot create unnamed files, some file systems cannot link them, and neither works without /proc."""
    called, plain = [], getattr(os, name)

    def refuse(*args: Any, **named: Any) -> Any:
        if name == "link" or args[1] & os.O_TMPFILE == os.O_TMPFILE:
            called.append(args)
            raise OSError(number, os.strerror(number))
        return plain(*args, **named)

    monkeypatch.setattr(os, name, refuse)
    done = copied(folder(source), tmp_path / "to", Window(most=1))
    assert (contents(tmp_path / "to"), done.refused) == (contents(source), ())
    assert len(called) == 1, "it is tried again for each file"
    assert not list((tmp_path / "to").rglob("partial"))


def test_a_folder_in_the_place_of_one_file_says_nothing_of_the_file_system(source: Path, tmp_path: Path) -> None:
    to = folder(tmp_path / "to")
    (tmp_path / "to" / "f1").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        to.put("f1", b"x")
    assert to._may_be_nameless
    to.put("f2", b"x")
    assert not list((tmp_path / "to/.windlass/partial").glob("*/*"))


def test_a_file_that_is_there_is_replaced_whole(source: Path, tmp_path: Path) -> None:
    copied(folder(source), tmp_path / "to")
    with open(tmp_path / "to/f1/1.bin", "rb") as before:
        (source / "f1/1.bin").write_bytes(b"new")
        copied(folder(source), tmp_path / "to")
        assert len(before.read()) == 1001, "who has opened the old one reads it to its end"
    assert (tmp_path / "to/f1/1.bin").read_bytes() == b"new"
    assert not list((tmp_path / "to").rglob("partial"))


def test_two_copies_to_one_place_at_once_are_refused(source: Path, tmp_path: Path) -> None:
    to = Address("folder", "", str(tmp_path / "to"))
    here = Address("folder", "", str(source))
    with (
        journal_for(here, to, tmp_path),
        pytest.raises(StorageError, match="another copy"),
        journal_for(here, to, tmp_path),
    ):
        pass


# -- places that fail -------------------------------------------------------------------------------------------------


class Scripted(Place):
    """Place with files in memory, whose reads go through a function."""

    def __init__(
        self, files: dict[str, bytes], before: Callable[[Entry, int], None] = lambda _entry, _start: None
    ) -> None:
        self.address = Address("s3", "bucket", "set")
        self.files = files
        self.reads: list[tuple[str, int]] = []
        self._before = before

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        yield [Entry(name, len(data), f'"{len(data)}"') for name, data in self.files.items()]

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        self.reads.append((entry.name, start))
        self._before(entry, start)
        yield self.files[entry.name][start : start + length]

    async def read_own(self, name: str) -> bytes | None:
        return None

    put = begin = write_own = None  # type: ignore[assignment]


Scripted.__abstractmethods__ = frozenset()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_seconds: float) -> None:
        return

    monkeypatch.setattr("windlass.storage.copy.asyncio.sleep", sleep)
    monkeypatch.setattr("windlass.storage.copy.Copy._settle_now_and_then", lambda _self: sleep(0))


@pytest.mark.usefixtures("no_pause")
def test_a_busy_store_is_asked_again_with_fewer_requests(tmp_path: Path) -> None:
    rng = random.Random(3)

    def sometimes(_entry: Entry, _start: int) -> None:
        if rng.random() < 0.2:
            raise Throttled("SlowDown")

    store = Scripted({f"{number}": rng.randbytes(100) for number in range(300)}, sometimes)
    window = Window()
    window.size = 16
    done = copied(store, tmp_path / "to", window)
    assert (done.num_copied, done.refused) == (300, ())
    assert contents(tmp_path / "to") == store.files
    assert window.size < 16


def test_a_file_that_is_written_to_meanwhile_stays_in_the_set_as_it_was(tmp_path: Path) -> None:
    def written(entry: Entry, _start: int) -> None:
        if entry.name == "log":
            raise SourceChanged("log was changed while it was copied")

    copied(Scripted({"log": b"one", "model": b"x"}), tmp_path / "to")
    done = copied(Scripted({"log": b"one, two", "model": b"xy", "new": b""}, written), tmp_path / "to")
    assert list(refusals(done)) == ["log"]
    assert {name: one.size for name, one in done.files.items()} == {"log": 3, "model": 2, "new": 0}
    assert asyncio.run(verify(folder(tmp_path / "to"), Progress())).problems == ()
    last = copied(Scripted({"log": b"one, two", "model": b"xy", "new": b""}), tmp_path / "to")
    assert (last.num_copied, contents(tmp_path / "to")["log"]) == (1, b"one, two")


def test_what_cannot_be_read_or_written_is_named_once_and_where_it_is() -> None:
    with open_folder() as place:
        source, to = place / "source", place / "to"
        source.mkdir()
        (source / "b").touch()
        (source / "secret").write_text("s")
        (source / "secret").chmod(0o600)
        to.mkdir(mode=0o777)
        to.chmod(0o777)

        (source / "lost+found").mkdir(mode=0o700)

        def files() -> None:
            done = copied(folder(source), to)
            found = {"secret": "Permission denied", "lost+found": "it cannot be read: Permission denied"}
            assert refusals(done) == found
            assert done.num_copied == 1

        assert as_other_user(files) == ""
        (source / "lost+found").rmdir()
        (source / "a").mkdir()
        (source / "a" / "b").write_text("b")
        (to / "a").mkdir(mode=0o700)

        def written() -> None:
            assert refusals(copied(folder(source), to))["a/b"] == f"{to}/a/b: Permission denied"

        assert as_other_user(written) == ""


@pytest.mark.usefixtures("no_pause")
def test_a_store_that_is_always_busy_refuses_each_file_by_name(tmp_path: Path) -> None:
    def always(entry: Entry, _start: int) -> None:
        if entry.name == "bad":
            raise Throttled("bad: SlowDown")

    done = copied(Scripted({"bad": b"x", "good": b"y"}, always), tmp_path / "to")
    assert refusals(done) == {"bad": "SlowDown"}
    assert done.num_copied == 1


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_copy_that_was_killed_inside_a_large_file_reads_no_part_twice(tmp_path: Path, at: int) -> None:
    data = random.Random(5).randbytes(2 * COPY_PART_BYTES + 9)

    class Killed(BaseException):
        pass

    def kill(_entry: Entry, start: int) -> None:
        if start == at * COPY_PART_BYTES:
            raise Killed

    first = Scripted({"large": data}, kill)
    with pytest.raises(BaseExceptionGroup):
        copied(first, tmp_path / "to", Window(most=1))
    second = Scripted({"large": data})
    done = copied(second, tmp_path / "to", Window(most=1))
    assert (tmp_path / "to/large").read_bytes() == data
    assert done.num_bytes == sum(min(COPY_PART_BYTES, len(data) - start) for _, start in second.reads)
    assert (
        {("large", at * COPY_PART_BYTES)}
        <= set(second.reads)
        <= {("large", one * COPY_PART_BYTES) for one in range(at, 3)}
    )
    assert len(second.reads) == len(set(second.reads))


class OnceDamaged(Scripted):
    """Place whose reads return a wrong byte a number of times, and whose manifest has the right digests."""

    def __init__(self, files: dict[str, bytes], times: int, *, always_alike: bool = True) -> None:
        super().__init__(files)
        self._left = dict.fromkeys(files, times)
        self._always_alike = always_alike

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        [found] = super().pieces(entry, start, length)
        if start == 0 and self._left[entry.name]:
            self._left[entry.name] -= 1
            at = 0 if self._always_alike else self._left[entry.name] % len(found)
            found = bytes([*found[:at], found[at] ^ 1, *found[at + 1 :]])
        yield found

    async def read_own(self, name: str) -> bytes | None:
        of = {name: combined(_digests(data)) for name, data in self.files.items()}
        lines = [File(name, len(data), of[name], "", f'"{len(data)}"') for name, data in self.files.items()]
        return Manifest.of(lines).to_bytes()


def _digests(data: bytes) -> list[bytes]:
    parts = Parts.of(len(data))
    return [hashlib.sha256(data[at : at + parts.part_bytes]).digest() for at in range(0, len(data), parts.part_bytes)]


DAMAGED = {"small": b"small data", "large": random.Random(9).randbytes(2 * COPY_PART_BYTES + 9)}


@pytest.mark.parametrize("to_stream", [False, True])
@pytest.mark.usefixtures("no_pause")
def test_bytes_that_were_changed_on_their_way_are_fetched_again(tmp_path: Path, to_stream: bool) -> None:
    progress = Progress()
    if to_stream:
        store = Streaming({})
        done = streamed(OnceDamaged(DAMAGED, 2), store, tmp_path / "home", progress)
        found = store.files
    else:
        done = copied(OnceDamaged(DAMAGED, 2), tmp_path / "to", progress=progress)
        found = contents(tmp_path / "to")
    assert (done.refused, found) == ((), DAMAGED)
    assert progress.bytes_done == progress.num_bytes


@pytest.mark.slow
@pytest.mark.usefixtures("no_pause")
def test_a_file_that_is_damaged_in_three_tries_is_named_with_where_the_damage_may_be(tmp_path: Path) -> None:
    at_source = refusals(copied(OnceDamaged(DAMAGED, 99), tmp_path / "to"))
    assert all("damaged at its source" in why and "in each of 3 tries" in why for why in at_source.values())
    on_its_way = refusals(copied(OnceDamaged(DAMAGED, 99, always_alike=False), tmp_path / "other"))
    assert all("changed on its way in each of 3 tries" in why for why in on_its_way.values())
    assert set(at_source) == set(on_its_way) == set(DAMAGED)
    assert not list(tmp_path.rglob("partial"))


def test_one_file_that_is_forbidden_ends_no_copy_and_keys_that_are_end_it(tmp_path: Path) -> None:
    def forbid(entry: Entry, _start: int) -> None:
        if entry.name in ("7", "large"):
            raise Forbidden(f"{entry.name}: the store answered 403 InvalidObjectState")

    files = {**{str(number): b"data" for number in range(20)}, "large": bytes(COPY_PART_BYTES + 1)}
    done = copied(Scripted(files, forbid), tmp_path / "to")
    assert (set(refusals(done)), done.num_copied) == ({"7", "large"}, 19)
    assert "InvalidObjectState" in refusals(done)["7"]

    def forbid_all(entry: Entry, _start: int) -> None:
        raise Forbidden(f"{entry.name}: the store answered 403 AccessDenied", "check the credentials")

    store = Scripted({str(number): b"data" for number in range(FORBIDDEN_MOST + 500)}, forbid_all)
    with pytest.raises(BaseExceptionGroup) as caught:
        copied(store, tmp_path / "none")
    assert "check the credentials" in str(first_of(caught.value))
    assert len(store.reads) < FORBIDDEN_MOST + 100


def test_progress_counts_what_has_come_of_a_part_once(tmp_path: Path) -> None:
    class Pieces(Scripted):
        def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
            data = self.files[entry.name][start : start + length]
            for at in range(0, length, 1 << 20):
                yield data[at : at + (1 << 20)]
                seen.append(progress.bytes_done)
                if len(seen) == 3:
                    raise Throttled("SlowDown")

    seen: list[int] = []
    progress = Progress()
    copied(Pieces({"large": bytes(COPY_PART_BYTES + 9)}), tmp_path / "to", Window(most=1), progress=progress)
    assert [count >> 20 for count in seen[:9]] == [1, 2, 3, 3, 4, 5, 6, 7, 8], (
        "the pieces of both parts, those before the error kept"
    )
    assert progress.bytes_done == progress.num_bytes == progress.bytes_moved


@pytest.mark.parametrize("has_note", [False, True])
def test_what_was_written_of_a_large_file_goes_once_its_source_no_longer_has_it(tmp_path: Path, has_note: bool) -> None:
    noted = CopyNoteFile(tmp_path / "note") if has_note else NOTHING
    to, small = tmp_path / "to", Scripted({"small": b"data"})
    copied(small, to, noted=noted)

    class Killed(BaseException):
        pass

    def kill(_entry: Entry, start: int) -> None:
        if start:
            raise Killed

    def killed(address: Address) -> None:
        large = Scripted({"small": b"data", "large": bytes(2 * COPY_PART_BYTES)}, kill)
        large.address = address
        with pytest.raises(BaseExceptionGroup):
            copied(large, to, Window(most=1), noted)

    killed(small.address)
    assert len(list((to / ".windlass/partial").iterdir())) == 2
    assert copied(small, to, noted=noted).refused == ()
    assert {one.name for one in to.iterdir()} == {"small", manifests.IN_FOLDER}
    killed(Address("s3", "bucket", "another"))
    copied(small, to, noted=noted)
    assert len(list((to / ".windlass/partial").iterdir())) == 2  # a copy of the other source resumes it


class Streaming(Scripted):
    """Store that does not accept files in parts."""

    takes_parts = False

    def put(self, name: str, data: Buffer) -> str:  # type: ignore[override]
        self.files[name] = bytes(data)
        return f'"{len(data)}"'

    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int, digest: Callable[[], str]) -> str:
        assert part_bytes == COPY_PART_BYTES
        return self.put(name, b"".join(pieces))

    async def write_own(self, name: str, data: bytes) -> None:  # type: ignore[override]
        self.own = data


def streamed(source: Place, store: Streaming, folder: Path, progress: Progress | None = None) -> Copied:
    store.address = Address("az", "bucket", "set")
    with journal_for(source.address, store.address, folder) as journal:
        return asyncio.run(Copy(source, store, journal, progress).run())


def test_a_store_that_takes_no_parts_gets_large_files_as_streams(source: Path, tmp_path: Path) -> None:
    store, progress = Streaming({}), Progress()
    done = streamed(folder(source), store, tmp_path / "home", progress)
    assert store.files == contents(source)
    assert done.digest == copied(folder(source), tmp_path / "to").digest
    assert (progress.bytes_done, progress.files_done) == (progress.num_bytes, len(store.files))


@pytest.mark.usefixtures("no_pause")
def test_a_stream_begins_anew_where_its_source_is_busy_and_counts_no_byte_twice(tmp_path: Path) -> None:
    tries: list[int] = []

    def busy(_entry: Entry, start: int) -> None:
        tries.append(start)
        if len(tries) < 3:
            raise Throttled("SlowDown")

    data, store, progress = random.Random(5).randbytes(2 * COPY_PART_BYTES + 9), Streaming({}), Progress()
    streamed(Scripted({"large": data}, busy), store, tmp_path / "home", progress)
    assert store.files == {"large": data}
    assert (tries, progress.bytes_done) == ([0, 0, 0, COPY_PART_BYTES, 2 * COPY_PART_BYTES], len(data))


def test_a_stream_of_a_damaged_file_leaves_nothing_under_its_name(source: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    copied(folder(source), whole)
    damaged = bytearray((whole / "large.bin").read_bytes())
    damaged[COPY_PART_BYTES + 1] ^= 1
    kept = (whole / "large.bin").stat()
    (whole / "large.bin").write_bytes(damaged)
    os.utime(whole / "large.bin", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    store = Streaming({})
    done = streamed(folder(whole), store, tmp_path / "home")
    assert set(refusals(done)) == {"large.bin"}
    assert refusals(done)["large.bin"].startswith("damaged at its source")
    assert set(store.files) == contents(source).keys() - {"large.bin"}


def test_names_from_a_store_that_lead_out_are_refused_and_the_rest_is_copied(tmp_path: Path) -> None:
    names = ["../up", "/abs", "a\0b", "x" * 300, "Case", "case", "d", "d/e", "good"]
    done = copied(Scripted(dict.fromkeys(names, b"data")), tmp_path / "deep" / "to")
    assert set(refusals(done)) == {"../up", "/abs", "a\0b", "x" * 300, "case", "d/e"}
    assert contents(tmp_path / "deep") == {"to/Case": b"data", "to/d": b"data", "to/good": b"data"}


def test_a_folder_of_images_by_class_is_one_after_a_copy(source: Path, tmp_path: Path) -> None:
    copied(folder(source), tmp_path / "to")
    assert {one.name for one in (tmp_path / "to").iterdir() if one.is_dir()} == {
        one.name for one in source.iterdir() if one.is_dir()
    }
