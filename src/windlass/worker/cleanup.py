"""Records files and shared memory that mpirun or a node creates, and removes them after the creator was killed."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil


def note(path: str, environ: dict[str, str]) -> None:
    """Records at `path` the files that mpirun has created on this node, whose paths are in the environment of
    a rank.
    """
    session, job = environ.get("PMIX_SERVER_TMPDIR", ""), environ.get("OMPI_MCA_ess_base_jobid", "")
    if os.path.isabs(session) and job.isdigit():
        add(path, {glob.escape(session), f"/dev/shm/vader_segment.*.{int(job):x}.*"})


def add(path: str, patterns: set[str]) -> None:
    """Adds patterns of files to remove to those recorded at `path`. Raises OSError."""
    known = set(_noted(path))
    if patterns - known:
        with open(path, "w") as file:
            json.dump(sorted(patterns | known), file)


def remove(path: str) -> None:
    """Removes the files recorded at `path`. Call it after the node, the launcher and its ranks have ended."""
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
