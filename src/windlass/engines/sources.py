"""Resolves the paths of folders that a job names on this machine, and finds missing data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.spec.job import Job


def absolute(path: str, base: Path) -> str:
    """Returns the absolute path for a path in a job, which is relative to `base`; `~` is the user's home folder."""
    return str((base / os.path.expanduser(path)).absolute())


def own_folders(home: str, output_dir: str) -> tuple[str, ...]:
    """Returns the folders of Windlass that are not code: its home, and the folder with the outputs of runs, of which
    `output_dir` is the one of a run.
    """
    outputs = PurePath(output_dir).parent
    return (home,) if outputs.is_relative_to(home) else (home, str(outputs))


def data_paths(job: Job, base: Path) -> dict[str, str]:
    """Returns the absolute paths of data sets that are read in place on this machine, by name."""
    return {data.name: absolute(data.source, base) for data in job.data if not data.is_remote}


def missing_data(job: Job, base: Path) -> Iterator[tuple[str, str]]:
    """Yields the names of data sets whose source on this machine cannot be read, each with the reason."""
    for data in job.data:
        if data.is_remote and not data.source.startswith("file:///"):
            continue
        if job.setup and not data.is_staged:  # `setup` may create the data set
            continue
        source = absolute(data.source.removeprefix("file://"), base)
        # Path.exists raises OSError if the name is too long; os.path.exists does not.
        if not os.path.exists(source):  # noqa: PTH110
            yield data.name, f"{source} does not exist"
        elif data.is_remote and not os.path.isdir(source):  # noqa: PTH112
            yield data.name, f"{source} is no folder"
