"""Reads what was written for other systems, and writes the job file that says the same."""

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
    """The job that a file asks for, or standard input where `what` is `-`. Writes nothing.

    `name` replaces the job's name; `document` names the job where the file holds several.

    Raises JobFileError: not there, not YAML, no known kind, several jobs, a name that is not legal.
    """
    from windlass.importers.convert import import_text
    from windlass.importers.source import STDIN

    if what == STREAM:
        text, where = decoded(sys.stdin.buffer.read(MAX_BYTES + 1), STDIN), STDIN
        return import_text(text, where, form=form, name=name, document=document)
    path = context.cwd / os.path.expanduser(what)
    return import_text(read_text(path, what), what, form=form, name=name, document=document)


def write_job(made: Imported, to: str | None, context: Context, *, force: bool) -> list[Path]:
    """Write the job file, `job.yaml` of the working folder where `to` names none. Raises UsageError: it is there."""
    return write_files({context.cwd / os.path.expanduser(to or JOB_FILES[0]): made.text}, force=force)
