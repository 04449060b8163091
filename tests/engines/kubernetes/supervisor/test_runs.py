"""Runs with a supervisor in their cluster are cached in the store of a user's machine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import BEGAN, ObjectServer
from tests.engines.kubernetes.scene import SUPERVISED_RUN as RUN
from tests.engines.kubernetes.scene import SupervisedScene
from tests.engines.kubernetes.supervisor.test_damaged import with_request

from windlass.actions.api import Run
from windlass.cli.render import condition_notes
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.lease import DURATION_SECONDS, SKEW_SECONDS
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import labels, layout, ttl
from windlass.engines.kubernetes.objects.package import AGAIN
from windlass.engines.kubernetes.objects.summary import summary_of
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.reading.diagnose.supervisors import absent
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.running import shutdown
from windlass.engines.kubernetes.supervisor import runs
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, Head, head_manifest
from windlass.errors import UsageError
from windlass.plan.plan import Plan
from windlass.plan.steps import ClusterStep
from windlass.runs.events import RECORD_VERSION, AttemptStarted, Created, PhaseEntered, RunEnded
from windlass.runs.phase import Phase
from windlass.runs.record import ROTATED, Dropped, fold
from windlass.runs.store import Store
from windlass.supervise.log_tail import LogTail
from windlass.views.run import summary_of as run_summary
from windlass.worker.protocol import LinesCounted

OF_SUPERVISOR = {layout.RUN_LABEL: RUN, labels.COMPONENT: labels.SUPERVISOR}


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[SupervisedScene]:
    with closing(SupervisedScene(server, tmp_path)) as scene:
        yield scene


def test_status_includes_new_events_of_the_supervisor(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING), step=7)
    status = scene.engine.status(RUN)
    assert (status.phase, len(status.attempts), status.progress.step) == (Phase.TRAINING, 1, 7)
    assert scene.store.events(RUN) == scene.events
    scene.write(RunEnded(Phase.SUCCEEDED, exit_code=0))
    assert scene.engine.status(RUN).phase is Phase.SUCCEEDED
    [state] = scene.engine.states([scene.store.status(RUN)], time.time())
    assert not state.stale


def test_log_lines_rotated_away_unread_are_reported(scene: SupervisedScene) -> None:
    """The supervisor reads no logs, so its record does not mention the missing lines."""
    scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
    tail = LogTail(scene.store.run_dir(RUN) / "attempt-1", 0, [0])
    counted = LinesCounted(1.0, {"0": 500_000, "n": 40}, 1).to_json()
    stamp = b"2026-11-21T10:00:00.000000007Z "
    tail.take([stamp + b"[0] the last", stamp + b"[n] " + json.dumps({**counted, "k": "t0ken"}).encode()])
    status = scene.engine.status(RUN)
    assert status.dropped == (Dropped(1, 0, 0, 499_999, ROTATED),)
    assert scene.engine.status(RUN).dropped == status.dropped
    assert [(one.code, one.ranks) for one in status.warnings] == [("log-incomplete", (0,))]


def test_python_program_reuses_its_cached_cluster_state(
    scene: SupervisedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 600.0)
    scene.write(AttemptStarted(1, 2))
    run = Run(RUN, scene.engine)
    assert run.status.phase is Phase.STARTING
    before = len(scene.server.requests)
    assert [run.status.phase for _ in range(3)] == [Phase.STARTING] * 3
    assert len(scene.server.requests) == before
    known = scene.engine._in_cluster
    monkeypatch.setattr(known, "pid", 0)  # like in a forked process
    assert scene.engine.reconnected(scene.store)._in_cluster.client(RUN) is not known.client(RUN)


def test_list_requests_only_unfinished_runs(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 2), RunEnded(Phase.SUCCEEDED, exit_code=0))
    scene.engine.status(RUN)
    before = len(scene.server.requests)
    scene.engine.states([scene.store.status(RUN)], time.time())
    assert len(scene.server.requests) == before


def test_one_list_shows_which_of_several_runs_have_changed(scene: SupervisedScene, tmp_path: Path) -> None:
    scene.write(AttemptStarted(1, 2), step=7)
    scene.engine.status(RUN)
    plan = scene.store.plan(RUN).to_text()
    others = [f"other-{number}" for number in range(5)]
    for name in others:
        scene.server.owner_config_map(name)
        first = Created(name, "other", "lab", "in the pods", supervisor="cluster", version=RECORD_VERSION).event(
            1, scene.began
        )
        scene.store.copy(name, [first], plan)
        head = Head((first,), summary_of(fold([first]), {}), 0, "submitter")
        scene.client.create(head_manifest(scene.client.get("v1", "ConfigMap", name), head))
    scene.write(PhaseEntered(Phase.TRAINING), step=9)
    before = len(scene.server.requests)
    states = scene.engine.states([scene.store.status(name) for name in (RUN, *others)], time.time())
    assert [state.status.phase for state in states] == [Phase.TRAINING, *[Phase.QUEUED] * 5]
    assert states[0].status.progress.step == 9
    assert len(scene.server.requests) - before == 2
    before = len(scene.server.requests)
    found = KubernetesEngine(scene.store).statuses(scene.store.statuses())
    assert {status.id: status.phase for status in found} == {state.status.id: state.status.phase for state in states}
    assert len(scene.server.requests) - before == 1


def test_unreachable_cluster_keeps_the_last_status_with_a_condition(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
    scene.engine.status(RUN)
    scene.server.stop()
    status = scene.engine.status(RUN)
    assert status.phase is Phase.TRAINING
    assert status.supervision.condition is not None
    assert status.supervision.condition.type == "ClusterUnreachable"
    [state] = scene.engine.states([status], time.time())
    assert state.stale
    scene.server.start()
    assert scene.engine.status(RUN).supervision.condition is None


def test_state_has_the_time_of_its_last_read_or_of_its_last_event(server: ObjectServer, tmp_path: Path) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
        scene.lease(5.0)
        supervisor_pod(server, {"state": {"running": {}}})
        before = time.time()
        scene.engine.status(RUN)
        server.stop()
        for engine, is_new in ((scene.engine, False), (KubernetesEngine(scene.store), True)):
            status = scene.store.status(RUN)
            [state] = engine.states([status], time.time())
            assert state.stale
            assert (state.as_of == scene.events[-1].time) is is_new
            assert is_new or state.as_of >= before


def test_run_removed_by_another_machine_ends_in_the_local_record(scene: SupervisedScene) -> None:
    """Runs with the real pause between two requests, which is as long as a command waits for an answer."""
    scene.write(AttemptStarted(1, 2))
    scene.engine.status(RUN)
    for name in (RUN, layout.record_name(RUN)):
        scene.server.remove("ConfigMap", name)
    status = scene.engine.status(RUN)
    assert (status.phase, status.supervision.stop_requested) == (Phase.STOPPED, True)


def remove(scene: SupervisedScene) -> None:
    for name in (RUN, layout.record_name(RUN)):
        scene.server.remove("ConfigMap", name)


def test_expired_run_keeps_its_local_record_and_reports_its_expiry(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 2), RunEnded(Phase.SUCCEEDED, exit_code=0))
    assert scene.engine.status(RUN).supervision.condition is None
    remove(scene)
    status = scene.engine.status(RUN)
    assert (status.phase, status.exit_code) == (Phase.SUCCEEDED, 0)
    assert status.supervision.condition is not None
    assert "no longer in the cluster: it has expired there" in status.supervision.condition.message
    assert status.supervision.condition.since is None, "that of the run's end would be shown as the time of its removal"


def test_a_run_whose_end_was_not_read_before_it_expired_is_lost(server: ObjectServer, tmp_path: Path) -> None:
    """It is unknown whether another machine has removed the run, or the run has ended and expired."""
    with closing(SupervisedScene(server, tmp_path, ago=ttl.WEEK_SECONDS + 10)) as scene:
        scene.write(AttemptStarted(1, 2))
        scene.engine.status(RUN)
        remove(scene)
        status = scene.engine.status(RUN)
        assert (status.phase, status.supervision.stop_requested) == (Phase.LOST, False)


@pytest.mark.parametrize(
    ("renewed_ago", "pod", "words"),
    [
        (1.0, None, ""),
        (DURATION_SECONDS + SKEW_SECONDS + 1, None, "has no pod"),
        (None, "ImagePullBackOff", "ImagePullBackOff"),
    ],
)
def test_run_without_a_supervisor_reports_the_reason(
    server: ObjectServer, tmp_path: Path, renewed_ago: float | None, pod: str | None, words: str
) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
        if renewed_ago is not None:
            scene.lease(renewed_ago)
        if pod is not None:
            waiting = {"state": {"waiting": {"reason": pod}}, "name": "supervisor"}
            server.put(
                "Pod",
                f"{RUN}-supervisor-x",
                OF_SUPERVISOR,
                status={"containerStatuses": [waiting]},
                spec={"nodeName": "a", "containers": [{"name": "supervisor"}]},
            )
        condition = scene.engine.status(RUN).supervision.condition
        assert (condition is not None) is bool(words)
        assert words in (condition.message if condition is not None else "")


def test_a_supervisor_that_the_cluster_refuses_is_explained(server: ObjectServer, tmp_path: Path) -> None:
    """A quota, a LimitRange or an admission plugin refuses the pod: only events of the Job report that."""
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
        job = {"kind": "Job", "name": f"{RUN}-supervisor"}
        server.put(
            "Event",
            "e1",
            involvedObject=job,
            type="Warning",
            reason="FailedCreate",
            message="exceeded quota: q",
            lastTimestamp="2026-11-21T15:00:00Z",
        )
        condition = scene.engine.status(RUN).supervision.condition
        assert condition is not None
        assert "has no pod (exceeded quota: q); no pod trains" in condition.message


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        ("exceeded quota: q, requested: limits.cpu=1, used: limits.cpu=4, limited: limits.cpu=4", "quota-exceeded"),
        ("maximum cpu usage per Container is 500m, but limit is 1", "limit-range"),
        ('admission webhook "images.example" denied the request: no', "admission-refused"),
        ("0/2 nodes are available: 2 node(s) had untolerated taint {team: ml}.", "supervisor-absent"),
    ],
)
def test_fix_for_a_supervisor_refused_by_the_namespace_is_a_local_supervisor(reported: str, code: str) -> None:
    found = absent(f"no supervisor is running: Job r-1-supervisor has no pod ({reported})", (), "lab")
    assert (found.code, "supervisor: machine in target lab" in found.fix) == (code, True)
    assert "resources:" not in found.fix


@pytest.mark.parametrize("has_pod", [True, False])
def test_deleted_service_account_is_the_reason_with_setup_as_the_fix(
    server: ObjectServer, tmp_path: Path, has_pod: bool
) -> None:
    """The Job reports the missing account before the supervisor's pod is created; later, the pod's token is refused."""
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 1), PhaseEntered(Phase.TRAINING))
        server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
        server.pod(RUN, "Running")
        server.remove("ServiceAccount", layout.SUPERVISOR_ACCOUNT)
        if has_pod:
            scene.lease(300.0)
            supervisor_pod(server, {"state": {"running": {}}})
        else:
            said = 'error looking up service account: serviceaccount "windlass-supervisor" not found'
            server.put(
                "Event",
                "e1",
                involvedObject={"kind": "Job", "name": f"{RUN}-supervisor"},
                type="Warning",
                reason="FailedCreate",
                message=said,
                lastTimestamp="2026-11-21T15:00:00Z",
            )
        status = scene.engine.status(RUN)
        assert status.supervision.condition is not None
        assert status.supervision.condition.message.count('serviceaccount "windlass-supervisor" not found') == 1
        assert "1 of 1 pods train unsupervised" in status.supervision.condition.message
        assert status.phase is Phase.TRAINING
        found = absent(status.supervision.condition.message, (), "lab")
        assert (found.code, found.fix) == ("service-account-missing", status.supervision.condition.fix)
        assert found.fix.startswith("windlass target setup lab")
        assert (f"kubectl delete pod {RUN}-supervisor-x" in found.fix) is has_pod


@pytest.mark.parametrize(
    ("queue", "why"), [({layout.QUEUE_LABEL: "small"}, "queue small has not admitted it"), ({}, "it is suspended")]
)
def test_a_supervisor_that_is_held_back_by_a_queue_is_explained(
    server: ObjectServer, tmp_path: Path, queue: dict[str, str], why: str
) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        its = {layout.RUN_LABEL: RUN, **queue}
        server.put("Job", f"{RUN}-supervisor", its, api="batch/v1", status={}, spec={"suspend": True})
        condition = scene.engine.status(RUN).supervision.condition
        assert condition is not None
        assert f"has no pod ({why}); no pod trains" in condition.message


def test_supervisor_being_deleted_receives_no_stop_request(scene: SupervisedScene, server: ObjectServer) -> None:
    server.put(
        "Pod",
        f"{RUN}-supervisor-x",
        OF_SUPERVISOR,
        status={"phase": "Running"},
        spec={"containers": [{"name": "supervisor"}]},
        metadata={"deletionTimestamp": BEGAN},
    )
    server.job(RUN, "Running")
    scene.engine.stop(RUN)
    assert f"{RUN}-1" not in server.names("Job")


def test_a_stop_ends_a_run_whose_supervisor_cannot_start(server: ObjectServer, tmp_path: Path) -> None:
    """The image cannot be pulled, for example: nothing else would ever record the end, which `rm` requires."""
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene, Store(tmp_path / "elsewhere") as other:
        server.put(
            "Pod",
            f"{RUN}-supervisor-x",
            OF_SUPERVISOR,
            status={"phase": "Pending"},
            spec={"containers": [{"name": "supervisor"}]},
        )
        server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
        assert scene.engine.status(RUN).phase is Phase.QUEUED
        scene.engine.stop(RUN)
        assert scene.engine.status(RUN).phase is Phase.STOPPED
        assert f"{RUN}-supervisor" not in server.names("Job")
        other.copy(RUN, ClusterRecord(scene.client, RUN).events(), "{}")
        assert other.status(RUN).phase is Phase.STOPPED


def test_run_with_live_pods_is_not_declared_stopped(server: ObjectServer, tmp_path: Path) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
        scene.engine.stop(RUN)
        server.put(
            "Pod",
            f"{RUN}-1-0-x",
            {layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: "1"},
            status={"phase": "Running"},
            spec={"containers": [{"name": "node"}]},
        )
        assert scene.engine.status(RUN).phase is Phase.QUEUED


def supervisor_pod(
    server: ObjectServer, container: dict[str, Any], metadata: dict[str, Any] | None = None, **status: Any
) -> None:
    server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
    statuses = [{"name": "proxy", "state": {"running": {}}}, {"name": "supervisor", **container}]
    server.put(
        "Pod",
        f"{RUN}-supervisor-x",
        OF_SUPERVISOR,
        spec={"nodeName": "a", "containers": [{"name": "proxy"}]},
        status={"phase": "Running", "containerStatuses": statuses, **status},
        metadata=metadata or {},
    )


def ended(reason: str, code: int, log: str = "") -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "message": log}}


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
PULL = {
    "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "ours/x:1": ErrImagePull: not found'}
}
NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}


@pytest.mark.parametrize(
    ("container", "status", "code", "words", "log"),
    [
        (
            {"state": BACK_OFF, "lastState": ended("Error", 1, "Traceback\nKeyError: 'x'\n"), "restartCount": 3},
            {},
            "supervisor-absent",
            "crashed (exit code 1, 3 restarts so far)",
            ("Traceback", "KeyError: 'x'"),
        ),
        ({"state": ended("OOMKilled", 137)}, {}, "supervisor-absent", "crashed (OOMKilled, exit code 137)", ()),
        ({"state": PULL}, {}, "image-not-found", "cannot start: ErrImagePull: not found; ", ()),
        ({}, {"phase": "Pending", "conditions": [NO_ROOM]}, "supervisor-absent", "is not scheduled: Unschedulable", ()),
    ],
    ids=["crash-loop", "out-of-memory", "image", "unschedulable"],
)
def test_a_supervisor_that_does_not_start_is_named_as_soon_as_the_cluster_reports_it(
    scene: SupervisedScene,
    server: ObjectServer,
    container: dict[str, Any],
    status: dict[str, Any],
    code: str,
    words: str,
    log: tuple[str, ...],
) -> None:
    """The run was just submitted, and its supervisor may even hold the Lease that it acquired before it crashed."""
    supervisor_pod(server, container, **status)
    scene.lease(0.5)
    condition = scene.engine.status(RUN).supervision.condition
    assert condition is not None
    assert words in condition.message
    assert tuple(condition.log) == log
    assert condition.fix
    found = absent(condition.message, condition.log, "lab")
    assert (found.code, found.fix) == (code, condition.fix)
    assert set(log) <= set(found.evidence)


def test_pods_that_train_without_a_supervisor_are_one_state_everywhere(server: ObjectServer, tmp_path: Path) -> None:
    """The state is the same in `status` and `why`, in lists of one run and of several, and on a machine without the
    record.
    """
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.lease(300.0)
        its = {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: RUN}
        server.put("Job", f"{RUN}-supervisor", its, api="batch/v1", row=("Running", "0/1"), status={})
        server.put(
            "Pod",
            f"{RUN}-supervisor-x",
            {**its, **OF_SUPERVISOR},
            row=("0/1", "Pending"),
            status={"phase": "Pending", "conditions": [NO_ROOM]},
            spec={"containers": [{"name": "supervisor"}]},
        )
        server.job(RUN, "Running", "0/2")
        for place in (0, 1):
            pod = server.objects["pods", server.pod(RUN, "Running", place)]
            pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = BEGAN
        status = scene.engine.status(RUN)
        assert status.phase is Phase.TRAINING
        assert status.supervision.condition is not None
        said = status.supervision.condition.message
        assert "is not scheduled: Unschedulable" in said
        assert re.search(r"2 of 2 pods train unsupervised since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, and nothing is", said)
        assert status.supervision.condition.since == pytest.approx(time.time() - 300.0, abs=60.0)
        assert absent(said, (), "lab").summary == said
        other = Created("other-1", "other", "lab", "/out", supervisor="cluster", version=RECORD_VERSION).event(
            1, scene.began
        )
        scene.server.owner_config_map("other-1")
        scene.store.copy("other-1", [other], scene.store.plan(RUN).to_text())
        head = Head((other,), summary_of(fold([other]), {}), 0, "submitter")
        scene.client.create(head_manifest(scene.client.get("v1", "ConfigMap", "other-1"), head))
        engine = KubernetesEngine(scene.store)
        states = engine.states([scene.store.status(name) for name in (RUN, "other-1")], time.time())
        assert (states[0].status.phase, states[0].status.supervision.condition) == (
            Phase.TRAINING,
            status.supervision.condition,
        )
        views = [run_summary(one.status, time.time(), is_here=True, current=one) for one in states]
        assert condition_notes(views)[0] == f"{RUN}: {said}"
        there = discovery.one(scene.client, RUN).state("lab").status
        assert (there.phase, there.waits_for) == (
            Phase.TRAINING,
            "its supervisor: Pending; 2 of 2 pods train unsupervised",
        )


@pytest.mark.parametrize(
    "container", [{"state": {"running": {}}}, {"state": {"waiting": {"reason": "ContainerCreating"}}}]
)
def test_starting_supervisor_is_not_absent(
    scene: SupervisedScene, server: ObjectServer, container: dict[str, Any]
) -> None:
    supervisor_pod(server, container)
    assert scene.engine.status(RUN).supervision.condition is None


@pytest.mark.parametrize(
    ("code", "metadata"), [(0, {}), (AGAIN, {"deletionTimestamp": BEGAN})], ids=["ended", "deleted"]
)
def test_supervisor_that_ended_before_a_resume_has_not_crashed(
    scene: SupervisedScene, server: ObjectServer, code: int, metadata: dict[str, Any]
) -> None:
    supervisor_pod(server, {"state": ended("Error", code)}, metadata)
    assert scene.engine.status(RUN).supervision.condition is None
    assert supervisor_status.has_ended_on(scene.client, RUN, f"{RUN}-supervisor-x")


def test_a_supervisor_that_crashes_later_is_named_though_its_lease_is_fresh(
    server: ObjectServer, tmp_path: Path
) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
        scene.lease(5.0)
        supervisor_pod(server, {"state": {"running": {}}, "lastState": ended("Error", 1), "restartCount": 1})
        assert scene.engine.status(RUN).supervision.condition is None
        supervisor_pod(server, {"state": BACK_OFF, "lastState": ended("Error", 1), "restartCount": 2})
        condition = scene.engine.status(RUN).supervision.condition
        assert condition is not None
        assert "has crashed (exit code 1, 2 restarts so far)" in condition.message
        assert supervisor_status.has_ended_on(scene.client, RUN, f"{RUN}-supervisor-x")


def test_the_command_of_a_supervisor_that_its_container_cannot_execute_is_named(
    server: ObjectServer, tmp_path: Path
) -> None:
    said = 'failed to create task: unable to start container process: exec: "/no/python": no such file: unknown'
    last = ended("StartError", 128, said)
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2))
        supervisor_pod(server, {"state": BACK_OFF, "lastState": last, "restartCount": 2})
        condition = scene.engine.status(RUN).supervision.condition
        assert condition is not None
        assert 'has crashed (exec: "/no/python": no such file, 2 restarts so far)' in condition.message


def test_restarted_supervisor_receives_the_stop_request(scene: SupervisedScene, server: ObjectServer) -> None:
    supervisor_pod(server, {"state": {"running": {}}, "lastState": ended("Error", 1), "restartCount": 1})
    server.job(RUN, "Running")
    scene.engine.stop(RUN)
    assert f"{RUN}-1" in server.names("Job")
    assert not supervisor_status.has_ended_on(scene.client, RUN, f"{RUN}-supervisor-x")


def test_state_has_the_time_of_the_overdue_supervisors_last_sign_of_life(server: ObjectServer, tmp_path: Path) -> None:
    """Rank and supervisor are on a lost node, which the cluster has not detected yet."""
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
        supervisor_pod(server, {"state": {"running": {}}})
        scene.lease(30.0)
        state = scene.engine.state(RUN, time.time())
        assert (state.status.phase, state.status.supervision.condition) == (Phase.TRAINING, None)
        assert state.stale == "the run's supervisor in cluster lab has given no sign of life since"
        assert time.time() - state.as_of == pytest.approx(30.0, abs=10.0)
        scene.lease(5.0)
        assert KubernetesEngine(scene.store).state(RUN, time.time()).stale == ""


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_supervisor_on_a_lost_node_is_absent_and_the_pod_that_replaces_it_is_not_blamed(
    server: ObjectServer, tmp_path: Path, is_replaced: bool
) -> None:
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
        supervisor_pod(server, {"state": {"running": {}}}, conditions=[{"type": "Ready", "status": "False"}])
        if is_replaced:
            statuses = [{"name": "supervisor", "state": {"running": {}}}]
            server.put(
                "Pod",
                f"{RUN}-supervisor-y",
                OF_SUPERVISOR,
                status={"containerStatuses": statuses},
                spec={"nodeName": "b", "containers": [{"name": "supervisor"}]},
            )
        for place, ready in enumerate(("True", "False")):  # a rank is on the same node
            name = scene.server.pod(RUN, "Running", place)
            server.objects["pods", name]["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        scene.lease(15.0)  # the Lease of the first pod, which has not expired
        condition = scene.engine.status(RUN).supervision.condition
        assert condition is not None
        then = f"; pod {RUN}-supervisor-y is about to take over" if is_replaced else ""
        assert condition.message.startswith(
            f"no supervisor is running: pod {RUN}-supervisor-x is on node a, which does not answer{then}; "
        )
        assert "; 1 of 2 pods train unsupervised since " in condition.message
        assert condition.fix.startswith("nothing to do: its Job makes another pod")


def test_supervisor_with_an_unready_sidecar_is_not_absent(server: ObjectServer, tmp_path: Path) -> None:
    """The kubelet reports such a pod as not ready too, with a reason, so its node answers."""
    unready = [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]
    with closing(SupervisedScene(server, tmp_path, ago=600.0)) as scene:
        scene.write(AttemptStarted(1, 2), PhaseEntered(Phase.TRAINING))
        supervisor_pod(server, {"state": {"running": {}}}, conditions=unready)
        scene.lease(15.0)
        assert scene.engine.status(RUN).supervision.condition is None
        assert supervisor_status.acting(scene.client) == {RUN}


def test_fresh_record_needs_no_read_of_the_lease(scene: SupervisedScene) -> None:
    scene.engine.status(RUN)
    assert not [request for request in scene.server.requests if request.plural == "leases"]
    assert supervisor_status.QUIET_SECONDS > 0


@pytest.mark.parametrize("is_supervised", [True, False])
def test_stop_is_requested_from_a_running_supervisor(
    scene: SupervisedScene, server: ObjectServer, is_supervised: bool
) -> None:
    if is_supervised:
        running = {"state": {"running": {}}, "name": "supervisor"}
        server.put(
            "Pod",
            f"{RUN}-supervisor-x",
            OF_SUPERVISOR,
            status={"phase": "Running", "containerStatuses": [running]},
            spec={"containers": [{"name": "supervisor"}]},
        )
    server.job(RUN, "Running")
    scene.engine.stop(RUN)
    assert f"{RUN}-stop" in server.names("ConfigMap")
    assert (f"{RUN}-1" in server.names("Job")) is is_supervised


def test_active_run_is_not_resumed(scene: SupervisedScene) -> None:
    with pytest.raises(UsageError, match="has not ended"):
        scene.engine.resume(RUN)


def test_a_run_that_has_succeeded_is_not_resumed_and_keeps_its_supervisor(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 1), RunEnded(Phase.SUCCEEDED, exit_code=0))
    scene.server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
    with pytest.raises(UsageError, match="has succeeded: nothing is left to do"):
        scene.engine.resume(RUN)
    assert f"{RUN}-supervisor" in scene.server.names("Job")


@pytest.mark.parametrize(
    ("namespace", "message"),
    [("team", "is supervised in the cluster, and with this change"), ("other", "target lab names namespace other")],
)
def test_resume_in_another_namespace_or_under_another_supervisor_deletes_nothing(
    scene: SupervisedScene, namespace: str, message: str
) -> None:
    scene.write(AttemptStarted(1, 1), RunEnded(Phase.FAILED, exit_code=1))
    place = scene.store.plan(RUN).only(ClusterStep).request
    scene.store.copy(RUN, scene.events, json.dumps(with_request("cluster", **place)))
    scene.server.put("Job", f"{RUN}-supervisor", {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
    changed = Plan.from_json(with_request("cluster", **{**place, "namespace": namespace}))
    with pytest.raises(UsageError, match=message):
        scene.engine.resume(RUN, changed)
    assert f"{RUN}-supervisor" in scene.server.names("Job")


def test_one_client_is_reused_per_namespace(scene: SupervisedScene) -> None:
    scene.engine.status(RUN)
    first = scene.engine._in_cluster.client(RUN)
    assert isinstance(first, Client)
    assert scene.engine._in_cluster.client(RUN) is first


def test_record_starts_with_the_user_who_started_the_run(scene: SupervisedScene) -> None:
    created = scene.store.events(RUN)[0].entry
    assert isinstance(created, Created)
    assert (created.user, created.supervisor, created.machine) == ("ann", "cluster", None)


@pytest.mark.parametrize("is_beside", [True, False])
def test_finished_supervisor_ends_its_job_in_spite_of_a_sidecar(
    server: ObjectServer, tmp_path: Path, is_beside: bool
) -> None:
    statuses = [{"name": labels.SUPERVISOR, "state": {"running": {}}}]
    statuses += [{"name": "istio-proxy", "state": {"running": {}}}] if is_beside else []
    server.put("Pod", "p", OF_SUPERVISOR, spec={"containers": []}, status={"containerStatuses": statuses})
    server.put("Job", layout.supervisor_name(RUN), OF_SUPERVISOR, api="batch/v1", spec={"backoffLimit": 6})
    with closing(server.client(tmp_path)) as client:
        shutdown.end_supervisor_job(client, RUN)
        spec = client.get("batch/v1", "Job", layout.supervisor_name(RUN))["spec"]
    assert spec == {"backoffLimit": 6, **({"activeDeadlineSeconds": 1} if is_beside else {})}
