"""Reads what was written for other systems, and writes the job file that says the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.actions.edge import Edge
from windlass.actions.jobs import JOB_FILES, MAX_JOB_BYTES, decoded, read_text
from windlass.actions.make import write_files

if TYPE_CHECKING:
    from windlass.spec.importing import Imported
    from windlass.spec.importing.outcome import Format

STREAM: Final = "-"
STDIN: Final = "standard input"


def read_foreign(what: str, edge: Edge, *, form: Format = "kubernetes", name: str | None = None) -> Imported:
    """The job that a file asks for, or standard input where `what` is `-`. Writes nothing.

    Raises JobFileError: not there, not YAML, no known kind, several jobs, a name that is not legal.
    """
    from windlass.spec.importing import import_text

    if what == STREAM:
        return import_text(decoded(sys.stdin.buffer.read(MAX_JOB_BYTES + 1), STDIN), STDIN, form=form, name=name)
    path = edge.cwd / Path(what).expanduser()
    return import_text(read_text(path, what), what, form=form, name=name)


def write_job(made: Imported, to: str | None, edge: Edge, *, force: bool) -> list[Path]:
    """Write the job file, `job.yaml` of the working folder where `to` names none. Raises UsageError: it is there."""
    return write_files({edge.cwd / Path(to or JOB_FILES[0]).expanduser(): made.text}, force=force)
