"""Tells, as a node would, how far the pods of one attempt have been brought, and what is wrong with them: each once.

Pods tell most of it themselves. Of pods that cannot be made there is only what their maker says, in events, which are
asked for as long as a pod is missing or waits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.diagnose.observations import ObjectSaid, PodSeen
from windlass.engines.kubernetes import background
from windlass.engines.kubernetes.arrivals import Arrivals
from windlass.engines.kubernetes.client import Client
from windlass.engines.kubernetes.pods import PodWatch
from windlass.engines.kubernetes.seeing import NOT_ORDINARY, is_trouble, key, objects_said, pod_seen, warning
from windlass.engines.kubernetes.turns import Turn
from windlass.errors import EngineError
from windlass.runs.record import Phase

PATIENCE_SECONDS: Final = 1.0
"""A pod that waits no longer is one that starts."""
FIRST_LOOK_SECONDS: Final = 1.5
LOOK_SECONDS: Final = 4.0
"""Between two looks at events."""
MOST: Final = 200
"""Troubles of one attempt that go into the record; those of a thousand pods are mostly the same."""
MAX_EVENTS: Final = "1000"
STAGES: Final = {
    "missing": Phase.QUEUED, "queued": Phase.QUEUED, "coming": Phase.PROVISIONING, "pulling": Phase.PULLING,
}  # fmt: skip
"""By the state of a pod; `coming` is one for which a machine comes, or that has one which is not ready yet."""
Told = dict[str, Any]


class Troubles:
    """Of one attempt. What it gives has the form of what a node tells."""

    def __init__(
        self, client: Client, run_id: str, number: int, pods: PodWatch, claims: Sequence[str], num_nodes: int,
        turn: Turn, arrivals: Arrivals, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._ids = (run_id, number)
        self._pods = pods
        self._claims = claims
        self._num_nodes = num_nodes
        self._turn = turn
        self._arrivals = arrivals
        self._changed = changed
        self._told: set[str] = set()
        self._num_warned = 0
        self._states: dict[int, tuple[str, float]] = {}
        """The state of the pod at each place, and since when."""
        self.ours: set[int] = set()
        """Places of pods that we have deleted."""
        self._said: list[ObjectSaid] = []
        self._closed = threading.Event()
        self._pause = FIRST_LOOK_SECONDS
        background.start(f"events of {run_id}", self._run, self._closed, client.health)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def of_pod(self, place: int, node: int) -> Iterator[Told]:
        """What is new of the pod at a place, which plays `node`."""
        pod, now = pod_seen(node, self._pods.pod(place)), time.time()
        (before, since), state = self._states.get(place, ("", now)), pod.state
        if state in ("queued", "pulling") and self._arrivals.is_coming(pod.name):
            state = "coming"
        if state != before:
            since = now
            self._states[place] = (state, since)
        is_waiting = state in STAGES
        if not is_waiting or now - since >= PATIENCE_SECONDS:
            stage = STAGES.get(state, Phase.STARTING)
            if self._is_new(f"{place} {stage} {since if is_waiting else ''}"):
                yield {"kind": "stage", "stage": stage.value, "at": since}
            if is_trouble(pod) and not (pod.reason == "Deleted" and self._is_expected(place)):
                yield from self._warned(pod, now, place if pod.state in ("ended", "gone") else None)

    def _is_expected(self, place: int) -> bool:
        """Whether a pod is deleted by us, by a queue, or since another has failed: its maker then deletes the rest."""
        if self._pods.taken_back is not None:
            return True
        others = (pod_seen(0, self._pods.pod(other)) for other in range(self._num_nodes) if other != place)
        return place in self.ours or any(pod.state == "ended" and pod.exit_code != 0 for pod in others)

    def of_objects(self) -> Iterator[Told]:
        """What is new of the other objects, and of machines that come."""
        now = time.time()
        for said in (*self._said, *self._arrivals.said, *self._pods.ends):
            yield from self._warned(said, now)
        yield from self._arrivals.news()

    def _warned(self, seen: PodSeen | ObjectSaid, now: float, place: int | None = None) -> Iterator[Told]:
        if self._num_warned < MOST and self._is_new(f"{place} {key(seen)}"):
            self._num_warned += 1
            yield {"kind": "warning", **warning(seen), "at": now}

    def _is_new(self, what: str) -> bool:
        is_new = what not in self._told
        self._told.add(what)
        return is_new

    # -- events -------------------------------------------------------------------------------------------------------

    def _run(self) -> bool:
        """One look; gives whether it is the last."""
        if self._closed.wait(self._pause):
            return True
        self._pause = LOOK_SECONDS
        are_all_there = all(
            self._states.get(place, ("",))[0] in ("running", "ended") for place in range(self._num_nodes)
        )
        if are_all_there and not self._turn.is_open:
            self._look_at_machines()
            return False
        with contextlib.suppress(EngineError):  # asked again at the next turn
            self._turn.look()
            self._changed()
        if are_all_there:
            return False
        with contextlib.suppress(EngineError):  # the watch of the pods reports it
            found = self._client.find("v1", "Event", fieldSelector=NOT_ORDINARY, limit=MAX_EVENTS)["items"]
            self._said = list(objects_said(found, *self._ids, claims=self._claims))
            self._look_at_machines(found)
            self._changed()
        return False

    def _look_at_machines(self, events: Sequence[Mapping[str, Any]] = ()) -> None:
        """Ask for the machines that pods wait for, and for the last word of one whose pod runs already."""
        pods = [pod for place in range(self._num_nodes) if (pod := self._pods.pod(place)) is not None]
        waiting = [pod for pod in pods if pod_seen(0, pod).state in ("queued", "pulling")]
        if waiting or self._arrivals.is_open:
            with contextlib.suppress(EngineError):
                self._arrivals.look(waiting, events)
