"""Watches the pods of one attempt: a list, then changes, through dropped connections and expired versions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_status import (
    has_ended,
    is_lost,
    is_restarted,
)
from windlass.engines.kubernetes.objects.pods import Pod, pod_id
from windlass.engines.kubernetes.reading import eviction
from windlass.engines.kubernetes.running.owner_object import OwnerObject

WATCH_SECONDS: Final = 20
"""How long one watch lasts: then the object that makes the pods is read, and all is listed anew where it is due."""
LIST_SECONDS_A_POD: Final = 0.1
"""Between two lists, as long as no watch breaks: a list of 1,000 pods is 20 MB."""
UNUSED: Final = ("env", "volumeMounts", "command", "args")
"""Fields of containers of which nothing is read."""
MAX_ASKED: Final = 32
"""How often it is asked in one attempt why Karpenter has evicted pods: of a thousand that go at once, some suffice."""


class PodWatch:
    """The pods of one attempt, by place, from 0."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        assignment: PodAssignment,
        owner: tuple[str, str],
        changed: Callable[[], None],
        listen: Callable[[], None] = lambda: None,
    ) -> None:
        """`owner` is the API and kind of the owner objects of the pods; `changed` is called at each change.

        `listen` is called now and then, and before it can be observed that a pod was deleted.
        """
        self._client = client
        self._assignment = assignment
        self._places = {one: place for place, one in enumerate(assignment.pods)}
        self._selector = assignment.selector(run_id)
        self.owner = OwnerObject(client, *owner, layout.attempt_name(run_id, assignment.newest), listen)
        """The newest one, the only one that may still create pods."""
        self._changed = changed
        self._pods: dict[int, Pod] = {}
        self._gone: set[int] = set()
        self._num_asked = 0
        """How often it was asked why a pod was evicted."""
        self._is_listed = False
        self._closed = threading.Event()
        self._version = ""
        """Of the last list or change."""
        self._listed_at = float("-inf")
        """Monotonic seconds."""
        self._is_unbroken = False
        """Whether the last watch ended as it should."""
        background.start(f"pods of {self.owner.name}", self._turn, self._closed, client.health)

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
            made = self._assignment.pods[place]
            # Pods of older owner objects were there when they got their order.
            is_past = made.made_for != self._assignment.newest or made.index in self.owner.finished
            return self.owner.over is not None or (is_past and self._is_listed)
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
            seconds = math.ceil(ABSENT_SECONDS) if self.owner.is_absent and self.owner.over is None else WATCH_SECONDS
            self._client.health.well(f"pods of {self.owner.name}")
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
        seen = self._assignment.by_place(found["items"])
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
        if is_deleted and self.owner.over is None:
            self._read_owner()  # where all pods are deleted, mostly their owner was deleted or suspended
        pod = self._named(pod)
        if self._put(place, pod) and event["type"] == "DELETED":
            self._gone.add(place)
        self._changed()

    def _named(self, pod: Pod) -> Pod:
        """The pod with Karpenter's reason to evict it, which is asked for once it has ended."""
        if (
            not has_ended(pod)
            or self.owner.taken_back is not None
            or self.owner.over is not None
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
        self.owner.end()
        self._changed()

    def _read_owner(self) -> None:
        self.owner.read(self._pods.values())


def _slim(pod: Pod) -> Pod:
    """What is kept of a pod."""
    spec = {name: value for name, value in pod.get("spec", {}).items() if name != "volumes"}
    spec["containers"] = [
        {name: value for name, value in one.items() if name not in UNUSED} for one in spec.get("containers", ())
    ]
    meta = {name: value for name, value in pod["metadata"].items() if name != "managedFields"}
    return {**pod, "metadata": meta, "spec": spec}
