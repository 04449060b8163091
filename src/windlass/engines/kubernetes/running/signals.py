"""Sends signals to the pods of an attempt in background threads, all due signals at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.access.background import Health
from windlass.engines.kubernetes.access.control import PodControl, Request
from windlass.engines.kubernetes.objects.pod_status import container_state, has_ended
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.errors import EngineError
from windlass.supervise.backend import Intent

if TYPE_CHECKING:
    from windlass.engines.kubernetes.running.attempt import PodNode

SEND_SECONDS: Final = 10.0
"""Time limit in seconds for a request to a pod, such as a signal."""
SENDERS: Final = 4


class Signals:
    """Queue of the signals of one attempt. Each node receives one signal at a time."""

    def __init__(self, control: PodControl, number: int, health: Health) -> None:
        """`number` is the number of the attempt; `health` receives unexpected errors of the sending threads."""
        self._control = control
        self._number = number
        self._health = health
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="signals")
        self._lock = threading.Lock()
        self._queued: dict[PodNode, list[Intent]] = {}
        self._busy: set[PodNode] = set()
        """Nodes to which a signal is being sent."""
        self._is_scheduled = False
        """Whether a thread is scheduled to send the queued signals."""

    def close(self) -> None:
        """Accepts no further signals."""
        self._pool.shutdown(wait=False)

    @property
    def is_idle(self) -> bool:
        """Whether all signals were sent."""
        with self._lock:
            return not (self._queued or self._busy)

    def put(self, node: PodNode, intent: Intent) -> None:
        """Queues a signal to a node. If a signal that must end the node cannot be delivered, the pod is deleted."""
        with self._lock:
            queued = self._queued.setdefault(node, [])
            if intent not in queued:  # signals must not pile up while the cluster is unreachable
                queued.append(intent)
        self._schedule()

    def tell_first_ended(self, node: PodNode) -> None:
        """Notifies a pod that waits for the first pod's host name that the name will no longer resolve."""
        self._request(node, Request.first_ended(self._number))

    def hold(self, node: PodNode) -> None:
        """Keeps the pod of an ended node alive, since the pod has outputs."""
        self._request(node, Request.hold())

    def _request(self, node: PodNode, request: Request) -> None:
        if (pod := _running(node)) is not None:
            self._submit(lambda: list(self._control.call_all([(pod, request)], SEND_SECONDS)))

    # -- sending threads ----------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[], object]) -> None:
        """Runs `work` in a thread; an exception is reported to `health`."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self._health.crashed(f"signals of attempt {self._number}", error)

        with contextlib.suppress(RuntimeError):  # the thread pool was closed meanwhile
            self._pool.submit(guarded)

    def _schedule(self) -> None:
        with self._lock:
            if self._is_scheduled or not self._queued.keys() - self._busy:
                return
            self._is_scheduled = True
        self._submit(self._send_queued)

    def _send_queued(self) -> None:
        batch = self._next()
        requests, nodes = [], []
        try:
            for node, intent in batch.items():
                if intent is not Intent.KILL and (pod := _running(node)) is not None:
                    requests.append((pod, Request.signal(self._number, intent.value)))
                    nodes.append(node)
                else:
                    self._end_later(node, intent)
            for at, answer in self._control.call_all(requests, SEND_SECONDS) if requests else ():
                node = nodes[at]
                if isinstance(answer, EngineError):
                    self._end_later(node, batch[node])
                else:
                    self._done(node)
        except BaseException:
            for node in batch:
                self._done(node)
            raise

    def _next(self) -> Mapping[PodNode, Intent]:
        """Returns the next signal of each node that is not busy; KILL replaces all queued signals of a node."""
        with self._lock:
            self._is_scheduled = False
            batch = {}
            for node in self._queued.keys() - self._busy:
                queued = self._queued.pop(node)
                batch[node] = Intent.KILL if Intent.KILL in queued else queued[0]
                if queued[1:] and batch[node] is not Intent.KILL:
                    self._queued[node] = queued[1:]
            self._busy |= batch.keys()
            return batch

    def _done(self, node: PodNode) -> None:
        with self._lock:
            self._busy.discard(node)
        self._schedule()

    def _end_later(self, node: PodNode, intent: Intent) -> None:
        self._submit(lambda: self._end(node, intent))

    def _end(self, node: PodNode, intent: Intent) -> None:
        """Deletes the pod of a node after a signal was not delivered. An ended pod is kept, since its log may not be
        read yet.
        """
        try:
            pod = node.pod
            if intent is not Intent.DUMP_STACKS and (pod is None or not has_ended(pod)):
                node.delete(None if intent is Intent.STOP else 0)
        finally:
            self._done(node)


def _running(node: PodNode) -> Pod | None:
    pod = node.pod
    return pod if pod is not None and not has_ended(pod) and container_state(pod)[0] == "running" else None
