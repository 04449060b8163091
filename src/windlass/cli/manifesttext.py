"""Prints the objects of a plan as YAML of several documents, or as one List of JSON, to be applied by others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.cli.plantext import note_lines
from windlass.cli.render import emit
from windlass.cli.words import painter
from windlass.spec.dump import scalar

if TYPE_CHECKING:
    from windlass.engines.kubernetes.written import Written
    from windlass.plan.plan import Plan


def print_manifests(plan: Plan, *, as_list: bool) -> int:
    """Print the objects of a plan on standard output, and what to know of them on standard error."""
    from windlass.actions.edge import here
    from windlass.actions.written import written_objects

    found = written_objects(plan, here())
    notes = [*plan.warnings, *found.notes]
    if as_list:
        emit([json.dumps({"apiVersion": "v1", "kind": "List", "items": found.objects}, indent=1)])
    else:
        emit([*head_lines(found, plan.name), *yaml_lines(found.objects)])
    sys.stdout.flush()
    if notes:
        emit(note_lines(notes, painter(sys.stderr)), sys.stderr)
    return 0


def head_lines(found: Written, name: str) -> list[str]:
    """What a reader of the file has to know, as comments."""
    wanted = f"-n {found.namespace} {','.join(found.kinds)} -l windlass.dev/run={found.run_id}"
    lines = [
        f"Run {found.run_id} of job {name}, to be made by: kubectl apply -f FILE",
        "Its pods train by themselves; nobody starts them again after a failure. A Job cannot be changed or started",
        "once more: for another run, write another file.",
        *(f"Note: {note.message}" for note in found.notes),
        "What it does: kubectl logs, or windlass logs with --on TARGET. No object owns the others; all are deleted by",
        f"  kubectl delete {wanted}",
    ]
    return [f"# {line}" for line in lines]


def yaml_lines(objects: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """The objects as documents that YAML 1.1 and 1.2 read alike."""
    for one in objects:
        yield "---"
        yield from _lines(one, "")


def _lines(value: Any, indent: str) -> Iterator[str]:
    entries = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    for key, one in entries:
        lead = f"{indent}- " if key is None else f"{indent}{scalar(key)}:"
        if isinstance(one, Mapping | list | tuple) and one:
            if key is not None:
                yield lead
                yield from _lines(one, f"{indent}  ")
            else:  # the first line of an entry stands behind its dash
                first, *rest = _lines(one, f"{indent}  ")
                yield f"{lead}{first.lstrip(' ')}"
                yield from rest
        elif isinstance(one, str) and "\n" in one and _fits_block(one) and key is not None:
            yield f"{lead} |"
            yield from (f"{indent}  {line}" if line else "" for line in one[:-1].split("\n"))
        else:
            empty = "{}" if isinstance(one, Mapping) else "[]" if isinstance(one, list | tuple) else None
            yield f"{lead}{'' if key is None else ' '}{empty or scalar(one)}"


def _fits_block(text: str) -> bool:
    """Whether a block of lines reads back as this text."""
    is_plain = all(line.isprintable() and line.isascii() for line in text.split("\n"))
    return is_plain and text.endswith("\n") and not text.endswith("\n\n") and not text.startswith((" ", "\n"))
