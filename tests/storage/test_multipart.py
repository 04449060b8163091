"""Another process resumes an upload with the parts that S3 lists, and trusts S3 more than its own notes."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.helpers.clock import FakeClock

from windlass.runs.clock import Clock
from windlass.storage.digest import Parts, combined, from_s3, to_s3
from windlass.storage.multipart import COMPLETING_PAUSES, S3Upload, stored_digest
from windlass.storage.place import Throttled
from windlass.stores.errors import Busy, Missing, StoreError
from windlass.stores.part_sizes import COPY_PART_BYTES
from windlass.stores.response import Sent
from windlass.stores.s3.bucket import Bucket
from windlass.stores.s3.uploads import Stored, StoredPart, Uploads
from windlass.stores.store import Body

DATA = [b"a" * COPY_PART_BYTES, b"b" * COPY_PART_BYTES, b"c"]
PARTS = Parts.of(sum(map(len, DATA)))


class FakeUploads(Uploads):
    """One object of a store in memory."""

    def __init__(self) -> None:
        super().__init__(Bucket("bucket", {}), "key")
        self.begun: dict[str, dict[int, StoredPart]] = {}
        self.sent: list[tuple[str, int]] = []
        self.object: Stored | None = None
        self.loses_answer = False
        self.refusal: type[StoreError] = Missing
        """Of what is asked of an object that does not exist."""

    def create(self) -> str:
        upload = f"upload-{len(self.sent)}-{len(self.begun)}"
        self.begun[upload] = {}
        return upload

    def send(self, upload: str, number: int, body: Body, checksum: str, sent: Sent | None = None) -> str:
        assert checksum == to_s3(hashlib.sha256(body).digest())
        self.sent.append((upload, number))
        self.begun[upload][number] = StoredPart(number, f'"{number}"', len(body), checksum)
        return f'"{number}"'

    def parts(self, upload: str) -> list[StoredPart]:
        if upload not in self.begun:
            raise Missing("no such upload", "key")
        return list(self.begun[upload].values())

    def complete(self, upload: str, parts: Sequence[StoredPart]) -> str:
        if list(parts) != sorted(self.parts(upload), key=lambda one: one.number):
            raise StoreError("other parts", "key")
        del self.begun[upload]
        whole = hashlib.sha256(b"".join(bytes.fromhex(from_s3(one.checksum)[7:]) for one in parts)).digest()
        self.object = Stored('"whole"', sum(one.size for one in parts), f"{to_s3(whole)}-{len(parts)}")
        if self.loses_answer:
            raise Busy("the answer was lost", "key")
        return self.object.etag

    def end(self, upload: str) -> None:
        del self.begun[upload]

    def stored(self) -> Stored:
        if self.object is None:
            raise self.refusal("no such object", "key")
        return self.object


@pytest.fixture
def store() -> FakeUploads:
    return FakeUploads()


def begin(store: FakeUploads, state: Path, source: str = "v1", clock: Clock | None = None) -> S3Upload:
    return S3Upload(store, PARTS, source, state, clock or FakeClock())


def write(upload: S3Upload, *numbers: int) -> list[bytes]:
    return [upload.write(number, [DATA[number]]) for number in numbers]


DIGESTS = [hashlib.sha256(one).digest() for one in DATA]


def test_parts_that_the_store_has_are_not_sent_by_the_next_process(store: FakeUploads, tmp_path: Path) -> None:
    write(begin(store, tmp_path), 0, 2)
    again = begin(store, tmp_path)
    assert again.done == {0: DIGESTS[0], 2: DIGESTS[2]}
    write(again, 1)
    assert asyncio.run(again.finish(DIGESTS)) == '"whole"'
    assert stored_digest(store.stored()) == combined(DIGESTS)
    again.forget()
    assert not list(tmp_path.iterdir())


def test_an_upload_of_another_version_is_ended(store: FakeUploads, tmp_path: Path) -> None:
    write(begin(store, tmp_path), 0)
    [before] = store.begun
    assert begin(store, tmp_path, "v2").done == {}
    assert before not in store.begun


def test_an_upload_that_a_rule_has_ended_is_begun_again(store: FakeUploads, tmp_path: Path) -> None:
    write(begin(store, tmp_path), 0)
    store.begun.clear()
    again = begin(store, tmp_path)
    assert again.done == {}
    write(again, 0, 1, 2)
    assert asyncio.run(again.finish(DIGESTS)) == '"whole"'


def test_parts_of_another_size_or_without_a_checksum_are_sent_again(store: FakeUploads, tmp_path: Path) -> None:
    write(begin(store, tmp_path), 0, 1)
    [parts] = store.begun.values()
    parts[1] = StoredPart(1, '"1"', COPY_PART_BYTES, "")
    parts[2] = StoredPart(2, '"2"', 7, parts[2].checksum)
    parts[9] = StoredPart(9, '"9"', 1, parts[2].checksum)
    assert begin(store, tmp_path).done == {}


def test_a_completion_whose_answer_was_lost_is_found_by_the_digest_of_the_object(
    store: FakeUploads, tmp_path: Path
) -> None:
    first = begin(store, tmp_path)
    write(first, 0, 1, 2)
    store.loses_answer = True
    with pytest.raises(Throttled):
        asyncio.run(first.finish(DIGESTS))
    assert asyncio.run(first.finish(DIGESTS)) == '"whole"'
    again = begin(store, tmp_path)  # the process was killed before it removed its note of the upload
    assert (again.done, asyncio.run(again.finish(DIGESTS)), len(store.sent)) == (dict(enumerate(DIGESTS)), '"whole"', 3)


@pytest.mark.parametrize("refusal", [Missing, StoreError])
def test_an_object_that_is_another_or_hidden_is_sent_anew(
    store: FakeUploads, tmp_path: Path, refusal: type[StoreError]
) -> None:
    """Without permission to list a bucket, a missing object is reported as forbidden."""
    first = begin(store, tmp_path)
    write(first, 0, 1, 2)
    store.loses_answer = True
    with pytest.raises(Throttled):
        asyncio.run(first.finish(DIGESTS))
    store.object, store.refusal = None, refusal
    assert begin(store, tmp_path).done == {}


def test_an_object_that_the_store_is_still_putting_together_is_waited_for(store: FakeUploads, tmp_path: Path) -> None:
    """The process was killed while the store completed the upload, which the store no longer lists."""
    first = begin(store, tmp_path)
    write(first, 0, 1, 2)
    asyncio.run(first.finish(DIGESTS))
    whole, store.object = store.object, None
    clock = FakeClock()
    clock.at(sum(COMPLETING_PAUSES[:3]), lambda: setattr(store, "object", whole))
    assert begin(store, tmp_path, clock=clock).done == dict(enumerate(DIGESTS))
    assert (len(clock.waits), len(store.sent)) == (3, 3)


def test_an_object_that_should_long_be_there_is_not_waited_for(store: FakeUploads, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    write(first, 0, 1, 2)
    asyncio.run(first.finish(DIGESTS))
    store.object = None
    [note] = tmp_path.iterdir()
    os.utime(note, (0, 0))
    clock = FakeClock()
    assert (begin(store, tmp_path, clock=clock).done, clock.waits) == ({}, [])


def test_damaged_note_is_ignored(store: FakeUploads, tmp_path: Path) -> None:
    write(begin(store, tmp_path), 0)
    [note] = tmp_path.iterdir()
    note.write_bytes(note.read_bytes()[:20])
    assert begin(store, tmp_path).done == {}


@pytest.mark.parametrize(
    ("checksum", "size", "is_ours"),
    [
        (to_s3(DIGESTS[0]), 1, True),
        (f"{to_s3(DIGESTS[0])}-3", PARTS.size, True),
        (to_s3(DIGESTS[0]), PARTS.size, False),
        (f"{to_s3(DIGESTS[0])}-2", PARTS.size, False),
        ("", 1, False),
        ("bm9uZQ==", 1, False),
    ],
)
def test_a_checksum_counts_where_its_parts_are_ours(checksum: str, size: int, is_ours: bool) -> None:
    assert bool(stored_digest(Stored('"e"', size, checksum))) == is_ours
