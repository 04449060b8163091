"""Deployments of models in a fake namespace: creation, repetition, first causes, removal, lists and calls."""

from __future__ import annotations

import base64
import json
import math
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, sent
from tests.helpers.clock import FakeClock

from windlass.engines.deployments import Deployment, DeploymentPhase, DeploymentRequest
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.deployment_manifests import DIGEST_ANNOTATION, OBJECTS_ANNOTATION
from windlass.engines.kubernetes.objects.layout import DEPLOYMENT_LABEL
from windlass.engines.kubernetes.running import deployments
from windlass.engines.kubernetes.running.deployments import KubernetesDeployments
from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError, MissingExtra, UsageError
from windlass.plan.exposure import Exposure
from windlass.services.certificates import new_credentials
from windlass.serving.metrics import Metrics
from windlass.spec.targets import KubernetesTarget

Json = dict[str, Any]
HOUR = 3600.0
NAME = "digits"
FILES = {"tls.crt": b"certificate", "tls.key": b"key", "token": b"t0ken"}
READY: Json = {"conditions": [{"type": "Ready", "status": "True"}], "startTime": "2026-11-29T12:00:00Z"}
UNPLACED = "0/2 nodes are available: 2 Insufficient cpu."
UNPLACED_STATUS: Json = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNPLACED}]
}


def failing(container: str, **state: Any) -> Json:
    """Returns the status of a pod with a container in this state."""
    part = "initContainerStatuses" if container in ("fetch", "model") else "containerStatuses"
    return {part: [{"name": container, "state": state}]}


def crashed(message: str, container: str = "node", code: int = 1, reason: str = "Error") -> Json:
    return failing(container, terminated={"exitCode": code, "reason": reason, "message": message})


class Place:
    """Namespace whose controllers make the pods of each Deployment, in the listed states, and collect garbage."""

    def __init__(self, server: ObjectServer, folder: Path) -> None:
        self.server, self.clock = server, FakeClock()
        self.states: list[Json] = [READY]
        """Status of the pods, one per read; the last one stays."""
        self.kept: set[str] = set()
        """Kinds of objects, by plural, that the garbage collector does not remove."""
        self.groups: list[str] = []
        self.said: list[str] = []
        self.workload_status: Json = {}
        self.suspends_jobs = False
        self.busy: list[tuple[str, str, int]] = []
        """Requests that are refused once: verb, plural and status."""
        server.fails = self._before
        model = folder / "model"
        (model / "code").mkdir(parents=True)
        (model / "weights.bin").write_bytes(b"weights")
        (model / "code" / "predict.py").write_text("def load(folder): ...")
        config = server.kubeconfig(folder)
        self.target = KubernetesTarget(
            name="lab", context="lab", namespace="team", kubeconfig=config, image="trainer:1"
        )
        self.deployments = KubernetesDeployments(self.target, {}, self.clock, self._dial, lambda: b"server")
        self.served: int | None = None
        """Port on loopback of the server in all pods; None if they do not answer."""
        self.asked = DeploymentRequest(NAME, model, self.clock.now + HOUR, "ana", run_id="digits-1a2b")

    def deploy(self, credentials: Mapping[str, bytes] = FILES, **changed: Any) -> Deployment:
        plan = self.deployments.plan(replace(self.asked, **changed))
        return self.deployments.deploy(plan, self.said.append, credentials)

    def _dial(self, client: Client, pod: str, port: int) -> PortSocket:
        assert (pod, port) in (("digits-0", 8443), ("digits-1", 8443))
        if self.served is None:
            raise EngineError(f"pod {pod} does not answer")
        stream = PortSocket()
        stream.connect(("127.0.0.1", self.served))
        return stream

    def object(self, plural: str, name: str = NAME) -> Json:
        return self.server.objects[plural, name]

    def names(self) -> list[str]:
        """Returns all objects of the namespace except pods."""
        return sorted(f"{plural} {name}" for plural, name in self.server.objects if plural != "pods")

    def _before(self, request: Request) -> Response | None:
        if request.plural == "/apis":
            groups = [{"versions": [{"groupVersion": one}]} for one in self.groups]
            return sent({"groups": groups})
        for one in self.busy:
            if (request.verb, request.plural) == one[:2]:
                self.busy.remove(one)
                return sent({"message": "the server is busy"}, one[2])
        if self.suspends_jobs and (request.verb, request.plural) == ("POST", "jobs"):
            return sent({**request.body, "spec": {**request.body["spec"], "suspend": True}}, 201)
        if request.verb == "DELETE" and (job := self.server.objects.get((request.plural, request.name))) is not None:
            self._collect(job["metadata"]["uid"])
        if (request.verb, request.plural) == ("GET", "pods"):
            self._run()
        return None

    def _collect(self, owner: str) -> None:
        for (plural, name), one in list(self.server.objects.items()):
            owners = [reference["uid"] for reference in one["metadata"].get("ownerReferences", ())]
            if plural not in self.kept and (owner in owners or plural == "pods"):
                del self.server.objects[plural, name]

    def _run(self) -> None:
        for (plural, name), one in list(self.server.objects.items()):
            if plural != "deployments" or not one["metadata"].get("ownerReferences"):
                continue
            template, now = one["spec"]["template"], self.states.pop(0) if len(self.states) > 1 else self.states[0]
            one["status"] = self.workload_status
            for at in range(one["spec"]["replicas"]):
                meta = {"annotations": template["metadata"]["annotations"]}
                labels = template["metadata"]["labels"]
                self.server.put("Pod", f"{name}-{at}", labels, metadata=meta, spec=template["spec"], status=now)


@pytest.fixture
def place(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(deployments, "LOOK_SECONDS", 20.0)  # requests are real
    return Place(server, tmp_path)


def test_place_is_the_server_and_the_namespace_whatever_the_context_is_called(place: Place) -> None:
    assert place.deployments.place() == f"http://127.0.0.1:{place.server._port}, namespace team"


# -- creation ---------------------------------------------------------------------------------------------------------


def test_a_deployment_is_ready_and_one_job_owns_all_its_objects(place: Place) -> None:
    found = place.deploy(replicas=2, max_replicas=4)
    assert (found.phase, found.replicas, found.ready_replicas) == (DeploymentPhase.READY, 2, 2)
    assert (found.owner, found.run_id, found.target) == ("ana", "digits-1a2b", "lab")
    assert place.names() == [
        "configmaps digits-model-0", "configmaps digits-server", "deployments digits",
        "horizontalpodautoscalers digits", "jobs digits", "secrets digits", "services digits",
    ]  # fmt: skip
    job = place.object("jobs")
    for (plural, name), one in place.server.objects.items():
        if plural not in ("jobs", "pods"):
            [reference] = one["metadata"]["ownerReferences"]
            assert (reference["uid"], reference["blockOwnerDeletion"]) == (job["metadata"]["uid"], True), name
    assert {name: base64.b64decode(text) for name, text in place.object("secrets")["data"].items()} == FILES
    assert place.said[-1] == "2 of 2 replicas are ready"
    assert "Deployment digits" in found.objects


def test_the_owner_runs_no_pod_and_its_deadline_is_the_end(place: Place) -> None:
    place.deploy()
    spec = place.object("jobs")["spec"]
    assert (spec["parallelism"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 3600, 0)


def test_without_an_end_the_owner_has_no_deadline_and_the_plan_says_so(place: Place) -> None:
    plan = place.deployments.plan(replace(place.asked, ends_at=None))
    assert "activeDeadlineSeconds" not in plan.objects[0]["spec"]  # type: ignore[operator]
    assert plan.notes == ("nothing ends the deployment: windlass undeploy digits --on lab",)


def test_time_that_passes_between_plan_and_deploy_is_not_added(place: Place) -> None:
    plan = place.deployments.plan(place.asked)
    place.clock.now += 600
    place.deployments.deploy(plan, place.said.append, FILES)
    assert place.object("jobs")["spec"]["activeDeadlineSeconds"] == 3000


def test_a_plan_creates_nothing_and_has_no_secret(place: Place) -> None:
    plan = place.deployments.plan(place.asked)
    assert place.server.objects == {}
    assert all("data" not in one and "binaryData" not in one for one in plan.objects)
    assert len(plan.steps) == 5


def test_a_package_that_the_server_needs_is_missed_by_the_plan(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(MissingExtra, match="the model server needs h11"):
        place.deploy()
    assert place.names() == []


@pytest.mark.parametrize("num_left", range(6))
def test_a_killed_deploy_is_continued_by_the_same_command(place: Place, num_left: int) -> None:
    place.deploy()
    order = ["jobs digits", "secrets digits", "configmaps digits-server", "configmaps digits-model-0",
             "services digits", "deployments digits"]  # fmt: skip
    assert sorted(order) == place.names()
    before = {plural: one["metadata"]["uid"] for (plural, _), one in place.server.objects.items()}
    for gone in order[num_left:]:
        plural, _, name = gone.partition(" ")
        del place.server.objects[plural, name]
    place.clock.now += 60
    again = place.deploy(ends_at=place.clock.now + HOUR, python="/other/env/bin/python")
    assert again.phase is DeploymentPhase.READY
    assert sorted(order) == place.names()
    if num_left:
        job = place.object("jobs")
        assert (job["metadata"]["uid"], job["spec"]["activeDeadlineSeconds"]) == (before["jobs"], 3600)
    if num_left > 1:
        assert place.object("secrets")["metadata"]["uid"] == before["secrets"]


def test_another_request_of_the_same_name_is_refused(place: Place) -> None:
    place.deploy()
    with pytest.raises(UsageError, match="another model or other options"):
        place.deploy(cpus=4.0)
    (place.asked.model / "weights.bin").write_bytes(b"other weights")
    with pytest.raises(UsageError, match="another model or other options"):
        place.deploy()
    assert len(place.names()) == 6


def test_files_that_change_after_the_plan_are_not_deployed(place: Place) -> None:
    plan = place.deployments.plan(place.asked)
    (place.asked.model / "weights.bin").write_bytes(b"other weights")
    with pytest.raises(EngineError, match="have changed since the plan"):
        place.deployments.deploy(plan, place.said.append, FILES)
    assert place.server.objects == {}


def test_objects_of_others_are_kept_and_nothing_else_is_left(place: Place) -> None:
    place.server.put("Service", NAME)
    with pytest.raises(EngineError, match="a Service digits, which belongs to no deployment"):
        place.deploy()
    assert place.names() == ["services digits"]


def test_a_quota_that_the_deployment_itself_uses_up_does_not_refuse_the_repeated_command(place: Place) -> None:
    place.deploy()
    full = sent({"message": "exceeded quota: q", "reason": "Forbidden"}, 403)
    place.server.fails = lambda request: full if request.verb == "POST" else place._before(request)
    assert place.deploy().phase is DeploymentPhase.READY


def test_objects_of_an_earlier_deployment_are_waited_for(place: Place) -> None:
    earlier = {"labels": {DEPLOYMENT_LABEL: NAME}, "ownerReferences": [{"uid": "gone"}]}
    place.server.put("Secret", NAME, metadata=earlier)
    place.clock.at(5, lambda: place.server.remove("Secret", NAME))
    assert place.deploy().phase is DeploymentPhase.READY
    assert "waiting until the earlier Secret digits is removed" in place.said


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (failing("node", waiting={"reason": "ErrImagePull", "message": "manifest unknown"}), "no image trainer:1"),
        (crashed("Traceback\n  File x\nModuleNotFoundError: No module named 'torch'\n"), "No module named 'torch'"),
        (crashed("", code=137, reason="OOMKilled"), "exceeded its memory limit"),
        (crashed("the server needs Python 3.10, and the image has 3.8", "model"), "container model .* image has 3.8"),
        (crashed(json.dumps({"error": "bucket b: 403", "hint": "see the role"}), "fetch"), "bucket b: 403\n.*the role"),
        (UNPLACED_STATUS, "Insufficient cpu"),
        ({}, "not ready after 900 s"),
    ],
    ids=["image", "crash", "memory", "old-python", "fetch", "no-node", "never-ready"],
)
def test_a_failed_deployment_reports_the_first_cause_and_leaves_nothing(place: Place, pod: Json, cause: str) -> None:
    place.states = [{}, pod]
    with pytest.raises(EngineError, match=cause) as caught:
        place.deploy()
    assert caught.value.message.startswith("digits failed, and was removed: ")
    assert place.server.objects == {}


def test_the_first_cause_is_reported_even_if_the_removal_fails(place: Place) -> None:
    place.states, place.kept = [crashed("ValueError: no weights")], {"services"}
    with pytest.raises(EngineError, match=r"ValueError: no weights.* not removed completely: Service digits"):
        place.deploy()


def test_the_error_of_a_crash_has_the_last_log_lines(place: Place) -> None:
    place.states = [crashed("\n".join(f"line {number}" for number in range(30)))]
    with pytest.raises(EngineError) as caught:
        place.deploy()
    assert "line 20" in caught.value.message
    assert "line 19" not in caught.value.message


def test_pods_that_a_quota_refuses_fail_the_deployment(place: Place) -> None:
    message = 'pods "digits-x" is forbidden: exceeded quota: q, requested: cpu=1, used: cpu=4, limited: cpu=4'
    place.states, place.workload_status = (
        [{}],
        {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]},
    )
    with pytest.raises(EngineError, match="quota q of the namespace is used up"):
        place.deploy()


def test_pods_wait_for_a_node_that_is_provisioned(place: Place) -> None:
    place.states = [UNPLACED_STATUS] * 10 + [READY]
    place.server.event("digits-0", "Nominated", "Pod should schedule on: nodeclaim/gpu-x")
    assert place.deploy().phase is DeploymentPhase.READY
    assert place.clock.now - place.clock.began >= 180


def test_a_cluster_that_does_not_answer_keeps_a_deployment(place: Place) -> None:
    place.states = [{}]
    place.clock.at(3, place.server.stop)
    with pytest.raises(EngineError, match="does not answer"):
        place.deploy()
    assert len(place.names()) == 6
    assert any("asked again" in line for line in place.said)


def test_a_repeated_command_does_not_remove_a_deployment_that_answers(place: Place) -> None:
    place.deploy(replicas=2)
    broken = crashed("Killed", code=137, reason="OOMKilled")
    place.server.fails = lambda request: sent({"groups": []}) if request.plural == "/apis" else None
    place.server.objects["pods", "digits-1"]["status"] = broken
    found = place.deploy(replicas=2)
    assert (found.phase, found.ready_replicas) == (DeploymentPhase.READY, 1)
    assert "exceeded its memory limit" in found.cause


def test_a_repeated_command_does_not_remove_a_deployment_whose_container_is_restarted(place: Place) -> None:
    place.deploy()
    before = place.names()
    place.states = [crashed("Killed", code=137, reason="OOMKilled")]
    with pytest.raises(EngineError, match=r"digits is kept, since an earlier command made it: .*its memory limit"):
        place.deploy()
    assert place.names() == before


@pytest.mark.parametrize("status", [401, 429, 500, 503, 504])
def test_a_server_that_is_busy_for_one_request_does_not_end_the_wait(place: Place, status: int) -> None:
    place.states, place.busy = [{}, {}, READY], [("GET", "pods", status)]
    assert place.deploy().phase is DeploymentPhase.READY
    assert any("asked again" in line for line in place.said)


def test_a_server_that_is_busy_when_an_object_is_made_keeps_the_deployment(place: Place) -> None:
    plan = place.deployments.plan(place.asked)
    place.busy = [("POST", "services", 500)]
    with pytest.raises(EngineError, match="busy"):
        place.deployments.deploy(plan, place.said.append, FILES)
    assert "jobs digits" in place.names()
    assert place.said[-1] == "digits is kept as far as it is made: repeat the command, or: windlass undeploy digits"
    assert place.deploy().phase is DeploymentPhase.READY


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "Digits"}, "no name"),
        ({"instance": "ml.m5.large"}, "options of SageMaker"),
        ({"replicas": 3, "max_replicas": 2}, "3 to 2 replicas"),
        ({"cpus": 0.0}, "--cpus 0 is not possible"),
        ({"cpus": 0.0001}, "--cpus 0.0001 is not possible"),
        ({"cpus": math.nan}, "--cpus nan is not possible"),
        ({"cpus": math.inf}, "--cpus inf is not possible"),
        ({"server_options": ("--batch", "8", "--idle-limit", "600")}, "the cluster would restart the server"),
        ({"uses_kserve": True}, "the cluster has no KServe"),
        ({"uses_kserve": True, "exposure": Exposure(("203.0.113.7/32",))}, "not supported with --kserve"),
        ({"source": "/data/model"}, "not reached from the pods"),
        ({"source": "claim:results/../other"}, "names no path"),
        ({"source": "claim:results/digits"}, "PersistentVolumeClaim results is not in the namespace"),
    ],
)
def test_what_no_cluster_could_do_is_refused_by_the_plan(place: Place, changed: Json, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        place.deployments.plan(replace(place.asked, **changed))
    assert place.server.objects == {}


def test_a_job_that_kueue_suspends_would_not_end_the_deployment(place: Place) -> None:
    place.suspends_jobs = True
    with pytest.raises(UsageError, match="the deadline of a suspended Job does not count"):
        place.deployments.plan(place.asked)
    assert place.deployments.plan(replace(place.asked, ends_at=None)).steps


# -- removal ----------------------------------------------------------------------------------------------------------


def test_undeploy_names_what_it_removed(place: Place) -> None:
    place.deploy()
    removed = place.deployments.undeploy(NAME, place.said.append)
    assert removed == ("Job digits", "Secret digits", "ConfigMap digits-server", "ConfigMap digits-model-0",
                       "Service digits", "Deployment digits")  # fmt: skip
    assert place.server.objects == {}


def test_undeploy_waits_until_all_is_gone(place: Place) -> None:
    place.deploy()
    place.kept = {"services"}
    place.clock.at(90, lambda: place.server.remove("Service", NAME))
    place.deployments.undeploy(NAME, place.said.append)
    assert place.said[-1] == "waiting until Service digits is gone"
    assert place.clock.now - place.clock.began >= 90


def test_undeploy_names_what_the_cluster_does_not_remove(place: Place) -> None:
    place.deploy()
    place.kept = {"services"}
    with pytest.raises(EngineError, match="not removed completely: Service digits"):
        place.deployments.undeploy(NAME, place.said.append)


def test_undeploy_waits_for_a_load_balancer_whose_owner_is_gone(place: Place) -> None:
    place.deploy()
    place.kept = {"services"}
    place._collect(place.object("jobs")["metadata"]["uid"])
    place.server.remove("Job", NAME)
    with pytest.raises(EngineError, match="not removed completely: Service digits"):
        place.deployments.undeploy(NAME, place.said.append)
    place.clock.at(place.clock.now - place.clock.began + 90, lambda: place.server.remove("Service", NAME))
    assert place.deployments.undeploy(NAME, place.said.append) == ("Service digits",)


def test_an_unknown_deployment_is_an_error_of_the_user(place: Place) -> None:
    place.server.put("Namespace", "team")
    with pytest.raises(UsageError, match="no deployment digits on lab"):
        place.deployments.undeploy(NAME, place.said.append)
    with pytest.raises(UsageError, match="no deployment digits on lab"):
        place.deployments.invoke(NAME, b"", "", "", 1.0)


# -- lists ------------------------------------------------------------------------------------------------------------


def test_a_list_has_phases_first_causes_and_end_times(place: Place) -> None:
    place.deploy()
    place.object("jobs")["status"] = {"startTime": "2026-11-29T12:00:00Z"}
    [found] = place.deployments.list()
    assert (found.phase, found.cause, found.ends_by) == (DeploymentPhase.READY, "", "cluster")
    assert found.ends_at == 1795957200.0  # 13:00 UTC
    place.states = [crashed("ValueError: no weights")]
    [found] = place.deployments.list()
    assert (found.phase, found.ready_replicas) == (DeploymentPhase.FAILED, 0)
    assert found.cause == "the server ended with exit code 1: ValueError: no weights"


def test_a_list_has_unfinished_ending_and_left_deployments(place: Place) -> None:
    for name in ("unfinished", "ending", "over"):
        place.server.put("Job", name, {DEPLOYMENT_LABEL: name}, api="batch/v1", spec={})
    place.object("jobs", "ending")["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    place.object("jobs", "over")["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    place.server.put("Deployment", "left", {DEPLOYMENT_LABEL: "left"}, api="apps/v1", spec={"replicas": 1})
    found = {one.name: (one.phase, one.cause) for one in place.deployments.list()}
    assert found == {
        "ending": (DeploymentPhase.DELETING, ""),
        "left": (DeploymentPhase.DELETING, "its owner is gone, and the cluster has not removed the rest yet"),
        "over": (DeploymentPhase.DELETING, ""),
        "unfinished": (
            DeploymentPhase.CREATING,
            "not complete: repeat windlass deploy, or remove it with windlass undeploy",
        ),
    }


def test_pods_show_the_phase_of_a_deployment_whose_workload_may_not_be_read(place: Place) -> None:
    place.server.forbidden = {"inferenceservices"}
    place.server.put("Job", NAME, {DEPLOYMENT_LABEL: NAME}, api="batch/v1", spec={})
    spec = {"containers": [{"name": "kserve-container", "image": "trainer:1"}]}
    place.server.put("Pod", "digits-0", {DEPLOYMENT_LABEL: NAME}, spec=spec, status=READY)
    [found] = place.deployments.list()
    assert (found.phase, found.cause) == (DeploymentPhase.READY, "")


def test_annotations_that_others_wrote_are_only_text(place: Place) -> None:
    notes = {
        OBJECTS_ANNOTATION: "Pod/x,,Secret/,Node/odd,Secret/../../nodes/a,Secret/other,Secret/odd-2",
        DIGEST_ANNOTATION: "{",
    }
    place.server.put("Job", "odd", {DEPLOYMENT_LABEL: "odd"}, api="batch/v1", spec={}, metadata={"annotations": notes})
    [found] = place.deployments.list()
    assert found.objects == ("Job odd", "Secret odd-2")
    place.deployments.undeploy("odd", place.said.append)


def test_a_list_that_the_cluster_refuses_is_not_empty(place: Place) -> None:
    place.server.forbidden = {"deployments"}
    with pytest.raises(EngineError, match="forbidden"):
        place.deployments.list()


def test_a_namespace_that_does_not_exist_is_not_empty(place: Place) -> None:
    with pytest.raises(UsageError, match="no namespace team"):
        place.deployments.list()


# -- calls ------------------------------------------------------------------------------------------------------------


class Served(BaseHTTPRequestHandler):
    """Answers with the token and the body of a request, or with metrics."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._answer(f"{self.path} {self.headers['authorization']} {self.headers['accept']} {body.decode()}".encode())

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        metrics = Metrics()
        metrics.last_request_at = 1796000000.5
        self._answer(metrics.text(waiting=0, ready=1, workers=1).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def credentials(place: Place, tmp_path: Path) -> Iterator[Mapping[str, bytes]]:
    """Yields the credentials of a server with TLS, which all pods are."""
    made = new_credentials(NAME, time.time(), None).files()
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with HTTPServer(("127.0.0.1", 0), Served) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        place.served = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        server.shutdown()


def test_a_call_reaches_a_ready_pod_with_the_token(place: Place, credentials: Mapping[str, bytes]) -> None:
    place.deploy(credentials)
    found = place.deployments.invoke(NAME, b"[1]", "application/json", "text/csv", 10.0)
    assert found.body.decode() == f"/invocations Bearer {credentials['token'].decode()} text/csv [1]"


def test_nothing_is_sent_to_a_server_with_another_certificate(place: Place, credentials: Mapping[str, bytes]) -> None:
    place.deploy(new_credentials(NAME, time.time(), None).files())
    with pytest.raises(EngineError, match="another server answers"):
        place.deployments.invoke(NAME, b"[1]", "application/json", "", 10.0)


def test_the_error_of_a_broken_connection_is_that_of_the_node(place: Place) -> None:
    def dial(client: Client, pod: str, port: int) -> PortSocket:
        ours, other = socket.socketpair()
        stream = PortSocket(fileno=ours.detach())
        stream.failure = EngineError("nothing listens on port 8443 of pod digits-0")
        other.close()
        return stream

    place.deploy(new_credentials(NAME, time.time(), None).files())
    place.deployments = KubernetesDeployments(place.target, {}, place.clock, dial)
    with pytest.raises(EngineError, match="nothing listens on port 8443"):
        place.deployments.invoke(NAME, b"[1]", "application/json", "", 10.0)


def test_a_list_has_the_time_of_the_last_request(place: Place, credentials: Mapping[str, bytes]) -> None:
    place.deploy(credentials)
    assert [one.last_request_at for one in place.deployments.list()] == [1796000000.5]
    place.served = None
    assert [one.last_request_at for one in place.deployments.list()] == [None]


def test_a_call_without_a_ready_pod_has_the_cause(place: Place) -> None:
    place.deploy()
    place.states = [crashed("ValueError: no weights")]
    with pytest.raises(EngineError, match=r"no ready pod: it is failed: .*ValueError: no weights"):
        place.deployments.invoke(NAME, b"[1]", "application/json", "", 10.0)
