"""Sources of a stream: a folder of this machine, or a prefix in a store. Objects are listed once and read by ranges."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.train.stream.errors import SourceChanged, StreamError

OWN = ".windlass"
"""Folder of a set that has its manifest, and none of its files; on a disk, the names of these files begin so."""


@dataclass(frozen=True)
class Object:
    """One file of a source."""

    name: str
    """Below the address, with `/` between its parts."""
    size: int
    version: str
    """Changes when the content does: an ETag; time, size and inode of a file."""
    digest: str = ""
    """Of the manifest, as `windlass data copy` writes it; empty where there is none."""


class Source(ABC):
    """A set of objects. All methods raise StreamError."""

    address: str
    is_local = False
    """Whether reads take no network, so that nothing is cached."""

    @abstractmethod
    def objects(self) -> list[Object]:
        """All objects, without ours (`OWN`), by name."""

    @abstractmethod
    def read(self, one: Object, start: int, length: int) -> bytes:
        """Bytes of an object. Raises SourceChanged where it is not the one that was listed, and Busy."""

    @abstractmethod
    def read_own(self, name: str) -> bytes | None:
        """A file below `OWN`; None where there is none."""


class FolderSource(Source):
    """Files below a folder."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder

    def objects(self) -> list[Object]:
        """See `Source`."""
        if not self._folder.is_dir():
            what = "is a file" if self._folder.exists() else "is not there"
            raise StreamError(f"{self._folder} {what}: a stream is opened from a folder, or from s3://bucket/prefix")
        return sorted(self._files(), key=lambda one: one.name)

    def _files(self) -> Iterator[Object]:
        for below, folders, names in os.walk(self._folder, onerror=_raise):
            folders[:] = [name for name in folders if name != OWN]
            for file in names:
                path = os.path.join(below, file)
                name = os.path.relpath(path, self._folder)
                if name.startswith(f"{OWN}-"):
                    continue
                try:
                    found = os.stat(path)
                except OSError as error:
                    raise StreamError(f"{path}: {error.strerror}") from error
                if not stat.S_ISREG(found.st_mode):
                    raise StreamError(f"{path} is no file: remove it, or open a folder of files alone")
                yield Object(name, found.st_size, _version(found))

    def read(self, one: Object, start: int, length: int) -> bytes:
        """See `Source`."""
        try:
            descriptor = os.open(self._folder / one.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                is_changed = _version(os.fstat(descriptor)) != one.version
                data = b"" if is_changed else _pread(descriptor, length, start)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise removed(str(self._folder / one.name), one) from error
        except OSError as error:
            raise StreamError(f"{self._folder / one.name}: {error.strerror}") from error
        if len(data) != length:
            raise changed(str(self._folder / one.name), one)
        return data

    def read_own(self, name: str) -> bytes | None:
        """See `Source`."""
        return None  # what the manifest of a folder says of its files may be older than they are

    def __reduce__(self) -> Any:
        return FolderSource, (self._folder,)


def _pread(descriptor: int, length: int, start: int) -> bytes:
    """The bytes of this range, fewer only at the end of the file: one call of Linux reads less than 2 GiB."""
    data = os.pread(descriptor, length, start)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), start + len(data))):
        data += more
    return data


def changed(what: str, one: Object) -> SourceChanged:
    """The error of an object that was written."""
    then = "copy the set again, or start a new run" if one.digest else "start a new run"
    return SourceChanged(
        f"{what} was written {_since(one)}; samples of two versions would be mixed: {then}, "
        "and write new versions under new names"
    )


def removed(what: str, one: Object) -> SourceChanged:
    """The error of an object that is not there any more."""
    return SourceChanged(f"{what} was removed {_since(one)}")


def _since(one: Object) -> str:
    return f"since the stream was opened{', or since `windlass data copy` wrote the set' if one.digest else ''}"


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"


def _raise(error: OSError) -> None:
    raise StreamError(f"{error.filename}: {error.strerror}") from error
