"""Lists the data sets of a volume that pods share, and the runs that read each set.

ROOT/runs/NAMESPACE/RUN/NAME link of a run to the set that it reads; it remains when the run is removed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from windlass.storage.sets import CachedSet


def described(one: CachedSet) -> dict[str, Any]:
    """Converts a set to a line of output."""
    return {
        "digest": one.digest,
        "folder": str(one.folder),
        "files": one.num_files,
        "bytes": one.num_bytes,
        "sources": list(one.sources),
        "used_at": one.used_at,
    }


def linked_runs(root: Path, namespace: str) -> list[str]:
    """Returns the runs of a namespace that have links, including runs that no longer exist."""
    return sorted({run for of, run, _ in _links(root) if of == namespace})


def readers(root: Path, namespace: str, gone: Set[str]) -> dict[Path, set[str]]:
    """Returns the runs that read each set, by the folder of its files. Removes the links of runs in `gone`.

    `gone` are runs of `namespace`; the state of runs in other namespaces is unknown here.
    """
    found: dict[Path, set[str]] = {}
    for of, run, link in _links(root):
        if of == namespace and run in gone:
            link.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                link.parent.rmdir()
        else:
            found.setdefault(link.resolve(), set()).add(run if of == namespace else f"{run} of namespace {of}")
    return found


def _links(root: Path) -> Iterator[tuple[str, str, Path]]:
    for link in sorted((root / "runs").glob("*/*/*")):
        if link.is_symlink():
            yield link.parent.parent.name, link.parent.name, link
