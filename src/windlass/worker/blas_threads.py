"""The threads of OpenBLAS, which NumPy brings: in a process that imports ahead, and in its forks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from windlass.worker import process

VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""Where it takes their number from, the first that is set."""
PREFIXES, SUFFIXES = ("scipy_openblas_", "openblas_"), ("num_threads64_", "num_threads")


def set_threads(env: Mapping[str, str]) -> None:
    """Give OpenBLAS as many threads as it would have taken in `env`; while it was imported, it was held to one.

    It starts those that it does not have at once, and each waits for work on a core of its own for a twentieth of a
    second. Those that a fork loses, it starts again when it first needs them.
    """
    wanted = [int(value) for value in map(env.get, VARIABLES) if value and value.isdigit() and int(value) > 0]
    threads = min([*wanted[:1], len(os.sched_getaffinity(0))])
    paths = process.mapped("openblas")
    if not paths:
        return
    import ctypes

    for path in paths:
        library = ctypes.CDLL(path)
        for name in (prefix + "{}" + suffix for prefix in PREFIXES for suffix in SUFFIXES):
            setter = getattr(library, name.format("set_"), None)
            if setter is not None:
                if getattr(library, name.format("get_"))() != threads:
                    setter(threads)
                break
