"""Finds where the folders that a job names are on this machine, and which data sets should be there and are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.spec.job import Job


def absolute(path: str, base: Path) -> str:
    """A path in a job as one from the root: relative to `base`, with the home folder of this user in place of `~`."""
    return str((base / os.path.expanduser(path)).absolute())


def data_paths(job: Job, base: Path) -> dict[str, str]:
    """Absolute paths of the data sets that are read in place on this machine, by name."""
    return {data.name: absolute(data.source, base) for data in job.data if not data.is_remote}


def missing_data(job: Job, base: Path) -> Iterator[tuple[str, str]]:
    """Names of data sets whose source is on this machine and cannot be read, each with the reason."""
    for data in job.data:
        if data.is_remote and not data.source.startswith("file:///"):
            continue
        if job.setup and not data.is_staged:  # which may make it
            continue
        source = absolute(data.source.removeprefix("file://"), base)
        # Those of Path raise for a name that is too long.
        if not os.path.exists(source):  # noqa: PTH110
            yield data.name, f"{source} is not there"
        elif data.is_remote and not os.path.isdir(source):  # noqa: PTH112
            yield data.name, f"{source} is no folder"
