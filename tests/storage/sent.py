"""Helpers that have started before their copy continues, and a folder that performs test actions in them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.errors import StorageError
from windlass.storage.address import Address
from windlass.storage.folder import Folder
from windlass.storage.helpers import Helpers
from windlass.storage.place import Buffer, Entry, Fatal, SourceChanged, Throttled


class Started(Helpers):
    """Helpers that move every small file, because they have started before the first one is copied."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._starting.join()


class Sent(Folder):
    """Folder that performs an action before some files are read, in the process that reads them."""

    def __init__(self, path: Path, acts: dict[str, str], marks: Path) -> None:
        """`acts` are actions by file name; `marks` gets a line for each read."""
        super().__init__(Address("folder", "", str(path)))
        self._acts, self._marks, self._copy_pid = acts, marks, os.getpid()

    def pieces(self, entry: Entry, start: int, length: int) -> Iterator[Buffer]:
        self._act(self._acts.get(entry.name, ""), entry.name)
        with open(self._marks / "reads", "a") as file:
            file.write(f"{os.getpid()} {entry.name}\n")
        return super().pieces(entry, start, length)

    def _act(self, act: str, name: str) -> None:
        is_helper = os.getpid() != self._copy_pid
        if act == "busy once" and self._is_first(name):
            raise Throttled("SlowDown")
        if act == "changed":
            raise SourceChanged(f"{name} was changed while it was copied")
        if act == "no space":
            raise Fatal(f"{name}: No space left on device")
        if act == "bug":
            raise ZeroDivisionError(name)
        if act == "refused":
            raise StorageError(f"{name}: Input/output error")
        if is_helper and (act == "die" or (act == "die once" and self._is_first(name))):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_helper and act in ("SIGKILL", "SIGINT") and self._is_first(name):
            os.kill(self._copy_pid, signal.Signals[act])
            # blocks this file, so that the copy is not complete before it has noticed the action
            threading.Event().wait()

    def _is_first(self, name: str) -> bool:
        try:
            os.close(os.open(self._marks / f"first-{name.replace('/', '-')}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
