"""Prints a plan for other programs: objects as YAML or as a JSON List, or a CreateTrainingJob request."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.cli.formatting import painter
from windlass.cli.plantext import note_lines
from windlass.cli.render import emit
from windlass.errors import UsageError
from windlass.plan.notes import Note
from windlass.spec.yamlwriter import block_lines

if TYPE_CHECKING:
    from windlass.engines.exported import Manifests, Upload
    from windlass.plan.plan import Plan
    from windlass.runs.context import Context


def print_manifests(plan: Plan, *, as_list: bool, files: str | None = None) -> int:
    """Prints the objects of a plan on standard output, and notes on them on standard error.

    `files` is the folder for files that must be uploaded to a store first. Raises UsageError.
    """
    from windlass.engines import engine_class
    from windlass.runs.context import here

    found = engine_class(plan.engine).export(plan, here())
    if files is not None and found.upload is None:
        raise UsageError(f"--files: objects of engine {plan.engine} need nothing in a store", "leave it out")
    uploads = [] if found.upload is None else [_upload_note(found.upload, files, here())]
    if as_list:
        emit([json.dumps({"apiVersion": "v1", "kind": "List", "items": found.objects}, indent=1)])
    else:
        emit([*head_lines(found, plan.name), *(line for one in found.objects for line in ("---", *block_lines(one)))])
    _print_notes([*plan.warnings, *found.notes, *uploads])
    return 0


def print_request(plan: Plan, files: str | None) -> int:
    """Prints the CreateTrainingJob request of a plan as JSON. Raises UsageError."""
    from windlass.engines import engine_class
    from windlass.runs.context import here

    found = engine_class(plan.engine).export_request(plan, here())
    note = _upload_note(found.upload, files, here())
    emit([json.dumps(found.body, indent=2)])
    _print_notes([*plan.warnings, *found.notes, note])
    return 0


def _upload_note(upload: Upload, files: str | None, context: Context) -> Note:
    """Writes the files to upload, if a folder is given, and returns a note on how to upload the files."""
    if files is None:
        message = f"the job reads its code from {upload.address}, where only windlass run puts it"
        return Note("written-files", message, "--files FOLDER writes the files to upload for this job")
    folder = context.cwd / os.path.expanduser(files)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{files} exists and is not an empty folder", "name another folder")
    for name, data in upload.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    message = f"{len(upload.files)} files are in {files}: the store has to have them before the job is created"
    return Note("written-files", message, f"aws s3 cp --recursive {shlex.quote(files)} {upload.address}")


def _print_notes(notes: Sequence[Note]) -> None:
    sys.stdout.flush()
    if notes:
        emit(note_lines(notes, painter(sys.stderr)), sys.stderr)


def head_lines(found: Manifests, name: str) -> list[str]:
    """Returns comment lines for the top of the manifest."""
    if found.head:
        return [f"# {line}" for line in (*found.head, *(f"Note: {note.message}" for note in found.notes))]
    wanted = f"-n {found.namespace} {','.join(found.kinds)} -l windlass.dev/run={found.run_id}"
    lines = [
        f"Run {found.run_id} of job {name}, to be made by: kubectl apply -f FILE",
        "Its pods train by themselves; no supervisor restarts them after a failure. A Job cannot be changed or started",
        "once more: for another run, write another file.",
        *(f"Note: {note.message}" for note in found.notes),
        "What it does: kubectl logs, or windlass logs with --on TARGET. No object owns the others; all are deleted by",
        f"  kubectl delete {wanted}",
    ]
    return [f"# {line}" for line in lines]
