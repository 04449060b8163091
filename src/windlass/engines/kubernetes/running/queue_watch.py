"""Reports the queue status of one attempt as node events, each change once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.observations import QueueStatus
from windlass.engines.kubernetes.reading import kueue
from windlass.engines.kubernetes.reading.admission import WAITS, event_of, queue_of
from windlass.engines.kubernetes.running.pod_watch import PodWatch
from windlass.runs.node_events import Reported


class QueueWatch:
    """Watch of the admission of one attempt by its queue."""

    def __init__(self, client: Client, made: Mapping[str, Any], name: str, number: int, pods: PodWatch) -> None:
        """`made` is the manifest of the owner object, and `name` the name of the object in attempt `number`."""
        self._client = client
        self._owner = (str(made["apiVersion"]), str(made["kind"]), name)
        self._is_named = bool(queue_of(made))
        self._is_again = number > 1
        self._pods = pods
        self._seen: QueueStatus | None = None
        self._reported: tuple[str, str] | None = None
        self.is_open = self._is_named
        """Whether the admission may still change."""

    def read(self) -> None:
        """Reads the queue status, if the attempt uses a queue. Raises EngineError."""
        if not (self._is_named or self._pods.owner.is_suspended):
            return  # an attempt without a queue needs no request
        self._seen = kueue.read(self._client, self._client.get(*self._owner))
        self.is_open = self._seen is not None and self._seen.state in WAITS

    @property
    def holds(self) -> bool:
        """Whether the queue had not admitted the attempt when its status was last reported."""
        return self._reported is not None and self._reported[0] in WAITS

    def changes(self) -> Iterator[Reported]:
        """Yields the queue status if it has changed since the last report."""
        seen = self._pods.owner.eviction or self._seen
        if seen is None or (seen.state == "admitted" and not seen.workload):
            return
        if seen.state in WAITS and self._pods.are_made:  # existing pods prove an admission, even after their end
            seen = seen.replace(state="admitted", reason="Admitted", message="")
        if (seen.state, seen.reason) != self._reported:
            self._reported = (seen.state, seen.reason)
            yield Reported(time.time(), event_of(seen, is_again=self._is_again))
