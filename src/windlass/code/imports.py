"""Finds imported modules without running a script: those of the script and of the local files that it imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from windlass.spec.job import Job


PRELOADED: Final = ("numpy", "torch", "torchvision", "scipy", "sklearn", "pandas", "transformers", "datasets",
                    "accelerate", "torchdata", "timm", "einops")  # fmt: skip
"""Modules that are preloaded if the script imports them: slow to import, widely used, and safe to fork. Lightning and
torchmetrics are not preloaded because they store the rank of the process at import.
"""
SLOW: Final = ("torch", "tensorflow", "jax", "keras", "lightning", "pytorch_lightning", "transformers", "datasets",
               "deepspeed", "ultralytics", "ray", "xgboost", "lightgbm", "sklearn", "pandas")  # fmt: skip
"""Libraries that take noticeable time to import, the most popular first."""
MAX_FILES: Final = 64
MAX_BYTES: Final = 1 << 20


def script_imports(job: Job, code_dir: Path) -> tuple[str, ...]:
    """Returns the top-level modules that the job's Python script imports, sorted; empty for a program or an unreadable
    script.
    """
    return tuple(sorted({name.split(".")[0] for _, tree in parsed_files(job, code_dir) for name in imports(tree)}))


def parsed_files(job: Job, code_dir: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yields the job's Python script and the local files that it imports, parsed; nothing for a program.

    Unreadable files are skipped: the interpreter reports the error when the script starts.
    """
    argv = job.script_argv
    if job.script_kind == "program":
        return
    if argv[:2] == ("-m", "windlass.train.call") and len(argv) > 2:
        # for a submitted function, the script is the module that defines it
        argv = ("-m", argv[2].partition(":")[0])
    first = code_dir / (argv[1].replace(".", "/") + ".py" if argv[0] == "-m" and len(argv) > 1 else argv[0])
    folders = [first.parent, code_dir]
    seen: set[Path] = set()
    waiting = [first]
    while waiting and len(seen) < MAX_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = _parsed(path)
        if tree is not None:
            yield path, tree
            for name in imports(tree):
                waiting += _files(name, folders)


def modules_to_preload(job: Job, imported: Collection[str]) -> list[str]:
    """Returns the modules to preload before the ranks of a job are forked; empty for a cold start."""
    if job.script_kind == "program" or job.start == "cold" or job.setup:
        # the job's `setup` may install other versions of the modules
        return []
    return list(job.warm) or [name for name in PRELOADED if name in imported]


def slow_modules(imported: Collection[str]) -> tuple[str, ...]:
    """Returns the slow modules among a script's imports."""
    return tuple(name for name in SLOW if name in imported)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yields every module imported anywhere in a program, and every name imported from a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _parsed(path: Path) -> ast.Module | None:
    try:
        found = path.stat()
        # Only regular files are read: a pipe would block, and a device may never end.
        if path.is_file() and found.st_size <= MAX_BYTES:
            return _parsed_once(path, found.st_mtime_ns, found.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return None


@functools.lru_cache(maxsize=MAX_FILES)
def _parsed_once(path: Path, _modified: int, _size: int) -> ast.Module:
    return ast.parse(path.read_bytes())


def _files(name: str, folders: list[Path]) -> list[Path]:
    """Returns the files in the code folder that belong to a module."""
    paths = [folder / name.replace(".", "/") for folder in folders]
    candidates = [path.with_name(path.name + ".py") for path in paths] + [path / "__init__.py" for path in paths]
    return [path for path in candidates if path.is_file()]
