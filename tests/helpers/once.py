"""What all test processes of a session need once: the first that asks makes it, the others read it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

import pytest


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    """The text that `make` gave in the first test process that asked for `name`."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / name
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            shared.write_text(make())
        return shared.read_text()
