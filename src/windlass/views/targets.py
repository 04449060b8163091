"""Targets and what was checked of them: what `windlass targets`, `check`, `doctor` and `target setup` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.engines.checks import Check, ObjectChange
from windlass.plan.notes import Note
from windlass.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class TargetView:
    """A target that `--on` can name."""

    name: str
    kind: str
    """`local`, `kubernetes`, `sagemaker` or `sagemaker-local`."""
    place: str
    """`this machine`, the context and namespace of a cluster, or the region of an account."""
    file: str | None
    """The file that names it; null for `local` where none does."""
    settings: Mapping[str, Any]
    """Its other fields, as far as they are not their defaults."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What `doctor` found on this machine."""

    ok: bool
    """Whether no check failed."""
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job that was checked against a target."""

    ok: bool
    """Whether it can be run."""
    name: str
    target: str
    nodes: int
    procs_per_node: int
    job: Mapping[str, Any]
    """Every field that is not its default."""
    notes: tuple[Note, ...]
    """Errors and warnings."""


def checked_of(plan: Plan) -> CheckedJob:
    """The view of a job that was checked, by its plan."""
    is_ok = not any(note.blocks for note in plan.notes)
    return CheckedJob(is_ok, plan.name, plan.target, plan.num_nodes, plan.procs_per_node, plan.job, plan.notes)


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """A cluster that was checked."""

    ok: bool
    """Whether jobs can run there."""
    target: str
    context: str
    namespace: str
    server: str
    checks: tuple[Check, ...]
    missing: tuple[str, ...]
    """RBAC permissions that are required and not granted, as `create jobs.batch`."""
    network: Mapping[str, Any] | None
    """Measured between two pods: `nodes`, `latency_seconds` (round trip, median), `bytes_per_second` (there and back),
    `all_reduce_bytes_per_second`; null where it was not measured."""
    job: CheckedJob | None
    """Null where there is no job file."""


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """What `target setup` did."""

    target: str
    objects: tuple[ObjectChange, ...]
    """In the order in which they were created or removed."""
