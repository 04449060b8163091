"""Stores a folder of checkpoints as objects below a prefix of a store, with the methods of `storage.Folder`.

| in a folder | in a store |
|---|---|
| `step-00000120-a2f3c1/rank-0.json` | the object of this key below the prefix; written as a whole or not at all |
| the folder of a checkpoint | the objects below its name, as long as there is one |
| renamed to `step-00000120-a2f3c1.damaged` | an empty object of that name beside the checkpoint, which stays |

Standard library only, Python 3.9, because the writer process uses this module.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import BinaryIO, cast

from windlass.compat import override
from windlass.stores.opening import open_store
from windlass.stores.store import Object
from windlass.train.checkpoint.storage import ASIDE, RUN_MARKER, Folder, is_plain_name


class ObjectFolder(Folder):
    """A folder of checkpoints below an address such as `s3://bucket/prefix`. All methods raise OSError."""

    num_reads = 3

    def __init__(self, path: str) -> None:
        """Raises ValueError for an address that does not name a store."""
        super().__init__(path.rstrip("/"))
        found = open_store(self.path)
        if found is None:
            raise ValueError(
                f"{path}: checkpoints are kept in a folder, or below s3://BUCKET/PREFIX, gs:// or az://CONTAINER/PREFIX"
            )
        self._store, prefix = found
        self._prefix = f"{prefix}/" if prefix else ""

    def make(self) -> None:
        """Does nothing: prefixes exist without being created."""

    @override
    def checkpoints(self) -> list[str]:
        names, aside = [], set()
        for found in self._store.listed(self._prefix, "/"):
            if isinstance(found, Object):
                aside.add(found.key[len(self._prefix) :])
            else:
                names.append(found[len(self._prefix) : -1])
        return [f"{name}{ASIDE}" if f"{name}{ASIDE}" in aside else name for name in names if not name.startswith(".")]

    def files(self, checkpoint: str) -> dict[str, int]:
        """Returns name and size in bytes of each object of a checkpoint; empty if there are none."""
        return {one.key.rpartition("/")[2]: one.size for one in self._objects(checkpoint)}

    @override
    def changed_at(self, checkpoint: str) -> float:
        found = [one.changed_at for one in self._objects(checkpoint)]
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.path}/{checkpoint}")
        return max(found)

    @override
    def open(self, checkpoint: str, file: str) -> BinaryIO:
        return cast("BinaryIO", self._store.open(self._key(checkpoint, file)))

    @override
    def begin(self, checkpoint: str, run_id: str = "") -> None:
        if run_id and is_plain_name(RUN_MARKER + run_id):
            self._store.put(self._key(checkpoint, RUN_MARKER + run_id), b"")

    @override
    def put(self, checkpoint: str, file: str, pieces: Iterable[bytes | memoryview]) -> None:
        self._store.write(self._key(checkpoint, file), pieces)

    @override
    def discard(self, checkpoint: str, file: str) -> None:
        self._store.remove(self._key(checkpoint, file))

    def sync(self, checkpoint: str) -> None:
        """Does nothing: an object is durable once the store has confirmed its write."""

    def set_aside(self, checkpoint: str) -> None:
        """Marks a damaged checkpoint with an empty object next to it, because objects cannot be renamed."""
        self._store.put(self._key(checkpoint + ASIDE), b"")

    @override
    def remove(self, checkpoint: str, first: str) -> None:
        self._store.remove(self._key(checkpoint, first))
        for one in self._objects(checkpoint):
            self._store.remove(one.key)
        if checkpoint.endswith(ASIDE):
            self._store.remove(self._key(checkpoint))

    def finish_removals(self) -> None:
        """Does nothing: a checkpoint that is partly removed is listed as unfinished."""

    @override
    def undo_words(self, checkpoint: str) -> str:
        return f"remove {self.path}/{checkpoint}"

    def _objects(self, checkpoint: str) -> list[Object]:
        prefix = self._key(checkpoint, "")
        found = (one for one in self._store.listed(prefix, "/") if isinstance(one, Object))
        return [one for one in found if is_plain_name(one.key[len(prefix) :]) and one.key[len(prefix)] != "."]

    def _key(self, checkpoint: str, file: str | None = None) -> str:
        """Returns the key of a checkpoint's file or, without `file`, of the empty object that marks the checkpoint."""
        for name in (checkpoint, *([file] if file else [])):
            if not is_plain_name(name):
                raise OSError(f"{name!r} is not a plain name")
        if file is None:
            return self._prefix + checkpoint
        name = checkpoint[: -len(ASIDE)] if checkpoint.endswith(ASIDE) else checkpoint
        return f"{self._prefix}{name}/{file}"
