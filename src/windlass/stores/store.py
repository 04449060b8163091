"""The interface of an object store: one bucket, or a folder. Standard library only, Python 3.9."""

from __future__ import annotations

import calendar
import itertools
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Union

from windlass.stores.errors import Changed, Denied, Missing
from windlass.stores.ranged import BLOCK_BYTES, ObjectFile
from windlass.stores.retry import repeated

Body = Union[bytes, bytearray, memoryview]  # noqa: UP007 - Python 3.9
PART_BYTES = 16 << 20
MAX_PARTS = 10_000


class Object(NamedTuple):
    """An object as a store lists it. A tuple, since there may be 100,000 of them."""

    key: str
    size: int
    version: str
    """Changes when the content does: an ETag in its quotes, as requests have it; else the time of the last write."""
    modified: str = ""
    """`2026-11-23T14:03:22.000Z`; empty where a request does not give it."""

    @property
    def changed_at(self) -> float:
        """Unix seconds; 0 where they are not known."""
        return unix_seconds(self.modified) if self.modified else 0.0


Page = list[Union[Object, str]]  # noqa: UP007 - Python 3.9
"""Some objects of a listing, and prefixes that stand for several."""


class Store(ABC):
    """One bucket, or a folder; safe for threads, forks and pickling.

    All methods raise StoreError. Those named `…_once` send one request, and raise Busy where it may be repeated; the
    others repeat it.
    """

    address: str
    """`s3://bucket`, or the path of a folder."""

    # -- each kind of store ------------------------------------------------------------------------------------------

    @abstractmethod
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """All objects whose keys begin with the prefix, which is empty or ends with a slash, from the first key behind
        `after` on; with the delimiter `/`, prefixes up to the next one in their place.

        Each `next` sends one request; after Busy it may be called again.
        """

    @abstractmethod
    def head_once(self, key: str) -> Object:
        """An object, whose time may be left out."""

    @abstractmethod
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """Bytes of this version of an object. Raises Changed where it is another one."""

    @abstractmethod
    def get_once(self, key: str) -> bytes:
        """All of a small object."""

    @abstractmethod
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        """Write a small object; returns its version. Raises Changed where it `is_new` and there is one by this key."""

    @abstractmethod
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = PART_BYTES) -> str:
        """Write an object of any size, which is there as a whole or not at all; returns its version. Repeats requests.

        The `parts` have at least `part_bytes` but for the last one. Raises what they raise, too.
        """

    @abstractmethod
    def remove_once(self, key: str) -> None:
        """Remove an object, if it is there."""

    # -- all of them -------------------------------------------------------------------------------------------------

    def stream(self, one: Object, start: int, length: int) -> Iterator[Body]:
        """The bytes of `read_once` as they come, perhaps of another number: the caller counts them."""
        yield self.read_once(one, start, length)

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
        """What all `pages` have."""
        pages = self.pages(prefix, delimiter)
        while (page := repeated(lambda: next(pages, None))) is not None:
            yield from page

    def head(self, key: str) -> Object:
        """An object, whose time may be left out."""
        return repeated(lambda: self.head_once(key))

    def get(self, key: str) -> bytes:
        """All of a small object."""
        return repeated(lambda: self.get_once(key))

    def has(self, key: str, size: int) -> bool:
        """Whether there is an object of this size; False also where the store denies it, as S3 does for a missing one
        where objects may not be listed."""
        try:
            return self.head(key).size == size
        except (Missing, Denied):
            return False

    def fetch(self, key: str, path: str) -> None:
        """Write an object to a file of this machine. Raises OSError."""
        with self.open(key) as source, open(path, "wb") as file:
            shutil.copyfileobj(source, file, BLOCK_BYTES)

    def put(self, key: str, body: Body) -> None:
        """Write a new object in one piece: there is none by this key, or it has just this content. Raises Changed."""
        try:
            repeated(lambda: self.put_once(key, body, is_new=True))
        except Changed:
            # The answer to an earlier try of this request may have been lost.
            if self.get(key) != bytes(body):
                raise

    def write(self, key: str, pieces: Iterable[Body], *, is_new: bool = True) -> None:
        """Write an object of any size, which is there as a whole or not at all. Raises what `pieces` does, too.

        A small one `is_new`, as for `put`, or takes the place of another. At most some parts of `PART_BYTES` are in
        memory.
        """
        parts = _parts_of(pieces)
        first = next(parts, b"")
        second = next(parts, None)
        if second is not None:
            self.write_parts(key, itertools.chain((first, second), parts))
        elif is_new:
            self.put(key, first)
        else:
            repeated(lambda: self.put_once(key, first))

    def remove(self, key: str) -> None:
        """Remove an object, if it is there."""
        repeated(lambda: self.remove_once(key))

    def remove_below(self, prefix: str) -> None:
        """Remove all objects whose keys begin with the prefix."""
        for one in list(self.listed(prefix)):
            if isinstance(one, Object):
                self.remove(one.key)

    def open(self, key: str) -> ObjectFile:
        """An object as an unbuffered file."""
        return ObjectFile(self, self.head(key))


def _parts_of(pieces: Iterable[Body]) -> Iterator[bytes]:
    """The same bytes in parts of about `PART_BYTES`, at least so many but for the last one."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part = bytearray()
    if part:
        yield bytes(part)


def unix_seconds(text: str) -> float:
    """Unix seconds of `2026-11-23T14:03:22.000Z`. Raises ValueError."""
    whole = text.partition(".")[0].rstrip("Z")
    return float(calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")))
