"""Pages of a listing of S3: exact keys, folder markers left out, and what is no listing refused."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from windlass.storage.listing import Page, parse

SPACE = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"


def read(contents: str, more: str = "<IsTruncated>false</IsTruncated>", space: str = SPACE) -> Page:
    return parse(ElementTree.fromstring(f"<ListBucketResult {space}>{more}{contents}</ListBucketResult>"), "set/")


def entry(key: str, size: int = 4, rest: str = "<ETag>&quot;e&quot;</ETag>") -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size>{rest}</Contents>"


def names(page: Page) -> list[str]:
    return [one.name for one in page.entries]


@pytest.mark.parametrize("space", [SPACE, ""])
def test_keys_are_named_by_what_follows_the_prefix(space: str) -> None:
    page = read(entry("set/a") + entry("set/../up") + entry("set//b") + entry("other/c"), space=space)
    assert names(page) == ["a", "../up", "/b"]
    assert (page.entries[0].size, page.entries[0].version, page.token) == (4, '"e"', "")


def test_empty_objects_that_stand_for_folders_are_left_out() -> None:
    assert names(read(entry("set/", 0) + entry("set/deep/", 0) + entry("set/full/", 1))) == ["full/"]


def test_encoded_keys_are_decoded_and_others_are_left() -> None:
    encoded = "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
    assert names(read(entry("set/a+b%00%C3%BC"), encoded)) == ["a b\0ü"]
    assert names(read(entry("set/a+b%20"))) == ["a+b%20"]


def test_a_store_without_etags_is_known_by_times() -> None:
    assert read(entry("set/a", rest="<LastModified>now</LastModified>")).entries[0].version == "now"


def test_a_page_names_the_next_one() -> None:
    cut = "<IsTruncated>true</IsTruncated>"
    assert read(entry("set/a"), f"{cut}<NextContinuationToken>more</NextContinuationToken>").token == "more"
    with pytest.raises(ValueError, match="does not say where"):
        read(entry("set/a"), cut)


def test_what_is_no_listing_is_refused() -> None:
    with pytest.raises(KeyError):
        read("<Contents><Key>set/a</Key></Contents>")
