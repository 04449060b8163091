"""A dry run before the submission finds pods that LimitRanges, quotas or webhooks would reject."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, sent, status
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, planned
from tests.engines.kubernetes.reading.preflight.test_checks import SEEN

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.find_pod_specs import pod_specs
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.runtimes import Patching
from windlass.engines.kubernetes.planning.dry_run import dry_run, suspended_supervisor
from windlass.engines.kubernetes.planning.runtimes import Runtimes
from windlass.engines.kubernetes.reading.preflight.pod_admission import (
    RANKS,
    SUPERVISOR,
    Pods,
    pod_notes,
    quota_notes,
    run_pods,
)
from windlass.engines.kubernetes.reading.preflight.report import pod_checks
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.plan.notes import Note
from windlass.plan.steps import AttemptStep, SupervisorStep, UploadJobStep

INSIDE = dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, rights=Rights(has_account=True)))
NEEDS = {"cpus": 2, "memory": "4GiB"}
MISSING = 'pods "digits-7f3k2-1-0" is forbidden: failed quota: q: must specify limits.cpu'


def refused(message: str, code: int = 403, of: str = "node") -> Any:
    """Returns a handler that rejects pods whose container has this name."""

    def answer(request: Request) -> Response | None:
        is_it = request.verb == "POST" and request.plural == "pods"
        return status(code, "Forbidden", message) if is_it and _container(request.body) == of else None

    return answer


def _container(pod: Mapping[str, Any]) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def quota(server: ObjectServer, hard: Mapping[str, str], used: Mapping[str, str] | None = None, **spec: Any) -> None:
    server.put("ResourceQuota", "q", spec=spec, status={"hard": dict(hard), "used": dict(used or {})})


def said(notes: list[Note]) -> list[tuple[str, bool, str]]:
    return [(note.code, note.blocks, note.message) for note in notes]


@pytest.mark.parametrize("via", WORKLOADS)
def test_a_dry_run_of_the_pods_of_each_kind_creates_none(server: ObjectServer, client: Client, via: str) -> None:
    fields: dict[str, Any] = {"launcher": "mpi"} if via == "mpijob" else {}
    plan = planned(INSIDE, nodes=2, kubernetes={"via": via}, **fields)
    assert pod_notes(client, plan) == []
    sent = [request for request in server.requests if request.verb == "POST"]
    assert {request.plural for request in sent} == {"pods"}
    assert all(request.query["dryRun"] == "All" for request in sent)
    assert sorted(_container(request.body) for request in sent) == sorted([WORKLOADS[via].container, "supervisor"])
    assert server.names("Pod") == []


@pytest.mark.parametrize(
    ("message", "of", "what", "fix"),
    [
        ('pods "x" is forbidden: maximum cpu usage per Pod is 1', "node", RANKS, "resources: {cpus: …} in the job"),
        (MISSING, "node", RANKS, "resources: {cpus: …} in the job"),
        (
            'admission webhook "images.example" denied',
            "supervisor",
            SUPERVISOR,
            "supervisor_pod: {…} or supervisor: machine in target lab",
        ),
    ],
)
def test_a_refused_pod_blocks_the_plan(
    server: ObjectServer, client: Client, message: str, of: str, what: str, fix: str
) -> None:
    server.fails = refused(message, of=of)
    [note] = pod_notes(client, planned(INSIDE))
    assert said([note]) == [("pods-refused", True, f"{what}: the cluster refused: {message}")]
    assert note.fix.startswith(fix)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (403, 'pods is forbidden: User "ana" cannot create resource "pods" in API group ""'),
        (400, 'admission webhook "old.example" does not support dry run'),
        (500, "internal"),
        (404, 'namespaces "team" not found'),
    ],
)
def test_impossible_dry_run_does_not_block_the_plan(
    server: ObjectServer, client: Client, code: int, message: str
) -> None:
    server.fails = refused(message, code)
    assert pod_notes(client, planned(INSIDE)) == []


@pytest.mark.parametrize(
    ("limited", "code", "blocks"), [("cpu=1", "quota-too-small", True), ("cpu=4", "quota-full", False)]
)
def test_unreadable_quota_is_detected_by_its_refusal(
    server: ObjectServer, client: Client, limited: str, code: str, blocks: bool
) -> None:
    server.forbidden.add("resourcequotas")
    server.fails = refused(f"exceeded quota: q, requested: cpu=2, used: cpu=3, limited: {limited}")
    [note] = pod_notes(client, planned(INSIDE))
    assert (note.code, note.blocks) == (code, blocks)


@pytest.mark.parametrize(
    ("hard", "used", "message"),
    [
        ({"requests.cpu": "8050m", "pods": "5"}, {}, ""),
        ({"requests.cpu": "8"}, {}, "never admits the run: 8050m requests.cpu needed, 8 there"),
        ({"pods": "4"}, {}, "never admits the run: 5 pods needed, 4 there"),
        (
            {"memory": "32Gi"},
            {"memory": "20Gi"},
            "does not admit all pods of the run now: 16.09Gi memory needed, 12Gi there",
        ),
        ({"limits.memory": "17Gi"}, {}, ""),
        ({"limits.cpu": "8"}, {}, "never admits the run: 9 limits.cpu needed, 8 there"),
        ({"requests.nvidia.com/gpu": "3"}, {}, "never admits the run: 4 requests.nvidia.com/gpu needed, 3 there"),
    ],
)
def test_a_quota_is_compared_with_all_pods_and_the_supervisors(
    server: ObjectServer, client: Client, hard: dict[str, str], used: dict[str, str], message: str
) -> None:
    quota(server, hard, used)
    notes = pod_notes(client, planned(INSIDE, nodes=4, resources={**NEEDS, "gpus": 1}))
    assert [note.message for note in notes] == ([f"quota q {message}"] if message else [])
    assert [note.blocks for note in notes] == (["never" in message] if message else [])


def test_a_quota_counts_native_sidecars_and_the_overhead_of_a_runtime_class() -> None:
    def amounts(cpu: str) -> dict[str, Any]:
        return {"resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}}

    sidecars = [{"name": "mesh", "restartPolicy": "Always", **amounts("1")}, {"name": "prepares", **amounts("1")}]
    spec = {"containers": [amounts("2")], "initContainers": sidecars, "overhead": {"cpu": "500m"}}
    of = {"metadata": {"name": "q"}, "spec": {}, "status": {"hard": {"limits.cpu": "6"}}}
    [note] = quota_notes([of], [Pods(RANKS, {"spec": spec}, 2, 2)])
    assert note.message == "quota q never admits the run: 7 limits.cpu needed, 6 there"


def test_every_pod_of_a_run_has_requests_and_limits_where_its_job_sets_resources() -> None:
    """A quota on limits.cpu rejects each pod without such a limit."""
    data = [{"name": "digits", "source": "s3://bucket/digits/"}]
    plan = planned(
        INSIDE,
        nodes=2,
        resources=NEEDS,
        data=data,
        outputs="s3://bucket/out/",
        kubernetes={"data": {"claim": "sets"}, "results": {"claim": "results"}},
    )
    pods = list(run_pods(plan))
    assert len(pods) == 6
    for one in pods:
        [container] = one.pod["spec"]["containers"]
        assert all({"cpu", "memory"} <= set(container["resources"][kind]) for kind in ("requests", "limits")), one.what


def test_idle_pods_of_an_elastic_run_are_tried_too() -> None:
    tried = {one.what: one.pod["metadata"]["name"] for one in run_pods(planned(INSIDE, nodes={"min": 1, "max": 2}))}
    assert tried["the pods that reserve capacity"] == "digits-7f3k2-capacity-0"


def test_all_pods_of_a_run_tolerate_taints_of_training_nodes() -> None:
    """All nodes of a cluster may have the taint of GPU nodes."""
    of_runtime = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
    pod = {"spec": {"tolerations": [of_runtime], "containers": [{"name": "node", "image": "torch:1"}]}}
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job = {"name": "node", "template": {"metadata": step, "spec": {"template": pod}}}
    runtime = {
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
    assert INSIDE.cluster is not None
    seen = dataclasses.replace(INSIDE.cluster, runtimes=Runtimes(("torch",), runtime, Patching()))
    fields: dict[str, Any] = {"resources": {"gpus": 1}, "outputs": "s3://bucket/out/"}
    kept: dict[str, Any] = {"results": {"claim": "results"}}
    standing = planned(dataclasses.replace(INSIDE, cluster=seen), **fields, kubernetes={**kept, "runtime": "torch"})
    own = planned(INSIDE, **fields, kubernetes=kept)
    for plan, wanted in ((own, {"nvidia.com/gpu"}), (standing, {"nvidia.com/gpu", "team"})):
        specs = list(pod_specs(plan.manifests(AttemptStep, SupervisorStep, UploadJobStep)))
        assert len(specs) == 3
        for spec in specs:
            assert {one["key"] for one in spec["tolerations"] if one["effect"] == "NoSchedule"} == wanted


def test_supervisor_prefers_nodes_without_gpus() -> None:
    """The supervisor's pod occupies its node until the outputs are fetched."""
    [job] = [one for one in planned(INSIDE, resources={"gpus": 1}).manifests(SupervisorStep) if one["kind"] == "Job"]
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = [one["key"] for one in preferred["preference"]["matchExpressions"]]
    assert "nvidia.com/gpu.product" in labels
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]


def test_check_reports_refused_supervisor_pod(server: ObjectServer, client: Client) -> None:
    [check] = pod_checks(client, TARGET, SEEN)
    assert (check.name, check.level) == ("pods", "ok")
    server.fails = refused('admission webhook "images.example" denied', of="supervisor")
    [check] = pod_checks(client, TARGET, SEEN)
    assert (check.name, check.level) == ("pods", "fail")
    assert check.fix == "supervisor_pod: {…} or supervisor: machine in target lab"
    assert server.names("Pod") == []


def test_elastic_run_is_blocked_only_if_its_fewest_nodes_exceed_the_quota() -> None:
    pods = list(run_pods(planned(INSIDE, nodes={"min": 1, "max": 4}, resources=NEEDS)))
    of = {"metadata": {"name": "q"}, "spec": {}, "status": {"hard": {"pods": "3"}}}
    assert [(note.code, note.blocks) for note in quota_notes([of], pods)] == [("quota-full", False)]
    scoped = {**of, "spec": {"scopes": ["BestEffort"]}}
    assert list(quota_notes([scoped], pods)) == [], "it may not count these pods"


def test_a_kueue_that_suspends_the_supervisor_blocks_the_plan_unless_its_job_names_a_queue() -> None:
    def job(**labels: str) -> dict[str, Any]:
        return {"kind": "Job", "metadata": {"name": "r-1-supervisor", "labels": labels}, "spec": {"suspend": True}}

    note = suspended_supervisor(job())
    assert note is not None
    assert (note.code, note.blocks) == ("supervisor-suspended", True)
    assert suspended_supervisor(job(**{"kueue.x-k8s.io/queue-name": "team"})) is None


def test_the_supervisor_is_queued_only_where_its_target_names_a_queue() -> None:
    def queues(**of_target: str) -> set[str]:
        made = planned(INSIDE, TARGET.model_copy(update=of_target), queue="team").manifests(SupervisorStep)
        return {one["metadata"]["labels"].get("kueue.x-k8s.io/queue-name", "") for one in made if one["kind"] == "Job"}

    assert (queues(), queues(supervisor_queue="small")) == ({""}, {"small"})


def test_injected_containers_are_a_warning(server: ObjectServer, client: Client) -> None:
    def inject(request: Request) -> Response | None:
        if request.verb != "POST" or request.plural != "pods":
            return None
        spec = request.body["spec"]
        sidecar = {"name": "istio-proxy", "image": "proxyv2"}
        return sent({**request.body, "spec": {**spec, "containers": [sidecar, *spec["containers"]]}}, 201)

    server.fails = inject
    notes = pod_notes(client, planned(INSIDE))
    assert said(notes) == [
        (
            "sidecar-added",
            False,
            f"{what}: the cluster adds istio-proxy, which does not end with the training container",
        )
        for what in ("the pods of the run", "the supervisor's pod")
    ]


class Company:
    """Policies of a namespace, of which the server reports one at a time, like admission plugins and webhooks."""

    def __init__(self, *policies: tuple[str, Callable[[Any, Any], bool]]) -> None:
        self._policies = policies

    def __call__(self, request: Request) -> Response | None:
        if request.verb != "POST" or request.plural != "pods":
            return None
        meta, [container, *_] = request.body["metadata"], request.body["spec"]["containers"]
        for message, is_met in self._policies:
            if not is_met(meta, container):
                return status(403, "Forbidden", f'pods "{meta["name"]}" is forbidden: {message}')
        return None


COMPANY = Company(
    ("policy costs: annotation cost-center is required", lambda meta, _: "cost-center" in meta["annotations"]),
    ('[owner] you must provide labels: {"team"}', lambda meta, _: "team" in meta["labels"]),
    (
        "securityContext.readOnlyRootFilesystem must be true",
        lambda _, container: container["securityContext"].get("readOnlyRootFilesystem", False),
    ),
    ("failed quota: q: must specify limits.cpu", lambda _, one: "cpu" in one.get("resources", {}).get("limits", {})),
)
LINES = {
    "annotations: {cost-center: …} in target lab",
    "labels: {team: …} in target lab",
    "read_only_root: true in target lab",
    "resources: {cpus: …} in each job",
}


def test_one_check_reports_all_that_a_first_run_needs(server: ObjectServer, client: Client) -> None:
    server.fails = COMPANY
    found = {check.fix: check for check in pod_checks(client, TARGET, SEEN)}
    assert set(found) == LINES
    others = "the supervisor's pod, the pods that move files, the pods of check --network, cp and exec"
    assert found["labels: {team: …} in target lab"].found.startswith(f"{RANKS}, {others}: the cluster refused")
    assert [check.level for check in found.values()] == ["fail", "fail", "warn", "warn"]
    assert server.names("Pod") == []


def test_target_with_the_lines_of_the_check_is_admitted(server: ObjectServer, client: Client) -> None:
    server.fails = COMPANY
    options: dict[str, Any] = {"annotations": {"cost-center": "1"}, "labels": {"team": "a"}, "read_only_root": True}
    target = TARGET.model_copy(update=options)
    assert {check.fix for check in pod_checks(client, target, SEEN)} == {"resources: {cpus: …} in each job"}
    assert pod_notes(client, planned(INSIDE, target, resources=NEEDS)) == []


def test_plan_reports_all_refusals_with_the_lines_of_the_job(server: ObjectServer, client: Client) -> None:
    server.fails = COMPANY
    notes = pod_notes(client, planned(INSIDE))
    assert {note.code for note in notes} == {"pods-refused"}
    assert {note.fix.partition(" in the job")[0] for note in notes} == {
        "kubernetes: {annotations: {cost-center: …}}",
        "labels: {team: …}",
        "kubernetes: {read_only_root: true}",
        "resources: {cpus: …}",
    }


def test_taint_and_extended_resource_of_the_pods_of_a_plan_are_reported(server: ObjectServer, client: Client) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    server.put("Node", "a", spec={"taints": [taint]}, status={"conditions": ready, "allocatable": {"cpu": "8"}})
    plan = planned(INSIDE, kubernetes={"limits": {"vpc.amazonaws.com/efa": "4"}, "env_from": ["nccl"]})
    assert said(pod_notes(client, plan)) == [
        ("resource-missing", False, f"{RANKS}: 4 vpc.amazonaws.com/efa requested, and none of 1 nodes has any"),
        ("object-missing", True, f"{RANKS}: ConfigMap nccl is not in the namespace"),
        (
            "taint-not-tolerated",
            False,
            f"{SUPERVISOR}: each of 1 nodes that fit has a taint that they do not tolerate: "
            "dedicated=training:NoSchedule",
        ),
    ]


def test_patch_that_the_server_refuses_is_one_message_with_its_path(server: ObjectServer, tmp_path: Path) -> None:
    message = 'strict decoding error: unknown field "spec.hostNetwrk"'
    answer = status(400, "BadRequest", message)
    server.fails = lambda request: answer if "hostNetwrk" in json.dumps(request.body or {}) else None
    facts = dataclasses.replace(INSIDE, kubeconfig=server.kubeconfig(tmp_path))
    [note] = dry_run(planned(facts, kubernetes={"pod": {"spec": {"hostNetwrk": True}}}))
    text = f"{RANKS}: kubernetes.pod.spec.hostNetwrk: the cluster refused: {message}"
    assert said([note]) == [("pod-patch", True, text)]
    assert note.fix == "correct it, or leave it out: kubectl explain pod.spec.hostNetwrk"
    assert {request.query.get("dryRun") for request in server.requests if request.verb == "POST"} == {"All"}
