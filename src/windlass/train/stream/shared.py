"""The index of a run, in its checkpoint folder: the first rank writes it, and all ranks and attempts read it."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.train.checkpoint.storage import is_address

if TYPE_CHECKING:
    from windlass.stores.store import Store

FOLDER = ".stream"


class Shared(ABC):
    """A file that is written once. All methods raise OSError."""

    @abstractmethod
    def fetch(self, to: Path) -> bool:
        """Copy it to a path of this node, if it is there; gives whether it is."""

    @abstractmethod
    def publish(self, path: Path) -> None:
        """Write it, unless another process has."""


class SharedFile(Shared):
    """In a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def fetch(self, to: Path) -> bool:
        """See `Shared`."""
        try:
            shutil.copyfile(self._path, to)
        except FileNotFoundError:
            return False
        return True

    def publish(self, path: Path) -> None:
        """See `Shared`."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}-{os.urandom(4).hex()}")
        try:
            shutil.copyfile(path, part)
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            try:
                os.link(part, self._path)
            except FileExistsError:
                return
            except OSError:  # a file system without links
                if not self._path.exists():
                    part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)


class SharedObject(Shared):
    """In a store."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key

    def __str__(self) -> str:
        return f"{self._store.address}/{self._key}"

    def fetch(self, to: Path) -> bool:
        """See `Shared`."""
        from windlass.stores.errors import Missing

        try:
            to.write_bytes(self._store.get(self._key))
        except Missing:
            return False
        return True

    def publish(self, path: Path) -> None:
        """See `Shared`."""
        from windlass.stores.errors import Changed

        with suppress(Changed):
            self._store.write(self._key, [path.read_bytes()])


def of_run(name: str, environ: Mapping[str, str]) -> Shared | None:
    """The index by this name of the run that this process is part of; None without a run or a checkpoint folder."""
    folder = environ.get("WINDLASS_CHECKPOINT_DIR")
    if not folder or not environ.get("WINDLASS_RUN_ID"):
        return None
    if is_address(folder):
        from windlass.stores.opening import open_store  # folders need no client of a store

        if (found := open_store(folder)) is None:
            return None
        store, prefix = found
        return SharedObject(store, f"{prefix}/{FOLDER}/{name}".lstrip("/"))
    return SharedFile(Path(folder, FOLDER, name)) if os.path.isdir(folder) else None
