"""Tells which machines come for one attempt, and how far each is: each step once, in the form of what a node tells."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from windlass.diagnose.observations import ComingSeen, ObjectSaid
from windlass.engines.kubernetes import coming, scaling
from windlass.engines.kubernetes.client import Client

Json = Mapping[str, Any]


class Arrivals:
    """Of one attempt: the machines that its pods wait for."""

    def __init__(self, client: Client, spec: Json) -> None:
        """`spec` is that of the pods."""
        self._client = client
        self._spec = spec
        self._api: str | None = None
        """Of Karpenter; empty where there is none, None before it was asked for."""
        self._coming: tuple[ComingSeen, ...] = ()
        self._steps: list[ComingSeen] = []
        self._told: set[tuple[str, str, bool]] = set()
        self._places: frozenset[str] = frozenset()
        self.said: list[ObjectSaid] = []
        """Why no machine comes, by those who would make one."""

    @property
    def is_open(self) -> bool:
        """Whether a machine that is on its way has more to tell."""
        return any(one.state not in coming.FINAL for one in coming.left(self._coming))

    def is_coming(self, pod: str) -> bool:
        """Whether a machine is on its way for a pod, or not ready yet."""
        return pod in self._places

    def look(self, pods: Sequence[Json], events: Iterable[Json]) -> None:
        """Ask how far it is for `pods`, which do not run yet; `events` are those of the namespace.

        Raises EngineError.
        """
        events = list(events)
        if self._api is None:
            self._api = scaling.served(self._client)
        answers = scaling.look(self._client, self._api) if pods or self.is_open else {}
        now = time.time()
        found, said = scaling.seen(pods, self._spec, events, answers, None, self._coming, now)
        self._coming, self.said = tuple(found.coming), said
        claims = {one["metadata"]["name"]: one for one in answers.get("claims", {"items": ()})["items"]}
        self._steps = [
            step
            for one in self._coming
            for step in (coming.steps(claims[one.name], one, now) if one.name in claims else [one])
        ]
        names = [pod["metadata"]["name"] for pod in pods if not scaling.machine_of(pod)]
        last = coming.newest((*events, *answers.get("refused", {"items": ()})["items"]), names)
        unready = {one.machine for one in self._coming if one.state == "registered"}
        given = [pod["metadata"]["name"] for pod in pods if scaling.machine_of(pod) in unready]
        self._places = frozenset((*self._awaited(last), *given))

    def _awaited(self, last: Mapping[str, Json]) -> Iterator[str]:
        """The pods for which a machine comes, by what was last said of each."""
        live = {one.name for one in self._coming if one.state != "gone"}
        pools = {scaling.pool_of(one) for one in self._coming if one.state != "gone"}
        for pod, event in last.items():
            name = coming.nominated(event)
            is_one = name in live or (bool(name) and name.rpartition("-")[0] in pools)
            if is_one or coming.groups(event):
                yield pod

    def news(self) -> Iterator[dict[str, Any]]:
        """What is new of the machines."""
        for one in self._steps:
            is_stuck = one in self._coming and one.state not in coming.FINAL and coming.is_late(one)
            once = (one.name, one.state, is_stuck)
            if once not in self._told:
                self._told.add(once)
                at = time.time() - (0.0 if is_stuck else one.seconds)
                yield {"kind": "machine", **coming.event_of(one), "at": at}
