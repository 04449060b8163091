"""Identifies this machine: process ids in a record mean nothing on another one that shares the home."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.worker.process import boot_id

VARIABLE: Final = "WINDLASS_MACHINE"
ID_LETTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, as it is recorded with each run that it keeps."""

    id: str
    """Stays the same over reboots; empty in runs of versions that did not record it."""
    host: str
    """Its host name, for messages."""
    boot: str
    """Names the boot: containers that share it share the kernel, and with it process ids and locks."""

    def keeps(self, run: Machine | None) -> bool:
        """Whether a run that was recorded on `run` is kept here; runs of versions that did not record it are."""
        if run is None or not run.id or run.id == self.id:
            return True
        return run.boot == self.boot if self.boot else run.host == self.host  # one that the user has named has no boot

    def to_json(self) -> dict[str, str]:
        """As it stands in `created` and `resume` events."""
        return {"id": self.id, "host": self.host, "boot": self.boot}


def machine_of(data: Any) -> Machine | None:
    """The machine that an event names; None where it names none."""
    if not isinstance(data, Mapping):
        return None
    return Machine(*(str(data.get(name, "")) for name in ("id", "host", "boot")))


def this_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """The machine that this process runs on.

    Its id is a hash of `/etc/machine-id`, which machine-id(5) asks not to be shown to others, and of the host name:
    nodes of a cluster that boot the same image have the same machine-id. `$WINDLASS_MACHINE` replaces both.
    """
    named = environ.get(VARIABLE, "").strip()
    host = named or socket.gethostname()
    return Machine(_hashed(named) if named else _hashed(_machine_id(root), host), host, "" if named else boot_id())


def _machine_id(root: Path) -> str:
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        try:
            if text := (root / name).read_text().strip():
                return text
        except OSError:
            continue
    return ""


def _hashed(*words: str) -> str:
    return hashlib.sha256("\0".join(("windlass", *words)).encode()).hexdigest()[:ID_LETTERS]
