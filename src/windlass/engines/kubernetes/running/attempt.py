"""Nodes of one attempt on a cluster, each in a pod: events are read from its log, the end from its pod status."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.engines.kubernetes.access.background import PAUSES
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import PodControl
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import claims_of
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_status import (
    container_state,
    ended_at,
    exit_code,
    is_alive,
    is_forced,
    why_it_ended,
)
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.engines.kubernetes.objects.quantity import is_true
from windlass.engines.kubernetes.reading import eviction
from windlass.engines.kubernetes.reading.admission import is_deactivated
from windlass.engines.kubernetes.running.attempt_logs import AttemptLogs
from windlass.engines.kubernetes.running.collection import HOLD_SECONDS
from windlass.engines.kubernetes.running.markers import StopRequestRelay
from windlass.engines.kubernetes.running.pod_watch import PodWatch
from windlass.engines.kubernetes.running.problems import PodProblems
from windlass.engines.kubernetes.running.queue_watch import QueueWatch
from windlass.engines.kubernetes.running.signals import Signals
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptPartStep, AttemptStep
from windlass.runs.events import StopRequested
from windlass.runs.node_events import RankSeen, Reported
from windlass.runs.stop_request import QUEUE
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.supervise.log_tail import last_line_at
from windlass.worker.protocol import NodeEvent, NodeSpec, NodeWarning, PreemptionNotice, RankFailure

EXEC_LAG_SECONDS: Final = 3.0
"""Delay in seconds of commands in a pod, and of the resulting log lines, for a supervisor outside the cluster."""
AGAIN_SECONDS: Final = 5.0
"""Minimum seconds between two sends of the same signal to a node."""
REASON_SECONDS: Final = 5.0
"""Seconds to wait for the status of a deleted pod to show why the pod ended."""
DEADLINE: Final = "DeadlineExceeded"
"""Status reason of a pod that has exceeded its `activeDeadlineSeconds`."""


class PodNode(Node):
    """A node that runs in a pod."""

    def __init__(self, number: int, place: int, ranks: tuple[int, ...], folder: Path, attempt: PodAttempt) -> None:
        super().__init__(number, ranks, folder)
        self.place = place
        self.attempt = attempt
        self.is_ended_by_others = False
        """Whether the pod was ended by something other than Windlass."""
        self.is_explained = False
        """Whether the reason that the cluster reports for the end of the pod was read."""
        self._over_at: float | None = None
        self._claim: Sequence[RankFailure] | None = None
        """Rank failures reported in the pod's log, None before the report. Trusted only if the pod's own end agrees, or
        the pod waits for the next attempt."""
        self._num_warned = 0
        self._is_cut_short = False
        """Whether a warning about the missing end of the pod's log was recorded."""
        self.last_event_at = 0.0
        """Time of the node's newest event, in Unix seconds."""
        self._sent: dict[Intent, float] = {}
        """Time at which each signal was last sent, in monotonic seconds; a shutdown repeats its signal in every
        turn."""
        self._ended_first_at = float("-inf")
        """Time of the last notification that the first node has ended, in monotonic seconds."""
        self.log = attempt.logs.open(number, place, ranks)

    @property
    def pod(self) -> Pod | None:
        """The node's pod, as last observed."""
        return self.attempt.pods.pod(self.place)

    @property
    def all_read(self) -> bool:
        """Whether all output of the pod for this attempt is in local files."""
        return self.log.is_done

    # -- events -------------------------------------------------------------------------------------------------------

    def updates(self) -> Iterator[NodeEvent]:
        """Yields new events from the pod's status, and then the events that the node itself has reported."""
        self.log.catch_up()
        all_read, attempt = self.all_read, self.attempt
        yield from attempt.client.health.updates()
        pod = self.pod
        # The kubelet's reason is in the status only after the whole pod has ended, and not only its container.
        phase = "" if pod is None else pod.get("status", {}).get("phase")
        has_reason = pod is None or phase in ("Succeeded", "Failed") or is_forced(pod)
        is_explained = has_reason or attempt.pods.is_gone(self.place)
        yield from attempt.problems.of_pod(self.place, self.number)
        self.is_explained = is_explained
        if self.place == 0:
            yield from attempt.problems.of_objects()
        yield from attempt.queue.changes()
        if pod is not None and not attempt.is_seen_alive and is_alive(pod):
            attempt.is_seen_alive = True
            yield RankSeen(time.time())
        for event in super().updates():
            self.last_event_at = max(self.last_event_at, event.at)
            # This supervisor did not send the SIGTERM: the node is shut down, or another machine has stopped the run.
            if isinstance(event, PreemptionNotice):
                self.is_ended_by_others |= event.source == "sigterm" and Intent.STOP not in self._sent
                with contextlib.suppress(EngineError):
                    attempt.stop_requests.relay()
            yield event
        yield from self._warn_of_ignored()
        if attempt.pods.is_lost(self.place) and not (all_read or self._is_cut_short):
            self._is_cut_short = True
            message = f"log of node {self.number}: its last lines are missing: the cluster's node does not answer"
            yield NodeWarning(time.time(), message)
        if all_read or attempt.pods.is_lost(self.place):
            yield from self._believe()
        if attempt.is_evicted:
            yield from attempt.notices()
            self._end_evicted()
        attempt.keep_ended_alive()
        if self.pid is None and attempt.has_first_done and time.monotonic() - self._ended_first_at >= AGAIN_SECONDS:
            self._ended_first_at = time.monotonic()
            attempt.signals.tell_first_ended(self)

    @override
    def take_end(self, failures: Sequence[RankFailure]) -> None:
        """Stores the reported failures until the pod ends, since any process in the pod could have written the
        report.
        """
        self._claim = failures

    def _believe(self) -> Iterator[NodeEvent]:
        """Ends the node as its log reports, if the pod's exit code agrees or the pod is kept alive. Called after the
        log was read.

        A pod exits with 0 if all its ranks have succeeded. If log and exit code differ, 0 overrides the log, and any
        other exit code counts as an end without a report.
        """
        if self.ended:
            return
        code, claim = self._exit_code(), self._claim
        if claim is not None and (code is None or (code == 0) is not bool(claim)):
            self.ended, self.failures = True, list(claim)
        elif code == 0 and self.pid is not None:
            self.ended, self.failures = True, []
            lacks = "reports failures" if claim else "does not report the end"
            message = f"node {self.number} succeeded by its pod's status, but its log {lacks}"
            yield NodeWarning(time.time(), message)

    def _warn_of_ignored(self) -> Iterator[NodeEvent]:
        """Warns, once, about lines of the pod's log that look like events but were not written by Windlass."""
        before, self._num_warned = self._num_warned, self.num_ignored
        if self._num_warned and not before:
            message = (
                f"node {self.number}: lines of its pod's log that look like Windlass's own are not, and were ignored: "
                "a process writes to the output of the pod's first process"
            )
            yield NodeWarning(time.time(), message)

    def _end_evicted(self) -> None:
        """Ends a node whose pod was preempted before it could report its end, so that the node is not declared lost."""
        if self.ended or not self.all_read:
            return
        self.ended = True
        self.failures = [
            RankFailure(rank, -signal.SIGTERM, time.time(), self.last_words(), ended_by_us=True) for rank in self.ranks
        ]

    # -- end of the node ----------------------------------------------------------------------------------------------

    @property
    @override
    def over(self) -> bool:
        """Whether the node has ended and the reason is known, which the cluster may report some time after a pod's
        deletion.
        """
        if not super().over:
            return False
        self._over_at = self._over_at or time.monotonic()
        is_late = time.monotonic() - self._over_at > REASON_SECONDS
        return is_late or self.is_explained or not self.is_ended_by_others

    @override
    def lives(self) -> bool:
        return not self.all_read and not self.attempt.pods.is_lost(self.place)

    @property
    @override
    def exit_code(self) -> int:
        return self._exit_code() or -signal.SIGKILL

    def _exit_code(self) -> int | None:
        """Returns the exit code of the pod's container; None while the container runs, or if the code is unknown."""
        pod = self.pod
        return None if pod is None else exit_code(pod)

    def last_words(self) -> str:
        """Returns the node's last output, and the reason why its pod ended."""
        return "\n".join(text for text in (super().last_words(), self._why_it_ended()) if text)

    def _why_it_ended(self) -> str:
        pod, pods, problems = self.pod, self.attempt.pods, self.attempt.problems
        if pod is not None:
            return why_it_ended(pod)
        is_refused = self.place in problems.without_capacity() or not pods.is_gone(self.place)
        return pods.owner.over or (problems.why_not_created() if is_refused else "its pod is gone")

    @override
    def why_lost(self) -> str:
        """Returns why the node was lost, such as a deleted pod or a cluster node that does not respond; empty if it was
        not lost.
        """
        pod = self.pod
        if self._exit_code() is not None and not (pod is not None and is_true(pod, "DisruptionTarget")):
            return ""
        return self._why_it_ended()

    @override
    def last_sign_of_life(self) -> float:
        if (ended := ended_at(self.pod)) is not None:
            return ended
        lines = (last_line_at(path) for path in self.attempt.folder.rglob(f"node-{self.number}.cursor"))
        return max([self.last_event_at, *lines])

    # -- signals ------------------------------------------------------------------------------------------------------

    def send(self, intent: Intent) -> None:
        """Queues a signal to the node, without waiting. If a signal that must end the node cannot be delivered, the pod
        is deleted.
        """
        is_waiting = self._claim is not None and self.log.is_finished
        if super().over or is_waiting:  # a pod that is about to wait for the next attempt must not be killed
            return
        now = time.monotonic()
        if now - self._sent.get(intent, float("-inf")) < AGAIN_SECONDS:
            return
        self._sent[intent] = now
        self.attempt.signals.put(self, intent)

    def delete(self, grace: int | None) -> None:
        """Deletes the node's pod, or prevents the creation of a pod that does not exist yet. Retries while the API
        server is unreachable.
        """
        pod = self.pod
        self.attempt.problems.ours.add(self.place)
        for _ in PAUSES:
            try:
                if pod is None:
                    self.attempt.pods.end()
                else:
                    self.attempt.client.delete("v1", "Pod", pod["metadata"]["name"], grace=grace)
                return
            except Unreachable:
                time.sleep(1.0)
            except Refused:
                return


class PodAttempt(Attempt):
    """The pods of one attempt."""

    nodes: tuple[PodNode, ...]

    def __init__(
        self,
        client: Client,
        plan: Plan,
        number: int,
        specs: Sequence[NodeSpec],
        folder: Path,
        wake: Callable[[], None],
        control: PodControl,
        *,
        assignment: PodAssignment | None = None,
        firsts: Sequence[int] | None = None,
    ) -> None:
        """`assignment` names the pods of the attempt; by default it is read from `folder`. `firsts` has, for each pod,
        the first attempt that ran in it.
        """
        super().__init__(folder, ())
        self.client = client
        self.run_id = plan.run_id
        self.number = number
        self.assignment = assignment or PodAssignment.of(folder, number, len(specs))
        has_spares = plan.num_spares > 0
        newest = self.assignment.newest
        self.wake = wake
        self.signals = Signals(control, number, client.health)
        self.is_seen_alive = False
        """Whether this supervisor has observed a running pod of the attempt."""
        made = plan.only(AttemptStep).manifest
        self.stop_requests = StopRequestRelay(client, plan.run_id, folder.parent)
        owner = (made["apiVersion"], made["kind"])
        self.pods = PodWatch(client, plan.run_id, self.assignment, owner, self._pods_changed, self.stop_requests.relay)
        own = [one.made_for for one in self.assignment.pods]
        firsts = firsts or (self.assignment.first_attempts(folder) if has_spares else own)
        hang_seconds = plan.policy.hang_seconds
        self.logs = AttemptLogs(client, self.pods, self.assignment, firsts, folder, control.events, hang_seconds, wake)
        if (seconds := self.logs.printed_seconds) is not None:
            self.output_lag_seconds = seconds
        else:
            self.report_lag_seconds = EXEC_LAG_SECONDS
        claims = claims_of([*plan.manifests(AttemptPartStep), made])
        name = layout.attempt_name(plan.run_id, newest)
        self.queue = QueueWatch(client, made, name, newest, self.pods)
        self.problems = PodProblems(
            client,
            plan.run_id,
            newest,
            self.pods,
            claims,
            len(specs),
            self.queue,
            self.wake,
            self.assignment.spare_prefixes(plan),
        )
        self._is_noticed = False
        self._held_at = time.monotonic()
        self.nodes = tuple(
            PodNode(spec.node, place, tuple(rank.rank for rank in spec.ranks), folder, self)
            for place, spec in enumerate(specs)
        )

    def _pods_changed(self) -> None:
        for node in self.nodes:
            node.log.look()
        self.wake()

    @property
    def has_first_done(self) -> bool:
        """Whether the first node has succeeded. Nodes that have not started are then notified, since they would wait
        for its host name forever.
        """
        return self.nodes[0].ended and not self.nodes[0].failures

    def keep_ended_alive(self) -> None:
        """Keeps the pods of ended nodes with outputs alive while other nodes of the attempt run."""
        now = time.monotonic()
        if now - self._held_at >= HOLD_SECONDS:
            self._held_at = now
            for node in self.nodes:
                if node.ended and node.outputs:
                    self.signals.hold(node)

    def running_pods(self, numbers: Collection[int]) -> dict[int, Pod]:
        """Returns those pods of the given nodes that ran when last observed, by node number."""
        found = {node.number: pod for node in self.nodes if (pod := node.pod) is not None}
        return {node: pod for node, pod in found.items() if node in numbers and container_state(pod)[0] == "running"}

    @property
    def is_evicted(self) -> bool:
        """Whether a queue has suspended the owner object of the pods."""
        return self.pods.owner.eviction is not None

    @property
    @override
    def ended_by_target(self) -> str | None:  # type: ignore[override]
        """Reason why a kubelet (`activeDeadlineSeconds`) or a queue has ended the attempt; None if neither has."""
        pods = [pod for node in self.nodes if (pod := node.pod) is not None]
        if any(pod.get("status", {}).get("reason") == DEADLINE for pod in pods):
            return "timeout"
        if self.pods.owner.eviction is not None and is_deactivated(self.pods.owner.eviction):
            return "stop"
        return "preemption" if self.is_evicted else None

    @property
    @override
    def evicted(self) -> frozenset[int]:  # type: ignore[override]
        pods = {node.number: node.pod for node in self.nodes}
        return frozenset(number for number, pod in pods.items() if pod is not None and eviction.is_planned(pod))

    def notices(self) -> Iterator[NodeEvent]:
        """Yields, once, a preemption notice if the queue has evicted all pods, or a stop request if an administrator
        has deactivated the Workload.

        A restart would override the administrator with a new, active Workload.
        """
        if not self._is_noticed and (seen := self.pods.owner.eviction) is not None:
            self._is_noticed = True
            if is_deactivated(seen):
                yield Reported(time.time(), StopRequested(QUEUE))
            else:
                yield PreemptionNotice(time.time(), "queue", "evict")

    def last_sign_of_life(self) -> float:
        """Returns when a pod last wrote a log line or an event, in Unix seconds; 0 if none has.

        File times are not used, since a supervisor that takes over writes old lines again.
        """
        lines = (last_line_at(path) for path in self.folder.rglob("node-*.cursor"))
        return max([*(node.last_event_at for node in self.nodes), *lines])

    @override
    def without_capacity(self) -> Mapping[int, float]:
        """Returns the nodes whose pods lack capacity according to the scheduler, or are refused on creation, with the
        start of the wait in Unix seconds.
        """
        return {self.nodes[place].number: since for place, since in self.problems.without_capacity().items()}

    def close(self) -> None:
        """Stops all reading and watching. Deletes a suspended owner object, so that a queue cannot start it again."""
        if self.is_evicted:
            with contextlib.suppress(EngineError):
                self.pods.end()
        self.pods.close()
        self.problems.close()
        for node in self.nodes:
            node.log.close()
        self.signals.close()
        self.logs.close()
