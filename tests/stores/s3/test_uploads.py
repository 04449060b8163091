"""Multipart uploads handle every response of S3, including errors after status 200."""

from __future__ import annotations

import pytest
from tests.stores.s3.fake_bucket import FakeBucket, Given

from windlass.stores.errors import Busy, Missing, MissingBucket, NotCompleted, StoreError
from windlass.stores.s3.uploads import Uploads

SPACE = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"


def uploads(*answers: Given) -> Uploads:
    return Uploads(FakeBucket(*answers), "key")


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
def test_completion_with_error_after_status_200_fails(code: str, kind: type[StoreError]) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html"""
    body = f"<?xml version='1.0'?>\n  <Error><Code>{code}</Code><Message>words</Message></Error>"
    with pytest.raises(kind, match=f"the upload could not be completed: {code} words") as caught:
        uploads(f"   {body}".encode()).complete("u", [])
    assert type(caught.value) is kind


def test_missing_upload_and_missing_bucket_raise_different_errors() -> None:
    with pytest.raises(Missing) as caught:
        uploads(Missing("404 NoSuchUpload", "x")).parts("u")
    assert not isinstance(caught.value, MissingBucket)
    with pytest.raises(MissingBucket, match="there is no bucket b"):
        uploads(MissingBucket("there is no bucket b", "x")).create()
    with pytest.raises(StoreError, match="the store has begun no upload"):
        uploads(b"<InitiateMultipartUploadResult/>").create()
