"""Listing of a bucket of S3 by the exact keys of its objects, page by page, in several ranges of names at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias
from xml.etree import ElementTree

from windlass.storage.place import Entry
from windlass.storage.retry import repeated
from windlass.stores.s3.objects import page_of


@dataclass(frozen=True)
class Page:
    """Some objects, and where the next ones are."""

    entries: list[Entry]
    token: str
    """Empty for the last page."""


Ask: TypeAlias = Callable[[str, str], Page]
"""Gets the page of a token, or the first one after a name, in a thread."""


class _OtherOrder(Exception):
    """The store does not list by the order of names, or does not begin where it was asked to."""


async def pages(ask: Ask, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
    """The objects of all pages, in the ranges between the `cuts` at once. Raises StorageError.

    A store that lists in another order than that of the names is listed again in one range.
    """
    if cuts:
        try:
            found = await _ranges(ask, cuts)
        except _OtherOrder:
            pass
        else:
            yield found
            return
    async for page in _pages(ask, "", None):
        yield page.entries


async def _pages(ask: Ask, after: str, threads: ThreadPoolExecutor | None) -> AsyncIterator[Page]:
    token, loop = "", asyncio.get_running_loop()
    while True:
        page = await repeated(partial(loop.run_in_executor, threads, ask, token, after))
        yield page
        if not (token := page.token):
            return


async def _ranges(ask: Ask, cuts: Sequence[str]) -> list[Entry]:
    """The objects of all ranges. Each is listed until the first name beyond it, which must begin one of the next:
    else a name could be in none of them. Raises _OtherOrder.
    """
    bounds = ["", *cuts, ""]
    threads = ThreadPoolExecutor(len(bounds) - 1, "listing")
    ranges = [asyncio.ensure_future(_range(ask, after, until, threads)) for after, until in pairwise(bounds)]
    try:
        found = await asyncio.gather(*ranges)
    finally:
        for one in ranges:
            one.cancel()
        threads.shutdown(wait=False)
    first = ""
    for entries, beyond in reversed(found):
        if beyond != first:
            raise _OtherOrder
        first = entries[0].name if entries else first
    return [one for entries, _ in found for one in entries]


async def _range(ask: Ask, after: str, until: str, threads: ThreadPoolExecutor) -> tuple[list[Entry], str]:
    """The objects after one name until another, or the end where that is empty; and the first name beyond them."""
    found: list[Entry] = []
    async for page in _pages(ask, after, threads):
        for one in page.entries:
            if one.name <= (found[-1].name if found else after):
                raise _OtherOrder
            if until and one.name > until:
                return found, one.name
            found.append(one)
    return found, ""


def parse(root: ElementTree.Element, prefix: str) -> Page:
    """Read a `ListBucketResult`. Raises KeyError and ValueError where it is none."""
    objects, _, token = page_of(root)
    return Page(list(_entries(objects, prefix)), token)


def _entries(objects: Iterable[Mapping[str, str]], prefix: str) -> Iterator[Entry]:
    for one in objects:
        key, size = one["Key"], int(one["Size"])
        # An empty object whose key ends with a slash stands for a folder, in the consoles of stores.
        if key.startswith(prefix) and not (key.endswith("/") and not size):
            yield Entry(key[len(prefix) :], size, one.get("ETag") or one["LastModified"])
