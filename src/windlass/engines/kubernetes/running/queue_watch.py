"""Reports what the queue does with one attempt, as node events; each change once."""

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
    """Of one attempt: whether it is admitted."""

    def __init__(self, client: Client, made: Mapping[str, Any], name: str, number: int, pods: PodWatch) -> None:
        """`made` is the manifest of the owner object, and `name` its name in this attempt."""
        self._client = client
        self._owner = (str(made["apiVersion"]), str(made["kind"]), name)
        self._is_named = bool(queue_of(made))
        self._is_again = number > 1
        self._pods = pods
        self._seen: QueueStatus | None = None
        self._reported: tuple[str, str] | None = None
        self.is_open = self._is_named
        """Whether it may still change, as far as is known."""

    def read(self) -> None:
        """Read its status, where a queue has to do with it. Raises EngineError."""
        if not (self._is_named or self._pods.owner.is_suspended):
            return  # no extra request for attempts that no queue holds back
        self._seen = kueue.read(self._client, self._client.get(*self._owner))
        self.is_open = self._seen is not None and self._seen.state in WAITS

    @property
    def holds(self) -> bool:
        """Whether the queue holds the attempt back, as was last reported."""
        return self._reported is not None and self._reported[0] in WAITS

    def changes(self) -> Iterator[Reported]:
        """What is new."""
        seen = self._pods.owner.taken_back or self._seen
        if seen is None or (seen.state == "admitted" and not seen.workload):
            return
        if seen.state in WAITS and self._pods.are_made:  # it may have trained and ended before it is read again
            seen = seen.replace(state="admitted", reason="Admitted", message="")
        if (seen.state, seen.reason) != self._reported:
            self._reported = (seen.state, seen.reason)
            yield Reported(time.time(), event_of(seen, is_again=self._is_again))
