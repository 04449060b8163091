"""Converts job descriptions of other systems to an equivalent job file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.actions.init import write_files
from windlass.actions.jobs import JOB_FILES
from windlass.runs.context import Context
from windlass.spec.text_file import MAX_BYTES, decoded, read_text

if TYPE_CHECKING:
    from windlass.importers.convert import Format, Imported

STREAM: Final = "-"


def read_foreign(
    what: str, context: Context, *, form: Format = "kubernetes", name: str | None = None, document: str | None = None
) -> Imported:
    """Reads the job described by a file, or by standard input if `what` is `-`. Writes nothing.

    `name` replaces the job's name; `document` selects a job in a file with several. Raises JobFileError for a missing
    file, invalid YAML, an unknown kind, several jobs, or an invalid name.
    """
    from windlass.importers.convert import import_text
    from windlass.importers.source import STDIN

    if what == STREAM:
        text, where = decoded(sys.stdin.buffer.read(MAX_BYTES + 1), STDIN), STDIN
        return import_text(text, where, form=form, name=name, document=document)
    path = context.cwd / os.path.expanduser(what)
    return import_text(read_text(path, what), what, form=form, name=name, document=document)


def write_job(made: Imported, to: str | None, context: Context, *, force: bool) -> list[Path]:
    """Writes the job file to `to`, by default `job.yaml` in the working folder. Raises UsageError if it exists
    already.
    """
    return write_files({context.cwd / os.path.expanduser(to or JOB_FILES[0]): made.text}, force=force)
