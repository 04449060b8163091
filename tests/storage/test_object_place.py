"""S3 works as a place: errors are mapped to those of storage, listings are parsed, and uploads are aborted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.stores.s3.fake_bucket import KEYS, FakeBucket, Given

from windlass.errors import StorageError, UsageError
from windlass.storage.address import Address
from windlass.storage.object_place import S3Place
from windlass.storage.place import Fatal, SourceChanged, Throttled
from windlass.stores.errors import Busy, Changed, Denied, Missing, MissingBucket, StoreError

SPACE = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"


def place(*answers: Given) -> S3Place:
    found = S3Place(Address("s3", "bucket", "set"), Path("/nothing"), KEYS)
    found._store._bucket = FakeBucket(*answers)
    return found


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Busy("503", "x"), Throttled),
        (Denied("403 AccessDenied", "x"), Fatal),
        (Changed("412", "x"), SourceChanged),
        (MissingBucket("there is no bucket b", "x"), Fatal),
        (StoreError("501", "x"), StorageError),
    ],
)
def test_errors_of_a_bucket_are_those_of_storage(error: StoreError, kind: type[StorageError]) -> None:
    with pytest.raises(kind) as caught:
        place(error).put("a.bin", b"data")
    assert type(caught.value) is kind
    with pytest.raises(kind) as caught:
        asyncio.run(place(error).read_own(".windlass/manifest.jsonl"))
    assert type(caught.value) is kind


def test_a_file_of_ours_that_is_missing_is_none() -> None:
    assert asyncio.run(place(Missing("404", "x")).read_own(".windlass/manifest.jsonl")) is None


def test_a_listing_of_several_pages_names_what_is_below_the_prefix() -> None:
    page = (
        f"<ListBucketResult {SPACE}><Contents><Key>set/{{}}</Key><Size>1</Size><ETag>e</ETag></Contents>{{}}"
        "</ListBucketResult>"
    )
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    pages = [page.format(".windlass/manifest.jsonl", more).encode(), page.format("b", "").encode()]
    assert [one.name for one in asyncio.run(place(*pages).listed())] == ["b"]


def test_invalid_listing_page_is_not_an_empty_page() -> None:
    with pytest.raises(StorageError, match="the listing is not that of S3: it is a html"):
        asyncio.run(place(b"<html/>").listed())


def test_truncated_listing_page_is_requested_again() -> None:
    assert asyncio.run(place(b"<ListBucketResult", f"<ListBucketResult {SPACE}/>".encode()).listed()) == []


def test_uploads_of_files_that_a_source_no_longer_has_are_ended(tmp_path: Path) -> None:
    for number, source in enumerate(["/data 1-2", "/data 3-4", "/data 5-6", "/database 1-2"]):
        note = {"bucket": "bucket", "key": "set/a", "size": 1, "source": source, "upload": f"u-{number}"}
        (tmp_path / f"{number}.upload").write_text(json.dumps(note))
    (tmp_path / "4.upload").write_text("damaged")
    store = S3Place(Address("s3", "bucket", "set"), tmp_path, KEYS)
    store._store._bucket = fake = FakeBucket(b"", Missing("404 NoSuchUpload", "x"), Busy("503", "x"))
    asyncio.run(store.discard_partial("/data"))
    assert sorted(fake.asked, key=str) == [("DELETE", {"uploadId": f"u-{number}"}) for number in range(3)]
    assert {"3.upload", "4.upload"} < {one.name for one in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3  # the upload in the busy store is aborted after another copy


@pytest.mark.parametrize("name", ["a@evil.example", "a?b", "-a", "a b", "ä"])
def test_a_bucket_that_would_change_the_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a bucket cannot have the name"):
        S3Place(Address("s3", name, ""), Path("/nothing"), KEYS)
