"""The pods themselves decide how an attempt has ended: no line in a log ends a run whose pods still run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.api import Api, ClusterOfOneRun, client_of, not_found, reply, said, serving
from tests.helpers.until import until

from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS
from windlass.engines.kubernetes.access.control import ExecControl, PodControl, Request
from windlass.engines.kubernetes.running.attempt import PodAttempt
from windlass.plan.plan import Plan, Policy
from windlass.plan.steps import AttemptStep
from windlass.runs.node_events import Reported
from windlass.supervise.backend import Intent
from windlass.worker.protocol import NodeSpec, NodeWarning, RankFailure, RankSpec

START = {"kind": "node", "at": 1.0, "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold", "k": "t0ken"}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "r-1-1"},
    "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}},
}


def event(kind: str, **data: Any) -> str:
    return "[n] " + json.dumps({"kind": kind, "at": 2.0, "k": "t0ken", **data})


def end(*failures: RankFailure, **more: Any) -> str:
    return event("end", failures=[one.to_json() for one in failures], ended_by="itself", facts={}, **more)


BEGIN = "[n] " + json.dumps(START)


@contextlib.contextmanager
def attempt_of(
    cluster: ClusterOfOneRun, folder: Path, control: PodControl | None = None
) -> Iterator[tuple[PodAttempt, Api]]:
    num = len(cluster.pods)
    specs = [
        NodeSpec(node, "train.py", "python3", "/", {}, (RankSpec(node, 0, ("train.py",), {}),), 1.0)
        for node in range(num)
    ]
    plan = Plan(
        run_id="r-1",
        name="",
        target="",
        engine="kubernetes",
        output_dir="",
        num_nodes=num,
        procs_per_node=1,
        policy=Policy(None, 0.0, None, 0, (), 1),
        job={},
        steps=(AttemptStep("", JOB),),
    )
    with serving(cluster) as api:
        client = client_of(api, folder)
        control = control or ExecControl(client, "python3")
        made = PodAttempt(client, plan, 1, specs, folder / "run" / "attempt-1", lambda: None, control)
        try:
            yield made, api
        finally:
            made.close()
            cluster.closed.set()


def warnings_until(attempt: PodAttempt, is_so: Callable[[], bool]) -> list[str]:
    """Reads updates until `is_so` holds; returns the messages of warnings."""
    messages: list[str] = []

    def look() -> bool:
        messages.extend(one.message for node in attempt.nodes for one in node.updates() if isinstance(one, NodeWarning))
        return is_so()

    until(look)
    return messages


FORGED = {
    "an end": '[n] {"kind": "end", "at": 1.0, "failures": []}',
    "an end with its token": end(),
    "half an event": '[n] {"kind": "end", "at": 1.0, "failu',
    "an event that is too deep": "[n] " + '{"a":' * 3000,
    "an end of another shape": '[n] {"kind": "end", "at": 1.0, "failures": [{"rank": {}}]}',
    "the beginning of another attempt": "[a] 2",
    "the end of the attempt": "[a] over",
    "the end of the attempt with another token": "[a] over t1ken",
    "numbers": "[n] " + "9" * 5000,
}


@pytest.mark.parametrize("line", FORGED)
def test_a_forged_line_ends_no_attempt_whose_pod_runs(tmp_path: Path, line: str) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one", FORGED[line], "[0] two")
    with attempt_of(cluster, tmp_path) as (attempt, _):
        log = attempt.folder / "rank-0.log"
        warnings_until(attempt, lambda: log.exists() and log.read_text() == "one\ntwo\n")
        assert not attempt.over
        assert attempt.live_nodes()
        cluster.logs[0] += said("[0] three", end(), start=4)
        cluster.end_pod(0, 0)
        warnings_until(attempt, lambda: attempt.over)
        assert attempt.failures() == []
        assert log.read_text() == "one\ntwo\nthree\n"


def test_pod_whose_log_was_never_read_has_a_last_sign_of_life(tmp_path: Path) -> None:
    with attempt_of(ClusterOfOneRun(), tmp_path) as (attempt, _):
        assert not list(attempt.folder.rglob("*.cursor"))
        assert attempt.last_sign_of_life() == 0.0


def test_output_of_a_foreign_process_is_reported_once(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, FORGED["an end"], FORGED["half an event"], end())
    cluster.end_pod(0, 0)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        messages = warnings_until(attempt, lambda: attempt.over)
    assert [message for message in messages if "were ignored" in message] == [
        "node 0: lines of its pod's log that look like Windlass's own are not, and were ignored: "
        "a process writes to the output of the pod's first process"
    ]


FAILED = RankFailure(0, 3, 2.0, "Traceback")


@pytest.mark.parametrize(
    ("last", "exit_code", "failures"),
    [
        ([end()], 0, []),
        ([end(FAILED)], 1, [FAILED]),
        ([end(FAILED)], 137, [FAILED]),
        ([end(FAILED)], 0, []),  # the pod's exit code overrules the log
        ([], 0, []),  # the last line of the log was lost
        ([end()], 1, None),  # the pod failed without reporting
        ([], 1, None),
    ],
)
def test_node_ends_as_its_pod_ended(
    tmp_path: Path, last: list[str], exit_code: int, failures: list[Any] | None
) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one", *last)
    cluster.end_pod(0, exit_code)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        [node] = attempt.nodes
        warnings_until(attempt, lambda: not node.lives())
        list(node.updates())
        assert node.ended is (failures is not None)
        assert node.failures == (failures or [])
        assert not node.lives()


def test_a_pod_that_waits_for_the_next_attempt_has_ended_this_one(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, end(FAILED), "[a] over t0ken")
    with attempt_of(cluster, tmp_path) as (attempt, _):
        warnings_until(attempt, lambda: attempt.over)
        assert attempt.failures() == [FAILED]


def test_object_counts_as_deleted_after_the_cluster_reports_it_missing_for_seconds(tmp_path: Path) -> None:
    def without_job(answer: bytes) -> ClusterOfOneRun:
        class WithoutJob(ClusterOfOneRun):
            def __call__(self, method: str, path: str) -> bytes:
                return answer if path.endswith("/jobs/r-1-1") else super().__call__(method, path)

        return WithoutJob(1)

    html, absent = without_job(reply(b"<html>404</html>", 404)), without_job(not_found("jobs", "r-1-1"))
    began = time.monotonic()
    with attempt_of(html, tmp_path / "a") as (kept, _), attempt_of(absent, tmp_path / "b") as (deleted, _):
        until(lambda: deleted.pods.owner.over is not None)
        assert time.monotonic() - began > ABSENT_SECONDS - 0.1
        assert deleted.pods.owner.over == "Job r-1-1 was deleted"
        assert kept.pods.owner.over is None


class Full(ClusterOfOneRun):
    """Cluster with capacity for the first pod only: the second fits on no node, and a quota refuses the third."""

    def __init__(self) -> None:
        super().__init__(3)
        placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes fit"}
        self.pods[1] |= {"spec": {"containers": [{"name": "node"}]}, "status": {"conditions": [placed]}}

    def __call__(self, method: str, path: str) -> bytes:
        where = path.partition("?")[0]
        if where.endswith("/pods") and "watch=1" not in path:
            return reply({"metadata": {"resourceVersion": "1"}, "items": self.pods[:2]})
        if where.endswith("/events"):
            job = {"kind": "Job", "name": "r-1-1"}
            event = {"metadata": {}, "involvedObject": job, "reason": "FailedCreate", "message": "exceeded quota: q"}
            return reply({"metadata": {}, "items": [event]})
        return super().__call__(method, path)


def test_nodes_without_capacity_are_those_whose_pods_are_not_scheduled_or_not_created(tmp_path: Path) -> None:
    began = time.time()
    with attempt_of(Full(), tmp_path) as (attempt, _):
        warnings_until(attempt, lambda: len(attempt.without_capacity()) == 2)
        found = attempt.without_capacity()
        assert sorted(found) == [1, 2]
        assert all(began <= since <= time.time() for since in found.values())
        assert [node.last_words() for node in attempt.nodes[1:]] == [
            "pod r-1-1-1: Unschedulable: 0/2 nodes fit",
            "its pod was never made: exceeded quota: q",
        ]


def test_failed_watch_keeps_the_last_known_state(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one")
    with attempt_of(cluster, tmp_path) as (attempt, api):
        health = attempt.client.health
        log = attempt.folder / "rank-0.log"
        warnings_until(attempt, lambda: log.exists() and log.read_text() == "one\n")
        api.answer = lambda *_: reply({"metadata": {}, "items": []}, cut=3)
        warnings_until(attempt, lambda: health.failing() is not None)
        what, error = health.failing() or ("", None)
        assert what in ("pods of r-1-1", "log of node 0")
        assert "does not answer" in str(error)
        api.answer = cluster
        cluster.logs[0] += said(end(), start=3)
        cluster.end_pod(0, 0)
        warnings_until(attempt, lambda: attempt.over)
        assert health.failing() is None


class Karpenter(ClusterOfOneRun):
    """Cluster in which Karpenter ends the first pod, and reports the reason like Karpenter 1.14."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__()
        about = {"kind": "Pod", "name": "r-1-1-0"}
        self.event = {"metadata": {}, "involvedObject": about, "reason": reason, "message": message}

    def evict(self, *, is_by_api: bool) -> None:
        self.end_pod(0, 143)
        if is_by_api:
            evicted = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            }
            self.pods[0] = {**self.pods[0], "status": {**self.pods[0]["status"], "conditions": [evicted]}}
        self.delete_pod(0, 30)

    def __call__(self, method: str, path: str) -> bytes:
        if path.partition("?")[0].endswith("/events"):
            return reply({"metadata": {}, "items": [self.event] if "involvedObject.name" in path else []})
        return super().__call__(method, path)


@pytest.mark.parametrize(
    ("reason", "message", "is_by_api", "named"),
    [
        ("Evicted", "Evicted pod: Drifted", True, "by Karpenter: Drifted"),
        ("Evicted", "Evicted pod: Forceful Termination", True, "by Karpenter: Forceful Termination"),
        (
            "Disrupted",
            "Deleting the pod to accommodate the terminationTime 2026-01-02 of the node.",
            False,
            "by Karpenter: the terminationGracePeriod of its node was over",
        ),
        ("Scheduled", "Successfully assigned", True, "Eviction API: evicting"),
        ("Evicted", "The node was low on resource: memory.", False, ""),
    ],
)
def test_reason_of_a_karpenter_eviction_is_recorded_once(
    tmp_path: Path, reason: str, message: str, is_by_api: bool, named: str
) -> None:
    cluster = Karpenter(reason, message)
    cluster.logs[0] = said(BEGIN)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        until(lambda: attempt.nodes[0].pod is not None)
        cluster.evict(is_by_api=is_by_api)
        messages = warnings_until(attempt, lambda: not attempt.nodes[0].lives())
        messages += warnings_until(attempt, lambda: True)
        found = [one for one in messages if "EvictionByEvictionAPI" in one]
        assert found == ([f"pod r-1-1-0: EvictionByEvictionAPI: {named}"] if named else [])
        assert attempt.evicted == ({0} if named else set())


class Suspended(ClusterOfOneRun):
    """Cluster whose Kueue has evicted the run: its Job is suspended, for the reason of its Workload."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        job = {"uid": "u1", "kind": "Job", "name": "r-1-1"}
        evicted = {"type": "Evicted", "status": "True", "reason": reason, "message": "as it says"}
        self.workload = {
            "metadata": {"name": "job-r-1-1", "namespace": "team", "ownerReferences": [job]},
            "spec": {"queueName": "team-a", "active": not reason.startswith("Deactivated")},
            "status": {"conditions": [evicted]},
        }

    def __call__(self, method: str, path: str) -> bytes:
        where = path.partition("?")[0]
        if where.endswith("/jobs/r-1-1") and method == "GET":
            meta = {"name": "r-1-1", "namespace": "team", "uid": "u1", "labels": {}}
            return reply({"kind": "Job", "metadata": meta, "spec": {"suspend": True}, "status": {}})
        if where == "/apis/kueue.x-k8s.io":
            return reply({"versions": [{"groupVersion": "kueue.x-k8s.io/v1beta1"}]})
        if where.endswith("/workloads"):
            return reply({"metadata": {}, "items": [self.workload]})
        return super().__call__(method, path)


@pytest.mark.parametrize(
    ("reason", "ended_by", "kind"),
    [
        ("Preempted", "preemption", "notice"),
        ("Deactivated", "stop", "stop"),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", "stop", "stop"),
    ],
)
def test_a_deactivated_workload_stops_the_run_and_any_other_eviction_is_a_preemption(
    tmp_path: Path, reason: str, ended_by: str, kind: str
) -> None:
    cluster = Suspended(reason)
    cluster.logs[0] = said(BEGIN)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        until(lambda: attempt.is_evicted)
        [node] = attempt.nodes
        found = [one.entry.kind if isinstance(one, Reported) else one.kind for one in node.updates()]
        assert attempt.ended_by_target == ended_by
        assert [one for one in found if one in ("notice", "stop")] == [kind]


UNREACHABLE = reply({"kind": "Status", "message": "dial tcp 10.0.0.7:10250: no route to host", "code": 500}, 500)
"""Response of the API server to a request for a log on an unreachable node."""


def test_a_pod_on_a_dead_machine_is_lost_with_it_and_so_are_the_last_lines_of_its_log(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, event("progress", progress={"step": 3}))
    with attempt_of(cluster, tmp_path) as (attempt, api):
        [node] = attempt.nodes
        warnings_until(attempt, lambda: node.last_sign_of_life() > 0)
        api.answer = lambda method, path: UNREACHABLE if "/log" in path else cluster(method, path)
        silent = [
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]
        cluster.pods[0] = {**cluster.pods[0], "status": {**cluster.pods[0]["status"], "conditions": silent}}
        cluster.delete_pod(0, 30)
        messages = warnings_until(attempt, lambda: not node.lives())
        messages += warnings_until(attempt, lambda: True)
        assert [one for one in messages if "last lines" in one] == [
            "log of node 0: its last lines are missing: the cluster's node does not answer"
        ]
        assert node.why_lost().startswith("pod r-1-1-0 was taken away (DeletionByTaintManager)")
        assert node.last_sign_of_life() < time.time() - 3600, "when its last line was written, by the log itself"


def test_unreadable_log_does_not_affect_later_attempts(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    with attempt_of(cluster, tmp_path) as (attempt, api):
        api.answer = lambda method, path: UNREACHABLE if "/log" in path else cluster(method, path)
        health = attempt.client.health
        until(lambda: health.failing() is not None)
        assert (health.failing() or ("", None))[0] == "log of node 0"
        attempt.close()
        until(lambda: health.failing() is None)


class SlowControl:
    """Control that accepts requests, and answers them once it is allowed to."""

    events = None
    max_bytes = 1 << 20

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.may_answer = threading.Event()

    def call_all(self, requests: Sequence[tuple[Any, Request]], seconds: float) -> Iterator[tuple[int, int]]:
        for number, (_, request) in enumerate(requests):
            self.taken.append(request.words[-1])
            self.may_answer.wait(10)
            yield number, 0


def test_a_stop_that_follows_a_request_for_stacks_at_once_is_sent_after_it(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN)
    control = SlowControl()
    with attempt_of(cluster, tmp_path, control) as (attempt, _):
        [node] = attempt.nodes
        until(lambda: node.pod is not None)
        for intent in (Intent.DUMP_STACKS, Intent.STOP, Intent.STOP):
            node.send(intent)
        until(lambda: control.taken)
        assert control.taken == [str(int(Intent.DUMP_STACKS.value))]
        control.may_answer.set()
        until(lambda: len(control.taken) == 2)
        assert control.taken[1] == str(int(Intent.STOP.value))
