"""A folder of this machine as a place: files get their name once they are whole, and may be written in parts."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.digest import Parts
from windlass.storage.files import name_file, sync, version, write_at, write_whole
from windlass.storage.folder_file import FolderFile, is_of
from windlass.storage.names import OWN, own_file
from windlass.storage.place import (
    Buffer,
    Entry,
    PartialFile,
    Place,
    SourceChanged,
    system_errors,
)
from windlass.storage.walk import digest_beside, digest_of, walk

PARTIAL: Final = "partial"
"""Folder, below ours, of files that are not whole yet."""
LIST_BATCH: Final = 4096
NO_NAMELESS: Final = frozenset(
    {
        errno.EOPNOTSUPP,
        errno.EISDIR,
        errno.EINVAL,
        errno.ENOSYS,
        errno.ENOENT,
        errno.EPERM,
        errno.EACCES,
        errno.EXDEV,
    }
)
"""Where a file system, or a system without /proc, cannot make a file without a name, or not name it."""
MANY: Final = 20_000
"""Files that a process of its own lists: it starts in some 50 ms."""


class Folder(Place):
    """Files below a folder. Symbolic links are followed where they stay below it, and refused by name where not."""

    is_sent = True

    def __init__(self, address: Address, *, may_be_missing: bool = False) -> None:
        """One that `may_be_missing` has no files then; else it is refused."""
        self.address = address
        self._root = Path(address.path)
        self._may_be_missing = may_be_missing
        self._may_be_nameless = hasattr(os, "O_TMPFILE")
        """Whether its file system may make files without a name."""
        self._made: set[str] = set()
        """Folders that are there."""

    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        """See `Place`."""
        if self._may_be_missing and not self._root.exists():
            return
        if not self._root.is_dir():
            raise StorageError(f"{self.address}: there is no such folder")
        found = walk(self._root)
        while batch := await asyncio.to_thread(lambda: list(islice(found, LIST_BATCH))):
            yield batch

    async def find(self, name: str) -> Entry | None:
        """See `Place`; a link is followed, also to another folder."""
        with system_errors(f"{self._root}/{name}"):
            try:
                found = (self._root / name).stat()
            except FileNotFoundError:
                return None
        return Entry(name, found.st_size, version(found)) if stat.S_ISREG(found.st_mode) else None

    async def digest(self, num_files: int) -> str:
        """Digest of what it lists, which may be about so many files."""
        if num_files >= MANY and (found := await asyncio.to_thread(digest_beside, self._root)):
            return found
        return digest_of(await self.listed())

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        """See `Place`."""
        yield self._read(entry, start, length)

    def put(self, name: str, data: Buffer) -> str:
        """See `Place`."""
        path, part = f"{self._root}/{name}", str(self._partial(name))
        with system_errors(path):
            self._folder_of(path)
            if self._may_be_nameless:
                try:
                    return version(self._put_nameless(path, part, data))
                except OSError as error:
                    if error.errno not in NO_NAMELESS:
                        raise
            self._folder_of(part)
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write_at(file, 0, data)
                found = os.fstat(file)
            finally:
                os.close(file)
            os.replace(part, path)  # noqa: PTH105 - a Path takes as long as the system call
            self._may_be_nameless = False  # else it was the place of this one file
            return version(found)

    def _put_nameless(self, path: str, part: str, data: Buffer) -> os.stat_result:
        """Write a file that has no name before it is whole.

        Threads that make files in one folder, or move them from one to another, wait for each other.
        """
        file = os.open(path.rpartition("/")[0], os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
        try:
            write_at(file, 0, data)
            try:
                name_file(file, path)
            except FileExistsError:
                self._folder_of(part)
                with suppress(FileNotFoundError):
                    os.unlink(part)  # noqa: PTH108 - as below
                name_file(file, part)
                os.replace(part, path)  # noqa: PTH105 - a Path takes as long as the system call
            return os.fstat(file)
        finally:
            os.close(file)

    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        """See `Place`."""
        path, part = self._root / entry.name, self._partial(entry.name)
        with system_errors(str(path)):
            self._folder_of(str(path))
            self._folder_of(str(part))
            return await asyncio.to_thread(FolderFile, path, part, entry, parts, source)

    async def discard_partial(self, source: str) -> None:
        """See `Place`."""
        with system_errors(str(self.address)):
            for path in [one for one in (self._root / OWN / PARTIAL).glob("*") if is_of(one, source)]:
                path.unlink()

    async def read_own(self, name: str) -> bytes | None:
        """See `Place`."""
        path = self._root / own_file(name)
        with system_errors(str(path)):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    async def write_own(self, name: str, data: bytes) -> None:
        """See `Place`."""
        path = self._root / own_file(name)
        with system_errors(str(path)):
            self._folder_of(str(path))
            write_whole(path, data)

    async def settle(self) -> None:
        """See `Place`."""
        with system_errors(str(self.address)):
            await asyncio.to_thread(sync, self._root)

    def version_of(self, name: str) -> str:
        """The version of a file that may be there; empty where it is not."""
        try:
            found = os.lstat(self._root / name)
        except OSError:
            return ""
        return version(found) if stat.S_ISREG(found.st_mode) else ""

    def _read(self, entry: Entry, start: int, length: int) -> bytes:
        with system_errors(entry.name), open(self._root / entry.name, "rb") as file:
            data = os.pread(file.fileno(), length, start)
            while len(data) < length and (more := os.pread(file.fileno(), length - len(data), start + len(data))):
                data += more
            is_same = version(os.fstat(file.fileno())) == entry.version
        if not is_same or len(data) != length:
            raise SourceChanged(f"{entry.name} was changed while it was copied", "copy it again once it is written")
        return data

    def _partial(self, name: str) -> Path:
        return self._root / OWN / PARTIAL / hashlib.sha256(name.encode()).hexdigest()[:40]

    def _folder_of(self, path: str) -> None:
        """Make the folder of a file; no part of its path below the root may be a link."""
        folder = path.rpartition("/")[0]
        if folder in self._made:
            return
        if folder != str(self._root):
            self._folder_of(folder)
            try:
                Path(folder).mkdir()
            except FileExistsError:
                if Path(folder).is_symlink() or not Path(folder).is_dir():
                    raise StorageError(f"{folder} is in the way: it is no folder") from None
        else:
            self._root.mkdir(parents=True, exist_ok=True)
        self._made.add(folder)
