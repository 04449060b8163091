"""A folder as an object store: objects are the files below it. Standard library only, Python 3.9."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.compat import override
from windlass.stores.errors import Changed, Denied, Missing, MissingBucket, StoreError
from windlass.stores.part_sizes import STREAM_PART_BYTES
from windlass.stores.store import Body, Object, Page, Store


class FolderStore(Store):
    """Store in a folder. Files are written under a temporary name and renamed, so each is complete or does not
    exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self.address = str(folder)
        self._folder = Path(folder)

    def __reduce__(self) -> Any:
        return FolderStore, (self.address,)

    @override
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """Yields one page with all objects. Raises MissingBucket if the folder does not exist."""
        if not self._folder.is_dir():
            words = "it is a file, and no folder" if self._folder.exists() else "there is no such folder"
            raise MissingBucket(words, self.address)
        page: Page = []
        for one in sorted(self._files(prefix)):
            below, is_deeper, _ = one.key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            found = f"{prefix}{below}{delimiter}" if is_deeper else one
            if one.key > after and (not page or page[-1] != found):
                page.append(found)
        yield page

    def _files(self, prefix: str) -> Iterator[Object]:
        with self._errors(prefix):
            for below, _, names in os.walk(f"{self.address}/{prefix}", onerror=_raise):
                for name in names:
                    path = os.path.join(below, name)
                    yield self._object(os.path.relpath(path, self.address), os.stat(path))

    @override
    def head_once(self, key: str) -> Object:
        with self._errors(key):
            return self._object(key, os.stat(f"{self.address}/{key}"))

    @override
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        with self._errors(one.key):
            descriptor = os.open(f"{self.address}/{one.key}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                is_changed = self._object(one.key, os.fstat(descriptor)).version != one.version
                data = b"" if is_changed else _pread(descriptor, length, start)
            finally:
                os.close(descriptor)
        if len(data) != length:
            raise Changed("it was written meanwhile", f"{self.address}/{one.key}")
        return data

    @override
    def get_once(self, key: str) -> bytes:
        with self._errors(key):
            return (self._folder / key).read_bytes()

    @override
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        return self._written(key, [body], is_new)

    @override
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = STREAM_PART_BYTES) -> str:
        return self._written(key, parts, is_new=False)

    def _written(self, key: str, pieces: Iterable[Body], is_new: bool) -> str:
        path = self._folder / key
        # Several processes may write this file concurrently.
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with self._errors(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(part, "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                    version = self._object(key, os.fstat(file.fileno())).version
                if not is_new or not _linked(part, path):
                    part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return version

    @override
    def remove_once(self, key: str) -> None:
        with self._errors(key):
            (self._folder / key).unlink(missing_ok=True)

    @override
    def remove_below(self, prefix: str) -> None:
        """Deletes all objects whose keys start with the prefix, and the folders that contained them."""
        shutil.rmtree(self._folder / prefix, ignore_errors=True)

    def _object(self, key: str, found: os.stat_result) -> Object:
        if not stat.S_ISREG(found.st_mode):
            what = f"{self.address}/{key}"
            raise StoreError("it is no regular file", what, "remove it, or name a folder of files alone")
        return Object(key, found.st_size, f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}")

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        what = f"{self.address}/{key}"
        try:
            yield
        except StoreError:
            raise
        except FileExistsError as error:
            raise Changed("there is such a file already", what) from error
        except OSError as error:
            kind = Missing if isinstance(error, (FileNotFoundError, NotADirectoryError)) else StoreError
            raise (Denied if isinstance(error, PermissionError) else kind)(
                error.strerror or str(error), what
            ) from error


def _linked(part: Path, path: Path) -> bool:
    """Links a file to its final name. Returns False if the file system has no hard links and no file has that name.

    Raises FileExistsError if another file has the name.
    """
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        return False
    return True


def _pread(descriptor: int, length: int, start: int) -> bytes:
    """Reads a byte range, shorter only at the end of the file. Loops because one Linux read returns less than 2 GiB."""
    data = os.pread(descriptor, length, start)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), start + len(data))):
        data += more
    return data


def _raise(error: OSError) -> None:
    raise error
