"""Place: what a copy needs of a folder or of an object store, as its source or as its destination."""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.window import MOST
from windlass.stores import errors
from windlass.stores.errors import Altered, Busy, Changed, Denied, MissingBucket, NoAnswer, StoreError
from windlass.stores.store import Body

Buffer: TypeAlias = Body


class Fatal(StorageError):
    """Nothing else could be read or written there either: no space is left, or no right to it."""


class SourceChanged(StorageError):
    """A file is not the one that was listed: it was written during the copy."""


class Forbidden(StorageError):
    """One file may not be read or written, for example an archived one; others may be."""


class Repeatable(StorageError):
    """The same request may succeed later."""

    tries = 8
    """How often it is made in all."""


class Throttled(Repeatable):
    """A store asks for fewer requests."""


class Unreachable(Throttled):
    """A store has never answered, and nothing listens at its address: the address may be wrong."""

    tries = 5
    """In some 1.5 seconds: a pod may start before its network."""


class Damaged(Repeatable):
    """The bytes of a file are not those that were expected: they may have been changed on their way."""

    tries = 3


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Errors of the system as ours."""
    try:
        yield
    except OSError as error:
        words = f"{what}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Fatal(words, "free some space, and copy again: what is there is kept") from error
        raise (Fatal if error.errno == errno.EROFS else StorageError)(words) from error


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Errors of an object store, or of a server, as ours."""
    try:
        yield
    except StoreError as error:
        words, hint = f"{what}: {error.strerror}", error.hint
        if isinstance(error, Altered):
            raise Damaged(words) from error
        if isinstance(error, Busy):
            if (where := str(error.filename)) != what:
                words = f"{what}: {where}: {error.strerror}"
            raise (Unreachable if isinstance(error, NoAnswer) else Throttled)(words, hint) from error
        if isinstance(error, Denied):
            kind = Forbidden if isinstance(error, errors.Forbidden) else Fatal
            raise kind(words, hint or errors.CHECK_CREDENTIALS) from error
        if isinstance(error, Changed):
            then = "copy it again once it is written"
            raise SourceChanged(f"{what} was changed while it was copied", then) from error
        raise (Fatal if isinstance(error, MissingBucket) else StorageError)(words, hint) from error


class Entry(NamedTuple):
    """One file as its place lists it. A tuple, since there may be 100,000 of them."""

    name: str
    """Below the address, with `/` between its parts."""
    size: int
    version: str
    """Changes when the content does: an ETag; times and inode of a file."""
    problem: str = ""
    """Why it cannot be read as a file; empty where it can."""


class PartialFile(ABC):
    """A file of several parts that is being written: it appears under its name only once it is whole."""

    done: Mapping[int, bytes]
    """Parts that an earlier copy has written, with their SHA-256."""

    def begun(self, number: int) -> int:
        """Bytes at the beginning of a part that are written, though the whole is not."""
        return 0

    @abstractmethod
    def write(
        self, number: int, pieces: Iterable[Buffer], moved: Callable[[int], object] = lambda _num_bytes: None
    ) -> bytes:
        """Write what follows the `begun` bytes of a part; returns its SHA-256. In a thread. Raises StorageError.

        `moved` is called with the number of bytes that were written, after each piece.
        """

    def kept(self, number: int) -> bytes:
        """Bytes of a part that are already written; empty if they cannot be read back."""
        return b""

    @abstractmethod
    async def finish(self, digests: list[bytes]) -> str:
        """All parts are written: give the file its name; returns its version. Raises StorageError."""

    @abstractmethod
    def forget(self) -> None:
        """The journal has the file: no other copy need know that it was written in parts. Raises StorageError."""

    @abstractmethod
    async def discard(self) -> None:
        """Remove what is written of it. Raises StorageError."""


class Place(ABC):
    """A set of files. All methods raise StorageError."""

    address: Address
    takes_parts = True
    """Whether large files are written by `begin`, and gone on with; else by `put_stream`, from their beginning."""
    is_sent = False
    """Whether it can be pickled, for another process to use."""
    is_part = False
    """Whether the place may be a part of a set: the manifest of a destination then keeps its other files."""
    is_sequential = False
    """Whether a large file is read by one request from start to end, not by parts in parallel."""
    max_requests = MOST
    """Limit of concurrent requests."""

    def check(self) -> None:
        """Ask a store once whether files can be listed there, as every copy does first."""
        return

    @abstractmethod
    def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """All files, in batches, in any order, without ours (`names.OWN`).

        Between the `cuts`, names in order, a store may be asked for several ranges at once.
        """

    async def listed(self, cuts: Sequence[str] = ()) -> list[Entry]:
        """All of `entries`."""
        return [one async for batch in self.entries(cuts) for one in batch]

    async def find(self, name: str) -> Entry | None:
        """Entry of one file; None if it does not exist."""
        async for batch in self.entries():
            if (found := next((one for one in batch if one.name == name), None)) is not None:
                return found
        return None

    @abstractmethod
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """Bytes of a file that was listed, as they come. In a thread. Raises SourceChanged where it is not that one."""

    def identity(self, entry: Entry) -> str:
        """Identifies the content of a file. A partial copy is resumed only if this is equal."""
        return entry.version

    def sha256(self, entry: Entry) -> str:
        """Expected SHA-256 of the whole file, from the user or a list, in hexadecimal digits; empty for none."""
        return ""

    async def again(self, entry: Entry) -> Entry | None:
        """New entry of a file that has changed since it was listed; None if the place cannot look it up."""
        return None

    @abstractmethod
    def put(self, name: str, data: Buffer) -> str:
        """Write a whole small file; returns its version. In a thread."""

    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        """Write a file in parts, or go on with one that was begun from the same version `source` of the same file."""
        raise NotImplementedError

    async def discard_partial(self, source: str) -> None:
        """All files of the `source` with this address are whole: remove what is written of others that it had."""
        return

    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int, digest: Callable[[], str]) -> str:
        """Write a whole large file in parts of so many bytes; returns its version. In a thread.

        `digest` gives that of all pieces, at their end. Where `pieces` raises, there is no file, and that is raised.
        """
        raise NotImplementedError

    @abstractmethod
    async def read_own(self, name: str) -> bytes | None:
        """A file of ours; None where there is none."""

    async def write_own(self, name: str, data: bytes) -> None:
        """Write a file of ours in one piece."""
        await asyncio.to_thread(self.put, name, data)

    def problem_of(self, name: str) -> str:
        """Why no file can have this name here, where others can; empty where it can."""
        return ""

    async def expected(self, entry: Entry) -> str:
        """The digest that the place itself keeps of a file; empty where it keeps none."""
        return ""

    async def settle(self) -> None:
        """All that was written so far survives a power failure."""
        return


def joined(pieces: Iterable[Buffer]) -> Buffer:
    """All pieces in one; one alone is not copied."""
    found = list(pieces)
    return found[0] if len(found) == 1 else b"".join(found)
