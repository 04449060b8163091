"""Pages of an S3 listing contain exact keys without folder markers, and invalid listings are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import pytest

from windlass.errors import StorageError
from windlass.storage.listing import listed
from windlass.storage.object_place import entries_of
from windlass.storage.place import Entry
from windlass.stores.s3.store import page_of

SPACE = "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'"


def read(contents: str, more: str = "<IsTruncated>false</IsTruncated>", space: str = SPACE) -> tuple[list[Entry], str]:
    page, token = page_of(ElementTree.fromstring(f"<ListBucketResult {space}>{more}{contents}</ListBucketResult>"))
    return list(entries_of(page, "set/")), token


def entry(key: str, size: int = 4, rest: str = "<ETag>&quot;e&quot;</ETag>") -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size>{rest}</Contents>"


def names(found: tuple[list[Entry], str]) -> list[str]:
    return [one.name for one in found[0]]


@pytest.mark.parametrize("space", [SPACE, ""])
def test_keys_are_named_by_what_follows_the_prefix(space: str) -> None:
    found = read(entry("set/a") + entry("set/../up") + entry("set//b") + entry("other/c"), space=space)
    assert names(found) == ["a", "../up", "/b"]
    assert (found[0][0].size, found[0][0].version, found[1]) == (4, '"e"', "")


def test_empty_objects_that_stand_for_folders_are_left_out() -> None:
    assert names(read(entry("set/", 0) + entry("set/deep/", 0) + entry("set/full/", 1))) == ["full/"]


def test_encoded_keys_are_decoded_and_others_are_left() -> None:
    encoded = "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
    assert names(read(entry("set/a+b%00%C3%BC"), encoded)) == ["a b\0ü"]
    assert names(read(entry("set/a+b%20"))) == ["a+b%20"]


def test_a_store_without_etags_is_known_by_times() -> None:
    assert read(entry("set/a", rest="<LastModified>now</LastModified>"))[0][0].version == "now"


def test_a_page_names_the_next_one() -> None:
    cut = "<IsTruncated>true</IsTruncated>"
    assert read(entry("set/a"), f"{cut}<NextContinuationToken>more</NextContinuationToken>")[1] == "more"
    with pytest.raises(ValueError, match="has no continuation token"):
        read(entry("set/a"), cut)


def test_invalid_listing_is_refused() -> None:
    with pytest.raises(KeyError):
        read("<Contents><Key>set/a</Key></Contents>")


class Store:
    """Store that lists names in pages of two, in the order `shown`."""

    def __init__(self, shown: Sequence[str], *, ignores_start: bool = False, by_place: bool = False) -> None:
        self.shown, self.ignores_start, self.by_place = list(shown), ignores_start, by_place

    def pages(self, after: str) -> Callable[[], list[Entry] | None]:
        if not after or self.ignores_start:
            rest = self.shown
        elif self.by_place:
            rest = self.shown[self.shown.index(after) + 1 :]
        else:
            rest = [one for one in self.shown if one > after]
        batches = iter([rest[at : at + 2] for at in range(0, len(rest), 2)])

        def following() -> list[Entry] | None:
            batch = next(batches, None)
            return None if batch is None else [Entry(one, 1, "v") for one in batch]

        return following

    def listed(self, cuts: Sequence[str]) -> list[str]:
        async def find() -> list[str]:
            return [one.name async for page in listed(self.pages, cuts) for one in page]

        return asyncio.run(find())


NAMES = [f"{one:02}" for one in range(23)]


@pytest.mark.parametrize(
    "cuts", [(), ("11",), ("05", "06", "07"), ("0", "055", "99"), ("zz",), ("22",), ("00", "01"), ("a", "b")]
)
def test_ranges_have_every_name_once(cuts: tuple[str, ...]) -> None:
    assert Store(NAMES).listed(cuts) == NAMES


@pytest.mark.parametrize(
    "store",
    [
        Store(NAMES[::-1]),
        Store(NAMES, ignores_start=True),
        Store(["00", "02", "01", "03"], by_place=True),
        Store(["00", "02", "01"], by_place=True),
        Store(["01", "00"]),
    ],
)
def test_a_store_with_another_order_is_listed_in_one_range(store: Store) -> None:
    assert store.listed(("01",)) == store.shown


def test_an_error_of_one_range_is_that_of_the_listing() -> None:
    store = Store(NAMES)

    def pages(after: str) -> Callable[[], list[Entry] | None]:
        def fail() -> None:
            raise StorageError("it cannot be read")

        return fail if after == "10" else store.pages(after)

    async def find() -> None:
        async for _ in listed(pages, ("05", "10")):
            pass

    with pytest.raises(StorageError, match="it cannot be read"):
        asyncio.run(find())
