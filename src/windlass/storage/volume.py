"""Data sets of a volume that pods share: which there are, and which runs read them.

ROOT/runs/NAMESPACE/RUN/NAME   a link of a run to the set that it reads; nothing removes it with the run
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from windlass.storage.sets import CachedSet


def described(one: CachedSet) -> dict[str, Any]:
    """A set as a line."""
    return {
        "digest": one.digest,
        "folder": str(one.folder),
        "files": one.num_files,
        "bytes": one.num_bytes,
        "sources": list(one.sources),
        "used_at": one.used_at,
    }


def linked_runs(root: Path, namespace: str) -> list[str]:
    """The runs of a namespace that have links, though some may be gone."""
    return sorted({run for of, run, _ in _links(root) if of == namespace})


def readers(root: Path, namespace: str, gone: Set[str]) -> dict[Path, set[str]]:
    """The runs that read a set, by the folder of its files. Links of those runs of a namespace that are `gone` are
    removed; of runs of other namespaces nothing is known here.
    """
    found: dict[Path, set[str]] = {}
    for of, run, link in _links(root):
        if of == namespace and run in gone:
            link.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the run has other sets
                link.parent.rmdir()
        else:
            found.setdefault(link.resolve(), set()).add(run if of == namespace else f"{run} of namespace {of}")
    return found


def _links(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Namespace and run of each link."""
    for link in sorted((root / "runs").glob("*/*/*")):
        if link.is_symlink():
            yield link.parent.parent.name, link.parent.name, link
