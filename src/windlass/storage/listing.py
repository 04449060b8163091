"""Lists a store page by page, in several ranges of names at once where it has an order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from windlass.storage.place import Entry
from windlass.storage.retry import repeated

Pages: TypeAlias = Callable[[str], Callable[[], list[Entry] | None]]
"""Begins a listing behind a name; the function that it returns gets the next page in a thread, and None at the end."""


class _OtherOrder(Exception):
    """The store does not list by the order of names, or does not begin where it was asked to."""


async def listed(pages: Pages, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
    """The files of all pages, in the ranges between the `cuts` at once. Raises StorageError.

    A store that lists in another order than that of the names is listed again in one range.
    """
    if cuts:
        try:
            found = await _ranges(pages, cuts)
        except _OtherOrder:
            pass
        else:
            yield found
            return
    async for page in _pages(pages, "", None):
        yield page


async def _pages(pages: Pages, after: str, threads: ThreadPoolExecutor | None) -> AsyncIterator[list[Entry]]:
    loop, following = asyncio.get_running_loop(), pages(after)
    while (page := await repeated(partial(loop.run_in_executor, threads, following))) is not None:
        yield page


async def _ranges(pages: Pages, cuts: Sequence[str]) -> list[Entry]:
    """The files of all ranges. Each is listed until the first name beyond it, which must begin one of the next:
    else a name could be in none of them. Raises _OtherOrder.
    """
    bounds = ["", *cuts, ""]
    threads = ThreadPoolExecutor(len(bounds) - 1, "listing")
    ranges = [asyncio.ensure_future(_range(pages, after, until, threads)) for after, until in pairwise(bounds)]
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


async def _range(pages: Pages, after: str, until: str, threads: ThreadPoolExecutor) -> tuple[list[Entry], str]:
    """The files behind one name up to another, or to the end where that is empty; and the first name beyond them."""
    found: list[Entry] = []
    async for page in _pages(pages, after, threads):
        for one in page:
            if one.name <= (found[-1].name if found else after):
                raise _OtherOrder
            if until and one.name > until:
                return found, one.name
            found.append(one)
    return found, ""
