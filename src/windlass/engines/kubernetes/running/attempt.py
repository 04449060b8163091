"""One attempt on a cluster: nodes that run in pods, whose events are read from logs and whose end from pod status."""

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
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_spec import claims_of
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
"""How long a command in a pod, and the log of what it changes, may take for a supervisor outside of the cluster."""
AGAIN_SECONDS: Final = 5.0
"""Between two signals of one kind to one node."""
REASON_SECONDS: Final = 5.0
"""How long the status of a pod that was deleted may take to show its end, and why."""
DEADLINE: Final = "DeadlineExceeded"
"""Status reason of a pod that ran for as long as its deadline allowed."""


class PodNode(Node):
    """One node, which runs in a pod."""

    def __init__(self, number: int, place: int, ranks: tuple[int, ...], folder: Path, attempt: PodAttempt) -> None:
        super().__init__(number, ranks, folder)
        self.place = place
        self.attempt = attempt
        self.is_taken_away = False
        """Whether its pod was ended, and not by us."""
        self.is_explained = False
        """Whether the cluster's reason for the end of its pod was read."""
        self._over_at: float | None = None
        self._claim: Sequence[RankFailure] | None = None
        """How its ranks failed, by its log; trusted once its pod has ended so too, or waits for the next attempt."""
        self._num_warned = 0
        self._is_cut_short = False
        """Whether it was recorded that its log cannot be read to its end."""
        self.last_event_at = 0.0
        """When the last of its events was made, in unix seconds."""
        self._sent: dict[Intent, float] = {}
        """When each signal was last sent: a shutdown repeats it every turn."""
        self._ended_first_at = float("-inf")
        """When the end of the first node was last reported to it."""
        self.log = attempt.logs.open(number, place, ranks)

    @property
    def pod(self) -> Pod | None:
        """Its pod, as it was last seen."""
        return self.attempt.pods.pod(self.place)

    @property
    def all_read(self) -> bool:
        """Whether all that its pod has written of this attempt is in our files."""
        return self.log.is_done

    # -- events -------------------------------------------------------------------------------------------------------

    def updates(self) -> Iterator[NodeEvent]:
        """Its events since the last call, after those of its pod's status."""
        self.log.catch_up()
        all_read, attempt = self.all_read, self.attempt
        yield from attempt.client.health.updates()
        pod = self.pod
        # Not only its container: the kubelet's reason for the end of a pod arrives with the end of the pod.
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
            if isinstance(event, PreemptionNotice):  # the node is shut down, or a command elsewhere requested the end
                self.is_taken_away |= event.source == "sigterm" and Intent.STOP not in self._sent
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
        if attempt.is_taken_back:
            yield from attempt.notices()
            self._end_taken_back()
        attempt.hold_ended()
        if self.pid is None and attempt.has_first_done and time.monotonic() - self._ended_first_at >= AGAIN_SECONDS:
            self._ended_first_at = time.monotonic()
            attempt.signals.tell_first_ended(self)

    def take_end(self, failures: Sequence[RankFailure]) -> None:
        """See `Node`. Any process of the pod could have written it: the pod's end decides if it is believed."""
        self._claim = failures

    def _believe(self) -> Iterator[NodeEvent]:
        """Once the log is read: the node has ended as in its log, if its pod has ended so too, or is kept alive.

        Its exit code is 0 if all its ranks have succeeded. Where the two differ, the pod's own status holds; a node
        whose pod ended differently from its log has ended without reporting.
        """
        if self.ended:
            return
        code, claim = self._exit_code(), self._claim
        if claim is not None and (code is None or (code == 0) is not bool(claim)):
            self.ended, self.failures = True, list(claim)
        elif code == 0 and self.pid is not None:
            self.ended, self.failures = True, []
            lacks = "says something else" if claim else "lacks its end"
            message = f"node {self.number} has succeeded, as its pod's status says, though its log {lacks}"
            yield NodeWarning(time.time(), message)

    def _warn_of_ignored(self) -> Iterator[NodeEvent]:
        """That lines of its log look like events of the node, and are none; once."""
        before, self._num_warned = self._num_warned, self.num_ignored
        if self._num_warned and not before:
            message = (
                f"node {self.number}: lines of its pod's log that look like Windlass's own are not, and were ignored: "
                "a process writes to the output of the pod's first process"
            )
            yield NodeWarning(time.time(), message)

    def _end_taken_back(self) -> None:
        """Its pod was preempted before anything in it could report its end: that is no lost node."""
        if self.ended or not self.all_read:
            return
        self.ended = True
        self.failures = [
            RankFailure(rank, -signal.SIGTERM, time.time(), self.last_words(), ended_by_us=True) for rank in self.ranks
        ]

    # -- its end ------------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """See `Node`. The cluster shows why a pod was deleted a moment after its end."""
        if not super().over:
            return False
        self._over_at = self._over_at or time.monotonic()
        is_late = time.monotonic() - self._over_at > REASON_SECONDS
        return is_late or self.is_explained or not self.is_taken_away

    @override
    def lives(self) -> bool:
        return not self.all_read and not self.attempt.pods.is_lost(self.place)

    @property
    @override
    def exit_code(self) -> int:
        return self._exit_code() or -signal.SIGKILL

    def _exit_code(self) -> int | None:
        """How the container of its pod has ended; None where it has not, or that is not known."""
        pod = self.pod
        return None if pod is None else exit_code(pod)

    def last_words(self) -> str:
        """Why its pod ended, and what the process in it has written of its own."""
        return "\n".join(text for text in (super().last_words(), self._why_it_ended()) if text)

    def _why_it_ended(self) -> str:
        pod, pods, problems = self.pod, self.attempt.pods, self.attempt.problems
        if pod is not None:
            return why_it_ended(pod)
        is_refused = self.place in problems.without_capacity() or not pods.is_gone(self.place)
        return pods.owner.over or (problems.why_not_created() if is_refused else "its pod is gone")

    def why_lost(self) -> str:
        """See `Node`: a pod that was deleted, or whose node does not answer, has no exit code of its own."""
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
        """Signal the node, without waiting for it; an unreachable pod is deleted where it must end."""
        is_waiting = self._claim is not None and self.log.is_told
        if super().over or is_waiting:  # a pod about to wait for the next attempt must not be killed
            return
        now = time.monotonic()
        if now - self._sent.get(intent, float("-inf")) < AGAIN_SECONDS:
            return
        self._sent[intent] = now
        self.attempt.signals.put(self, intent)

    def delete(self, grace: int | None) -> None:
        """Delete its pod; where there is none, see that none is made. Waits for the cluster."""
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
    """All pods of one attempt."""

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
        """`assignment` are its pods, by default as was decided for the attempt, and `firsts` the first attempt that
        each has run. What ranks print is written to the files of the attempt where its logs are followed.
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
        """Whether this supervisor has seen a pod of it run."""
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
        """Whether the first node has succeeded; those that have not begun would wait for its name forever."""
        return self.nodes[0].ended and not self.nodes[0].failures

    def hold_ended(self) -> None:
        """Keep the pods of nodes alive that have ended with outputs, as long as others of the attempt run."""
        now = time.monotonic()
        if now - self._held_at >= HOLD_SECONDS:
            self._held_at = now
            for node in self.nodes:
                if node.ended and node.outputs:
                    self.signals.hold(node)

    def running_pods(self, numbers: Collection[int]) -> dict[int, Pod]:
        """The pods of these nodes that ran when they were last seen, by node."""
        found = {node.number: pod for node in self.nodes if (pod := node.pod) is not None}
        return {node: pod for node, pod in found.items() if node in numbers and container_state(pod)[0] == "running"}

    @property
    def is_taken_back(self) -> bool:
        """Whether a queue has suspended the owner object of the pods."""
        return self.pods.owner.taken_back is not None

    @property
    def ended_by_target(self) -> str | None:  # type: ignore[override]
        """See `Attempt`: by a kubelet that enforced `activeDeadlineSeconds`, or by a queue."""
        pods = [pod for node in self.nodes if (pod := node.pod) is not None]
        if any(pod.get("status", {}).get("reason") == DEADLINE for pod in pods):
            return "timeout"
        if self.pods.owner.taken_back is not None and is_deactivated(self.pods.owner.taken_back):
            return "stop"
        return "preemption" if self.is_taken_back else None

    @property
    @override
    def evicted(self) -> frozenset[int]:  # type: ignore[override]
        pods = {node.number: node.pod for node in self.nodes}
        return frozenset(number for number, pod in pods.items() if pod is not None and eviction.is_planned(pod))

    def notices(self) -> Iterator[NodeEvent]:
        """The notice that all pods are taken back, once; of a Workload that was deactivated it is a stop request.

        A new attempt would get a new Workload, which is active: it would undo what an administrator has decided.
        """
        if not self._is_noticed and (seen := self.pods.owner.taken_back) is not None:
            self._is_noticed = True
            if is_deactivated(seen):
                yield Reported(time.time(), StopRequested(QUEUE))
            else:
                yield PreemptionNotice(time.time(), "queue", "evict")

    def last_sign_of_life(self) -> float:
        """When any of its pods last wrote a line, or an event, in unix seconds; 0 where none has.

        Not when its files were written: after an adoption that is when earlier lines of the pods were read.
        """
        lines = (last_line_at(path) for path in self.folder.rglob("node-*.cursor"))
        return max([*(node.last_event_at for node in self.nodes), *lines])

    def without_capacity(self) -> Mapping[int, float]:
        """See `Attempt`: as the scheduler reports, or what refuses the creation of pods."""
        return {self.nodes[place].number: since for place, since in self.problems.without_capacity().items()}

    def close(self) -> None:
        """Stop reading and watching. A suspended owner object is deleted, so that a queue cannot start it again."""
        if self.is_taken_back:
            with contextlib.suppress(EngineError):
                self.pods.end()
        self.pods.close()
        self.problems.close()
        for node in self.nodes:
            node.log.close()
        self.signals.close()
        self.logs.close()
