"""Identifies this machine, because process ids in a record are invalid on other machines that share the home."""

from __future__ import annotations

import getpass
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from windlass.runs.events import Machine
from windlass.worker.process import boot_id

VARIABLE: Final = "WINDLASS_MACHINE"
ID_LETTERS: Final = 16


def this_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Returns the machine that this process runs on.

    Its id is a hash of the host name and of `/etc/machine-id`, which should stay confidential according to
    machine-id(5). The host name is included because nodes of a cluster that boot the same image have the same
    machine-id. `$WINDLASS_MACHINE` replaces both.
    """
    named = environ.get(VARIABLE, "").strip()
    host = named or os.uname().nodename
    return Machine(_hashed(named) if named else _hashed(_machine_id(root), host), host, "" if named else boot_id())


def user_name() -> str:
    """Returns the name of the user on this machine; empty if the user has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


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
