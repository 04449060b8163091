"""Imports what scripts import in a process that has done nothing else, and finds out whether it may then be forked."""

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
"""Imported without a trial: no version of them has been found to be unsafe."""
DEFAULT_MODULES = {
    # DDP and the first optimizer import torch._dynamo, which takes as long as torch itself.
    # Loads its parts when they are first asked for; the Trainer's take as long as torch itself.
    "transformers": ("transformers", "torch._dynamo", "transformers.trainer"),
    "torch": ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim"),
}
"""What is imported with a module, since nearly every script that imports it comes to need it."""
Part = tuple[str, str]
"""A module of the list, and one that is imported for it."""


def import_ahead(parts: list[Part]) -> tuple[ForkReset, str]:
    """Import as a script would that has not begun, in a process that has done nothing else.

    Gives what forks have to undo, and why none may be made, which is empty where all is well. What there is then is
    left out of every later garbage collection: one in a fork would touch, and so copy, each page of the imports.
    """
    from windlass.worker.fork_reset import ForkReset

    # What the forks need of us, while this folder can still be imported from.
    for name in ("node", "rank_start"):
        importlib.import_module(f"windlass.worker.{name}")
    rank = importlib.import_module("windlass.worker.rank")
    _without_own_folders()
    sys.argv = [""]
    # A module that keeps `__main__` must keep the one that will be the script's.
    rank.prepare_main(rank.NOWHERE)
    held = os.environ.get("OPENBLAS_NUM_THREADS")
    try:
        imports, broken = _watched(parts)
        sys.stdout.flush()
        sys.stderr.flush()  # or every fork would write what is left in it
        _flush_c_streams()
        reset, why_unsafe = ForkReset(imports), broken or imports.why_unsafe()
        gc.freeze()
        return reset, why_unsafe
    finally:
        if held is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = held


def parts_of(modules: list[str]) -> list[Part]:
    """What is imported for each module of a list, in order."""
    return [(name, part) for name in modules for part in DEFAULT_MODULES.get(name, (name,))]


def import_all(parts: list[Part]) -> str:
    """Import them; gives which one failed. One that is not installed is left to the script's own import error."""
    missing: set[str] = set()
    for name, part in parts:
        if name in missing:
            continue
        before = set(sys.modules)
        try:
            importlib.import_module(part)
        except ModuleNotFoundError as error:
            if not (part.startswith(f"{error.name}.") or part == error.name):
                return f"{part} could not be imported ahead ({error})"
            missing.add(name)
        except BaseException as error:
            if part == name or set(sys.modules) != before:
                return f"{part} could not be imported ahead ({type(error).__name__}: {error})"
            missing.add(name)  # a part that this build does not have
    return ""


def attempt(parts: list[Part]) -> str:
    """In the child that tries them: import, and give why a fork would then be unsafe."""
    imports, broken = _watched(parts)
    return broken or imports.why_unsafe()


def _watched(parts: list[Part]) -> tuple[Imports, str]:
    """Import them; gives what that did to this process, and which one failed."""
    from windlass.worker.fork_safety import Imports

    initial = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else the import of NumPy starts a thread
    imports = Imports(initial)
    with _no_collections():
        broken = import_all(parts)
    imports.close()
    return imports, broken


def is_sure(part: str) -> bool:
    """Whether it is imported without a trial."""
    return part.split(".")[0] in SURE


@contextmanager
def _no_collections() -> Iterator[None]:
    """Leave out those while torch is imported: they take a sixth of the time, and find 10,000 of 350,000 objects."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:  # else what was imported has set its own
            gc.set_threshold(*thresholds)


def _flush_c_streams() -> None:
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        ctypes.CDLL(None).fflush(None)


def _without_own_folders() -> None:
    """Leave in `sys.path` what a rank will have, and for its script's folder a place that is nowhere."""
    from windlass.worker.rank import NOWHERE

    del sys.path[0]  # the package's; what follows it is this file's, unless the interpreter adds none (`-P`)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = NOWHERE
