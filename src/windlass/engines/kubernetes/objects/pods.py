"""The pods of a run: which is which, by their owner objects. Pure."""

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
    """A pod by its owner object: those that replace another have an owner object of their own."""

    made_for: int
    """The attempt for which the owner object was created."""
    index: int
    """The number that the owner object gave the pod."""


def pod_id(pod: Pod) -> PodId | None:
    """Which pod it is; None where its owner object has given it no number."""
    meta = pod["metadata"]
    notes = meta.get("annotations", {})
    index = layout.number_in(notes.get(INDEX, ""))
    first = layout.number_in(notes.get(layout.FIRST_PLACE_ANNOTATION, ""))
    if first is not None:
        index = first + (layout.number_in(meta["name"].rpartition(NUMBERED)[2]) or 0)
    return None if index is None else PodId(layout.attempt_of(pod), index)


def by_id(pods: Iterable[Pod]) -> dict[PodId, Pod]:
    """The pods of several attempts; the newest where there are several of one number."""
    oldest_first = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return {one: pod for pod in oldest_first if (one := pod_id(pod)) is not None}


def selector(run_id: str, ids: Iterable[PodId]) -> str:
    """Selects the pods of these owner objects."""
    first, *others = sorted({one.made_for for one in ids})
    which = f" in ({','.join(map(str, (first, *others)))})" if others else f"={first}"
    return f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}{which}"
