"""Reports the stage and the problems of an attempt's pods as node events, each once.

If a pod waits again, its problems are reported again, since the record no longer shows why the pod waits. Most problems
are in the status of the pods. Only events of the owner object show why pods are not created; they are read while a pod
is missing or waits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.object_reports import NOT_ORDINARY, is_problem, key, object_reports, warning
from windlass.engines.kubernetes.objects.observations import ObjectReport
from windlass.engines.kubernetes.objects.pod_status import PodStatus, pod_status
from windlass.engines.kubernetes.reading import eviction
from windlass.engines.kubernetes.running.pod_watch import PodWatch
from windlass.engines.kubernetes.running.provisioning_watch import ProvisioningWatch
from windlass.engines.kubernetes.running.queue_watch import QueueWatch
from windlass.errors import EngineError
from windlass.runs.node_events import StageReached
from windlass.runs.phase import Phase
from windlass.worker.protocol import NodeEvent, NodeWarning

PATIENCE_SECONDS: Final = 1.0
"""Seconds that a pod must wait before its problems are reported, since a normal start includes shorter waits."""
FIRST_LOOK_SECONDS: Final = 1.5
LOOK_SECONDS: Final = 4.0
"""Seconds between two reads of Kubernetes events."""
MAX_PROBLEMS: Final = 200
"""Maximum number of problems in the record per attempt, since most problems of a thousand pods are equal."""
OBJECTS: Final = "objects"
ENDS: Final = "ends"
MAX_EVENTS: Final = "1000"
UNSCHEDULABLE: Final = "Unschedulable"
"""Status reason of a pod that fits on no node at present."""
NOT_CREATED: Final = "FailedCreate"
"""Event reason of an owner object whose pod was refused by a quota or a webhook."""
STAGES: Final = {
    "missing": Phase.QUEUED,
    "queued": Phase.QUEUED,
    "provisioning": Phase.PROVISIONING,
    "pulling": Phase.PULLING,
}
"""Reported stage by the state of a pod. In `provisioning`, the pod's node is being provisioned or not ready yet."""


class PodProblems:
    """Reports the problems of one attempt's pods as node events."""

    def __init__(
        self,
        client: Client,
        run_id: str,
        number: int,
        pods: PodWatch,
        claims: Sequence[str],
        num_nodes: int,
        queue: QueueWatch,
        changed: Callable[[], None],
        spares: Sequence[str] = (),
    ) -> None:
        """`spares` are name prefixes of spare pods, for which the attempt does not wait."""
        self._client = client
        self._ids = (run_id, number)
        self._pods = pods
        self._claims = claims
        self._spares = spares
        self._num_nodes = num_nodes
        self._queue = queue
        self._provisioning = ProvisioningWatch(client)
        self._awaited: set[str] = set()
        """Names of the pods that waited for a node, or for their node to become ready, at the last read."""
        self._changed = changed
        self._stages: set[str] = set()
        """Stages reported so far, each with its place and start time."""
        self._reported: dict[str, set[str]] = {}
        """Problems that are not reported again, by the place of an ended pod, `OBJECTS` or `ENDS`. Cleared when a pod
        waits again."""
        self._problems: set[tuple[str, str]] = set()
        """All problems reported so far, each with its group in `_reported`; at most `MAX_PROBLEMS`."""
        self._states: dict[int, tuple[str, float]] = {}
        """State of the pod at each place, with its start in Unix seconds."""
        self.ours: set[int] = set()
        """Places of pods that Windlass has deleted."""
        self._objects: list[ObjectReport] = []
        self._closed = threading.Event()
        self._pause = FIRST_LOOK_SECONDS
        background.start(f"events of {run_id}", self._run, self._closed, client.health)

    def close(self) -> None:
        """Stops reading events."""
        self._closed.set()

    def of_pod(self, place: int, node: int) -> Iterator[NodeEvent]:
        """Yields new stages and problems of the pod at a place, which runs `node`."""
        pod, now = pod_status(node, self._pods.pod(place)), time.time()
        (before, since), state = self._states.get(place, ("", now)), pod.state
        if state in ("queued", "pulling") and self._provisioning.is_provisioning(pod.name):
            state = "provisioning"
        if state != before:
            since = now
            self._states[place] = (state, since)
        is_waiting = state in STAGES
        if not is_waiting or now - since >= PATIENCE_SECONDS:
            stage = STAGES.get(state, Phase.STARTING)
            if (reached := f"{place} {stage} {since if is_waiting else ''}") not in self._stages:
                self._stages.add(reached)
                if is_waiting:
                    self._reported.pop(str(place), None)
                    self._reported.pop(OBJECTS, None)
                yield StageReached(since, stage.value)
            is_unnamed = (
                pod.state == "running" and pod.reason == eviction.BY_API
            )  # Karpenter reports the reason a moment later
            is_expected = pod.reason == "Deleted" and self._is_expected(place)
            if is_problem(pod) and not (is_expected or is_unnamed):
                yield from self._warned(pod, now, str(place) if pod.state in ("ended", "gone") else OBJECTS)

    def _is_expected(self, place: int) -> bool:
        """Returns whether the deletion of a pod has a known cause: Windlass, a queue, or the owner object after another
        pod failed.
        """
        if self._pods.owner.eviction is not None:
            return True
        others = (pod_status(0, self._pods.pod(other)) for other in range(self._num_nodes) if other != place)
        return place in self.ours or any(pod.state == "ended" and pod.exit_code != 0 for pod in others)

    def without_capacity(self) -> dict[int, float]:
        """Returns the places whose pods the cluster does not schedule or create, with the start of the wait in Unix
        seconds.

        Places with a node that is being provisioned are excluded.
        """
        found = {}
        for place, (state, since) in self._states.items():
            is_unplaced = state == "queued" and pod_status(0, self._pods.pod(place)).reason == UNSCHEDULABLE
            if is_unplaced or (state == "missing" and self._refusal() is not None):
                found[place] = since
        return found

    def why_not_created(self) -> str:
        """Returns why a missing pod was not created, with the cluster's refusal if one was reported."""
        refusal = self._refusal()
        return "its pod was never made" + (f": {refusal.message}" if refusal is not None else "")

    def _refusal(self) -> ObjectReport | None:
        return next((report for report in self._objects if report.reason == NOT_CREATED), None)

    def of_objects(self) -> Iterator[NodeEvent]:
        """Yields new problems of objects other than pods, and the provisioning progress of nodes."""
        now = time.time()
        # While a queue holds the pods back, other objects do not delay them.
        of_objects = () if self._queue.holds else self._objects
        for report in (*of_objects, *self._provisioning.reports):
            yield from self._warned(report, now, OBJECTS)
        for report in self._pods.owner.ends:
            yield from self._warned(report, now, ENDS)
        yield from self._provisioning.changes()

    def _warned(self, seen: PodStatus | ObjectReport, now: float, of: str) -> Iterator[NodeEvent]:
        reported, problem = self._reported.setdefault(of, set()), key(seen)
        if problem not in reported and ((of, problem) in self._problems or len(self._problems) < MAX_PROBLEMS):
            reported.add(problem)
            self._problems.add((of, problem))
            yield NodeWarning.from_json({"at": now, **warning(seen)})

    # -- events -------------------------------------------------------------------------------------------------------

    def _run(self) -> bool:
        """Reads the events once, after a pause; returns whether to stop."""
        if self._closed.wait(self._pause):
            return True
        self._pause = LOOK_SECONDS
        places = range(self._num_nodes)
        are_all_there = all(self._states.get(place, ("",))[0] in ("running", "ended") for place in places)
        if are_all_there and not self._queue.is_open:
            self._read_provisioning()
            return False
        with contextlib.suppress(EngineError):  # the next round tries again
            self._queue.read()
            self._changed()
        if are_all_there:
            return False
        with contextlib.suppress(EngineError):  # the watch of the pods reports the same error
            found = self._client.find("v1", "Event", fieldSelector=NOT_ORDINARY, limit=MAX_EVENTS)["items"]
            self._objects = list(object_reports(found, *self._ids, claims=self._claims, spares=self._spares))
            self._read_provisioning(found)
            self._changed()
        return False

    def _read_provisioning(self, events: Sequence[Mapping[str, Any]] = ()) -> None:
        """Reads the nodes for which pods wait, or waited at the last read.

        Between two reads, a node may join and its pod start; Karpenter nominates a pod again only after two minutes.
        """
        pods = [pod for place in range(self._num_nodes) if (pod := self._pods.pod(place)) is not None]
        waiting = {pod["metadata"]["name"] for pod in pods if pod_status(0, pod).state in ("queued", "pulling")}
        asked = [pod for pod in pods if pod["metadata"]["name"] in waiting | self._awaited]
        if asked or self._provisioning.is_open:
            with contextlib.suppress(EngineError):  # the next round tries again
                self._provisioning.read(asked, events)
                self._awaited = waiting
