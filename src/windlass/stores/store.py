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
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.ranged import BLOCK_BYTES, ObjectFile
from windlass.stores.retry import repeated

Body = Union[bytes, bytearray, memoryview]  # noqa: UP007 - Python 3.9


class Object(NamedTuple):
    """Object in the listing of a store. A tuple, because a listing may have 100,000 of them."""

    key: str
    size: int
    version: str
    """Changes with the content: an ETag in quotes, as requests need it, or else the modification time."""
    modified: str = ""
    """Modification time, such as `2026-11-23T14:03:22.000Z`; empty if the request does not return it."""

    @property
    def changed_at(self) -> float:
        """Modification time in Unix seconds; 0 if unknown."""
        return unix_seconds(self.modified) if self.modified else 0.0


Page = list[Union[Object, str]]  # noqa: UP007 - Python 3.9
"""One page of a listing: objects, and prefixes that each stand for several objects."""


class Store(ABC):
    """One bucket or one folder; safe for threads, forks and pickling.

    All methods raise StoreError. Methods named `…_once` send one request and raise Busy if it may be repeated; the
    others repeat it.
    """

    address: str
    """Address of the bucket, such as `s3://bucket`, or the path of the folder."""

    # -- each kind of store -------------------------------------------------------------------------------------------

    @abstractmethod
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """Yields pages of the objects whose keys start with `prefix` and sort after `after`.

        `prefix` is empty or ends with a slash. With the delimiter `/`, objects further below are replaced by their
        common prefixes. Each call of `next` sends one request, and may be repeated after Busy.
        """

    @abstractmethod
    def head_once(self, key: str) -> Object:
        """Returns an object; its modification time may be empty."""

    @abstractmethod
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """Reads a byte range of this version of an object. Raises Changed if the object has another version."""

    @abstractmethod
    def get_once(self, key: str) -> bytes:
        """Reads a small object."""

    @abstractmethod
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        """Writes a small object and returns its version. With `is_new`, raises Changed if the key already exists."""

    @abstractmethod
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = STREAM_PART_BYTES) -> str:
        """Writes an object of any size, which appears only once it is complete. Returns its version. Requests are
        repeated.

        Each of `parts` has at least `part_bytes`, except for the last. Also raises any error of `parts`.
        """

    @abstractmethod
    def remove_once(self, key: str) -> None:
        """Deletes an object if it exists."""

    # -- shared by all stores -----------------------------------------------------------------------------------------

    def stream(self, one: Object, start: int, length: int) -> Iterator[Body]:
        """Yields the bytes of `read_once` as they arrive. The caller must check that `length` bytes arrived."""
        yield self.read_once(one, start, length)

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
        """Yields the objects and prefixes of all `pages`."""
        pages = self.pages(prefix, delimiter)
        while (page := repeated(lambda: next(pages, None))) is not None:
            yield from page

    def head(self, key: str) -> Object:
        """Returns an object; its modification time may be empty."""
        return repeated(lambda: self.head_once(key))

    def get(self, key: str) -> bytes:
        """Reads a small object."""
        return repeated(lambda: self.get_once(key))

    def has(self, key: str, size: int) -> bool:
        """Whether an object of this size exists. False if access is denied, which is how S3 reports a missing object to
        clients that may not list the bucket.
        """
        try:
            return self.head(key).size == size
        except (Missing, Denied):
            return False

    def fetch(self, key: str, path: str) -> None:
        """Downloads an object to a file on this machine. Raises OSError."""
        with self.open(key) as source, open(path, "wb") as file:
            shutil.copyfileobj(source, file, BLOCK_BYTES)

    def put(self, key: str, body: Body) -> None:
        """Writes a new object in one request. Raises Changed if the key exists with other content."""
        try:
            repeated(lambda: self.put_once(key, body, is_new=True))
        except Changed:
            # The key may exist because an earlier try succeeded but its response was lost.
            if self.get(key) != bytes(body):
                raise

    def write(self, key: str, pieces: Iterable[Body], *, is_new: bool = True) -> None:
        """Writes an object of any size, which appears only once it is complete. Also raises any error of `pieces`.

        `is_new` applies to small objects: True writes like `put`, False replaces an existing object. At most some parts
        of `STREAM_PART_BYTES` are in memory.
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
        """Deletes an object if it exists."""
        repeated(lambda: self.remove_once(key))

    def remove_below(self, prefix: str) -> None:
        """Deletes all objects whose keys start with the prefix."""
        for one in list(self.listed(prefix)):
            if isinstance(one, Object):
                self.remove(one.key)

    def open(self, key: str) -> ObjectFile:
        """Opens an object as an unbuffered file."""
        return ObjectFile(self, self.head(key))


def _parts_of(pieces: Iterable[Body]) -> Iterator[bytes]:
    """Joins pieces to parts of about `STREAM_PART_BYTES`; only the last part may be smaller."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= STREAM_PART_BYTES:
            yield bytes(part)
            part = bytearray()
    if part:
        yield bytes(part)


def unix_seconds(text: str) -> float:
    """Parses a time such as `2026-11-23T14:03:22.000Z`. Returns Unix seconds. Raises ValueError."""
    whole = text.partition(".")[0].rstrip("Z")
    return float(calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")))
