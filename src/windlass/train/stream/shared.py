"""Index of a run, stored in its checkpoint folder: the first rank writes it, and all ranks and attempts read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from windlass.stores.errors import Changed, Missing
from windlass.stores.folder import FolderStore
from windlass.stores.opening import open_store
from windlass.stores.store import Store
from windlass.train.checkpoint.storage import is_address

FOLDER = ".stream"


class SharedFile:
    """A file in a folder or store that is written once. All methods raise OSError."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key

    def __str__(self) -> str:
        return f"{self._store.address}/{self._key}"

    def fetch(self, to: Path) -> bool:
        """Copies the file to `path` on this node. Returns False if the file does not exist."""
        try:
            to.write_bytes(self._store.get(self._key))
        except Missing:
            return False
        return True

    def publish(self, path: Path) -> None:
        """Writes the file, unless another process has already written it."""
        with suppress(Changed):
            self._store.write(self._key, [path.read_bytes()])


def shared_file(name: str, environ: Mapping[str, str]) -> SharedFile | None:
    """Returns the index with this name in the run of this process; None without a run or a checkpoint folder."""
    folder = environ.get("WINDLASS_CHECKPOINT_DIR")
    if not folder or not environ.get("WINDLASS_RUN_ID"):
        return None
    if is_address(folder):
        found = open_store(folder)
        return None if found is None else SharedFile(found[0], f"{found[1]}/{FOLDER}/{name}".lstrip("/"))
    return SharedFile(FolderStore(folder), f"{FOLDER}/{name}") if os.path.isdir(folder) else None
