"""Reads which modules a script imports, without running it: the script's own code and the files beside it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from windlass.spec.job import Job

PRELOADED: Final = ("numpy", "torch", "torchvision", "scipy", "sklearn", "pandas", "transformers", "datasets",
                    "accelerate", "torchdata", "timm", "einops")  # fmt: skip
"""What is imported ahead if the script imports it: slow to import, widely used, and known to bear a fork.

Lightning and torchmetrics are not: they keep the rank that they find while they are imported.
"""
MAX_FILES: Final = 64
MAX_BYTES: Final = 1 << 20


def script_imports(job: Job, code_dir: Path) -> tuple[str, ...]:
    """Top-level names of what the job's Python script imports, sorted; empty for a program or an unreadable script."""
    argv = job.script_argv
    if job.script_kind == "program":
        return ()
    first = code_dir / (argv[1].replace(".", "/") + ".py" if argv[0] == "-m" and len(argv) > 1 else argv[0])
    folders = [first.parent, code_dir]
    found: set[str] = set()
    seen: set[Path] = set()
    waiting = [first]
    while waiting and len(seen) < MAX_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imports(path):
            found.add(name.split(".")[0])
            waiting += _files(name, folders)
    return tuple(sorted(found))


def ahead(job: Job, imported: Collection[str]) -> list[str]:
    """What is to be imported before the ranks of a job are forked, of what its script imports; empty for a program."""
    if job.script_kind == "program":
        return []
    return list(job.warm) or [name for name in PRELOADED if name in imported]


def _imports(path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the interpreter will say what is wrong with it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _files(name: str, folders: list[Path]) -> list[Path]:
    """The files beside the script that stand for a module."""
    paths = [folder / name.replace(".", "/") for folder in folders]
    candidates = [path.with_name(path.name + ".py") for path in paths] + [path / "__init__.py" for path in paths]
    return [path for path in candidates if path.is_file()]
