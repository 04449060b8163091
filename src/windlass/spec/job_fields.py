"""Types of the keywords of `windlass.Job(...)`, for type checkers alone: what its validators accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict

from windlass.spec.job import Launcher
from windlass.spec.parts import (
    Checkpoint,
    Data,
    KubernetesOptions,
    LocalOptions,
    NodeRange,
    Outputs,
    Resources,
    Restarts,
    SageMakerOptions,
    Volume,
)

Seconds: TypeAlias = str | float
"""`"1h30m"`, or a number."""
Section: TypeAlias = Mapping[str, Any]
"""The fields of a section of the job file, by name."""


class JobFields(TypedDict, total=False):
    """The fields of a job, in the order of `Job`; a test compares their names."""

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
