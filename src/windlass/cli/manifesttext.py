"""Prints the objects of a plan as YAML of several documents, or as one List of JSON, to be applied by others."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from windlass.cli.formatting import painter
from windlass.cli.plantext import note_lines
from windlass.cli.render import emit
from windlass.spec.yamlwriter import block_lines

if TYPE_CHECKING:
    from windlass.engines.base import Manifests
    from windlass.plan.plan import Plan


def print_manifests(plan: Plan, *, as_list: bool) -> int:
    """Print the objects of a plan on standard output, and what to know of them on standard error."""
    from windlass.engines import engine_class
    from windlass.runs.context import here

    found = engine_class(plan.engine).export(plan, here())
    notes = [*plan.warnings, *found.notes]
    if as_list:
        emit([json.dumps({"apiVersion": "v1", "kind": "List", "items": found.objects}, indent=1)])
    else:
        emit([*head_lines(found, plan.name), *(line for one in found.objects for line in ("---", *block_lines(one)))])
    sys.stdout.flush()
    if notes:
        emit(note_lines(notes, painter(sys.stderr)), sys.stderr)
    return 0


def head_lines(found: Manifests, name: str) -> list[str]:
    """What a reader of the file has to know, as comments."""
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
