"""Targets and their checks: output of `windlass targets`, `check`, `doctor` and `target setup`."""

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
    """Kind of the target: `local`, `kubernetes`, `sagemaker` or `sagemaker-local`."""
    place: str
    """Location of the target: `this machine`, context and namespace of a cluster, or region of an account."""
    file: str | None
    """File that defines the target; null for `local` if no file defines this target."""
    settings: Mapping[str, Any]
    """Other fields of the target that differ from their defaults."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Result of `doctor` for this machine."""

    ok: bool
    """Whether no check failed."""
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """Result of checking a job against a target."""

    ok: bool
    """Whether the job can run."""
    name: str
    target: str
    nodes: int
    procs_per_node: int
    job: Mapping[str, Any]
    """Job fields that differ from their defaults."""
    notes: tuple[Note, ...]
    """Errors and warnings."""


def checked_of(plan: Plan) -> CheckedJob:
    """Builds the view of a checked job from its plan."""
    is_ok = not any(note.blocks for note in plan.notes)
    return CheckedJob(is_ok, plan.name, plan.target, plan.num_nodes, plan.procs_per_node, plan.job, plan.notes)


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """Result of checking a cluster."""

    ok: bool
    """Whether jobs can run on the cluster."""
    target: str
    context: str
    namespace: str
    server: str
    checks: tuple[Check, ...]
    missing: tuple[str, ...]
    """Required RBAC permissions that are not granted, such as `create jobs.batch`."""
    network: Mapping[str, Any] | None
    """Network measurement between two pods: `nodes`, `latency_seconds` (median round trip), `bytes_per_second` (both
    directions), `all_reduce_bytes_per_second`; null without a measurement."""
    job: CheckedJob | None
    """Check of the job; null without a job file."""


@dataclass(frozen=True, slots=True)
class TargetSetup:
    """Result of `target setup`."""

    target: str
    objects: tuple[ObjectChange, ...]
    """Objects in the order of creation or removal."""
