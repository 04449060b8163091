"""What checkpoints and streams need of a bucket. Standard library only, Python 3.9."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from windlass.stores.s3.answer import Body
from windlass.stores.s3.objects import Object, ObjectFile


class Store(ABC):
    """One bucket; safe for threads, forks and pickling.

    Its methods raise StoreError: Missing, Denied, Changed where an object is another one, Busy where requests were
    repeated in vain.
    """

    address: str
    """`s3://bucket`."""

    @abstractmethod
    def listed(self, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
        """All objects whose keys begin with the prefix, which is empty or ends with a slash; with the delimiter `/`,
        prefixes up to the next one in their place."""

    @abstractmethod
    def head(self, key: str) -> Object:
        """What is known of an object."""

    @abstractmethod
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """Bytes of this version of an object, by one request: it raises Busy at once."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """All of a small object."""

    @abstractmethod
    def put(self, key: str, body: Body) -> None:
        """Write a new object in one piece: there is none by this key, or it has just this content. Raises Changed."""

    @abstractmethod
    def write(self, key: str, pieces: Iterable[Body]) -> None:
        """Write an object of any size, which is there as a whole or not at all. Raises what `pieces` does, too.

        At most some parts of `PART_BYTES` are in memory.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object, if it is there."""

    def open(self, key: str) -> ObjectFile:
        """An object as an unbuffered file."""
        return ObjectFile(f"{self.address}/{key}", self.head(key), self.read_once)
