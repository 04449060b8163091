"""Place: the interface of a copy's source or destination, implemented for folders and object stores."""

from __future__ import annotations

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.window import MAX_REQUESTS
from windlass.stores import errors
from windlass.stores.errors import Altered, Busy, Changed, Denied, MissingBucket, NoAnswer, StoreError
from windlass.stores.store import Body

Buffer: TypeAlias = Body
_STATED: Final = "sha256:"
_STATED_CHARS: Final = len(_STATED) + 64


def stated_version(sha256: str, version: str) -> str:
    """Returns the version of a file whose SHA-256 the user or a list states. `version` is the one at the source."""
    return f"{_STATED}{sha256}/{version}"


def is_same_version(copied: str, listed: str) -> bool:
    """Whether a file that was copied in one version is unchanged in the version that its source lists: the stated
    SHA-256 is equal, or none is stated now and the version at the source is equal.
    """
    if listed.startswith(_STATED):
        return copied[:_STATED_CHARS] == listed[:_STATED_CHARS]
    return listed == (copied[_STATED_CHARS + 1 :] if copied.startswith(_STATED) else copied)


class Fatal(StorageError):
    """No other file can be read or written either: the disk is full, or permission is missing."""


class SourceChanged(StorageError):
    """A file differs from its listing because it was written during the copy."""


class Forbidden(StorageError):
    """One file cannot be read or written, for example because it is archived; others can."""


class Repeatable(StorageError):
    """The same request may succeed later."""

    tries = 8
    """Total number of times that the request is sent."""


class Throttled(Repeatable):
    """The store asks for fewer requests."""


class Unreachable(Throttled):
    """No server has ever answered at the address of the store. The address may be wrong."""

    tries = 5
    """Total number of tries, within about 1.5 seconds: a pod may start before its network."""


class Damaged(Repeatable):
    """The bytes of a file differ from the expected digest, perhaps because they changed in transit."""

    tries = 3


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Maps OSError to StorageError."""
    try:
        yield
    except OSError as error:
        words = f"{what}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Fatal(words, "free some space, and copy again: what is there is kept") from error
        raise (Fatal if error.errno == errno.EROFS else StorageError)(words) from error


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Maps errors of an object store or HTTP server to StorageError."""
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
    """One file in the listing of a place. A tuple, because a listing may have 100,000 of them."""

    name: str
    """Name relative to the address, with `/` as separator."""
    size: int
    version: str
    """Changes with the content: the ETag of an object; times and inode of a file."""
    problem: str = ""
    """Why the entry cannot be read as a file; empty if it can."""


class PartialFile(ABC):
    """A file written in parts, which appears under its name only once it is complete."""

    done: Mapping[int, bytes]
    """SHA-256 of the parts that an earlier copy has written, by part number."""

    def begun(self, number: int) -> int:
        """Returns how many bytes of an incomplete part are already written."""
        return 0

    @abstractmethod
    def write(
        self, number: int, pieces: Iterable[Buffer], moved: Callable[[int], object] = lambda _num_bytes: None
    ) -> bytes:
        """Writes the rest of a part after its `begun` bytes. Returns its SHA-256. Runs in a thread. Raises
        StorageError.

        `moved` is called after each piece with the number of bytes written.
        """

    def kept(self, number: int) -> bytes:
        """Returns the bytes of a part that are already written; empty if they cannot be read back."""
        return b""

    @abstractmethod
    async def finish(self, digests: list[bytes]) -> str:
        """Gives the file its final name once all parts are written. Returns its version. Raises StorageError."""

    @abstractmethod
    def forget(self) -> None:
        """Removes the state for resuming, once the journal has recorded the file. Raises StorageError."""

    @abstractmethod
    async def discard(self) -> None:
        """Removes the written parts. Raises StorageError."""


class Place(ABC):
    """A set of files. All methods raise StorageError."""

    address: Address
    takes_parts = True
    """Whether large files are written with `begin`, in resumable parts; otherwise with `put_stream`, from the start."""
    is_sent = False
    """Whether the place can be pickled and used in another process."""
    is_part = False
    """Whether the place may be a part of a set: the manifest of a destination then keeps its other files."""
    is_sequential = False
    """Whether a large file is read by one request from start to end, not by parts in parallel."""
    max_requests = MAX_REQUESTS
    """Limit of concurrent requests."""

    def check(self) -> None:
        """Verifies that the files can be listed. Each copy calls this method first."""
        return

    @abstractmethod
    def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """Yields all files in batches, in any order, without Windlass's own files (`names.OWN`).

        A store may list the ranges between the sorted names `cuts` concurrently.
        """

    async def listed(self, cuts: Sequence[str] = ()) -> list[Entry]:
        """Returns all files of `entries`."""
        return [one async for batch in self.entries(cuts) for one in batch]

    async def find(self, name: str) -> Entry | None:
        """Returns the entry of one file; None if it does not exist."""
        async for batch in self.entries():
            if (found := next((one for one in batch if one.name == name), None)) is not None:
                return found
        return None

    @abstractmethod
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """Yields bytes of a listed file. Runs in a thread. Raises SourceChanged if the file has another version."""

    def identity(self, entry: Entry) -> str:
        """Returns a string that identifies the content of a file. A partial copy is resumed only if it is equal."""
        return entry.version

    def sha256(self, entry: Entry) -> str:
        """Returns the SHA-256 of the file that the user or a list states, in hexadecimal digits; empty if unknown."""
        return ""

    async def again(self, entry: Entry) -> Entry | None:
        """Returns the new entry of a file that has changed since it was listed; None if the place cannot look it up."""
        return None

    @abstractmethod
    def put(self, name: str, data: Buffer) -> str:
        """Writes a small file and returns its version. Runs in a thread."""

    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        """Starts writing a file in parts, or resumes one that was started from the same `source` version."""
        raise NotImplementedError

    async def discard_partial(self, source: str) -> None:
        """Removes partial files that were copied from the `source` address. Called once all current files are
        complete."""
        return

    def put_stream(self, name: str, pieces: Iterator[Buffer], part_bytes: int, digest: Callable[[], str]) -> str:
        """Writes a large file in parts of `part_bytes`. Returns its version. Runs in a thread.

        `digest` returns the digest of all pieces after the last one. If `pieces` raises, no file is created and the
        error is passed on.
        """
        raise NotImplementedError

    @abstractmethod
    async def read_own(self, name: str) -> bytes | None:
        """Reads one of Windlass's own files; None if it does not exist."""

    async def write_own(self, name: str, data: bytes) -> None:
        """Writes one of Windlass's own files in one piece."""
        await asyncio.to_thread(self.put, name, data)

    def problem_of(self, name: str) -> str:
        """Returns why this place, unlike others, does not accept the file name; empty if it does."""
        return ""

    async def expected(self, entry: Entry) -> str:
        """Returns the digest that the place itself stores for a file; empty if it stores none."""
        return ""

    async def settle(self) -> None:
        """Flushes all writes so far, so that they survive a power failure."""
        return


def joined(pieces: Iterable[Buffer]) -> Buffer:
    """Concatenates the pieces; a single piece is returned without a copy."""
    found = list(pieces)
    return found[0] if len(found) == 1 else b"".join(found)
