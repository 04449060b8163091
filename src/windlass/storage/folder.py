"""A local folder as a place: files get their final name once complete, and may be written in parts."""

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

from windlass.compat import override
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
"""Name of the folder for incomplete files, below Windlass's own folder."""
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
"""Error codes of systems that cannot create an unnamed file or link it: the file system lacks it, or /proc is
missing."""
MANY: Final = 20_000
"""Number of files above which a separate process lists the folder. Starting the process takes about 50 ms."""


class Folder(Place):
    """Files below a folder. Symbolic links are followed within the folder; links to other folders are refused
    by name.
    """

    is_sent = True

    def __init__(self, address: Address, *, may_be_missing: bool = False) -> None:
        """A missing folder counts as empty if `may_be_missing`; otherwise StorageError is raised."""
        self.address = address
        self._root = Path(address.path)
        self._may_be_missing = may_be_missing
        self._may_be_nameless = hasattr(os, "O_TMPFILE")
        """Whether unnamed files may be tried; False once the file system has refused one."""
        self._made: set[str] = set()

    @override
    async def entries(self, cuts: Sequence[str] = ()) -> AsyncIterator[list[Entry]]:
        if self._may_be_missing and not self._root.exists():
            return
        if not self._root.is_dir():
            raise StorageError(f"{self.address}: there is no such folder")
        found = walk(self._root)
        while batch := await asyncio.to_thread(lambda: list(islice(found, LIST_BATCH))):
            yield batch

    @override
    async def find(self, name: str) -> Entry | None:
        """Returns the entry of one file; a link is followed, also to another folder."""
        with system_errors(f"{self._root}/{name}"):
            try:
                found = (self._root / name).stat()
            except FileNotFoundError:
                return None
        return Entry(name, found.st_size, version(found)) if stat.S_ISREG(found.st_mode) else None

    async def digest(self, num_files: int) -> str:
        """Returns the digest of the listing. `num_files` is the expected number of files."""
        if num_files >= MANY and (found := await asyncio.to_thread(digest_beside, self._root)):
            return found
        return digest_of(await self.listed())

    @override
    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        yield self._read(entry, start, length)

    @override
    def put(self, name: str, data: Buffer) -> str:
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
            # Set after the named write, because a failure of both writes is due to the path.
            self._may_be_nameless = False
            return version(found)

    def _put_nameless(self, path: str, part: str, data: Buffer) -> os.stat_result:
        """Writes a file that has no name until it is complete.

        Creating a temporary file and renaming it would make threads wait for each other's folder locks.
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

    @override
    async def begin(self, entry: Entry, parts: Parts, source: str) -> PartialFile:
        path, part = self._root / entry.name, self._partial(entry.name)
        with system_errors(str(path)):
            self._folder_of(str(path))
            self._folder_of(str(part))
            return await asyncio.to_thread(FolderFile, path, part, entry, parts, source)

    @override
    async def discard_partial(self, source: str) -> None:
        with system_errors(str(self.address)):
            for path in [one for one in (self._root / OWN / PARTIAL).glob("*") if is_of(one, source)]:
                path.unlink()

    @override
    async def read_own(self, name: str) -> bytes | None:
        path = self._root / own_file(name)
        with system_errors(str(path)):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    @override
    async def write_own(self, name: str, data: bytes) -> None:
        path = self._root / own_file(name)
        with system_errors(str(path)):
            self._folder_of(str(path))
            write_whole(path, data)

    @override
    async def settle(self) -> None:
        with system_errors(str(self.address)):
            await asyncio.to_thread(sync, self._root)

    def version_of(self, name: str) -> str:
        """Returns the version of a file; empty if it does not exist."""
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
        """Creates the parent folder of a file. No component of its path below the root may be a link."""
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
