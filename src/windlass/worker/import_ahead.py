"""Imports the modules that scripts import, in a fresh process, and checks whether that process is safe to fork."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator  # noqa: UP035 - the worker runs on Python 3.9 too

if TYPE_CHECKING:
    from windlass.worker.fork_reset import ForkReset
    from windlass.worker.fork_safety import Imports

SURE = frozenset({"numpy", "torch"})
"""Modules imported without a trial, because no known version makes a fork unsafe."""
DEFAULT_MODULES = {
    # Importing torch._dynamo (for DDP and optimizers) or the parts of transformers' Trainer takes as long as importing
    # torch.
    "transformers": ("transformers", "torch._dynamo", "transformers.trainer"),
    "torch": ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim"),
}
"""Modules to import for a requested module, because nearly every script that imports it needs them."""
Part = tuple[str, str]
"""A requested module, and a module to import for it."""


def import_ahead(parts: list[Part]) -> tuple[ForkReset, str]:
    """Imports modules as a script would at its start. Must be called in a process that has done nothing else.

    Returns the function that resets forks, and why forks are unsafe (empty if they are safe). Existing objects are
    excluded from later garbage collections, because a collection in a fork would copy every memory page of the imports.
    """
    from windlass.worker.fork_reset import ForkReset

    # Forks need these modules of Windlass, and can import them only while their folder is in `sys.path`.
    for name in ("node", "rank_start"):
        importlib.import_module(f"windlass.worker.{name}")
    rank = importlib.import_module("windlass.worker.rank")
    _without_own_folders()
    sys.argv = [""]
    # An imported module that stores a reference to `__main__` must store the module that will run the script.
    rank.prepare_main(rank.NOWHERE)
    previous = os.environ.get("OPENBLAS_NUM_THREADS")
    try:
        imports, broken = _watched(parts)
        sys.stdout.flush()
        sys.stderr.flush()  # otherwise every fork would write the buffered output again
        _flush_c_streams()
        reset, why_unsafe = ForkReset(imports), broken or imports.why_unsafe()
        gc.freeze()
        return reset, why_unsafe
    finally:
        if previous is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = previous


def parts_of(modules: list[str]) -> list[Part]:
    """Returns pairs of each requested module and a module to import for it, in order."""
    return [(name, part) for name in modules for part in DEFAULT_MODULES.get(name, (name,))]


def import_all(parts: list[Part]) -> str:
    """Imports modules, and returns a description of the first failure. Modules that are not installed are skipped,
    because the script reports them.
    """
    missing: set[str] = set()
    for name, part in parts:
        if name in missing:
            continue
        before = set(sys.modules)
        try:
            importlib.import_module(part)
        except ModuleNotFoundError as error:
            if not (part.startswith(f"{error.name}.") or part == error.name):
                return f"{part} could not be preloaded ({error})"
            missing.add(name)
        except BaseException as error:
            if part == name or set(sys.modules) != before:
                return f"{part} could not be preloaded ({type(error).__name__}: {error})"
            missing.add(name)  # this build lacks the module
    return ""


def attempt(parts: list[Part]) -> str:
    """Imports modules in the child of a trial. Returns why a fork of the child would be unsafe."""
    imports, broken = _watched(parts)
    return broken or imports.why_unsafe()


def _watched(parts: list[Part]) -> tuple[Imports, str]:
    """Imports modules. Returns the side effects on this process, and a description of the first import that failed."""
    from windlass.worker.fork_safety import Imports

    initial = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # otherwise importing NumPy would start threads
    imports = Imports(initial)
    with _no_collections():
        broken = import_all(parts)
    imports.close()
    return imports, broken


def is_sure(part: str) -> bool:
    """Whether a module is imported without a trial."""
    return part.split(".")[0] in SURE


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disables garbage collection, which would take a sixth of the time of importing torch and free
    only 10,000 of 350,000 objects.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:  # otherwise an import has set another threshold
            gc.set_threshold(*thresholds)


def _flush_c_streams() -> None:
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        ctypes.CDLL(None).fflush(None)


def _without_own_folders() -> None:
    """Removes Windlass's folders from `sys.path`, and puts a placeholder where a rank will have its script's folder."""
    from windlass.worker.rank import NOWHERE

    del sys.path[0]  # removes the package's folder; the next entry is this file's folder, which `-P` omits
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = NOWHERE
