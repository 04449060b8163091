"""Signals to the pods of an attempt: sent without waiting, all that are due at once, in a few threads."""

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
"""How long a request of a pod may take, such as to signal it."""
SENDERS: Final = 4


class Signals:
    """The signals of one attempt. A node gets one after the other."""

    def __init__(self, control: PodControl, number: int, health: Health) -> None:
        """`number` is that of the attempt; `health` gets the unexpected errors of the threads."""
        self._control = control
        self._number = number
        self._health = health
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="signals")
        self._lock = threading.Lock()
        self._queued: dict[PodNode, list[Intent]] = {}
        self._busy: set[PodNode] = set()
        """Nodes to which one is being sent."""
        self._is_scheduled = False
        """Whether a thread will send what is queued."""

    def close(self) -> None:
        """Take nothing more."""
        self._pool.shutdown(wait=False)

    @property
    def is_idle(self) -> bool:
        """Whether all are sent."""
        with self._lock:
            return not (self._queued or self._busy)

    def put(self, node: PodNode, intent: Intent) -> None:
        """Signal a node; one that cannot be reached is deleted where it must end."""
        with self._lock:
            queued = self._queued.setdefault(node, [])
            if intent not in queued:  # in a cluster that does not answer they must not pile up
                queued.append(intent)
        self._schedule()

    def tell_first_ended(self, node: PodNode) -> None:
        """Notify a pod that waits for the first pod's name that it will not resolve any more."""
        self._request(node, Request.first_ended(self._number))

    def hold(self, node: PodNode) -> None:
        """Keep a pod alive whose node has ended with outputs."""
        self._request(node, Request.hold())

    def _request(self, node: PodNode, request: Request) -> None:
        if (pod := _running(node)) is not None:
            self._submit(lambda: list(self._control.call_all([(pod, request)], SEND_SECONDS)))

    # -- the threads --------------------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[], object]) -> None:
        """Do something in a thread; an error of it is recorded."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self._health.crashed(f"signals of attempt {self._number}", error)

        with contextlib.suppress(RuntimeError):  # closed meanwhile
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
        """The next intent of each node to which none is being sent; one that ends it first."""
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
        """Delete a pod that a request does not reach; one that has ended is kept, since its log may not be read."""
        try:
            pod = node.pod
            if intent is not Intent.DUMP_STACKS and (pod is None or not has_ended(pod)):
                node.delete(None if intent is Intent.STOP else 0)
        finally:
            self._done(node)


def _running(node: PodNode) -> Pod | None:
    """Its pod, if its container runs."""
    pod = node.pod
    return pod if pod is not None and not has_ended(pod) and container_state(pod)[0] == "running" else None
