"""Sets the number of OpenBLAS threads (NumPy) in a process that imports in advance, and in its forks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from windlass.worker import process

VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables from which OpenBLAS takes its number of threads, in order of precedence."""
PREFIXES, SUFFIXES = ("scipy_openblas_", "openblas_"), ("num_threads64_", "num_threads")


def set_threads(env: Mapping[str, str]) -> None:
    """Sets the number of threads that OpenBLAS would have chosen in the environment `env`. OpenBLAS was imported with
    one thread.

    OpenBLAS starts missing threads at once, and each new thread occupies a core for a twentieth of a second. Threads
    lost in a fork are started again when OpenBLAS first needs them.
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
