"""Sources of a stream: a local folder, or a prefix in a store. Objects are listed once and read by ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.compat import override
from windlass.stores import errors as stores_errors
from windlass.stores import store as stores
from windlass.stores.errors import Changed, Denied, Missing
from windlass.stores.folder import FolderStore
from windlass.stores.store import Store
from windlass.train.stream.errors import Busy, SourceChanged, StreamError

OWN = ".windlass"
"""Name of Windlass's folder in a data set, which holds the manifest and no samples. Temporary local files also have
this prefix."""


@dataclass(frozen=True)
class Object:
    """One file of a source."""

    name: str
    """Object name relative to the address, with `/` as separator."""
    size: int
    version: str
    """Changes with the content: an ETag, or the mtime, size and inode of a local file."""
    digest: str = ""
    """Digest in the manifest, as `windlass data copy` writes it; empty without a manifest."""


class Source(ABC):
    """A set of objects. All methods raise StreamError."""

    address: str
    is_local = False
    """Whether reads need no network, so that nothing is cached."""

    @abstractmethod
    def objects(self) -> list[Object]:
        """Returns all objects by name, without Windlass's own (`OWN`)."""

    @abstractmethod
    def read(self, one: Object, start: int, length: int) -> bytes:
        """Reads bytes of an object. Raises SourceChanged if the object has changed since it was listed, and Busy."""

    @abstractmethod
    def read_own(self, name: str) -> bytes | None:
        """Reads a file below `OWN`; None if it does not exist."""


class StoreSource(Source):
    """Objects below a prefix; safe for threads, forks and pickling. Credentials and endpoint come from the
    environment.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        """`prefix` has no slashes at its beginning or end."""
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self.address = f"{store.address}/{self._prefix}"

    def __reduce__(self) -> Any:
        return type(self), (self._store, self._prefix.rstrip("/"))

    @override
    def objects(self) -> list[Object]:
        with _errors():
            found = [one for one in self._store.listed(self._prefix) if isinstance(one, stores.Object)]
        names = (Object(one.key[len(self._prefix) :], one.size, one.version) for one in found if _is_file(one))
        return sorted((one for one in names if not _is_own(one.name)), key=lambda one: one.name)

    @override
    def read(self, one: Object, start: int, length: int) -> bytes:
        with _errors():
            try:
                return self._store.read_once(
                    stores.Object(self._prefix + one.name, one.size, one.version), start, length
                )
            except Missing as error:
                raise removed(f"{self.address}{one.name}", one) from error
            except Changed as error:
                raise changed(f"{self.address}{one.name}", one) from error

    @override
    def read_own(self, name: str) -> bytes | None:
        with _errors():
            try:
                return self._store.get(f"{self._prefix}{OWN}/{name}")
            except (Missing, Denied):
                # Without the permission to list a bucket, S3 denies access to a missing key. The listing reports the
                # real problem.
                return None


class FolderSource(StoreSource):
    """Files below a folder."""

    is_local = True

    def __init__(self, folder: Path) -> None:
        super().__init__(FolderStore(folder), "")
        self.address = str(folder)
        self._folder = folder

    def __reduce__(self) -> Any:
        return FolderSource, (self._folder,)

    @override
    def read_own(self, name: str) -> bytes | None:
        return None  # a folder's manifest is not used, because it may be older than the files


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except stores_errors.Busy as error:
        raise Busy(str(error)) from error
    except stores_errors.StoreError as error:
        raise StreamError(str(error)) from error


def _is_file(one: stores.Object) -> bool:
    """Whether an object is a file. Store consoles create empty objects with a trailing slash as folders."""
    return not (one.key.endswith("/") and not one.size)


def _is_own(name: str) -> bool:
    return name.startswith((f"{OWN}/", f"{OWN}-"))


def changed(what: str, one: Object) -> SourceChanged:
    """Creates the error for an object that was overwritten."""
    then = "copy the set again, or start a new run" if one.digest else "start a new run"
    return SourceChanged(
        f"{what} was written {_since(one)}; samples of two versions would be mixed: {then}, "
        "and write new versions under new names"
    )


def removed(what: str, one: Object) -> SourceChanged:
    """Creates the error for an object that was removed."""
    return SourceChanged(f"{what} was removed {_since(one)}")


def _since(one: Object) -> str:
    return f"since the stream was opened{', or since `windlass data copy` wrote the set' if one.digest else ''}"
