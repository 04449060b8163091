"""Kueue's objects, as kueue 0.15 and 0.19 write them, are converted to the queue status of an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.engines.kubernetes.access.optional import version_of
from windlass.engines.kubernetes.objects.observations import QuotaHolder
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.planning.dry_run import ignored
from windlass.engines.kubernetes.planning.facts import Cluster
from windlass.engines.kubernetes.planning.notes import queue_notes
from windlass.engines.kubernetes.reading import admission
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.survey import Survey
from windlass.engines.kubernetes.reading.quotas import counted
from windlass.plan.notes import Note
from windlass.runs.events import Event
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

Object = dict[str, Any]
UNUSED = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor small, 300m more needed"


def job(name: str = "digits-7f3k2-1", namespace: str = "a", *, suspend: bool = True) -> Object:
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": suspend}}


def workload(of: Object, *conditions: tuple[str, str, str, str], cpu: str = "800m", **more: Any) -> Object:
    """Returns the Workload of a job with one pod; conditions are type, status, reason and message."""
    meta = of["metadata"]
    owner = {"kind": of["kind"], "name": meta["name"], "uid": meta["uid"]}
    pod = {"containers": [{"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "1Gi"}}}]}
    found: Object = {
        "metadata": {
            "name": f"job-{meta['name']}-1a2b3",
            "namespace": meta["namespace"],
            "uid": f"w-{meta['uid']}",
            "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z"),
            "ownerReferences": [owner],
        },
        "spec": {
            "queueName": more.pop("queue", "team-a"),
            "priority": more.pop("priority", 0),
            "podSets": [{"name": "main", "count": 2, "template": {"spec": pod}}],
            **more,
        },
        "status": {
            "conditions": [dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions]
        },
    }
    if found["status"]["conditions"] and conditions[0][:2] == ("QuotaReserved", "True"):
        usage = {"name": "main", "resourceUsage": {"cpu": cpu, "memory": "2Gi"}, "count": 2}
        found["status"]["admission"] = {"clusterQueue": "cpus", "podSetAssignments": [usage]}
    return found


def queue(name: str, namespace: str = "a", of: str = "cpus", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": of, **spec}, "status": {}}


CLUSTER_QUEUE: Object = {
    "metadata": {"name": "cpus"},
    "spec": {
        "resourceGroups": [
            {
                "coveredResources": ["cpu"],
                "flavors": [
                    {"name": "small", "resources": [{"name": "cpu", "nominalQuota": "1", "borrowingLimit": "2"}]}
                ],
            }
        ]
    },
    "status": {
        "flavorsReservation": [{"name": "small", "resources": [{"name": "cpu", "total": "500m", "borrowed": "0"}]}]
    },
}
PENDING = ("QuotaReserved", "False", "Pending", UNUSED)
HELD = (("QuotaReserved", "True", "QuotaReserved", ""), ("Admitted", "True", "Admitted", ""))


def test_newest_supported_api_version_is_used() -> None:
    served = {"batch/v1", "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"}
    assert version_of(admission.GROUP, served) == "kueue.x-k8s.io/v1beta2"
    assert version_of(admission.GROUP, {"batch/v1", "kueue.x-k8s.io/v1alpha1"}) == ""


def test_suspension_is_read_from_each_kinds_own_field() -> None:
    assert admission.is_suspended(job())
    assert admission.is_suspended({"spec": {"runPolicy": {"suspend": True}}})
    assert not admission.is_suspended({"spec": {"runPolicy": {"suspend": False}, "template": {}}})


@pytest.mark.parametrize(
    ("reason", "message", "word"),
    [
        ("Pending", UNUSED, "WaitingForQuota"),
        ("Pending", f"{UNUSED}. Pending the preemption of 1 workload(s)", "WaitingForPreemptedWorkloads"),
        ("Pending", f"flavor big doesn't match node affinity, {UNUSED}", "WaitingForQuota"),
        ("Pending", "insufficient quota for cpu in flavor small, request > maximum capacity (1)", "ExceedsMaxQuota"),
        ("Pending", "borrowing limit for cpu in flavor small exceeded", "BorrowingLimitReached"),
        ("Pending", "flavor small doesn't match node affinity", "NoMatchingFlavor"),
        ("Pending", "untolerated taint {gpu true NoSchedule} in flavor small", "NoMatchingFlavor"),
        ("Pending", 'topology "rack" allows to fit only 1 out of 2 pod(s)', "TopologyPlacementFailed"),
        ("Pending", "Workload no longer fits after processing another workload", "WaitingForQuota"),
        ("Pending", "Workload namespace doesn't match ClusterQueue selector", "Misconfigured"),
        ("Pending", "resource nvidia.com/gpu unavailable in ClusterQueue", "Misconfigured"),
        ("Pending", "something unknown", "Pending"),
        ("Waiting", "waiting for all admitted workloads to be in PodsReady condition", "WaitingForPodsReady"),
        ("Inadmissible", "LocalQueue team-x doesn't exist", "Misconfigured"),
        ("Inadmissible", "ClusterQueue cpus is terminating or missing", "Misconfigured"),
        ("Inadmissible", "ClusterQueue cpus is inactive", "Suspended"),
        ("Inadmissible", "LocalQueue team-a is stopped", "Suspended"),
        ("AdmissionGated", "Admission is gated by: budget", "AdmissionGated"),
        ("NoMatchingFlavor", "in newer versions the word is there", "NoMatchingFlavor"),
    ],
)
def test_messages_of_older_kueue_versions_are_parsed(reason: str, message: str, word: str) -> None:
    seen = admission.queue_status(job(), [workload(job(), ("QuotaReserved", "False", reason, message))])
    assert seen is not None
    assert (seen.state, seen.reason, seen.message) == ("waiting", word, message)


def test_inactive_queue_is_explained_by_missing_object() -> None:
    waiting = [workload(job(), ("QuotaReserved", "False", "Inadmissible", "ClusterQueue cpus is inactive"))]
    active = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "references missing flavor x"}
    broken = {**CLUSTER_QUEUE, "status": {"conditions": [active]}}
    seen = admission.queue_status(job(), waiting, [queue("team-a")], broken)
    assert seen is not None
    assert (seen.reason, "missing flavor x" in seen.message) == ("Misconfigured", True)
    held = admission.queue_status(job(), waiting, [queue("team-a", stopPolicy="Hold")], broken)
    assert held is not None
    assert held.reason == "Suspended"
    assert admission.inactive(broken) == "references missing flavor x"
    assert admission.inactive(queue("team-a")) == ""


@pytest.mark.parametrize(
    ("conditions", "more", "state", "reason"),
    [
        ((), {}, "waiting", "PendingEvaluation"),
        ((("QuotaReserved", "False", "Pending", ""),), {"active": False}, "waiting", "Deactivated"),
        ((("QuotaReserved", "False", "Pending", ""), ("Evicted", "True", "Deactivated", "x")), {"active": False},
         "waiting", "Deactivated"),
        (HELD[:1], {}, "waiting", "UnsatisfiedAdmissionChecks"),
        (HELD, {}, "admitted", "Admitted"),
        ((("Finished", "True", "Succeeded", ""), *HELD), {}, "finished", "Succeeded"),
        ((PENDING, ("Evicted", "True", "Preempted", "x")), {}, "evicted", "Preempted"),
        ((PENDING, ("Evicted", "True", "Preempted", "x"), ("Requeued", "True", "Preempted", "x")), {}, "requeued",
         "WaitingForQuota"),
        ((("QuotaReserved", "False", "Pending", "x"), ("Evicted", "True", "Preempted", "x"),
          ("Requeued", "True", "Preempted", "x")), {}, "requeued", "PendingEvaluation"),
        ((*HELD, ("Evicted", "False", "QuotaReserved", "x")), {}, "admitted", "Admitted"),
    ],
)  # fmt: skip
def test_queue_state_is_derived_from_conditions(conditions: Any, more: dict[str, Any], state: str, reason: str) -> None:
    seen = admission.queue_status(job(), [workload(job(), *conditions, **more)])
    assert seen is not None
    assert (seen.state, seen.reason) == (state, reason)


def test_object_without_queue_has_no_queue_status() -> None:
    free = job(suspend=False)
    free["metadata"]["labels"] = {}
    assert admission.queue_status(free, [workload(job("other"), PENDING)]) is None
    unseen = admission.queue_status(job(), ())
    assert unseen is not None
    assert (unseen.state, unseen.queue, unseen.workload) == ("waiting", "team-a", "")


def test_preemption_names_the_preempting_workload_if_readable() -> None:
    urgent = workload(job("urgent", "b"), *HELD)
    said = f"Preempted to accommodate a workload (UID: {urgent['metadata']['uid']}, JobUID: 8e) due to prioritization"
    gone = (
        ("QuotaReserved", "False", "Pending", said),
        ("Evicted", "True", "Preempted", said),
        ("Preempted", "True", "InClusterQueue", said),
        ("Requeued", "True", "Preempted", said),
    )
    seen = admission.eviction_status(job(), [workload(job(), *gone), urgent])
    assert seen is not None
    assert (seen.state, seen.reason, seen.message, seen.by) == ("evicted", "Preempted", said, "Job b/urgent")
    anew = {**urgent, "metadata": {**urgent["metadata"], "uid": "another"}}
    of_job = said.replace("JobUID: 8e", f"JobUID: {job('urgent', 'b')['metadata']['uid']}")
    told = [(*one[:3], of_job) for one in gone]
    again = admission.eviction_status(job(), [workload(job(), *told), anew])
    assert again is not None
    assert again.by == "Job b/urgent"
    alone = admission.eviction_status(job(), [workload(job(), *gone)])
    assert alone is not None
    assert alone.by == f"the workload with UID {urgent['metadata']['uid']}"
    assert admission.eviction_status(job(), [workload(job(), *HELD)]) is None


def test_position_is_by_priority_and_age_within_the_cluster_queue() -> None:
    mine = workload(job(), PENDING, created="2026-01-01T00:00:05Z")
    others = [
        workload(job("older"), PENDING, created="2026-01-01T00:00:04Z"),
        workload(job("younger"), PENDING, created="2026-01-01T00:00:06Z"),
        workload(job("urgent", "b"), PENDING, created="2026-01-01T00:00:09Z", priority=9, queue="team-b"),
        workload(job("elsewhere", "b"), PENDING, created="2026-01-01T00:00:01Z", queue="gpus"),
        workload(job("done"), ("Finished", "True", "Succeeded", "")),
        workload(job("off"), PENDING, active=False),
        workload(job("runs"), *HELD),
    ]
    queues = [queue("team-a"), queue("team-b", "b"), queue("gpus", "b", "gpus")]
    every = counted(job(), [mine, *others], queues, CLUSTER_QUEUE, is_everywhere=True)
    assert every is not None
    assert (every.position, every.num_waiting, every.scope) == (3, 4, "ClusterQueue cpus")
    here = [one for one in (mine, *others) if one["metadata"]["namespace"] == "a"]
    near = counted(job(), here, queues[:1], None, is_everywhere=False)
    assert near is not None
    assert (near.position, near.num_waiting, near.scope, near.queues) == (2, 3, "namespace a", ("team-a",))


def test_only_workloads_that_use_scarce_quota_are_listed() -> None:
    held = [workload(job("large", "b"), *HELD, priority=7), workload(job("small"), *HELD, cpu="100m")]
    over = workload(job("over"), *HELD, ("Finished", "True", "Succeeded", ""))
    seen = counted(job(), [workload(job(), PENDING), *held, over], [queue("team-a")], CLUSTER_QUEUE, is_everywhere=True)
    assert seen is not None
    assert seen.holders == (QuotaHolder("Job b/large", "800m cpu", 7), QuotaHolder("Job small", "100m cpu", 0))
    assert seen.quota == ("ClusterQueue cpus has 1 cpu of flavor small and may borrow 2; 500m is reserved",)
    assert seen.asked == {"cpu": "1600m", "memory": "2Gi"}


def test_amounts_are_formatted_as_kubernetes_quantities() -> None:
    told = [quantity_text(*one) for one in (("cpu", 0.8), ("cpu", 2.0), ("memory", 2.0**31), ("nvidia.com/gpu", 8.0))]
    assert told == ["800m", "2", "2Gi", "8"]


def test_record_contains_last_queue_status_of_newest_attempt() -> None:
    seen = admission.queue_status(job(), [workload(job(), PENDING)], [queue("team-a")])
    assert seen is not None
    told = [admission.event_of(seen, is_again=number > 1) for number in (1, 2)]
    assert [one.state for one in told] == ["waiting", "requeued"]
    events = [Event(1, 1.0, "attempt", {}), told[0].event(2, 2.0), told[1].event(3, 3.0)]
    last = admission.recorded(events)
    assert last is not None
    assert (last.state, last.reason, last.cluster_queue, last.lacking) == (
        "requeued",
        "WaitingForQuota",
        "cpus",
        ("cpu",),
    )
    assert admission.recorded([*events, Event(4, 4.0, "attempt", {})]) is None


# -- the plan, and what a check shows ---------------------------------------------------------------------------------


def notes(*queues: tuple[str, str], groups: tuple[str, ...] = ("kueue.x-k8s.io/v1beta1",), **more: Any) -> list[Note]:
    cluster = Cluster("v1.34.4", frozenset(groups), queues=more.pop("listed", queues))
    return list(queue_notes(Job(name="digits", run="train.py", queue="team-a"), cluster))


def test_queue_without_kueue_is_an_error() -> None:
    [note] = notes(groups=("batch/v1",), listed=None)
    assert (note.code, note.blocks) == ("queue-ignored", True)
    assert list(queue_notes(Job(name="digits", run="train.py"), Cluster("v1.34.4", frozenset()))) == []


def test_missing_queue_is_an_error_if_queues_are_readable() -> None:
    [note] = notes(("team-b", ""), ("gpus", ""))
    assert (note.code, note.blocks, note.fix) == ("queue-missing", True, "there are: gpus, team-b")
    assert "did you mean team-b?" in note.message
    assert notes(listed=None) == []


def test_inactive_queue_is_a_warning() -> None:
    [note] = notes(("team-a", "Can't submit new workloads to clusterQueue"))
    assert (note.code, note.blocks, "Can't submit" in note.message) == ("queue-inactive", False, True)
    assert notes(("team-a", "")) == []


def test_object_not_suspended_by_dry_run_is_not_managed_by_kueue() -> None:
    note = ignored(job(suspend=False))
    assert note is not None
    assert (note.code, note.blocks, "kind Job" in note.message) == ("queue-ignored", True, True)
    assert ignored(job()) is None
    free = job(suspend=False)
    free["metadata"]["labels"] = {}
    assert ignored(free) is None


def test_queues_are_listed_with_their_waiting_workloads() -> None:
    active = queue("team-a")
    active["status"] = {"admittedWorkloads": 1, "pendingWorkloads": 2, "conditions": []}
    assert shown(active) == ("ok", "team-a (1 admitted, 2 waiting)")
    said = {"type": "Active", "status": "False", "reason": "Stopped", "message": "LocalQueue is stopped"}
    held = {**queue("team-b"), "status": {"conditions": [said]}}
    assert shown(active, held) == (
        "warn",
        "team-a (1 admitted, 2 waiting); team-b admits no jobs: LocalQueue is stopped",
    )
    assert shown() == ("warn", "Kueue is installed, and namespace a has no LocalQueue")


def shown(*queues: Object) -> tuple[str, str]:
    versions = [{"groupVersion": "kueue.x-k8s.io/v1beta1"}]
    answers: dict[str, Any] = {
        "version": {"gitVersion": "v1.34.4"},
        "groups": {"groups": [{"versions": versions}]},
        "queues": {"items": list(queues)},
    }
    target = KubernetesTarget(name="lab", context="lab", namespace="a")
    found = {check.name: check for check in checks(Survey("https://x", "lab", "a", answers), target)}
    return found["queues"].level, found["queues"].found


def test_right_to_read_queues_is_checked_only_with_kueue() -> None:
    assert set(rbac.QUEUES) <= set(rbac.useful({"kueue.x-k8s.io/v1beta2"}))
    assert not set(rbac.QUEUES) & set(rbac.useful({"batch/v1"}))
