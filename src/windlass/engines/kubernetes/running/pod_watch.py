"""Watches the pods of one attempt: a list, then changes, through dropped connections and expired versions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import ABSENT_SECONDS, Absence, Client, Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.observations import ObjectReport, QueueStatus
from windlass.engines.kubernetes.objects.pod_status import (
    container_state,
    end_of,
    ends_of,
    is_restarted,
    last_words,
    pod_status,
)
from windlass.engines.kubernetes.objects.quantity import condition, is_on_silent_node, is_true, seconds_of
from windlass.engines.kubernetes.objects.workloads.pytorchjob import NUMBERED
from windlass.engines.kubernetes.reading import eviction
from windlass.engines.kubernetes.reading.admission import is_suspended
from windlass.engines.kubernetes.reading.kueue import evicted

WATCH_SECONDS: Final = 20
"""How long one watch lasts: then the object that makes the pods is read, and all is listed anew where it is due."""
LIST_SECONDS_A_POD: Final = 0.1
"""Between two lists, as long as no watch breaks: a list of 1,000 pods is 20 MB."""
UNUSED: Final = ("env", "volumeMounts", "command", "args")
"""Fields of containers of which nothing is read."""
INDEX: Final = "batch.kubernetes.io/job-completion-index"
GONE_SECONDS: Final = 10.0
"""How much longer than its grace a pod may take to end before its node is declared lost."""
MAX_ASKED: Final = 32
"""How often it is asked in one attempt why Karpenter has evicted pods: of a thousand that go at once, some suffice."""
TAINTED: Final = "DeletionByTaintManager"
"""Why a pod is deleted whose node has not answered for as long as the pod tolerates."""

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodId:
    """A pod by its owner object: those that replace another have an owner object of their own."""

    made_for: int
    """The attempt for which the owner object was created."""
    index: int
    """The number that the owner object gave the pod."""


class PodWatch:
    """The pods of one attempt, by place, from 0."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        ids: Sequence[PodId],
        owner: tuple[str, str],
        changed: Callable[[], None],
        listen: Callable[[], None] = lambda: None,
    ) -> None:
        """`ids` are the pods by place; `owner` is the API and kind of their owner objects; `changed` is called at each
        change.

        `listen` is called now and then, and before it can be observed that a pod was deleted.
        """
        self._client = client
        self._ids = ids
        self._places = {one: place for place, one in enumerate(ids)}
        self._newest = max(one.made_for for one in ids)
        """The attempt of the owner object that may still create pods: those of older ones were there when ordered."""
        self._selector = selector(run_id, ids)
        self._name = layout.attempt_name(run_id, self._newest)
        self._owner = owner
        self._changed = changed
        self._listen = listen
        self._pods: dict[int, Pod] = {}
        self._gone: set[int] = set()
        self._num_asked = 0
        """How often it was asked why a pod was evicted."""
        self._is_listed = False
        self._finished: frozenset[int] = frozenset()
        """Indexes for which the newest owner object creates no pod any more."""
        self._closed = threading.Event()
        self._version = ""
        """Of the last list or change."""
        self._listed_at = float("-inf")
        """Monotonic seconds."""
        self._is_unbroken = False
        """Whether the last watch ended as it should."""
        self._is_ended = False
        self._absence = Absence()
        self._is_absent = False
        """Whether the owner object was reported absent when it was last read."""
        self.is_over: str | None = None
        """Why it will create no more pods, once that is known."""
        self.ends: list[ObjectReport] = []
        """The same for a record."""
        self.is_suspended = False
        """Whether the owner object was suspended when it was last read."""
        self.taken_back: QueueStatus | None = None
        """Why it was suspended after it had made pods, which then are deleted; None where it was not."""
        background.start(f"pods of {self._name}", self._turn, self._closed, client.health)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def pod(self, place: int) -> Pod | None:
        """The pod at a place, as it was last seen; None where there was none yet."""
        return self._pods.get(place)

    @property
    def are_made(self) -> bool:
        """Whether there was a pod at all."""
        return bool(self._pods)

    def is_gone(self, place: int) -> bool:
        """Whether the pod at a place was deleted, or will never be there."""
        pod = self._pods.get(place)
        if pod is None:
            made = self._ids[place]
            is_past = made.made_for != self._newest or made.index in self._finished
            return self.is_over is not None or (is_past and self._is_listed)
        return place in self._gone or is_lost(pod)

    def is_lost(self, place: int) -> bool:
        """Whether the node of the pod at a place is declared lost: nothing more will be received from it."""
        pod = self._pods.get(place)
        return pod is not None and is_lost(pod)

    # -- watching -----------------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """List all where that is due, then take changes until the server ends the watch; whether that is final."""
        is_known = self._is_unbroken and time.monotonic() - self._listed_at < LIST_SECONDS_A_POD * len(self._pods)
        self._is_unbroken = False
        try:
            self._read_owner() if is_known else self._list()
            self._changed()
            seconds = math.ceil(ABSENT_SECONDS) if self._is_absent and self.is_over is None else WATCH_SECONDS
            self._client.health.well(f"pods of {self._name}")
            for event in self._client.watch("v1", "Pod", self._selector, self._version, seconds):
                self._take(event)
                if self._closed.is_set():
                    return True
            self._is_unbroken = True
        except Refused as error:
            if error.status != 410:  # the server no longer has that version: list again
                raise
        return False

    def _list(self) -> None:
        found = self._client.find("v1", "Pod", self._selector)
        seen = {
            place: pod for one, pod in by_id(found["items"]).items() if (place := self._places.get(one)) is not None
        }
        self._read_owner()  # first: once a pod is seen to be deleted, it must be known whether all are
        self._gone |= self._pods.keys() - seen.keys()
        for place, pod in seen.items():
            self._put(place, self._named(pod))
        self._version, self._listed_at = str(found["metadata"]["resourceVersion"]), time.monotonic()
        self._is_listed = True

    def _take(self, event: Mapping[str, Any]) -> None:
        pod = event["object"]
        self._version = str(pod["metadata"].get("resourceVersion", self._version))
        found = pod_id(pod) if event["type"] != "BOOKMARK" else None
        place = None if found is None else self._places.get(found)
        if place is None:
            return
        is_deleted = event["type"] == "DELETED" or pod["metadata"].get("deletionTimestamp")
        if is_deleted and self.is_over is None:
            self._read_owner()  # where all pods are deleted, mostly their owner was deleted or suspended
        pod = self._named(pod)
        if self._put(place, pod) and event["type"] == "DELETED":
            self._gone.add(place)
        self._changed()

    def _named(self, pod: Pod) -> Pod:
        """The pod with Karpenter's reason to evict it, which is asked for once it has ended."""
        if (
            not has_ended(pod)
            or self.taken_back is not None
            or self.is_over is not None
            or self._num_asked >= MAX_ASKED
        ):
            return pod
        self._num_asked += eviction.is_unnamed(pod)
        return eviction.named(self._client, pod)

    def _put(self, place: int, pod: Pod) -> bool:
        """Store the state of a pod; False for a replacement: with the loss of the first the attempt has ended."""
        before = self._pods.get(place)
        if before is not None and before["metadata"].get("uid") != pod["metadata"].get("uid"):
            self._gone.add(place)
            return False
        if before is None or not is_restarted(before):  # its first end counts
            self._pods[place] = _slim(pod)
        return True

    def end(self) -> None:
        """Delete the owner object, which never created all pods. Raises EngineError."""
        api, kind = self._owner
        self._is_ended = True
        self._client.delete(api, kind, self._name)
        self.is_over = f"{kind} {self._name} was deleted before it had made all pods"
        self._changed()

    def _read_owner(self) -> None:
        self._listen()
        api, kind = self._owner
        if self._is_ended:
            return
        try:
            owner = self._client.get(api, kind, self._name)
        except Refused as error:
            self._take_absence(kind, is_absent=error.is_absent(self._name, kind))
            return
        self._take_absence(kind, is_absent=False)
        self.ends = list(ends_of(owner, kind, self._name))
        self._finished = finished_indexes(owner)
        self.is_suspended = is_suspended(owner)
        if self.is_suspended and self._pods and self.taken_back is None:
            self.taken_back = evicted(self._client, owner)
        if why := why_over(owner):
            self.is_over = f"{kind} {self._name} is {why}"

    def _take_absence(self, kind: str, *, is_absent: bool) -> None:
        """Whether the owner object is gone: it is once it was absent for some seconds, or its pods are deleted too."""
        is_removed = self._absence.is_confirmed(is_absent=is_absent)
        self._is_absent = is_absent
        if not is_absent:
            return
        if is_removed:
            self.is_over = f"{kind} {self._name} was deleted"
        if is_removed or any("deletionTimestamp" in pod["metadata"] for pod in self._pods.values()):
            self.ends = list(ends_of(None, kind, self._name))


def _slim(pod: Pod) -> Pod:
    """What is kept of a pod."""
    spec = {name: value for name, value in pod.get("spec", {}).items() if name != "volumes"}
    spec["containers"] = [
        {name: value for name, value in one.items() if name not in UNUSED} for one in spec.get("containers", ())
    ]
    meta = {name: value for name, value in pod["metadata"].items() if name != "managedFields"}
    return {**pod, "metadata": meta, "spec": spec}


def why_over(owner: Mapping[str, Any]) -> str:
    """How an owner object has ended, by its condition; empty while it is active."""
    end = end_of(owner)
    message = condition(owner, end).get("message")
    return end.lower() + (f": {message}" if message else "")


def by_id(pods: Iterable[Pod]) -> dict[PodId, Pod]:
    """The pods of several attempts; the newest where there are several of one number."""
    oldest_first = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return {one: pod for pod in oldest_first if (one := pod_id(pod)) is not None}


def pod_id(pod: Pod) -> PodId | None:
    """Which pod it is; None where its owner object has given it no number."""
    meta = pod["metadata"]
    notes = meta.get("annotations", {})
    index = layout.number_in(notes.get(INDEX, ""))
    first = layout.number_in(notes.get(layout.FIRST_PLACE_ANNOTATION, ""))
    if first is not None:
        index = first + (layout.number_in(meta["name"].rpartition(NUMBERED)[2]) or 0)
    return None if index is None else PodId(layout.attempt_of(pod), index)


def selector(run_id: str, ids: Iterable[PodId]) -> str:
    """Selects the pods of these owner objects."""
    first, *others = sorted({one.made_for for one in ids})
    which = f" in ({','.join(map(str, (first, *others)))})" if others else f"={first}"
    return f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}{which}"


def finished_indexes(job: Mapping[str, Any]) -> frozenset[int]:
    """The indexes of an Indexed Job whose pods have ended or are lost; empty for other owner objects."""
    status, found = job.get("status", {}), set[int]()
    for name in ("completedIndexes", "failedIndexes"):
        for part in filter(None, str(status.get(name) or "").split(",")):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def is_lost(pod: Pod) -> bool:
    """Whether a deleted pod is on a node that does not answer: how it ended will never be reported."""
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted is None or has_ended(pod):
        return False
    is_silent = is_on_silent_node(pod) and container_state(pod)[0] == "running"
    if is_silent and condition(pod, "DisruptionTarget").get("reason") == TAINTED:
        return True  # no kubelet is there to use its grace
    return time.time() > seconds_of(deleted, math.inf) + GONE_SECONDS


def ends_at(pod: Pod) -> float:
    """When its deadline is over, in Unix seconds of the cluster's clock; infinity where it has none."""
    started, seconds = pod.get("status", {}).get("startTime"), pod["spec"].get("activeDeadlineSeconds")
    return math.inf if seconds is None else seconds_of(started, math.inf) + float(seconds) + GONE_SECONDS


def is_alive(pod: Pod) -> bool:
    """Whether its container runs and its node reports so."""
    return not is_on_silent_node(pod) and container_state(pod)[0] == "running"


def has_ended(pod: Pod) -> bool:
    """Whether nothing runs in it any more."""
    return pod_status(0, pod).state == "ended"


def is_forced(pod: Pod) -> bool:
    """Whether it was deleted without a grace period: its status stays as it was until a controller lets it go."""
    meta = pod["metadata"]
    return "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0


def why_it_ended(pod: Pod) -> str:
    """In a line, why a pod whose log has no end has ended."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    if is_true(pod, "DisruptionTarget"):
        why = condition(pod, "DisruptionTarget")
        return f"pod {name} was taken away ({why.get('reason', 'disruption')}): {why.get('message', '')}"
    if status.get("reason"):
        return f"pod {name}: {status['reason']}: {status.get('message', '').strip()}"
    state, data = container_state(pod)
    if state == "terminated":
        said = last_words(data)
        return f"pod {name} ended with exit code {data.get('exitCode')} ({data.get('reason', 'Error')}) {said}".strip()
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} was deleted, and its node does not answer" if is_lost(pod) else f"pod {name} was deleted"
    placed = condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        return f"pod {name}: {placed.get('reason')}: {placed.get('message', '')}"
    return f"pod {name} is gone"
