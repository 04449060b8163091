"""S3 by the standard library: its errors as those of storage, and its answers about uploads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from windlass.errors import StorageError, UsageError
from windlass.storage.address import Address
from windlass.storage.object_place import S3Place
from windlass.storage.place import Fatal, SourceChanged, Throttled
from windlass.stores.answer import Sent
from windlass.stores.errors import Busy, Changed, Denied, Missing, MissingBucket, NotCompleted, StoreError
from windlass.stores.s3.bucket import Answer, Bucket
from windlass.stores.s3.uploads import Uploads
from windlass.stores.store import Body

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
Given = bytes | StoreError
SPACE = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"


class FakeBucket(Bucket):
    """Gives answers in turn."""

    def __init__(self, *answers: Given) -> None:
        super().__init__("bucket", KEYS)
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        sent: Sent | None = None,
    ) -> Answer:
        self.asked.append((method, dict(query or {})))
        answer = self.answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return Answer(200, {"etag": '"e"'}, answer)


def uploads(*answers: Given) -> Uploads:
    return Uploads(FakeBucket(*answers), "key")


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


def test_a_page_that_is_no_listing_is_no_empty_one() -> None:
    with pytest.raises(StorageError, match="the listing is not that of S3: it is a html"):
        asyncio.run(place(b"<html/>").listed())


def test_a_page_that_was_cut_off_is_asked_for_again() -> None:
    assert asyncio.run(place(b"<ListBucketResult", f"<ListBucketResult {SPACE}/>".encode()).listed()) == []


def test_parts_of_several_pages_are_listed() -> None:
    page = (
        "<ListPartsResult {}><Part><PartNumber>{}</PartNumber><ETag>&quot;e&quot;</ETag><Size>5</Size>"
        "<ChecksumSHA256>c=</ChecksumSHA256></Part>{}</ListPartsResult>"
    )
    more = "<IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker>"
    found = uploads(page.format(SPACE, 1, more).encode(), page.format(SPACE, 2, "").encode())
    assert [(one.number, one.etag, one.size, one.checksum) for one in found.parts("u")] == [
        (1, '"e"', 5, "c="),
        (2, '"e"', 5, "c="),
    ]
    assert isinstance(found._bucket, FakeBucket)
    assert found._bucket.asked[1] == ("GET", {"uploadId": "u", "part-number-marker": "1"})


@pytest.mark.parametrize(("code", "kind"), [("InternalError", Busy), ("EntityTooSmall", NotCompleted)])
def test_a_completion_that_fails_after_its_200_has_failed(code: str, kind: type[StoreError]) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html"""
    body = f"<?xml version='1.0'?>\n  <Error><Code>{code}</Code><Message>words</Message></Error>"
    with pytest.raises(kind, match=f"the upload could not be completed: {code} words") as caught:
        uploads(f"   {body}".encode()).complete("u", [])
    assert type(caught.value) is kind


def test_an_upload_that_is_not_there_is_told_from_a_bucket_that_is_not() -> None:
    with pytest.raises(Missing) as caught:
        uploads(Missing("404 NoSuchUpload", "x")).parts("u")
    assert not isinstance(caught.value, MissingBucket)
    with pytest.raises(MissingBucket, match="there is no bucket b"):
        uploads(MissingBucket("there is no bucket b", "x")).create()
    with pytest.raises(StoreError, match="the store has begun no upload"):
        uploads(b"<InitiateMultipartUploadResult/>").create()


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
    assert len(list(tmp_path.iterdir())) == 3  # that of the store which was busy is ended after another copy


@pytest.mark.parametrize("name", ["a@evil.example", "a?b", "-a", "a b", "ä"])
def test_a_bucket_that_would_change_the_host_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a bucket cannot have the name"):
        S3Place(Address("s3", name, ""), Path("/nothing"), KEYS)
