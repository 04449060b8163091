"""Identifies the pods of a run by their owner objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads.pytorchjob import NUMBERED

INDEX: Final = "batch.kubernetes.io/job-completion-index"

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodId:
    """Identity of a pod: its owner object and its index there. Replacement pods have a separate owner object."""

    made_for: int
    """The attempt for which the owner object was created."""
    index: int
    """Index that the owner object assigned to the pod."""


def pod_id(pod: Pod) -> PodId | None:
    """Returns the identity of a pod, or None if its owner object assigned no index to it."""
    meta = pod["metadata"]
    notes = meta.get("annotations", {})
    index = layout.number_in(notes.get(INDEX, ""))
    first = layout.number_in(notes.get(layout.FIRST_PLACE_ANNOTATION, ""))
    if first is not None:
        index = first + (layout.number_in(meta["name"].rpartition(NUMBERED)[2]) or 0)
    return None if index is None else PodId(layout.attempt_of(pod), index)


def by_id(pods: Iterable[Pod]) -> dict[PodId, Pod]:
    """Returns pods of several attempts by identity; if several pods have the same identity, the newest."""
    oldest_first = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return {one: pod for pod in oldest_first if (one := pod_id(pod)) is not None}


def selector(run_id: str, ids: Iterable[PodId]) -> str:
    """Returns the label selector of all pods that have the same owner objects as `ids`."""
    first, *others = sorted({one.made_for for one in ids})
    which = f" in ({','.join(map(str, (first, *others)))})" if others else f"={first}"
    return f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}{which}"
