"""Remembers what mpirun or a node removes as it ends, and removes it where that was killed: files, shared memory."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil


def note(path: str, environ: dict[str, str]) -> None:
    """Write down at `path` what mpirun has made, as a rank's environment shows it: on each node, other files."""
    session, job = environ.get("PMIX_SERVER_TMPDIR", ""), environ.get("OMPI_MCA_ess_base_jobid", "")
    if os.path.isabs(session) and job.isdigit():
        add(path, {glob.escape(session), f"/dev/shm/vader_segment.*.{int(job):x}.*"})


def add(path: str, patterns: set[str]) -> None:
    """Add patterns of files to remove to those that are recorded at `path`. Raises OSError."""
    known = set(_noted(path))
    if patterns - known:
        with open(path, "w") as file:
            json.dump(sorted(patterns | known), file)


def remove(path: str) -> None:
    """Remove what was written down at `path`, once the node, the launcher and its ranks are dead."""
    for found in [name for pattern in _noted(path) for name in glob.glob(pattern)]:
        if os.path.isdir(found):
            shutil.rmtree(found, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(found)


def _noted(path: str) -> list[str]:
    try:
        with open(path) as file:
            patterns: list[str] = json.load(file)
            return patterns
    except (OSError, ValueError):
        return []
