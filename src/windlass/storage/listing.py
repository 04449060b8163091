"""Lists a store page by page, in several key ranges concurrently if the store lists in order."""

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
"""Function that starts a listing after a name. It returns a function that fetches the next page in a thread, or None at
the end."""


class _OtherOrder(Exception):
    """The store does not list in the order of names, or ignores the requested start."""


async def listed(pages: Pages, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
    """Yields the files of all pages; the ranges between the `cuts` are listed concurrently. Raises StorageError.

    If the store turns out to use another order, it is listed again as one range.
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
    """Lists all ranges. Raises _OtherOrder.

    Each range is listed up to the first name beyond it, which must be the start of a later range; otherwise a name
    could be missing from all ranges.
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
    """Returns the files after one name up to another, or up to the end if that is empty, and the first name beyond
    them.
    """
    found: list[Entry] = []
    async for page in _pages(pages, after, threads):
        for one in page:
            if one.name <= (found[-1].name if found else after):
                raise _OtherOrder
            if until and one.name > until:
                return found, one.name
            found.append(one)
    return found, ""
