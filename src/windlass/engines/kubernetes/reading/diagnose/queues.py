"""Rules on queues: verdicts by the reason why Kueue has not admitted a run, or has evicted it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Advice, Verdict
from windlass.engines.kubernetes.objects.observations import ClusterStatus, QueueStatus
from windlass.engines.kubernetes.reading.diagnose.scheduling import FIELDS
from windlass.errors import near
from windlass.runs.events import AttemptStarted, QueueChanged, StopRequested
from windlass.runs.phase import Phase
from windlass.runs.stop_request import QUEUE

WAITS: Final = {
    "Deactivated": Advice(
        "queue-deactivated", "the Workload of the run was deactivated, so {queue} does not admit it",
        "kubectl patch workload {workload} --type merge -p '{{\"spec\":{{\"active\":true}}}}' queues it again"),
    "Misconfigured": Advice(
        "queue-misconfigured", "{queue} can admit nothing, because what it refers to does not exist: {message}",
        "{there}ask a cluster administrator to see: kubectl describe localqueue,clusterqueue"),
    "NoMatchingFlavor": Advice(
        "queue-no-flavor", "{queue} has no flavor whose nodes fit the job: {message}",
        "correct resources.instance:, resources.gpu_type: or the nodes' labels; use another queue:, or have a "
        "flavor made: kubectl get resourceflavor"),
    "Suspended": Advice(
        "queue-stopped", "{queue} is stopped, and admits no jobs: {message}",
        "it continues when its administrator sets stopPolicy: None; or use another queue:"),
    "AdmissionGated": Advice(
        "queue-gated", "{queue} may not admit the run yet: {message}",
        "the program that set the annotation kueue.x-k8s.io/admission-gated-by removes it"),
    "WaitingForPodsReady": Advice(
        "queue-pods-not-ready", "{queue} admits no jobs before the pods of those that it admitted are ready",
        "see which pods are not: kubectl get pods; the cluster's Kueue is set so (waitForPodsReady)"),
    "ExceedsMaxQuota": Advice(
        "queue-too-large", "the run requests more than {queue} can ever provide: {asked}",
        "request less ({fields}, nodes:), use another queue:, or have its quota raised"),
    "BorrowingLimitReached": Advice(
        "queue-borrowing-limit", "{queue} may borrow no more {short} from others of its cohort; the run requests "
        "{asked}",
        "wait for runs of this queue to end, request less ({fields}, nodes:), or have its borrowingLimit raised"),
    "WaitingForQuota": Advice(
        "queue-quota", "{queue} has too little {short} left for the run, which requests {asked}{place}",
        "it starts when enough of it is released; request less ({fields}, nodes:), use a higher priority: "
        "or another queue:"),
    "TopologyPlacementFailed": Advice(
        "queue-topology", "{queue} has the quota, but no topology domain has the capacity: {message}",
        "wait for pods to end there, request fewer nodes:, or drop the topology request"),
    "WaitingForPreemptedWorkloads": Advice(
        "queue-preempting", "{queue} preempts other workloads for the run, and waits for them to end",
        "nothing to do: it starts when their pods have ended; see: kubectl get workloads"),
    "PendingEvaluation": Advice(
        "queue-pending", "{queue} has not evaluated the run yet{place}",
        "if that lasts, Kueue does not work, or waits for another workload: a cluster administrator can see why"),
    "UnsatisfiedAdmissionChecks": Advice(
        "queue-checks", "{queue} has quota for the run, and waits for admission checks: {message}",
        "see: kubectl describe workload {workload}; a ProvisioningRequest, for example, waits for nodes"),
}  # fmt: skip
"""Advice by the reason why a Workload is not admitted."""
OTHER: Final = Advice(
    "queue-waits",
    "the run waits in {queue}{place}: {message}",
    "see: kubectl describe workload {workload}",
)
UNSAID: Final = Advice(
    "queue-waits",
    "the run is suspended by {queue}; no reason reported",
    "have the right to list workloads.kueue.x-k8s.io (windlass check --on TARGET --role); if there is none for it, "
    "Kueue does not run, or the run was suspended by hand",
)
EVICTED: Final = {
    "Preempted": Advice(
        "queue-preempted",
        "{queue} has preempted the run for {by}",
        "restarts: {{max: 3, on: [preemption]}} queues it again; or a higher priority:",
    ),
    "PodsReadyTimeout": Advice(
        "queue-pods-timeout",
        "{queue} has evicted the run because its pods were not ready in time: {message}",
        "see what kept its pods: windlass events {run}; the time is Kueue's (waitForPodsReady)",
    ),
    "ClusterQueueStopped": Advice(
        "queue-drained",
        "{queue} was stopped, and the jobs that it had admitted were evicted",
        "restarts: {{max: 3, on: [preemption]}} queues it until the queue continues; or use another queue:",
    ),
    "Deactivated": Advice(
        "queue-deactivated",
        "an administrator has deactivated the Workload of the run in {queue}, which ended it: {message}",
        "ask who administers the queue; windlass resume {run} queues it again, by a new Workload",
    ),
}
"""Advice by the reason why a Workload was evicted."""
EVICTED["LocalQueueStopped"] = EVICTED["ClusterQueueStopped"]
PUT_OUT: Final = Advice(
    "queue-evicted",
    "{queue} has evicted the run: {message}",
    "restarts: {{max: 3, on: [preemption]}} queues it again; windlass resume {run} does so now",
)
DEACTIVATED_BY_KUEUE: Final = Advice(
    "queue-deactivated",
    "Kueue has deactivated the Workload of the run in {queue}, which ended it: {message}",
    "correct what its message names, such as a limit of the queue; windlass resume {run} queues it again",
)
MAX_EVIDENCE: Final = 8


def waits(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on a run that waits for the admission by a queue."""
    seen = _queue(cluster, case)
    is_waiting = seen is not None and seen.state in ("waiting", "requeued")
    if seen is not None and is_waiting and all(state.pid is None for state in case.status.ranks):
        advice = WAITS.get(seen.reason, OTHER if seen.reason or seen.message else UNSAID)
        yield _verdict(case, seen, advice, (*_evidence(seen), *_evicted_before(case)), 108.5)


def evicted(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on a run that a queue has evicted."""
    seen = _queue(cluster, case)
    if seen is not None and seen.state == "evicted":
        advice = DEACTIVATED_BY_KUEUE if seen.reason.startswith("DeactivatedDueTo") else PUT_OUT
        yield _verdict(case, seen, EVICTED.get(seen.reason, advice), tuple(_evidence(seen)), 106.5)


def _queue(cluster: ClusterStatus, case: Observations) -> QueueStatus | None:
    """Returns the queue status; None if the run was ended by its script or its user."""
    status = case.status
    is_over = status.phase.is_terminal and not case.timed_out
    stop = case.last(StopRequested)
    is_by_queue = stop is not None and stop.reason == QUEUE
    if (
        is_over
        and status.attempts
        and status.attempts[-1].reason not in ("preemption", "node-loss")
        and not is_by_queue
    ):
        return None
    return None if status.phase is Phase.SUCCEEDED else cluster.queue


def _verdict(case: Observations, seen: QueueStatus, advice: Advice, evidence: tuple[str, ...], score: float) -> Verdict:
    asked = {name: seen.asked[name] for name in (seen.lacking or seen.asked) if name in seen.asked}
    fields = [FIELDS.get(name, f"of {name}") for name in seen.lacking]
    return advice.verdict(
        evidence[:MAX_EVIDENCE],
        score=score,
        queue=f"queue {seen.queue}" if seen.queue else "a queue of the cluster",
        message=(seen.message or seen.reason).rstrip("."),
        workload=seen.workload or "NAME",
        asked=", ".join(f"{amount} {name}" for name, amount in asked.items()) or "what it requests",
        short=", ".join(seen.lacking) or "quota",
        fields=", ".join(dict.fromkeys(fields)) or "resources:",
        place=f", and is {_position(seen)}" if seen.position is not None else "",
        by=seen.by or "another run",
        run=case.status.id,
        there=_there(seen),
    )


def _there(seen: QueueStatus) -> str:
    """Returns advice on an unknown queue, with a similar name or the names of all queues; empty if the queue exists."""
    if seen.queues is None or seen.queue in seen.queues:
        return ""
    if not seen.queues:
        return "the namespace has no LocalQueue: leave out queue:, or "
    hint = near(seen.queue, seen.queues)
    meant = f" ({hint})" if hint else ""
    return f"correct queue: in the job{meant}; there are: {', '.join(seen.queues)}; or "


def _evidence(seen: QueueStatus) -> Iterator[str]:
    """Yields Kueue's reason and message, the run's position, the quota, and the workloads that use the quota."""
    name = f"Workload {seen.workload}" if seen.workload else "its queue"
    if seen.reason or seen.message:
        yield f"{name}: {': '.join(part for part in (seen.reason, seen.message) if part)}"
    if seen.position is not None:
        yield f"it is {_position(seen)}, at priority {seen.priority}"
    yield from seen.quota
    for holder in seen.holders:
        has = f"has {holder.amount}" if holder.amount else "is admitted"
        yield f"{holder.name} {has}, at priority {holder.priority}"
    if seen.quota and seen.lacking and not seen.holders:
        yield f"of the readable workloads in {seen.scope}, none uses any of it"


def _position(seen: QueueStatus) -> str:
    return f"number {seen.position} of {seen.num_waiting} waiting in {seen.scope}"


def _evicted_before(case: Observations) -> Iterator[str]:
    number, found = 0, ""
    for event in case.events:
        match event.entry:
            case AttemptStarted() as attempt:
                number = attempt.number
            case QueueChanged(state="evicted", by=by, reason=reason) if number:
                for_whom = f", for {by}" if by else ""
                found = f"attempt {number} was evicted: {reason or 'no reason'}{for_whom}"
    if found:
        yield found
