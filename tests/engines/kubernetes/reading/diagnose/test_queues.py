"""Rules on queues give verdicts for states as Kueue reports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.reading.diagnose.test_pods import BEGUN, why

from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.observations import ClusterStatus, QueueStatus, QuotaHolder
from windlass.engines.kubernetes.objects.pod_status import PodStatus
from windlass.engines.kubernetes.reading.diagnose.queues import EVICTED, OTHER, PUT_OUT, UNSAID, WAITS
from windlass.runs.phase import Phase

SEEN = QueueStatus(
    "waiting",
    "team-a",
    "cpus",
    "job-r-1-a1b2c",
    "WaitingForQuota",
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor small, 500m more needed",
    "",
    100,
    2,
    3,
    "ClusterQueue cpus",
    {"cpu": "1", "memory": "2Gi"},
    ("cpu",),
    ("ClusterQueue cpus has 1 cpu of flavor small; 500m is reserved",),
    (QuotaHolder("Job b/other-1", "500m cpu", 200),),
    ("team-a", "team-b"),
)
TOO_MUCH = (
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor small, previously considered "
    "podsets requests (0) + current podset request (1) > maximum capacity (500m)"
)
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 7f, JobUID: 8e) due to prioritization in the ClusterQueue; preemptor "
    "path: /cpus; preemptee path: /cpus"
)


def waits(seen: QueueStatus, phase: Phase = Phase.QUEUED, **more: Any) -> Verdict:
    return why(ClusterStatus((PodStatus(0), PodStatus(1)), is_suspended=True, queue=seen), phase, **more)


@pytest.mark.parametrize(
    ("reason", "message", "code", "words"),
    [
        ("Deactivated", "", "queue-deactivated", ("kubectl patch workload job-r-1-a1b2c",)),
        ("Misconfigured", "LocalQueue team-x doesn't exist", "queue-misconfigured", ("team-x doesn't exist",)),
        ("NoMatchingFlavor", "flavor small doesn't match node affinity", "queue-no-flavor", ("resources.instance",)),
        ("Suspended", "ClusterQueue cpus is inactive", "queue-stopped", ("is stopped", "stopPolicy")),
        ("AdmissionGated", "Admission is gated by: budget", "queue-gated", ("budget", "admission-gated-by")),
        ("WaitingForPodsReady", "waiting for all admitted workloads to be in PodsReady condition",
         "queue-pods-not-ready", ("waitForPodsReady",)),
        ("ExceedsMaxQuota", TOO_MUCH, "queue-too-large", ("can ever provide: 1 cpu", "resources.cpus", "capacity")),
        ("BorrowingLimitReached", "borrowing limit for cpu in flavor small exceeded", "queue-borrowing-limit",
         ("cpu", "borrowingLimit")),
        ("WaitingForQuota", SEEN.message, "queue-quota", ("too little cpu", "number 2 of 3", "Job b/other-1 has 500m")),
        ("TopologyPlacementFailed", 'topology "rack" allows to fit only 1 out of 2 pods', "queue-topology", ("rack",)),
        ("WaitingForPreemptedWorkloads", "Pending the preemption of 1 workload(s)", "queue-preempting",
         ("preempts other workloads",)),
        ("PendingEvaluation", "", "queue-pending", ("has not evaluated", "number 2 of 3")),
        ("UnsatisfiedAdmissionChecks", "machines is Pending: asked for", "queue-checks", ("machines is Pending",)),
        ("Pending", "something new", "queue-waits", ("something new", "kubectl describe workload job-r-1-a1b2c")),
    ],
)  # fmt: skip
def test_each_queue_reason_has_its_own_verdict(reason: str, message: str, code: str, words: tuple[str, ...]) -> None:
    verdict = waits(SEEN.replace(reason=reason, message=message))
    told = "\n".join([verdict.summary, *verdict.evidence, verdict.fix])
    assert verdict.code == code
    assert [word for word in ("queue team-a", *words) if word not in told] == []


def test_no_two_reasons_share_a_verdict() -> None:
    codes = [meaning.code for meaning in WAITS.values()]
    assert len(codes) == len(set(codes))


def test_position_quota_and_its_users_are_evidence() -> None:
    assert waits(SEEN).evidence == (
        f"Workload job-r-1-a1b2c: WaitingForQuota: {SEEN.message}",
        "it is number 2 of 3 waiting in ClusterQueue cpus, at priority 100",
        "ClusterQueue cpus has 1 cpu of flavor small; 500m is reserved",
        "Job b/other-1 has 500m cpu, at priority 200",
    )


def test_users_of_the_quota_may_be_unreadable() -> None:
    narrow = SEEN.replace(holders=(), scope="namespace a")
    assert waits(narrow).evidence[-1] == "of the readable workloads in namespace a, none uses any of it"


def test_missing_queue_suggests_a_similar_name() -> None:
    missing = SEEN.replace(reason="Misconfigured", message="LocalQueue team-x doesn't exist", queue="team-x")
    assert "did you mean team-b?); there are: team-a, team-b" in waits(missing).fix
    assert "the namespace has no LocalQueue" in waits(missing.replace(queues=())).fix
    assert waits(missing.replace(queues=None)).fix.startswith("ask a cluster administrator")


def test_suspended_run_without_reason_has_a_verdict() -> None:
    verdict = waits(QueueStatus("waiting", queue="team-a"))
    assert (verdict.code, "list workloads" in verdict.fix) == ("queue-waits", True)
    assert "a queue of the cluster" in waits(QueueStatus("waiting")).summary


def test_time_limit_reached_in_a_queue_is_explained_by_the_queue() -> None:
    cause = {"summary": "the time limit of 5 s was reached"}
    found = waits(SEEN, Phase.FAILED, cause=cause, exit_code=124, reason="timeout")
    assert found.code == "queue-quota"


def test_run_stopped_in_a_queue_is_explained_by_its_user() -> None:
    asked = ("stop", {"now": False, "reason": "asked"})
    assert waits(SEEN, Phase.STOPPED, more=(asked,), reason="stop").code == "stopped"


def test_training_run_has_no_queue_verdict() -> None:
    running = (PodStatus(0, "x", "running"), PodStatus(1, "y", "running"))
    for seen in (SEEN.replace(state="admitted"), SEEN):
        assert why(ClusterStatus(running, queue=seen), Phase.TRAINING, more=BEGUN).code == "none"


@pytest.mark.parametrize(
    ("reason", "message", "code", "words"),
    [
        ("Preempted", PREEMPTED, "queue-preempted", ("for Job b/urgent-1", "higher priority:", "in the ClusterQueue")),
        ("PodsReadyTimeout", "Exceeded the PodsReady timeout a/r", "queue-pods-timeout", ("PodsReady timeout",)),
        ("ClusterQueueStopped", "The ClusterQueue is stopped", "queue-drained", ("was stopped",)),
        ("LocalQueueStopped", "The LocalQueue is stopped", "queue-drained", ("was stopped",)),
        ("Deactivated", "The workload is deactivated", "queue-deactivated", ("windlass resume r-1",)),
        ("NodeFailures", "no replacement for a failed node: n1", "queue-evicted", ("failed node: n1",)),
    ],
)
def test_evicted_run_has_a_verdict_with_the_reason(
    reason: str, message: str, code: str, words: tuple[str, ...]
) -> None:
    seen = QueueStatus(
        "evicted", "team-a", reason=reason, message=message, by="Job b/urgent-1" if reason == "Preempted" else ""
    )
    pods = (PodStatus(0, "x", "gone", "Deleted"), PodStatus(1, "y", "gone", "Deleted"))
    notice = ("notice", {"source": "queue", "action": "evict"})
    verdict = why(ClusterStatus(pods, queue=seen), Phase.STOPPED, more=(*BEGUN, notice), reason="preemption")
    told = "\n".join([verdict.summary, *verdict.evidence, verdict.fix])
    assert verdict.code == code
    assert [word for word in ("queue team-a", *words) if word not in told] == []


def test_a_deactivated_run_was_not_stopped_by_its_user() -> None:
    seen = QueueStatus("evicted", "team-a", reason="Deactivated", message="The workload is deactivated")
    stop = ("stop", {"now": False, "reason": "queue"})
    verdict = why(ClusterStatus((), queue=seen), Phase.STOPPED, more=(*BEGUN, stop), reason="stop")
    assert (verdict.code, "an administrator has deactivated" in verdict.summary) == ("queue-deactivated", True)
    unknown = why(ClusterStatus(()), Phase.STOPPED, more=(*BEGUN, stop), reason="stop")
    assert "its Workload was deactivated" in unknown.summary
    by_kueue = seen.replace(reason="DeactivatedDueToMaximumExecutionTimeExceeded")
    assert "Kueue has deactivated" in why(ClusterStatus((), queue=by_kueue), Phase.STOPPED, more=(*BEGUN, stop)).summary


def test_requeued_run_has_its_eviction_as_evidence() -> None:
    before = (
        ("queue", {"state": "evicted", "queue": "team-a", "reason": "Preempted", "by": "Job b/urgent-1"}),
        ("attempt-end", {"phase": "preempted", "reason": "preemption"}),
        ("attempt", {"number": 2, "world_size": 2, "nodes": [[0], [1]], "members": [0, 1]}),
    )
    verdict = waits(SEEN.replace(state="requeued"), more=(*BEGUN, *before))
    assert verdict.code == "queue-quota"
    assert verdict.evidence[-1] == "attempt 1 was evicted: Preempted, for Job b/urgent-1"


PAGE = Path(__file__).parents[5] / "docs" / "concepts" / "why.md"


def test_docs_page_lists_every_queue_reason_and_verdict() -> None:
    page = PAGE.read_text()
    meanings = (*WAITS.values(), *EVICTED.values(), OTHER, UNSAID, PUT_OUT)
    assert sorted({one.code for one in meanings if f"`{one.code}`" not in page}) == []
    assert sorted(reason for reason in (*WAITS, *EVICTED) if f"`{reason}`" not in page) == []
