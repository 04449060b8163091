"""Reads the events and logs of an attempt's nodes, over connections from the pods or by following their logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.reading.logs.feed import NodeFeed, NodeFiles, Readers
from windlass.engines.kubernetes.reading.logs.follower import Connections, Follower, raise_file_limit
from windlass.engines.kubernetes.running.pod_watch import PodWatch
from windlass.supervise.log_tail import LogTail

WAKE_SECONDS_A_NODE: Final = 0.0003
"""Seconds per node between two wake-ups of the attempt monitor in large attempts, where reading all nodes takes as
long."""
MANY_NODES: Final = 64


class AttemptLogs:
    """Log readers for all nodes of one attempt."""

    def __init__(
        self,
        client: Client,
        pods: PodWatch,
        assignment: PodAssignment,
        firsts: Sequence[int],
        folder: Path,
        events: OrderServer | None,
        hang_seconds: float | None,
        wake: Callable[[], None],
    ) -> None:
        """`firsts` has, for each pod, the first attempt that ran in it; `folder` is the attempt's folder.

        `events` receives the events that pods send; if None, the pods' logs are followed. `wake` wakes the attempt
        monitor.
        """
        raise_file_limit()
        num_nodes = len(assignment.pods)
        self._client = client
        self._pods = pods
        self._assignment = assignment
        self._firsts = firsts
        self._folder = folder
        self._events = events
        self._wake = wake
        self._wake_pause = WAKE_SECONDS_A_NODE * num_nodes if num_nodes >= MANY_NODES else 0.0
        self._woken_at = 0.0
        self._connections = Connections(num_nodes)
        self._readers = Readers(num_nodes, hang_seconds)

    @property
    def printed_seconds(self) -> float | None:
        """Seconds between two reports by a pod on how much its ranks have printed; None if its logs are followed."""
        return None if self._events is None else self._readers.printed_seconds

    def open(self, node: int, place: int, ranks: tuple[int, ...]) -> NodeFeed | Follower:
        """Returns the reader of a node's events: a feed if the pod sends them, else a follower of the pod's log."""
        first = self._firsts[place]
        waited = first != self._assignment.pods[place].made_for
        what, of = f"log of node {node}", (self._folder, node, ranks, self._assignment.attempt, first, waited)
        if self._events is not None:
            files = NodeFiles(*of)
            return NodeFeed(
                what, self._client, self._pods, place, files, self._events, self._readers, self._wake_for_events
            )
        return Follower(what, self._client, self._pods, place, lambda: LogTail(*of), self._connections, self._wake)

    def close(self) -> None:
        """Cancels all reads that have not started."""
        self._readers.close()

    def _wake_for_events(self) -> None:
        """Wakes the attempt monitor, at most once in `_wake_pause` seconds: many nodes send events all the time, and
        the monitor also polls every half second.
        """
        now = time.monotonic()
        if now - self._woken_at >= self._wake_pause:
            self._woken_at = now
            self._wake()
