"""Reports the provisioning progress of nodes for an attempt as node events, each transition once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import items, served
from windlass.engines.kubernetes.objects.node_pools import GROUP
from windlass.engines.kubernetes.objects.observations import NodeClaimStatus, ObjectReport
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.reading import claims, karpenter
from windlass.runs.node_events import Reported


class ProvisioningWatch:
    """Watch of the nodes that are provisioned for an attempt's pods, or were provisioned for an ended run."""

    def __init__(self, client: Client, known: Iterable[NodeClaimStatus] = ()) -> None:
        """`known` are the nodes that the run's record already contains."""
        self._client = client
        self._api: str | None = None
        """API version of Karpenter; empty if Karpenter is not installed, None if this was not read yet."""
        self._nodes = tuple(known)
        self._steps: list[NodeClaimStatus] = []
        self._reported = {
            (one.name, state, is_late)
            for one in self._nodes
            if one.state in claims.STATES
            for state in claims.STATES[: claims.STATES.index(one.state) + 1]
            for is_late in (False, True)
        }
        self._pods: frozenset[str] = frozenset()
        self.reports: list[ObjectReport] = []
        """Reports of why no node is provisioned."""

    @property
    def remaining(self) -> tuple[NodeClaimStatus, ...]:
        """Provisioned nodes that are not deleted yet."""
        return claims.still_there(self._nodes)

    @property
    def is_open(self) -> bool:
        """Whether a provisioned node has states that were not reported yet."""
        return any(one.state not in claims.FINAL for one in self.remaining)

    def is_provisioning(self, pod: str) -> bool:
        """Returns whether the node for a pod is being provisioned or not ready yet."""
        return pod in self._pods

    def read(self, pods: Sequence[Json], events: Sequence[Json]) -> None:
        """Reads the progress of nodes for `pods`, which wait or waited for one; `events` are those of the namespace.
        Raises EngineError.
        """
        if self._api is None:
            self._api = served(self._client, GROUP)
        asked = karpenter.questions(self._client, self._api)
        answers = {name: found for name, one in asked.items() if (found := items(one)) is not None}
        self.take(pods, events, answers, time.time())

    def take(self, pods: Sequence[Json], events: Sequence[Json], answers: claims.Answers, now: float) -> None:
        """Updates the nodes from objects that were read at `now` (Unix seconds)."""
        self._nodes, self.reports = claims.provisioned(pods, events, answers, (), self._nodes, now)
        there = {one["metadata"]["name"]: one for one in answers.get("claims", ())}
        self._steps = [
            step
            for one in self._nodes
            for step in (claims.steps(there[one.name], (), now) if one.name in there else [one])
        ]
        last = claims.newest_events((*events, *answers.get("refused", ())), [pod["metadata"]["name"] for pod in pods])
        live = {one.name for one in self._nodes if one.state != "gone"}
        unready = {one.machine for one in self._nodes if one.state == "registered"}
        self._pods = frozenset(
            name
            for pod in pods
            if (name := pod["metadata"]["name"])
            and (
                claims.node_of(pod) in unready
                if claims.node_of(pod)
                else name in last and any(one.name in live for one in claims.provisioned_by(last[name], now))
            )
        )

    def changes(self) -> Iterator[Reported]:
        """Yields the node states that were not reported yet."""
        for one in self._steps:
            is_late = one in self._nodes and one.state not in claims.FINAL and claims.is_late(one)
            once = (one.name, one.state, is_late)
            if once not in self._reported:
                self._reported.add(once)
                yield Reported(time.time() - (0.0 if is_late else one.seconds), claims.event_of(one))
