"""Listing of a bucket of S3 by the exact keys of its objects, page by page.

obstore ends a listing at the first key that is no path to it, such as `a//b`, and hides the slash at the end of a key
that stands for a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from windlass.storage.place import Entry
from windlass.storage.retry import repeated


@dataclass(frozen=True)
class Page:
    """Some objects, and where the next ones are."""

    entries: list[Entry]
    token: str
    """Empty for the last page."""


async def pages(ask: Callable[[str], Page]) -> AsyncIterator[list[Entry]]:
    """The objects of all pages; `ask` gets the page of a token, in a thread. Raises StorageError."""
    token = ""
    while True:
        page = await repeated(partial(asyncio.to_thread, ask, token))
        yield page.entries
        if not (token := page.token):
            return


def parse(root: ElementTree.Element, prefix: str) -> Page:
    """Read a `ListBucketResult`. Raises KeyError and ValueError where it is none."""
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is a {root.tag[len(space) :][:40]}")
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    entries = list(_entries(root, space, prefix, is_encoded))
    if root.findtext(f"{space}IsTruncated") != "true":
        return Page(entries, "")
    token = root.findtext(f"{space}NextContinuationToken")
    if not token:
        raise ValueError("it goes on, and does not say where")
    return Page(entries, token)


def _entries(root: ElementTree.Element, space: str, prefix: str, is_encoded: bool) -> Iterator[Entry]:
    for one in root.iterfind(f"{space}Contents"):
        found = {child.tag: child.text or "" for child in one}
        key, size = found[f"{space}Key"], int(found[f"{space}Size"])
        if is_encoded:
            key = unquote_plus(key)
        # An empty object whose key ends with a slash stands for a folder, in the consoles of stores.
        if key.startswith(prefix) and not (key.endswith("/") and not size):
            yield Entry(key[len(prefix) :], size, found.get(f"{space}ETag") or found[f"{space}LastModified"])
