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
"""Modules imported without a trial: no version of them is known to make a fork unsafe."""
DEFAULT_MODULES = {
    # DDP and the first optimizer import torch._dynamo, which takes as long as torch itself. transformers loads its
    # parts on first use; those of the Trainer take as long as torch itself.
    "transformers": ("transformers", "torch._dynamo", "transformers.trainer"),
    "torch": ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim"),
}
"""Modules that are imported together with a module because nearly every script that imports it needs them."""
Part = tuple[str, str]
"""A module of the list, and a module that is imported for it."""


def import_ahead(parts: list[Part]) -> tuple[ForkReset, str]:
    """Imports modules as a script would at its start. Call it in a process that has done nothing else.

    Returns the resetter for forks, and why no fork may be made (empty if forks are safe). All objects that exist then
    are excluded from later garbage collections: a collection in a fork would touch, and so copy, every page of the
    imports.
    """
    from windlass.worker.fork_reset import ForkReset

    # The forks need these modules of Windlass; import them while their folder is still in `sys.path`.
    for name in ("node", "rank_start"):
        importlib.import_module(f"windlass.worker.{name}")
    rank = importlib.import_module("windlass.worker.rank")
    _without_own_folders()
    sys.argv = [""]
    # Modules that store a reference to `__main__` must store the module that will run the script.
    rank.prepare_main(rank.NOWHERE)
    previous = os.environ.get("OPENBLAS_NUM_THREADS")
    try:
        imports, broken = _watched(parts)
        sys.stdout.flush()
        sys.stderr.flush()  # otherwise every fork would write the buffered output
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
    """Returns the modules that are imported for each module of a list, in order."""
    return [(name, part) for name in modules for part in DEFAULT_MODULES.get(name, (name,))]


def import_all(parts: list[Part]) -> str:
    """Imports modules and describes the one that failed. Modules that are not installed are skipped: the script reports
    them.
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
            missing.add(name)  # this build does not include the module
    return ""


def attempt(parts: list[Part]) -> str:
    """Imports in the trial's child process, and returns why a fork would then be unsafe."""
    imports, broken = _watched(parts)
    return broken or imports.why_unsafe()


def _watched(parts: list[Part]) -> tuple[Imports, str]:
    """Imports modules; returns the side effects on this process, and a description of the import that failed."""
    from windlass.worker.fork_safety import Imports

    initial = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # otherwise the import of NumPy starts threads
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
    """Disables garbage collection during imports. For torch it takes a sixth of the time and frees 10,000 of 350,000
    objects.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:  # otherwise an imported module has set its own threshold
            gc.set_threshold(*thresholds)


def _flush_c_streams() -> None:
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        ctypes.CDLL(None).fflush(None)


def _without_own_folders() -> None:
    """Reduces `sys.path` to the entries that a rank will have, with a non-existent path in place of its script's
    folder.
    """
    from windlass.worker.rank import NOWHERE

    del sys.path[0]  # the folder of the package; the next entry is this file's folder, which `-P` omits
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = NOWHERE
