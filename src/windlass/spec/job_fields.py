"""Defines the keywords of `windlass.Job(...)` with the types that they accept, for type checkers and `inspect`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict, get_type_hints

from pydantic import BaseModel

from windlass.spec.docstrings import field_docstrings
from windlass.spec.kubernetes import KubernetesOptions
from windlass.spec.sections import (
    Checkpoint,
    Data,
    Launcher,
    LocalOptions,
    NodeRange,
    Outputs,
    Resources,
    Restarts,
    SageMakerOptions,
    Volume,
)

Seconds: TypeAlias = str | float
"""Seconds: `"1h30m"`, or a number."""
Section: TypeAlias = Mapping[str, Any]
"""A section of the job file as a mapping from field name to value."""


class JobFields(TypedDict, total=False):
    """The fields of a job, in the order of `Job`; a test compares the names."""

    name: Required[str]
    run: str | None
    command: Sequence[str] | None
    env: Mapping[str, str | float]
    nodes: int | Section | NodeRange
    procs_per_node: int | Literal["auto"]
    launcher: Launcher
    resources: Section | Resources
    labels: Mapping[str, str]
    code: str
    image: str | None
    setup: str | None
    secrets: Sequence[str]
    data: Sequence[Section | Data]
    outputs: str | Section | Outputs | None
    checkpoint: Section | Checkpoint
    restarts: int | Section | Restarts
    notify: str | None
    timeout: Seconds | None
    grace: Seconds
    hang: Seconds | None
    queue: str | None
    priority: str | None
    python: str | None
    warm: Sequence[str]
    start: Literal["warm", "cold"]
    volumes: Sequence[Section | Volume]
    progress: str | None
    local: Section | LocalOptions
    kubernetes: Section | KubernetesOptions
    sagemaker: Section | SageMakerOptions


def job_signature(job: type[BaseModel]) -> inspect.Signature:
    """Returns the keywords of `Job` and their accepted types, for `inspect.signature` and editors; `...` marks a
    computed default.
    """
    hints = get_type_hints(JobFields)
    fields = {name: job.model_fields[name] for name in JobFields.__annotations__}
    defaults = {
        name: inspect.Parameter.empty if field.is_required() else ... if field.default_factory else field.default
        for name, field in fields.items()
    } | {name: {} for name, field in fields.items() if field.default_factory is dict}
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, keyword, default=defaults[name], annotation=hints[name]) for name in fields]
    )


def job_docs(job: type[BaseModel]) -> str:
    """Returns the docstring of `Job`, with each field as described in the reference."""
    words = {
        name: textwrap.indent(inspect.cleandoc(text), " " * 8).strip() for name, text in field_docstrings(job).items()
    }
    fields = "\n".join(f"    {name}: {words[name]}" for name in JobFields.__annotations__)
    return f"""A training job, as its author wrote it. Keywords are the fields of a job file.

Raises JobFileError with every problem in them.

Args:
{fields}
"""
