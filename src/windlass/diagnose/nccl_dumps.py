"""Reads the last collectives of each rank from the dumps of NCCL's watchdog, which are pickles of torch.

A pickle may call any function when it is loaded. These dumps contain only numbers, text, lists and dictionaries, so a
pickle that references anything else is not loaded.
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
"""Maximum size of a dump. A dump of 2000 collectives with stacks has several megabytes."""
LISTS: Final = ("build_intlist", "build_boollist", "build_doublelist", "build_tensorlist")
"""Functions of torch.jit._pickle that torch's pickler calls to build typed lists."""


class _Plain(pickle.Unpickler):
    """Unpickler that can only create numbers, text, lists and dictionaries."""

    def find_class(self, module: str, name: str) -> Any:
        """See pickle.Unpickler. Raises UnpicklingError for all but lists."""
        if module == "torch.jit._pickle" and name in LISTS:
            return list
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a dump")


def read_watchdogs(paths: Iterable[Path]) -> dict[int, Flight]:
    """Returns the last collectives by rank. The rank is the number at the end of the file name.

    For a file that cannot be read, the result has its path and no collectives.
    """
    found = {}
    for path in sorted(paths):
        if number := re.search(r"(\d+)$", path.name):
            found[int(number[1])] = flight_of(_read(path), str(path))
    return found


def _read(path: Path) -> dict[str, Any]:
    """Converts a dump to the format of `worker/flight_recorder.py`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        dump = _Plain(io.BytesIO(path.read_bytes())).load()
        groups = condense(dump, _ranks(dump))
        return {"at": path.stat().st_mtime, "why": "failed", "failed_in": "watchdog", "groups": groups}
    except Exception:
        return {}  # unpickling a damaged file may raise any exception


def _ranks(dump: dict[str, Any]) -> dict[str, list[int]]:
    """Returns the members of each process group, which the dump contains as text."""
    groups = dump.get("pg_config") or {}
    return {str(name): json.loads(group["ranks"]) for name, group in groups.items() if name and group.get("ranks")}
