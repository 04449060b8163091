"""Reads archives of unknown origin: tar, zip and gzip, of which every member is checked before any is read."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from windlass.errors import StorageError
from windlass.storage.names import problem
from windlass.storage.place import system_errors

PIECE_BYTES: Final = 1 << 20
MAX_READ_BYTES: Final = 1 << 24
"""At once: tarfile reads a whole header of a long name into memory."""
MAX_MEMBERS: Final = 1_000_000
BROKEN: Final = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError,
                 NotImplementedError, RuntimeError, UnicodeDecodeError, ValueError)  # fmt: skip
"""What the libraries raise for an archive that is damaged or not one."""


class Member(NamedTuple):
    """A file of an archive."""

    name: str
    num_bytes: int


class Archive:
    """The files of a zip archive, or of a tar archive compressed by gzip. Raises StorageError for each hostile member:
    a name that leads out of the folder, a link, a device, and more than `limit_bytes` in all.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path, self._limit = path, limit_bytes
        with ExitStack() as opened, self._refusing():
            self._zip = opened.enter_context(zipfile.ZipFile(path)) if zipfile.is_zipfile(path) else None
            self.members = self._checked(self._zip_members() if self._zip is not None else self._tar_members())
            """All files, in the order of the archive."""
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()

    def read(self, name: str) -> bytes:
        """A whole file. Raises StorageError."""
        return b"".join(piece for found, pieces in self.files([name]) for piece in pieces if found.name == name)

    def files(self, names: Iterable[str]) -> Iterator[tuple[Member, Generator[bytes, None, None]]]:
        """These files in the order of the archive. The content of each must be read before the next. Raises
        StorageError.
        """
        wanted, known = set(names), {one.name: one for one in self.members}
        if missing := sorted(wanted - set(known)):
            raise StorageError(f"{self._path.name} has no file {missing[0]}")
        if self._zip is not None:
            for name in known:
                if name in wanted:
                    yield known[name], self._pieces(partial(self._zip.open, name), known[name])
            return
        with self._refusing(), self._tar() as tar:
            for info in tar:
                if info.isreg() and _plain(info.name) in wanted:
                    member = known[_plain(info.name)]
                    wanted.remove(member.name)
                    yield member, self._pieces(partial(tar.extractfile, info), member)
                if not wanted:
                    return

    def _pieces(self, opened: Callable[[], IO[bytes] | None], member: Member) -> Generator[bytes, None, None]:
        missing = member.num_bytes
        with self._refusing(), opened() or io.BytesIO() as file:
            while piece := file.read(PIECE_BYTES):
                missing -= len(piece)
                if missing < 0:
                    break
                yield piece
        if missing:
            raise StorageError(f"{self._path.name}: {member.name} does not have the size that the archive states")

    def _checked(self, found: Iterable[Member]) -> tuple[Member, ...]:
        members: dict[str, Member] = {}
        left = self._limit
        for one in found:
            if why := problem(one.name) or ("it is there twice" if one.name in members else ""):
                raise self._refusal(one.name, why)
            left -= one.num_bytes
            if left < 0:
                raise self._refusal(one.name, f"its files have more than {self._limit:,} bytes in all")
            members[one.name] = one
            if len(members) > MAX_MEMBERS:
                raise self._refusal(one.name, f"it has more than {MAX_MEMBERS:,} files")
        return tuple(members.values())

    def _zip_members(self) -> Iterator[Member]:
        assert self._zip is not None
        for info in self._zip.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise self._refusal(info.filename, "it is a link or a device")
            if info.flag_bits & 0x1:
                raise self._refusal(info.filename, "it is encrypted")
            if info.is_dir():
                yield from self._folder(info.filename)
            else:
                yield Member(info.filename, info.file_size)

    def _tar_members(self) -> Iterator[Member]:
        with self._tar() as tar:
            for info in tar:
                if info.isdir():
                    yield from self._folder(info.name)
                elif info.isreg() and not info.issparse():
                    yield Member(_plain(info.name), info.size)
                else:
                    raise self._refusal(info.name, "it is a link or a device")

    def _folder(self, name: str) -> Iterator[Member]:
        """Nothing, for a folder with a good name."""
        if why := problem(_plain(name).rstrip("/") or "."):
            raise self._refusal(name, why)
        yield from ()

    @contextmanager
    def _tar(self) -> Iterator[tarfile.TarFile]:
        # The longest that a harmless archive can be: each member has a header, and is padded to blocks of 512 bytes.
        with _BoundedGzip(self._path) as plain:
            plain.limit_bytes = 2 * self._limit + (1 << 24)
            with tarfile.open(fileobj=plain, mode="r:") as tar:
                yield tar

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        with system_errors(str(self._path)):
            try:
                yield
            except BROKEN as error:
                raise StorageError(f"{self._path.name} is no archive, or is damaged: {error}") from error

    def _refusal(self, name: str, why: str) -> StorageError:
        return StorageError(f"{self._path.name} is refused for its member {name[:200]!r}: {why}")


class _BoundedGzip(gzip.GzipFile):
    """A compressed file that is not read beyond a limit, nor in large pieces."""

    limit_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        self._check(self.tell() + size if size is not None and 0 <= size <= MAX_READ_BYTES else self.limit_bytes + 1)
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._check(offset)
        return super().seek(offset, whence)

    def _check(self, end: int) -> None:
        if end > self.limit_bytes:
            raise tarfile.ReadError(f"it has a header or a file beyond {self.limit_bytes:,} bytes")


def _plain(name: str) -> str:
    """The name of a member without `./` before it."""
    return name.removeprefix("./")


def gunzipped(path: Path, limit_bytes: int) -> bytes:
    """The content of a gzip file. Raises StorageError where it has more than `limit_bytes`, or is damaged."""
    with system_errors(str(path)):
        try:
            with gzip.open(path) as file:
                found = file.read(limit_bytes + 1)
        except BROKEN as error:
            raise StorageError(f"{path.name} is no gzip file, or is damaged: {error}") from error
    if len(found) > limit_bytes:
        raise StorageError(f"{path.name} has more than {limit_bytes:,} bytes when it is unpacked")
    return found
