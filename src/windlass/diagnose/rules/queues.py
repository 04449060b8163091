"""Runs that a queue of the cluster (Kueue) has not let in, or has put out again: a verdict for each of its reasons."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from windlass.diagnose.observations import QueueSeen
from windlass.diagnose.rules.case import Case
from windlass.diagnose.rules.placing import FIELDS
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason of Kueue means. In its texts `{queue}`, `{asked}`, `{short}`, `{by}` … are what was seen."""

    code: str
    summary: str
    fix: str


WAITS: Final = {
    "Deactivated": Meaning(
        "queue-deactivated", "somebody has deactivated the Workload of the run, so {queue} does not admit it",
        "kubectl patch workload {workload} --type merge -p '{{\"spec\":{{\"active\":true}}}}' lets it wait again",
    ),
    "Misconfigured": Meaning(
        "queue-misconfigured", "{queue} can admit nothing, for what it refers to is not there: {message}",
        "{there}have whoever keeps the cluster see: kubectl describe localqueue,clusterqueue",
    ),
    "NoMatchingFlavor": Meaning(
        "queue-no-flavor", "{queue} has no flavor of machines that fit the job: {message}",
        "correct resources.instance:, resources.gpu_type: or the machines' labels; use another queue:, or have a "
        "flavor made: kubectl get resourceflavor",
    ),
    "Suspended": Meaning(
        "queue-stopped", "{queue} is stopped, and admits nobody: {message}",
        "it goes on when whoever keeps the queue lets it (stopPolicy: None); or use another queue:",
    ),
    "AdmissionGated": Meaning(
        "queue-gated", "{queue} may not admit the run yet: {message}",
        "whoever has put the annotation kueue.x-k8s.io/admission-gated-by on it is to take it away",
    ),
    "WaitingForPodsReady": Meaning(
        "queue-pods-not-ready", "{queue} admits nobody before the pods of those that it admitted are ready",
        "see which pods are not: kubectl get pods; the cluster's Kueue is set so (waitForPodsReady)",
    ),
    "ExceedsMaxQuota": Meaning(
        "queue-too-large", "the run asks for more than {queue} can ever have: {asked}",
        "ask for less ({fields}, nodes:), use another queue:, or have its quota raised",
    ),
    "BorrowingLimitReached": Meaning(
        "queue-borrowing-limit", "{queue} may borrow no more {short} from others of its cohort; the run asks for "
        "{asked}",
        "wait for runs of this queue to end, ask for less ({fields}, nodes:), or have its borrowingLimit raised",
    ),
    "WaitingForQuota": Meaning(
        "queue-quota", "{queue} has too little {short} left for the run, which asks for {asked}{place}",
        "it starts when those who have it give enough back; ask for less ({fields}, nodes:), use a higher priority: "
        "or another queue:",
    ),
    "TopologyPlacementFailed": Meaning(
        "queue-topology", "{queue} has the quota, and no place in one block of machines: {message}",
        "wait for pods to end there, ask for fewer nodes:, or for none that must be near each other",
    ),
    "WaitingForPreemptedWorkloads": Meaning(
        "queue-preempting", "{queue} has asked others to make room for the run, and waits until they have",
        "nothing to do: it starts when their pods have ended; see: kubectl get workloads",
    ),
    "PendingEvaluation": Meaning(
        "queue-pending", "{queue} has not looked at the run yet{place}",
        "if that lasts, Kueue does not work, or admits nobody else first: whoever keeps the cluster can see why",
    ),
    "UnsatisfiedAdmissionChecks": Meaning(
        "queue-checks", "{queue} has quota for the run, and waits for admission checks: {message}",
        "see: kubectl describe workload {workload}; a ProvisioningRequest, for one, waits for machines",
    ),
}  # fmt: skip
"""By the reason for which a Workload has no quota."""
OTHER: Final = Meaning(
    "queue-waits",
    "the run waits for its turn in {queue}{place}: {message}",
    "see: kubectl describe workload {workload}",
)
UNSAID: Final = Meaning(
    "queue-waits", "{queue} holds the run back, and nobody says why",
    "have the right to list workloads.kueue.x-k8s.io (windlass check --on TARGET --role); if there is none for it, "
    "Kueue does not run, or somebody has suspended the run by hand",
)  # fmt: skip
EVICTED: Final = {
    "Preempted": Meaning(
        "queue-preempted", "{queue} has taken its machines back for {by}",
        "restarts: {{max: 3, on: [preemption]}} waits for its turn again by itself; or a higher priority:",
    ),
    "PodsReadyTimeout": Meaning(
        "queue-pods-timeout", "{queue} has put the run out, for its pods were not ready in time: {message}",
        "see what kept its pods: windlass events {run}; the time is Kueue's (waitForPodsReady)",
    ),
    "ClusterQueueStopped": Meaning(
        "queue-drained", "{queue} was stopped, and those that it had admitted were put out",
        "restarts: {{max: 3, on: [preemption]}} waits until it goes on; or use another queue:",
    ),
    "Deactivated": Meaning(
        "queue-deactivated", "somebody has deactivated the Workload of the run, and {queue} has put it out: {message}",
        "windlass resume {run} starts it again, when whoever did that agrees",
    ),
}  # fmt: skip
"""By the reason for which a Workload was evicted."""
EVICTED["LocalQueueStopped"] = EVICTED["ClusterQueueStopped"]
PUT_OUT: Final = Meaning(
    "queue-evicted", "{queue} has put the run out: {message}",
    "restarts: {{max: 3, on: [preemption]}} waits for its turn again by itself; windlass resume {run} does so now",
)  # fmt: skip
MAX_EVIDENCE: Final = 8


def waits(case: Case) -> Iterator[Verdict]:
    """A run that no queue has let in."""
    seen = _queue(case)
    if (
        seen is None
        or seen.state not in ("waiting", "requeued")
        or any(state.pid is not None for state in case.status.ranks)
    ):
        return
    meaning = WAITS.get(seen.reason, OTHER if seen.reason or seen.message else UNSAID)
    yield _verdict(case, seen, meaning, (*_evidence(seen), *_before(case)), 108.5)


def evicted(case: Case) -> Iterator[Verdict]:
    """A run that a queue has put out again."""
    seen = _queue(case)
    if seen is not None and seen.state == "evicted":
        yield _verdict(case, seen, EVICTED.get(seen.reason, PUT_OUT), tuple(_evidence(seen)), 106.5)


def _queue(case: Case) -> QueueSeen | None:
    """What the queue says, where the script itself does not say why the run ended."""
    cluster, status = case.seen.cluster, case.status
    if cluster is None or status.phase is Phase.SUCCEEDED:
        return None
    is_over = status.phase.is_terminal and not case.timed_out
    if is_over and status.attempts and status.attempts[-1].reason not in ("preemption", "node-loss"):
        return None
    return cluster.queue


def _verdict(case: Case, seen: QueueSeen, meaning: Meaning, evidence: tuple[str, ...], score: float) -> Verdict:
    told = _told(case, seen)
    return Verdict(meaning.code, meaning.summary.format(**told), None, evidence[:MAX_EVIDENCE],
                   meaning.fix.format(**told), score)  # fmt: skip


def _told(case: Case, seen: QueueSeen) -> dict[str, str]:
    asked = {name: seen.asked[name] for name in (seen.lacking or seen.asked) if name in seen.asked}
    fields = [FIELDS.get(name, f"of {name}") for name in seen.lacking]
    return {
        "queue": f"queue {seen.queue}" if seen.queue else "a queue of the cluster",
        "message": (seen.message or seen.reason).rstrip("."),
        "workload": seen.workload or "NAME",
        "asked": ", ".join(f"{amount} {name}" for name, amount in asked.items()) or "what it asks for",
        "short": ", ".join(seen.lacking) or "quota",
        "fields": ", ".join(dict.fromkeys(fields)) or "resources:",
        "place": f", and is {_place(seen)}" if seen.position is not None else "",
        "by": seen.by or "another run",
        "run": case.status.id,
        "there": _there(seen),
    }


def _there(seen: QueueSeen) -> str:
    """Which queue could have been meant."""
    if seen.queues is None or seen.queue in seen.queues:
        return ""
    if not seen.queues:
        return "the namespace has no LocalQueue: leave out queue:, or "
    near = difflib.get_close_matches(seen.queue, seen.queues, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"correct queue: in the job{meant}; there are: {', '.join(seen.queues)}; or "


def _evidence(seen: QueueSeen) -> Iterator[str]:
    """Kueue's own words, the place, the quota and who has it."""
    name = f"Workload {seen.workload}" if seen.workload else "its queue"
    if seen.reason or seen.message:
        yield f"{name}: {': '.join(part for part in (seen.reason, seen.message) if part)}"
    if seen.position is not None:
        yield f"it is {_place(seen)}, at priority {seen.priority}"
    yield from seen.quota
    for holder in seen.holders:
        has = f"has {holder.amount}" if holder.amount else "is admitted"
        yield f"{holder.name} {has}, at priority {holder.priority}"
    if seen.quota and seen.lacking and not seen.holders:
        yield f"of those that may be seen in {seen.scope}, none has any of it"


def _place(seen: QueueSeen) -> str:
    return f"number {seen.position} of {seen.num_waiting} that wait in {seen.scope}"


def _before(case: Case) -> Iterator[str]:
    """That an attempt before was put out."""
    numbers: dict[str, object] = {}
    told = ""
    for event in case.seen.events:
        if event.kind == "attempt":
            numbers = dict(event.data)
        elif event.kind == "queue" and event.data.get("state") == "evicted" and numbers:
            for_whom = f", for {event.data['by']}" if event.data.get("by") else ""
            told = f"attempt {numbers['number']} was evicted: {event.data.get('reason', 'no reason')}{for_whom}"
    if told:
        yield told
