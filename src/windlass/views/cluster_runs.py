"""Runs on a cluster, whichever machine started them: output of `ps`, `status` and `stop` with `--on`."""

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
    """A run that has disappeared from a watched list."""

    id: str
    removed: bool = True


@dataclass(frozen=True, slots=True)
class RunOnCluster:
    """A run on a cluster, whichever machine started it, according to its Kubernetes objects."""

    id: str
    name: str
    """Name of the job."""
    target: str
    namespace: str
    phase: Phase
    attempt: int
    """Number of the newest attempt for which pods were created; 0 before the first attempt."""
    pods_ready: int
    pods_total: int
    created_at: float
    """Creation time in Unix seconds."""
    waits_for: str
    """Why the newest attempt has not started; empty if it has."""
    kept: Literal["here", "elsewhere"]
    """Whether the run's record is on this machine."""
    user: str
    """User who started the run; empty if the cluster does not record the user."""
    supervisor: str
    """Location of the supervisor: `cluster` if supervisor and record are in the cluster; else empty."""
    labels: Mapping[str, str]
    """Labels of the job."""
    note: str
    """Note on the run, if its record is in the cluster or on this machine."""
    warnings: tuple[RunWarning, ...]
    """Conditions that may spoil the result without ending the run; empty if the record is on another machine."""


def on_cluster(state: RunState) -> RunOnCluster:
    """Returns the view of a run for a list, from its pods."""
    status = state.status
    return view_of(RunOnCluster, status, status.times, status.supervision, status.about, **placed(state))


def placed(state: RunState) -> dict[str, Any]:
    """Returns the fields of a view that describe a run's location and pods."""
    placement = state.placement
    assert placement is not None
    return {
        # Reused pods are named after an earlier attempt; the record then has the higher number.
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
    """Kubernetes node that the pod is scheduled on."""
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class RunOnClusterWithPods(RunOnCluster):
    """A run on a cluster with its pods, for the display of a single run."""

    pods: tuple[Pod, ...]
    """Pods of the newest attempt."""
    progress: Mapping[str, Any]
    """Latest progress reported by the first node."""


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """Entry of a watched list that says whether the cluster responds."""

    target: str
    stale: str | None
    """Why the cluster cannot be queried; null once it responds again."""
    as_of: float
    """Time of the last response in Unix seconds; the states printed so far are from this time."""
    runs: int
    """Number of runs in the list."""


def with_pods(state: RunState) -> RunOnClusterWithPods:
    """Returns the view of a single run with its pods."""
    assert state.placement is not None
    pods = tuple(Pod(**pod) for pod in state.placement.pods)
    status = state.status
    return view_of(
        RunOnClusterWithPods, status, status.times, status.supervision, status.about, **placed(state), pods=pods
    )
