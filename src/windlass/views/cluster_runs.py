"""Runs on a cluster, whichever machine started them: what `ps`, `status` and `stop` print with `--on`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from windlass.runs.phase import Phase
from windlass.runs.warnings import RunWarning
from windlass.views.serialise import view_of

if TYPE_CHECKING:
    from windlass.engines.values import RunState


@dataclass(frozen=True, slots=True)
class Removed:
    """A run that a watched list no longer has."""

    id: str
    removed: bool = True


@dataclass(frozen=True, slots=True)
class RunOnCluster:
    """A run on a cluster, whichever machine started it, as far as its objects show it."""

    id: str
    name: str
    """Name of the job."""
    target: str
    namespace: str
    phase: Phase
    attempt: int
    """The newest for which pods were made; 0 before the first."""
    pods_ready: int
    pods_total: int
    created_at: float
    """Unix seconds."""
    waits_for: str
    """Why the newest attempt has not begun."""
    kept: Literal["here", "elsewhere"]
    """Whether this machine has its record."""
    user: str
    """The user who started it; empty where that is not recorded in the cluster."""
    supervisor: str
    """`cluster` where its supervisor is a pod of the cluster, and with it the record; else empty."""
    labels: Mapping[str, str]
    """Labels of the job."""
    note: str
    """What users have written about it, where its record is in the cluster or here."""
    warnings: tuple[RunWarning, ...]
    """What did not end it and may spoil its result; empty where its record is on another machine."""


def on_cluster(state: RunState) -> RunOnCluster:
    """The view of a run by its pods, for a list."""
    status = state.status
    return view_of(RunOnCluster, status, status.times, status.supervision, status.about, **placed(state))


def placed(state: RunState) -> dict[str, Any]:
    """Fields of a run's location and pods."""
    placement = state.placement
    assert placement is not None
    return {
        # Pods are named for the attempt that made them, and those that follow may run in them too.
        "attempt": max(placement.attempt, len(state.status.attempts)),
        "namespace": placement.namespace,
        "pods_ready": placement.pods_ready,
        "pods_total": placement.pods_total,
        "waits_for": state.status.waits_for or "",
        "kept": "here" if state.is_recorded else "elsewhere",
    }


@dataclass(frozen=True, slots=True)
class Pod:
    """The pod of one node."""

    node: int
    name: str
    state: Literal["missing", "queued", "pulling", "running", "ended", "gone"]
    reason: str
    message: str
    machine: str
    """The cluster's node that it is on."""
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class RunOnClusterWithPods(RunOnCluster):
    """The same, alone."""

    pods: tuple[Pod, ...]
    """Pods of the newest attempt."""
    progress: Mapping[str, Any]
    """What its first node has last reported."""


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """In a watched list: whether the cluster answers."""

    target: str
    stale: str | None
    """Why the cluster cannot be queried; null once it answers again."""
    as_of: float
    """When it last answered: the states printed so far are as of then, in Unix seconds."""
    runs: int
    """How many runs these are."""


def with_pods(state: RunState) -> RunOnClusterWithPods:
    """The view of a run by its pods, alone."""
    assert state.placement is not None
    pods = tuple(Pod(**pod) for pod in state.placement.pods)
    status = state.status
    return view_of(
        RunOnClusterWithPods, status, status.times, status.supervision, status.about, **placed(state), pods=pods
    )
