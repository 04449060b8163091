"""Supervision sends these requests to an API server: login, Lease, existence of objects, and a cleanup that may
fail.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import HTML_404, ObjectServer, Request, Response, refusing, status
from tests.engines.kubernetes.scene import RunScene
from tests.helpers.clock import FakeClock
from tests.helpers.until import until

from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.access.lease import (
    DURATION_SECONDS,
    RENEW_SECONDS,
    Lease,
    held_elsewhere,
    holder_of,
    is_same_place,
)
from windlass.engines.kubernetes.access.login import AGAIN_SECONDS
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.planned import numbered
from windlass.engines.kubernetes.objects.pod_template import bounded, deadline_seconds
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning.facts import Cluster, Facts, boot_program, read_facts
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.running import markers, shutdown
from windlass.engines.kubernetes.running.backend import UNFINISHED, KubernetesBackend
from windlass.engines.kubernetes.target import ClusterRuns
from windlass.engines.travel import CodeFacts
from windlass.errors import EngineError, UsageError
from windlass.plan.steps import ClusterStep
from windlass.runs import stop_request
from windlass.runs.clock import Clock
from windlass.runs.context import Context
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.spec.labels import SERVICE_LABEL
from windlass.spec.targets import KubernetesTarget
from windlass.supervise.backend import HeldElsewhere, Intent, TargetUnavailable
from windlass.supervise.recorder import Recorder

NOW = 1_700_000_000.0
PLUGIN = """
import json, pathlib, sys
said = json.loads(pathlib.Path(sys.argv[1]).read_text())
if "error" in said:
    sys.exit(said["error"])
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": said}))
"""


DIGITS = {"name": "digits", "source": "s3://bucket/digits/"}


# -- logins -----------------------------------------------------------------------------------------------------------


def test_a_login_plugin_that_fails_is_an_error_that_passes(
    server: ObjectServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    says, program = tmp_path / "says.json", tmp_path / "plugin.py"
    program.write_text(PLUGIN)
    says.write_text('{"error": "session has expired"}')
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(program), str(says)],
        "interactiveMode": "Never",
    }
    clock = FakeClock(NOW)
    client = Client("lab", "team", server.kubeconfig(tmp_path, {"exec": exec_}), clock)
    for _ in range(2):
        with pytest.raises(NotLoggedIn, match="session has expired"):
            client.find("v1", "Pod")
    assert server.requests == []  # no request was sent without a login
    says.write_text('{"token": "first"}')
    clock.now += AGAIN_SECONDS
    client.find("v1", "Pod")
    assert server.requests[-1].token == "first"
    server.fails = lambda request: status(401, "Unauthorized") if request.token == "first" else None
    with pytest.raises(Refused):
        client.find("v1", "Pod")
    says.write_text('{"token": "second"}')
    clock.now += AGAIN_SECONDS
    client.find("v1", "Pod")
    assert server.requests[-1].token == "second"
    says.write_text('{"token": "short", "expirationTimestamp": "2020-01-01T00:00:00Z"}')
    server.fails = lambda request: status(401, "Unauthorized") if request.token == "second" else None
    with pytest.raises(Refused):
        client.find("v1", "Pod")
    clock.now += AGAIN_SECONDS
    client.find("v1", "Pod")
    assert server.requests[-1].token == "short"
    says.write_text('{"error": "session has expired"}')
    with pytest.raises(NotLoggedIn, match="session has expired"):
        client.find("v1", "Pod")  # the token that is known to have expired is not used
    client.close()
    assert "session has expired" not in "".join(capfd.readouterr())


def test_missing_login_makes_no_plan_and_is_not_reported_as_an_unreachable_server(
    tmp_path: Path, server: ObjectServer
) -> None:
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    kubeconfig = server.kubeconfig(tmp_path, {"exec": exec_})
    target = KubernetesTarget(name="lab", context="lab", namespace="team", kubeconfig=kubeconfig)
    with pytest.raises(NotLoggedIn, match="no-such-plugin is not installed"):
        read_facts(Job(name="digits", run="train.py"), target, base=tmp_path, environ={})
    with Store(tmp_path / "home") as store, pytest.raises(EngineError, match=r"^context lab cannot be logged in to"):
        ClusterRuns(store, target, Context({}, tmp_path)).list()


# -- whether an object is gone ----------------------------------------------------------------------------------------


def test_run_is_removed_once_its_owner_config_map_is_missing_twice(server: ObjectServer, client: Client) -> None:
    request = markers.requested_stop(client, "r-1")
    assert request is not None
    assert request.reason == stop_request.REMOVED
    assert [one.name for one in server.requests] == ["r-1-stop", "r-1", "r-1"]


@pytest.mark.parametrize(
    "answer",
    [
        HTML_404,
        status(404, "NotFound", "the server could not find the requested resource"),
        status(404, "NotFound", name="other", kind="configmaps"),
        status(404, "NotFound", name="r-1", kind="pods"),
    ],
)
def test_404_of_another_object_does_not_remove_a_run(server: ObjectServer, client: Client, answer: Response) -> None:
    server.put("ConfigMap", "r-1-stop-of-another")
    server.fails = lambda request: answer if request.name == "r-1" else None
    with pytest.raises(Refused):
        markers.requested_stop(client, "r-1")


def test_owner_config_map_found_at_the_second_read_is_present(server: ObjectServer, client: Client) -> None:
    server.owner_config_map("r-1")
    answers = [status(404, "NotFound", name="r-1", kind="configmaps")]
    server.fails = lambda request: answers.pop() if answers and request.name == "r-1" else None
    assert markers.requested_stop(client, "r-1") is None
    assert not answers


# -- stop requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_update", [True, False])
def test_immediate_stop_replaces_a_stop_request_and_never_removes_it_with_the_right_to_update(
    server: ObjectServer, client: Client, may_update: bool
) -> None:
    server.owner_config_map("r-1")
    owner = client.get("v1", "ConfigMap", "r-1")
    markers.put(client, owner, layout.STOP_MARKER)
    server.fails = lambda request: status(403, "Forbidden") if request.verb == "PUT" and not may_update else None
    markers.put(client, owner, layout.STOP_MARKER, now=True)
    assert markers.requested_stop(client, "r-1") == stop_request.StopRequest(now=True, reason=stop_request.ELSEWHERE)
    assert ("DELETE" in [request.verb for request in server.requests]) is not may_update


# -- the Lease --------------------------------------------------------------------------------------------------------


def lease(client: Client, holder: str, clock: FakeClock) -> Lease:
    return Lease(client, "r-1", holder, clock=clock)


@pytest.fixture
def owned(server: ObjectServer) -> ObjectServer:
    server.owner_config_map("r-1")
    return server


def test_the_lease_is_owned_by_the_run_and_names_its_holder(owned: ObjectServer, client: Client) -> None:
    assert lease(client, "a_x_1-b", FakeClock(NOW)).ensure()
    made = owned.objects["leases", "r-1"]
    assert made["spec"]["holderIdentity"] == "a_x_1-b"
    assert made["spec"]["leaseDurationSeconds"] == DURATION_SECONDS
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", "r-1")


def test_another_machine_gets_the_lease_only_once_it_is_not_renewed_any_more(
    owned: ObjectServer, client: Client
) -> None:
    clock = FakeClock(NOW)
    first, second = lease(client, "a_x_1-b", clock), lease(client, "c_y_1-b", clock)
    assert first.ensure()
    assert not second.ensure()
    clock.now += DURATION_SECONDS - 1
    assert not second.ensure()
    clock.now += 1
    assert second.ensure()
    with pytest.raises(HeldElsewhere):
        first.renew()
    assert "process 1 on c" in first.lost_to
    with pytest.raises(HeldElsewhere):
        first.ensure()


def test_a_holder_that_renews_is_left_alone(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    first, second = lease(client, "a_x_1-b", clock), lease(client, "c_y_1-b", clock)
    assert first.ensure()
    assert not second.ensure()
    clock.now += 10
    first.renew()
    with pytest.raises(HeldElsewhere, match="process 1 on a"):
        second.ensure()


def test_a_supervisor_of_the_same_home_takes_the_lease_over_at_once(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    assert lease(client, "a_x_1-b", clock).ensure()
    assert lease(client, "a_x_2-b", clock).ensure()
    assert owned.objects["leases", "r-1"]["spec"]["leaseTransitions"] == 1


def test_only_one_of_two_supervisors_acquires_an_expired_lease(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    assert lease(client, "a_x_1-b", clock).ensure()
    others = [lease(client, f"{host}_y_1-b", clock) for host in "cd"]
    assert not any(other.ensure() for other in others)
    clock.now += DURATION_SECONDS

    def is_quicker(request: Request) -> None:
        if request.verb == "PUT":  # another update happens between the GET and the PUT of this one
            owned.put("Lease", "r-1", spec=owned.objects["leases", "r-1"]["spec"])

    owned.fails = is_quicker
    assert not others[0].ensure()
    owned.fails = lambda _: None
    assert others[1].ensure()
    with pytest.raises(HeldElsewhere):
        others[0].ensure()


def test_unreachable_api_server_does_not_end_a_held_lease(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    held = lease(client, "a_x_1-b", clock)
    assert held.ensure()
    clock.now += 10 * DURATION_SECONDS
    owned.fails = refusing(status(503, "ServiceUnavailable"), "GET", "PUT")
    with pytest.raises(Refused):
        held.renew()
    assert not held.lost_to
    with pytest.raises(Refused):
        held.ensure()  # no attempt starts before it is known that no other supervisor holds the Lease
    owned.fails = lambda _: None
    assert held.ensure()


FORBIDDEN = refusing(status(403, "Forbidden"), "GET", "POST", "PUT", plural="leases")


def test_fencing_starts_once_the_permission_is_granted(owned: ObjectServer, client: Client) -> None:
    owned.fails = FORBIDDEN
    clock = FakeClock(NOW)
    held = lease(client, "a_x_1-b", clock)
    assert not held.ensure(), "one refusal may be a moment's: authorizers refuse while they are restarted"
    clock.now += ABSENT_SECONDS
    assert held.ensure()
    assert ("leases", "r-1") not in owned.objects
    owned.fails = lambda _: None
    clock.now += RENEW_SECONDS
    assert held.ensure()
    assert owned.objects["leases", "r-1"]["spec"]["holderIdentity"] == "a_x_1-b"


def test_temporary_refusal_never_disables_fencing(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    first, second = lease(client, "a_x_1-b", clock), lease(client, "c_y_1-b", clock)
    owned.fails = FORBIDDEN
    assert not first.ensure()
    owned.fails = lambda _: None
    assert first.ensure()
    clock.now += DURATION_SECONDS
    owned.fails = FORBIDDEN
    for _ in range(2):
        with pytest.raises(Refused):
            first.ensure()
        clock.now += ABSENT_SECONDS
    owned.fails = lambda _: None
    assert first.ensure()
    assert owned.objects["leases", "r-1"]["spec"]["holderIdentity"] == "a_x_1-b"
    assert not second.ensure()


def test_released_lease_can_be_acquired(owned: ObjectServer, client: Client) -> None:
    clock = FakeClock(NOW)
    first = lease(client, "a_x_1-b", clock)
    assert first.ensure()
    first.release()
    assert lease(client, "c_y_1-b", clock).ensure()


def test_a_command_sees_a_holder_of_another_home(owned: ObjectServer, client: Client, tmp_path: Path) -> None:
    mine, other = holder_of(tmp_path), holder_of(tmp_path / "other")
    assert is_same_place(mine, holder_of(tmp_path))
    assert not is_same_place(mine, other)
    clock = FakeClock(NOW)
    assert lease(client, other, clock).ensure()
    now = clock.now
    assert str(os.getpid()) in held_elsewhere(client, "r-1", tmp_path, now)
    assert held_elsewhere(client, "r-1", tmp_path / "other", now) == ""
    assert held_elsewhere(client, "r-1", tmp_path, now + 3600) == ""


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[RunScene]:
    scene = RunScene(server, tmp_path)
    yield scene
    scene.store.close()


def test_a_run_that_ended_as_lost_is_stopped_where_its_pods_run(scene: RunScene) -> None:
    scene.end()
    scene.server.owner_config_map("r-1")
    scene.server.job("r-1", "Running")
    scene.pod("r-1-1-0")
    scene.pod("r-1-1-1", "Failed")
    condition = scene.engine.status("r-1").supervision.condition
    assert condition is not None
    assert condition.type == "PodsStillRunning"
    assert "r-1-1-0" in condition.message
    assert scene.engine.still_running("r-1") == ["r-1-1-0"]
    scene.engine.stop("r-1")
    assert (scene.server.names("Job"), scene.server.names("Pod")) == ([], ["r-1-1-1"])
    assert scene.server.names("ConfigMap") == ["r-1", "r-1-stop"]
    assert scene.engine.status("r-1").supervision.condition is None


def test_a_stop_after_the_end_needs_the_cluster_only_where_the_record_may_be_wrong(scene: RunScene) -> None:
    scene.end(Phase.FAILED)
    scene.server.fails = lambda _: status(503, "ServiceUnavailable")
    scene.engine.stop("r-1")
    writer = scene.store.writer("r-1")
    assert writer is not None
    writer.append(entry_of("resume", {"reason": "asked"}))
    writer.append(entry_of("end", {"phase": "lost"}))
    writer.close()
    with pytest.raises(Refused):
        scene.engine.stop("r-1")


def test_rm_deletes_pods_whose_owner_object_is_missing(scene: RunScene) -> None:
    scene.end()
    scene.pod("r-1-1-0")
    scene.engine.delete("r-1")
    assert scene.server.names("Pod") == []


def test_rm_of_a_service_whose_supervisor_is_gone_removes_its_load_balancer(scene: RunScene) -> None:
    scene.end()
    scene.server.put("Job", "r-1-public", api="batch/v1")
    scene.engine.delete("r-1")
    assert scene.server.names("Job") == []


def test_failed_cleanup_is_reported_and_finished_by_the_next_command(
    scene: RunScene,
) -> None:
    writer = scene.create()
    backend = KubernetesBackend(scene.plan, scene.dir)
    record = Recorder(writer)
    backend.prepare_end(record)
    writer.append(entry_of("end", {"phase": "stopped"}))
    scene.server.owner_config_map("r-1")
    scene.server.job("r-1", "Running")
    scene.server.fails = lambda _: status(503, "ServiceUnavailable", "the server is shutting down")
    backend.clean_up(record, is_patient=False)
    backend.close()
    writer.close()
    [warning] = [event.data["message"] for event in scene.store.events("r-1") if event.kind == "warning"]
    assert "the server is shutting down" in warning
    assert "kubectl --context lab -n team delete jobs" in warning
    assert (scene.dir / UNFINISHED).exists()
    os.utime(scene.dir / UNFINISHED, (1, 1))
    scene.server.fails = lambda _: None
    assert scene.engine.status("r-1").phase is Phase.STOPPED
    assert not (scene.dir / UNFINISHED).exists()
    assert scene.server.names("Job") == []
    assert "r-1-end" in scene.server.names("ConfigMap")


@pytest.mark.parametrize(
    ("exit_codes", "phase", "how"),
    [([], "failed", "badly"), ([0], "succeeded", "well"), ([0], "failed", "badly"), ([1], "failed", "badly")],
    ids=["no-attempt", "succeeded", "upload", "failed"],
)
def test_the_end_is_marked_for_other_machines_as_it_is_recorded(
    scene: RunScene, exit_codes: list[int], phase: str, how: str
) -> None:
    scene.server.owner_config_map("r-1")
    writer = scene.create()
    for code in exit_codes:
        writer.append(
            entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"})
        )
        writer.append(entry_of("rank", {"rank": 0, "exit_code": code}))
    writer.append(entry_of("end", {"phase": phase}))
    backend = KubernetesBackend(scene.plan, scene.dir)
    backend.clean_up(Recorder(writer))
    backend.close()
    writer.close()
    assert scene.server.objects["configmaps", "r-1-end"]["metadata"]["labels"][layout.HOW_LABEL] == how


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED])  # idle limit, crash, stop
def test_load_balancer_of_a_service_ends_with_it(scene: RunScene, phase: Phase) -> None:
    scene.server.owner_config_map("r-1")
    scene.server.put("Job", "r-1-public", api="batch/v1")
    writer = scene.create(labels={SERVICE_LABEL: "notebook"})
    writer.append(entry_of("end", {"phase": phase.value}))
    backend = KubernetesBackend(scene.plan, scene.dir)
    backend.clean_up(Recorder(writer))
    backend.close()
    writer.close()
    assert scene.server.names("Job") == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(status(401, "Unauthorized"), "LoginFailed"), (status(503, "ServiceUnavailable"), "ClusterUnreachable")],
)
def test_temporarily_impossible_start_is_not_refused(scene: RunScene, answer: Response, kind: str) -> None:
    writer = scene.create()
    backend = KubernetesBackend(scene.plan, scene.dir)
    scene.server.fails = refusing(answer, "POST")
    with pytest.raises(TargetUnavailable) as error:
        backend.start(Recorder(writer), scene.dir / "attempt-1", 1, [0], Clock())
    assert error.value.kind == kind
    assert not backend.is_started(scene.dir / "attempt-1")
    backend.close()
    writer.close()


def test_objects_of_an_attempt_that_never_started_are_deleted(scene: RunScene) -> None:
    writer = scene.create()
    backend = KubernetesBackend(scene.plan, scene.dir)
    writer.append(
        entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"})
    )
    scene.server.fails = refusing(status(503, "ServiceUnavailable"), "POST", plural="jobs")
    with pytest.raises(TargetUnavailable):
        backend.start(Recorder(writer), scene.dir / "attempt-1", 1, [0], Clock())
    scene.server.fails = lambda _: None
    scene.server.job("r-1", "Running")  # created, but the response was lost
    writer.append(entry_of("end", {"phase": "stopped"}))
    backend.clean_up(Recorder(writer))
    backend.close()
    writer.close()
    assert scene.server.names("Job") == []


@pytest.mark.parametrize(("phase", "deleted"), [("Running", 1), ("Succeeded", 0)])
def test_a_pod_that_has_ended_is_not_deleted_to_end_it(scene: RunScene, phase: str, deleted: int) -> None:
    """The log may not have been read: the pod ended while no supervisor watched."""
    scene.pod("r-1-1-0", phase)
    scene.server.job("r-1", "Running")
    scene.server.owner_config_map("r-1")
    backend = KubernetesBackend(scene.plan, scene.dir)
    attempt = backend.adopt(scene.dir / "attempt-1", 1, [0], Clock())
    until(lambda: attempt.pods.pod(0) is not None)
    attempt.send(Intent.STOP)
    until(lambda: attempt.signals.is_idle)
    assert [one[:2] for one in scene.server.requests].count(("DELETE", "pods")) == deleted
    attempt.close()
    backend.close()


def test_a_start_that_is_forbidden_is_refused(scene: RunScene) -> None:
    writer = scene.create()
    backend = KubernetesBackend(scene.plan, scene.dir)
    scene.server.fails = refusing(status(403, "Forbidden"), "POST")
    with pytest.raises(Refused):
        backend.start(Recorder(writer), scene.dir / "attempt-1", 1, [0], Clock())
    backend.close()
    writer.close()


def test_failed_submission_lists_objects_that_it_could_not_remove(scene: RunScene) -> None:
    def fails(request: Request) -> Response | None:
        if request.verb == "DELETE" or (request.verb == "POST" and request.plural == "services"):
            return status(403, "Forbidden", "not for you")
        return None

    scene.server.fails = fails
    with pytest.raises(EngineError) as error:
        scene.engine.submit(scene.plan)
    assert "objects of r-1 may be left" in error.value.hint
    assert f"kubectl --context lab -n team delete jobs,pods,services,configmaps,leases -l {layout.RUN_LABEL}=r-1" in (
        error.value.hint
    )
    assert scene.store.count() == 0


def test_failed_submission_leaves_no_objects(scene: RunScene) -> None:
    scene.server.fails = refusing(status(422, "Invalid"), "POST", plural="services")
    with pytest.raises(Refused) as error:
        scene.engine.submit(scene.plan)
    assert "may be left" not in error.value.hint
    left = scene.server.objects.values()
    assert [one["kind"] for one in left if "ownerReferences" not in one["metadata"]] == [], "the cluster deletes others"


@pytest.mark.parametrize("fields", [{}, {"data": [DIGITS], "kubernetes": {"data": {"claim": "sets"}}}])
def test_a_resume_before_the_first_attempt_forgets_the_end(
    server: ObjectServer, tmp_path: Path, fields: dict[str, Any]
) -> None:
    """The run was stopped while its data was staged; the old stop request would stop it again."""
    scene = RunScene(server, tmp_path, **fields)
    server.owner_config_map("r-1")
    for mark in (layout.STOP_MARKER, layout.END_MARKER):
        server.marker("r-1", mark)
    writer = scene.create()
    writer.append(entry_of("end", {"phase": "stopped"}))
    backend = KubernetesBackend(scene.plan, scene.dir)
    backend.create_first(Recorder(writer), backend.owner_config_map())
    assert not {"r-1-stop", "r-1-end"} & set(server.names("ConfigMap"))
    assert server.names("Job") == ([] if fields else ["r-1-1"])
    backend.close()
    writer.close()
    scene.close()


def test_run_held_by_another_supervisor_is_not_adopted(scene: RunScene) -> None:
    scene.create().close()
    scene.server.owner_config_map("r-1")
    client = Client("lab", "team", str(scene.plan.only(ClusterStep).kubeconfig))
    assert Lease(client, "r-1", "laptop_0123_77-abc").ensure()
    client.close()
    found = scene.engine.status("r-1")
    assert found.supervision.condition is not None
    assert found.supervision.condition.message == "supervised by process 77 on laptop"
    assert [event.kind for event in scene.store.events("r-1")] == ["created"]


def test_missing_login_hides_no_record(scene: RunScene) -> None:
    scene.create().close()
    Path(scene.plan.only(ClusterStep).kubeconfig).unlink()
    found = scene.engine.status("r-1")
    assert found.supervision.condition is not None
    assert found.supervision.condition.type == "LoginFailed"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "r-1 is supervised by a machine, and with this change it would be in the cluster"),
        ({"namespace": "other"}, "r-1 is in namespace team of context lab, but target lab names namespace other"),
        ({"context": "new"}, "target lab names namespace team of context new"),
    ],
)
def test_resume_in_another_namespace_or_under_another_supervisor_creates_nothing(
    scene: RunScene, changed: dict[str, str], message: str
) -> None:
    """The target was set up for supervisors, or changed, since the run was submitted."""
    scene.end(Phase.FAILED)
    scene.server.owner_config_map("r-1")
    target = KubernetesTarget(**{"name": "lab", "context": "lab", "namespace": "team", "image": "image", **changed})
    groups = frozenset(way.api for way in WORKLOADS.values())
    cluster = Cluster("v1.34.0", groups, rights=Rights(has_account=True))
    place = scene.plan.only(ClusterStep)
    facts = Facts(CodeFacts(str(scene.dir), True, True, None), cluster, place.kubeconfig)
    made = plan(Job(name="case", command=("true",)), target, facts, "r-1", boot_program())
    with pytest.raises(UsageError, match=message):
        scene.engine.resume("r-1", made)
    assert not [request for request in scene.server.requests if request.verb == "POST"]
    assert scene.store.status("r-1").phase is Phase.FAILED


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["job", "jobset", "trainjob", "pytorchjob", "mpijob"])
def test_pods_of_each_kind_have_a_deadline_after_the_time_limit(server: ObjectServer, tmp_path: Path, via: str) -> None:
    fields: dict[str, Any] = {"launcher": "mpi"} if via == "mpijob" else {}
    scene = RunScene(server, tmp_path, timeout="1h", grace="30s", nodes=2, kubernetes={"via": via}, **fields)
    objects = numbered(scene.plan, 2, 2)
    assert deadlines(objects) == {deadline_seconds(3600, 30)}
    assert pod_spec(objects)["activeDeadlineSeconds"] > 3600 + 30
    bounded(objects, deadline_seconds(600, 30))
    assert deadlines(objects) == {deadline_seconds(600, 30)}
    scene.store.close()


def deadlines(objects: Any) -> set[int]:
    text = json.dumps(objects)
    return {int(one.split(",")[0].split("}")[0]) for one in text.split('"activeDeadlineSeconds": ')[1:]}


def test_pods_of_an_attempt_get_the_remaining_time_limit(server: ObjectServer, tmp_path: Path) -> None:
    scene = RunScene(server, tmp_path, timeout="1h", grace="30s")
    writer = scene.create(at=time.time() - 3000)
    backend = KubernetesBackend(scene.plan, scene.dir)
    backend.create_first(Recorder(writer), backend.create_shared())
    backend.close()
    writer.close()
    scene.store.close()
    found = server.objects["jobs", "r-1-1"]["spec"]["template"]["spec"]["activeDeadlineSeconds"]
    assert deadline_seconds(540, 30) < found <= deadline_seconds(600, 30)


@pytest.mark.parametrize(
    ("via", "maker", "owner"),
    [("job", "jobs", ("configmaps", "r-1", None)), ("trainjob", "trainjobs", ("trainingruntimes", "r-1-1", True))],
)
def test_trainjob_is_deleted_before_its_runtime(
    server: ObjectServer, tmp_path: Path, via: str, maker: str, owner: tuple[str, str, bool | None]
) -> None:
    server.served |= {"trainjobs", "trainingruntimes"}
    scene = RunScene(server, tmp_path, nodes=2, kubernetes={"via": via})
    writer = scene.create()
    backend = KubernetesBackend(scene.plan, scene.dir)
    backend.create_first(Recorder(writer), backend.create_shared())
    backend.close()
    writer.close()
    scene.store.close()
    [found] = server.objects[maker, "r-1-1"]["metadata"]["ownerReferences"]
    kind, name, is_waited_for = owner
    assert (found["uid"], found.get("blockOwnerDeletion")) == (
        server.objects[kind, name]["metadata"]["uid"],
        is_waited_for,
    )


def test_failing_cluster_does_not_show_that_all_pods_have_ended(scene: RunScene) -> None:
    backend = KubernetesBackend(scene.plan, scene.dir)
    assert not backend.lives()
    scene.pod("r-1-1-0")
    assert backend.lives()
    scene.server.objects.clear()
    scene.server.fails = lambda _: HTML_404
    assert backend.lives()
    with pytest.raises((Refused, Unreachable)):
        shutdown.live_pods(backend.client, "r-1")
    backend.close()
