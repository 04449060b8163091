"""Watches the pods of one attempt with a list and a watch; recovers from dropped connections and expired versions."""

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
"""Duration of one watch in seconds, after which the owner object is read, and the pods are listed again if due."""
LIST_SECONDS_A_POD: Final = 0.1
"""Seconds per pod between two lists while no watch breaks, since a list of 1,000 pods has 20 MB."""
UNUSED: Final = ("env", "volumeMounts", "command", "args")
"""Fields of containers that are dropped, since no code reads them."""
MAX_ASKED: Final = 32
"""Maximum number of requests per attempt for Karpenter's reasons for evictions, since thousands of pods may be evicted
at once."""


class PodWatch:
    """Watch of the pods of one attempt, by place: the index of the pod's node in the attempt, from 0."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        assignment: PodAssignment,
        owner: tuple[str, str],
        changed: Callable[[], None],
        listen: Callable[[], None] = lambda: None,
    ) -> None:
        """`owner` is the API version and kind of the pods' owner objects; `changed` is called after each change.

        `listen` is called periodically, and always before the deletion of a pod can be observed.
        """
        self._client = client
        self._assignment = assignment
        self._places = {one: place for place, one in enumerate(assignment.pods)}
        self._selector = assignment.selector(run_id)
        self.owner = OwnerObject(client, *owner, layout.attempt_name(run_id, assignment.newest), listen)
        """Newest owner object, the only one that may still create pods."""
        self._changed = changed
        self._pods: dict[int, Pod] = {}
        self._gone: set[int] = set()
        self._num_asked = 0
        """Number of requests for eviction reasons so far."""
        self._is_listed = False
        self._closed = threading.Event()
        self._version = ""
        """Resource version of the last list or watch event."""
        self._listed_at = float("-inf")
        """Time of the last list of pods, in monotonic seconds."""
        self._is_unbroken = False
        """Whether the last watch ended without an error."""
        background.start(f"pods of {self.owner.name}", self._turn, self._closed, client.health)

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()

    def pod(self, place: int) -> Pod | None:
        """Returns the pod at a place, as last observed; None if no pod was observed."""
        return self._pods.get(place)

    @property
    def are_made(self) -> bool:
        """Whether any pod of the attempt was ever observed."""
        return bool(self._pods)

    def is_gone(self, place: int) -> bool:
        """Returns whether the pod at a place was deleted, is lost, or will never be created."""
        pod = self._pods.get(place)
        if pod is None:
            made = self._assignment.pods[place]
            # A reused pod existed when it received its order, so a missing one was deleted.
            is_past = made.made_for != self._assignment.newest or made.index in self.owner.finished
            return self.owner.over is not None or (is_past and self._is_listed)
        return place in self._gone or is_lost(pod)

    def is_lost(self, place: int) -> bool:
        """Returns whether the pod at a place is on a lost node, so that no more data will arrive from the pod."""
        pod = self._pods.get(place)
        return pod is not None and is_lost(pod)

    # -- watching -----------------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Lists all pods if a list is due, then reads changes until the server ends the watch; returns whether to stop
        watching.
        """
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
            if error.status != 410:  # 410: the resource version has expired, so the pods are listed again
                raise
        return False

    def _list(self) -> None:
        found = self._client.find("v1", "Pod", self._selector)
        seen = self._assignment.by_place(found["items"])
        self._read_owner()  # read first: the owner object shows whether all pods are being deleted
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
            self._read_owner()  # a deleted or suspended owner object explains the deletion of its pods
        pod = self._named(pod)
        if self._put(place, pod) and event["type"] == "DELETED":
            self._gone.add(place)
        self._changed()

    def _named(self, pod: Pod) -> Pod:
        """Returns the pod, with Karpenter's reason for its eviction if the pod has ended and Karpenter reports one."""
        if (
            not has_ended(pod)
            or self.owner.eviction is not None
            or self.owner.over is not None
            or self._num_asked >= MAX_ASKED
        ):
            return pod
        self._num_asked += eviction.is_unnamed(pod)
        return eviction.named(self._client, pod)

    def _put(self, place: int, pod: Pod) -> bool:
        """Stores the state of a pod; returns False for the replacement of a lost pod, which cannot join the attempt."""
        before = self._pods.get(place)
        if before is not None and before["metadata"].get("uid") != pod["metadata"].get("uid"):
            self._gone.add(place)
            return False
        if before is None or not is_restarted(before):  # a restarted container keeps its first end
            self._pods[place] = _slim(pod)
        return True

    def end(self) -> None:
        """Deletes the owner object before it has created all pods. Raises EngineError."""
        self.owner.end()
        self._changed()

    def _read_owner(self) -> None:
        self.owner.read(self._pods.values())


def _slim(pod: Pod) -> Pod:
    spec = {name: value for name, value in pod.get("spec", {}).items() if name != "volumes"}
    spec["containers"] = [
        {name: value for name, value in one.items() if name not in UNUSED} for one in spec.get("containers", ())
    ]
    meta = {name: value for name, value in pod["metadata"].items() if name != "managedFields"}
    return {**pod, "metadata": meta, "spec": spec}
