"""Finds the data sets of a job that should be on this machine and are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.spec.job import Job


def missing_data(job: Job, base: Path) -> Iterator[tuple[str, str]]:
    """Names of data sets whose source is on this machine and cannot be read, each with the reason."""
    for data in job.data:
        if data.is_remote and not data.source.startswith("file:///"):
            continue
        if job.setup and not data.is_staged:  # which may make it
            continue
        source = (base / os.path.expanduser(data.source.removeprefix("file://"))).absolute()
        # Those of Path raise for a name that is too long.
        if not os.path.exists(source):  # noqa: PTH110
            yield data.name, f"{source} is not there"
        elif data.is_remote and not os.path.isdir(source):  # noqa: PTH112
            yield data.name, f"{source} is no folder"
