"""A run on a cluster with its pods, and whether a watched cluster answers: for `status`, `stop` and `ps --watch`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from windlass.views.cluster import RunOnCluster, placed
from windlass.views.serialise import view_of

if TYPE_CHECKING:
    from windlass.engines.values import RunState


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
    """Those of the newest attempt."""
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
    return view_of(RunOnClusterWithPods, state.status, **placed(state), pods=pods)
