"""Watches the pods of one attempt: a list, then changes, through dropped connections and forgotten versions."""

from __future__ import annotations

import calendar
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from windlass.diagnose.observations import ObjectSaid, QueueSeen
from windlass.engines.kubernetes import background, layout
from windlass.engines.kubernetes.client import ABSENT_SECONDS, Absence, Client, Refused
from windlass.engines.kubernetes.kueue import evicted
from windlass.engines.kubernetes.queueing import is_suspended
from windlass.engines.kubernetes.seeing import container_state, ends_of, is_restarted, last_words
from windlass.engines.kubernetes.ways.pytorchjob import NUMBERED

WATCH_SECONDS: Final = 20
"""How long one watch lasts: then all is listed anew, and the object that makes the pods is looked at."""
INDEX: Final = "batch.kubernetes.io/job-completion-index"
ENDED: Final = ("Failed", "Complete", "Completed", "Succeeded")
"""Conditions by which one kind or another of what makes pods says that it has ended."""
GONE_SECONDS: Final = 10.0
"""How much longer than its grace a pod may take to go before its machine is taken for lost."""
TAINTED: Final = "DeletionByTaintManager"
"""Why a pod is deleted whose machine the cluster has not heard for as long as the pod puts up with."""

Pod = Mapping[str, Any]


class PodWatch:
    """What is known of the pods of one attempt; by place, from 0."""

    def __init__(
        self, client: Client, run_id: str, number: int, owner: tuple[str, str], changed: Callable[[], None],
        listen: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`owner` is the API and kind of the object that makes the pods; `changed` is called at each change.

        `listen` is called now and then, and before anybody can see that a pod was taken away.
        """
        self._client = client
        self._selector = f"{layout.RUN_LABEL}={run_id},{layout.ATTEMPT_LABEL}={number}"
        self._name = layout.attempt_name(run_id, number)
        self._owner = owner
        self._changed = changed
        self._listen = listen
        self._pods: dict[int, Pod] = {}
        self._gone: set[int] = set()
        self._closed = threading.Event()
        self._is_ended = False
        self._absence = Absence()
        self._is_absent = False
        """Whether what makes the pods was reported absent when it was last looked at."""
        self.is_over: str | None = None
        """Why no more pods will come of it, once that is known."""
        self.ends: list[ObjectSaid] = []
        """The same for a record."""
        self.is_suspended = False
        """Whether what makes the pods was held back when it was last looked at."""
        self.taken_back: QueueSeen | None = None
        """Why it was suspended after it had made pods, which then are deleted; None where it was not."""
        background.start(f"pods of {self._name}", self._turn, self._closed, client.health)

    def close(self) -> None:
        """Look no more."""
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
            return self.is_over is not None
        return place in self._gone or is_lost(pod)

    def is_lost(self, place: int) -> bool:
        """Whether the machine of the pod at a place is given up: nothing more is to be heard of it."""
        pod = self._pods.get(place)
        return pod is not None and is_lost(pod)

    # -- watching -----------------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Look at all, then take changes until the server ends the watch; gives whether that was for good."""
        try:
            version = self._list()
            self._changed()
            seconds = math.ceil(ABSENT_SECONDS) if self._is_absent and self.is_over is None else WATCH_SECONDS
            self._client.health.well(f"pods of {self._name}")
            for event in self._client.watch("v1", "Pod", self._selector, version, seconds):
                self._take(event)
                if self._closed.is_set():
                    return True
        except Refused as error:
            if error.status != 410:  # the server has forgotten that version: list anew
                raise
        return False

    def _list(self) -> str:
        found = self._client.find("v1", "Pod", self._selector)
        seen = by_place(found["items"])
        self._look_at_owner()  # first: who sees a pod that was deleted then knows whether all are
        self._gone |= self._pods.keys() - seen.keys()
        for place, pod in seen.items():
            self._put(place, pod)
        return str(found["metadata"]["resourceVersion"])

    def _take(self, event: Mapping[str, Any]) -> None:
        pod = event["object"]
        place = _place(pod) if event["type"] != "BOOKMARK" else None
        if place is None:
            return
        is_deleted = event["type"] == "DELETED" or pod["metadata"].get("deletionTimestamp")
        if is_deleted and self.is_over is None:
            self._look_at_owner()  # whoever deletes all pods has mostly deleted, or suspended, what makes them
        if self._put(place, pod) and event["type"] == "DELETED":
            self._gone.add(place)
        self._changed()

    def _put(self, place: int, pod: Pod) -> bool:
        """Take in how a pod is; False for one that was made in place of it, with whose loss the attempt is over."""
        before = self._pods.get(place)
        if before is not None and before["metadata"].get("uid") != pod["metadata"].get("uid"):
            self._gone.add(place)
            return False
        if before is None or not is_restarted(before):  # how it ended first is how it ended
            self._pods[place] = pod
        return True

    def end(self) -> None:
        """Delete what makes the pods, which never made some: no more will come. Raises EngineError."""
        api, kind = self._owner
        self._is_ended = True
        self._client.delete(api, kind, self._name)
        self.is_over = f"{kind} {self._name} was deleted before it had made all pods"
        self._changed()

    def _look_at_owner(self) -> None:
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
        self.is_suspended = is_suspended(owner)
        if self.is_suspended and self._pods and self.taken_back is None:
            self.taken_back = evicted(self._client, owner)
        if why := why_over(owner):
            self.is_over = f"{kind} {self._name} is {why}"

    def _take_absence(self, kind: str, *, is_absent: bool) -> None:
        """Whether what makes the pods is gone: it is once it was so for some seconds, or its pods go with it."""
        is_removed = self._absence.is_confirmed(is_absent=is_absent)
        self._is_absent = is_absent
        if not is_absent:
            return
        if is_removed:
            self.is_over = f"{kind} {self._name} was deleted"
        if is_removed or any("deletionTimestamp" in pod["metadata"] for pod in self._pods.values()):
            self.ends = list(ends_of(None, kind, self._name))


def why_over(maker: Mapping[str, Any]) -> str:
    """How what makes pods has ended, in its own words; empty while it goes on."""
    for condition in maker.get("status", {}).get("conditions", ()):
        if condition["type"] in ENDED and condition["status"] == "True":
            return str(condition["type"]).lower() + (f": {condition['message']}" if condition.get("message") else "")
    return ""


def by_place(pods: Iterable[Pod]) -> dict[int, Pod]:
    """The pods of an attempt, by the number that their maker has given them; the newest where there are several."""
    ordered = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return {place: pod for pod in ordered if (place := _place(pod)) is not None}


def _place(pod: Pod) -> int | None:
    meta = pod["metadata"]
    notes = meta.get("annotations", {})
    first = notes.get(layout.FIRST_PLACE_ANNOTATION, "")
    if first.isdigit():
        number = meta["name"].rpartition(NUMBERED)[2]
        return int(first) + (int(number) if number.isdigit() else 0)
    text = notes.get(INDEX)
    return int(text) if text is not None and text.isdigit() else None


def is_lost(pod: Pod) -> bool:
    """Whether a pod that was deleted is on a machine that does not answer: nobody will ever say how it ended."""
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted is None or has_ended(pod):
        return False
    conditions = {one["type"]: one for one in pod.get("status", {}).get("conditions", ())}
    is_silent = conditions.get("Ready", {}).get("status") == "False" and container_state(pod)[0] == "running"
    if is_silent and conditions.get("DisruptionTarget", {}).get("reason") == TAINTED:
        return True  # to wait for its grace would be to wait for nobody
    return time.time() > calendar.timegm(time.strptime(deleted, "%Y-%m-%dT%H:%M:%SZ")) + GONE_SECONDS


def is_alive(pod: Pod) -> bool:
    """Whether its container runs, and its machine says so: one that is silent has Ready taken from its pods."""
    conditions = pod.get("status", {}).get("conditions", ())
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and container_state(pod)[0] == "running"


def has_ended(pod: Pod) -> bool:
    """Whether nothing runs in it any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed") or container_state(pod)[0] == "terminated"


def why_it_ended(pod: Pod) -> str:
    """In a line, why a pod that said nothing more has ended."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    for condition in status.get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return (
                f"pod {name} was taken away ({condition.get('reason', 'disruption')}): {condition.get('message', '')}"
            )
    if status.get("reason"):
        return f"pod {name}: {status['reason']}: {status.get('message', '').strip()}"
    state, data = container_state(pod)
    if state == "terminated":
        said = last_words(data)
        return f"pod {name} ended with exit code {data.get('exitCode')} ({data.get('reason', 'Error')}) {said}".strip()
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} was deleted, and its machine does not answer" if is_lost(pod) else f"pod {name} was deleted"
    return f"pod {name} is gone"
