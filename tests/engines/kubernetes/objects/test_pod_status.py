"""Pods as the API server returns them are converted to a state and a reason."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.engines.kubernetes.objects.find_pod_specs import claims_of
from windlass.engines.kubernetes.objects.object_reports import (
    ends_of,
    is_problem,
    key,
    object_reports,
    recorded,
    warning,
)
from windlass.engines.kubernetes.objects.observations import ObjectReport
from windlass.engines.kubernetes.objects.pod_status import PodStatus, pod_status
from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.record import fold

UNREADY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
"""Condition of a pod with a sidecar that is not ready."""
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}


def pod(
    *conditions: dict[str, Any],
    state: dict[str, Any] | None = None,
    deleted: bool = False,
    machine: str = "",
    **status: Any,
) -> dict[str, Any]:
    meta = {"name": "r-1-0-x", **({"deletionTimestamp": "2026-11-21T15:00:00Z"} if deleted else {})}
    containers = [{"name": "node", "state": state}] if state is not None else []
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "node"}], **({"nodeName": machine} if machine else {})},
        "status": {"conditions": list(conditions), "containerStatuses": containers, **status},
    }


def terminated(reason: str, code: int = 137) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code}}


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"}
BACK_OFF_OF_PULL = {
    "waiting": {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "x/y:1": ErrImagePull: x/y:1: not found',
    }
}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (None, "missing", ""),
        (pod(), "queued", ""),
        (pod(UNSCHEDULABLE), "queued", "Unschedulable"),
        (pod(state={"waiting": {"reason": "ContainerCreating"}}, machine="a"), "pulling", "ContainerCreating"),
        (pod(state=BACK_OFF, machine="a"), "pulling", "ImagePullBackOff"),
        (pod(state=BACK_OFF, machine="a", deleted=True), "pulling", "ImagePullBackOff"),
        (pod(state={"running": {}}, machine="a"), "running", ""),
        (pod({"type": "Ready", "status": "False"}, state={"running": {}}, machine="a"), "running", "NodeNotReady"),
        (pod(UNREADY, state={"running": {}}, machine="a"), "running", ""),
        (pod(state={"running": {}}, machine="a", deleted=True), "running", "Deleted"),
        (pod(DISRUPTED, state={"running": {}}, machine="a", deleted=True), "running", "PreemptionByScheduler"),
        (pod(state=terminated("OOMKilled"), machine="a", phase="Failed"), "ended", "OOMKilled"),
        (pod(DISRUPTED, state=terminated("Error"), machine="a", phase="Failed"), "ended", "PreemptionByScheduler"),
        (pod(state=terminated("Error", 1), machine="a", phase="Failed"), "ended", "Error"),
        (pod(machine="a", phase="Failed", reason="Evicted", message="low on memory"), "ended", "Evicted"),
        (pod(state=BACK_OFF_OF_PULL, machine="a"), "pulling", "ErrImagePull"),
    ],
)
def test_pod_state_is_derived_from_container_and_conditions(found: Any, state: str, reason: str) -> None:
    seen = pod_status(0, found)
    assert (seen.state, seen.reason) == (state, reason)


def test_reason_of_kubelet_eviction_is_read_from_pod_status() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "m"}
    seen = pod_status(0, pod(condition, machine="a", phase="Failed", reason="Evicted", message="exceeds 16Mi"))
    assert (seen.reason, seen.message) == ("Evicted", "exceeds 16Mi")


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ('[n] {"kind": "node"}\n[0] epoch 1\n[w] no space left in /work\n[1]+ 45%|', "no space left in /work"),
        ('od"}\n[n] {"kind": "rank"}\n', ""),
        ("exec /usr/bin/python3: no such file or directory", "exec /usr/bin/python3: no such file or directory"),
        ("Traceback (most recent call last):\n[Errno 2] x", "Traceback (most recent call last):\n[Errno 2] x"),
    ],
)
def test_log_lines_of_ranks_are_removed_from_termination_message(message: str, kept: str) -> None:
    assert pod_status(0, pod(state={"terminated": {"exitCode": 1, "message": message}}, deleted=True)).message == kept


def test_pod_start_and_normal_exit_are_no_problems() -> None:
    quiet = ("", "ContainerCreating", "PodInitializing", "Error", "Completed")
    assert [reason for reason in quiet if is_problem(PodStatus(0, "x", "ended", reason))] == []
    assert is_problem(PodStatus(0, "x", "ended", "OOMKilled"))


def test_problems_that_differ_only_in_names_and_numbers_count_once() -> None:
    assert key(PodStatus(0, "a-1", "queued", "U", "a-1: 0/2")) == key(PodStatus(1, "b-1", "queued", "U", "b-1: 1/2"))


def test_repeated_refusal_of_a_pod_with_other_names_counts_once() -> None:
    def refused(suffix: str, used: str) -> ObjectReport:
        words = f'Error creating: pods "r-1-1-{suffix}" is forbidden: exceeded quota: small, used: limits.cpu={used}'
        return ObjectReport("Job", "r-1", "FailedCreate", words)

    assert len({key(refused(*one)) for one in (("x8z4q", "1"), ("bcdfg", "1500m"), ("44444", "2"))}) == 1
    other = ObjectReport("Job", "r-1", "FailedCreate", 'Error creating: pods "r-1-1-x" is forbidden: violates policy')
    assert key(other) != key(refused("x8z4q", "1"))


def event(name: str, reason: str, message: str = "m", kind: str = "Job", at: str = "1") -> dict[str, Any]:
    return {
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        "metadata": {},
    }


def test_only_events_of_attempt_objects_and_claims_are_reported() -> None:
    events = [
        event("r-1", "FailedCreate", at="1"),
        event("r-1", "FailedCreate", "newer 2", at="2"),
        event("r-10", "FailedCreate"),
        event("r-1-n-0", "FailedCreate", "of its job"),
        event("r-2-0-x", "FailedMount"),
        event("data", "ProvisioningFailed", kind="PersistentVolumeClaim"),
        event("other", "ProvisioningFailed", kind="PersistentVolumeClaim"),
        event("r-1-0-x", "Pulling", kind="Pod"),
    ]
    said = list(object_reports(events, "r", 1, claims=["data"]))
    assert [(one.name, one.message) for one in said] == [
        ("r-1", "newer 2"),
        ("r-1", "m"),
        ("r-1-n-0", "of its job"),
        ("data", "m"),
    ]


def test_owner_object_that_ended_by_requested_policy_is_no_problem() -> None:
    def failed(reason: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": "FailureTarget", "status": "True", "reason": reason}]}}

    assert list(ends_of(failed("BackoffLimitExceeded"), "Job", "r-1")) == []
    assert [one.reason for one in ends_of(failed("DeadlineExceeded"), "Job", "r-1")] == ["DeadlineExceeded"]
    assert [one.reason for one in ends_of(None, "Job", "r-1")] == ["Deleted"]


def test_claims_are_found_in_every_workload_kind() -> None:
    volumes = [{"persistentVolumeClaim": {"claimName": "data"}}, {"emptyDir": {}}]
    job = {"template": {"spec": {"containers": [], "volumes": volumes}}}
    assert claims_of([{"spec": job}]) == ["data"]
    assert claims_of([{"spec": {"replicatedJobs": [{"template": {"spec": job}}]}}, {"spec": {}}]) == ["data"]


def test_problems_read_from_the_record_equal_the_reported_ones() -> None:
    waits = PodStatus(1, "x", "queued", "Unschedulable", "0/2 nodes")
    refused = ObjectReport("Job", "r-2", "FailedCreate", "quota")
    told: list[tuple[str, dict[str, Any]]] = [
        ("created", {"id": "r", "name": "r", "target": "bed", "output_dir": "/out"}),
        ("attempt", {"number": 1, "world_size": 1, "nodes": [[0]]}),
        ("warning", warning(PodStatus(0, "old", "ended", "OOMKilled"))),
        ("attempt", {"number": 2, "world_size": 1, "nodes": [[0]]}),
        ("phase", {"phase": "queued"}),
        ("warning", warning(refused)),
        ("warning", warning(waits)),
    ]
    events = [Event(number, float(number), kind, data) for number, (kind, data) in enumerate(told, 1)]
    assert recorded(events) == ({1: waits}, [refused])
    status = fold(events)
    assert (status.phase, status.waits_for) == (Phase.QUEUED, "pod x: Unschedulable: 0/2 nodes")
    assert fold([*events, Event(8, 8.0, "phase", {"phase": "pulling"})]).waits_for is None
