"""Reads the dumps of NCCL's watchdog, which are pickles of torch: the last collectives of each rank.

A pickle may name any function to be called when it is read. These hold only numbers, text, lists and dictionaries, so
one that names anything else is not read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from windlass.diagnose.flights import Flight, flight_of
from windlass.worker.flight_recorder import condense

MAX_BYTES: Final = 64 << 20
"""Of one file: 2000 collectives with their stacks are some megabytes."""
LISTS: Final = ("build_intlist", "build_boollist", "build_doublelist", "build_tensorlist")
"""What torch's pickler calls, of torch.jit._pickle, to make a list of one type of a plain list."""


class _Plain(pickle.Unpickler):
    """Makes numbers, text, lists and dictionaries."""

    def find_class(self, module: str, name: str) -> Any:
        """See pickle.Unpickler. Raises UnpicklingError for all but lists."""
        if module == "torch.jit._pickle" and name in LISTS:
            return list
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a dump")


def read_watchdogs(paths: Iterable[Path]) -> dict[int, Flight]:
    """By rank, the last collectives. The rank is the number that the name of the file ends in.

    A file that cannot be read has its path and no collectives.
    """
    found = {}
    for path in sorted(paths):
        if number := re.search(r"(\d+)$", path.name):
            found[int(number[1])] = flight_of(_read(path), str(path))
    return found


def _read(path: Path) -> dict[str, Any]:
    """The same data as `worker/flight_recorder.py` writes."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        dump = _Plain(io.BytesIO(path.read_bytes())).load()
        groups = condense(dump, _ranks(dump))
        return {"at": path.stat().st_mtime, "why": "failed", "failed_in": "watchdog", "groups": groups}
    except Exception:
        return {}  # a pickle that is cut short or was made by another program may raise anything


def _ranks(dump: dict[str, Any]) -> dict[str, list[int]]:
    """The members of each process group, which are written as text."""
    groups = dump.get("pg_config") or {}
    return {str(name): json.loads(group["ranks"]) for name, group in groups.items() if name and group.get("ranks")}
