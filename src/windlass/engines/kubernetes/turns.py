"""Tells what a queue makes of one attempt: each change once, in the form of what a node tells."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from windlass.diagnose.observations import QueueSeen
from windlass.engines.kubernetes.client import Client
from windlass.engines.kubernetes.kueue import ask
from windlass.engines.kubernetes.pods import PodWatch
from windlass.engines.kubernetes.queueing import WAITS, event_of, queue_of

Json = Mapping[str, Any]


class Turn:
    """Of one attempt: whether it is its turn."""

    def __init__(self, client: Client, made: Json, name: str, number: int, pods: PodWatch) -> None:
        """`made` is the manifest of what makes the pods, and `name` what it is called in this attempt."""
        self._client = client
        self._maker = (str(made["apiVersion"]), str(made["kind"]), name)
        self._is_named = bool(queue_of(made))
        self._is_again = number > 1
        self._pods = pods
        self._seen: QueueSeen | None = None
        self._told: tuple[str, str] | None = None
        self.is_open = self._is_named
        """Whether something is to be heard of it yet, as far as is known."""

    def look(self) -> None:
        """Ask, where there is anything to ask. Raises EngineError."""
        if not (self._is_named or self._pods.is_suspended):
            return  # no request more for all those that no queue holds back
        self._seen = ask(self._client, self._client.get(*self._maker))
        self.is_open = self._seen is not None and self._seen.state in WAITS

    def news(self) -> Iterator[dict[str, Any]]:
        """What is new."""
        seen = self._pods.taken_back or self._seen
        if seen is None or (seen.state == "admitted" and not seen.workload):  # not held back, by whatever there is
            return
        if seen.state in WAITS and self._pods.are_made:  # it may have trained and ended before it is looked again
            seen = replace(seen, state="admitted", reason="Admitted", message="")
        if (seen.state, seen.reason) != self._told:
            self._told = (seen.state, seen.reason)
            yield {"kind": "queue", **event_of(seen, is_again=self._is_again), "at": time.time()}
