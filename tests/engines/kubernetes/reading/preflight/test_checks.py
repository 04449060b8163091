"""Responses of a cluster are converted to checks with findings and fixes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access.errors import NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.objects import pod_template
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.nodes import full_name
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.engines.kubernetes.reading.preflight.rights import NO_RIGHTS_MISSING, Rights, granted
from windlass.engines.kubernetes.reading.preflight.survey import Survey
from windlass.errors import EngineError
from windlass.spec.kubernetes import Toleration
from windlass.spec.targets import KubernetesTarget

TARGET = KubernetesTarget(name="lab", context="lab", namespace="team-a", image="localhost/base:1")
ABSENT = Refused("the cluster refused: not found", "", status=404)
READY = Rights(has_account=True)
NO_SUBMIT = Rights(rbac.SUPERVISED, True)
STALE = Rights((), True, granted(rbac.supervisor_objects("team-a", ())[-1]))
"""Rights of a supervisors' account that was set up before JobSet was installed."""
LACKS = "service account windlass-supervisor lacks rights on jobsets.jobset.x-k8s.io"
FORBIDDEN = Refused("the cluster refused: nodes is forbidden", "", status=403)


def served(*versions: str) -> dict[str, Any]:
    return {"groups": [{"versions": [{"groupVersion": version}]} for version in versions]}


def node(name: str, gpus: int, labels: dict[str, str] | None = None, *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {
            "allocatable": {pod_template.GPU: str(gpus)},
            "conditions": conditions,
            "images": [{"names": ["localhost/base:1", "docker.io/library/python:3.12"]}],
        },
    }


DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
SEEN = Survey(
    "https://10.0.0.1",
    "lab",
    "team-a",
    {
        "version": {"gitVersion": "v1.34.4"},
        "groups": served("batch/v1", WORKLOADS["jobset"].api),
        "user": {"status": {"userInfo": {"username": "ada"}}},
        "namespace": {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
        "quotas": {"items": []},
        "classes": {"items": [{"metadata": {"name": "efs", "annotations": DEFAULT}, "provisioner": "efs.csi.aws.com"}]},
        "nodes": {"items": [node("a", 0)]},
    },
    latency_seconds=0.004,
)


def found(target: KubernetesTarget = TARGET, rights: Rights = NO_RIGHTS_MISSING, **answers: Any) -> dict[str, Check]:
    seen = dataclasses.replace(SEEN, answers={**SEEN.answers, **answers}, rights=rights)
    return {check.name: check for check in checks(seen, target)}


def test_healthy_cluster_passes_all_checks() -> None:
    assert {check.level for check in found().values()} == {"ok"}
    assert found()["login"].found == "ada, by context lab"
    assert found()["api"].found == "Kubernetes v1.34.4 at https://10.0.0.1 answers in 4 ms"


@pytest.mark.parametrize(
    ("error", "name", "word"),
    [
        (Unreachable("https://10.0.0.1 does not answer: refused", "is it the right cluster?"), "api", "not answer"),
        (NotLoggedIn("context lab cannot be logged in to: token expired", "kubectl get pods"), "login", "expired"),
        (EngineError("the login of context lab cannot be renewed: no aws", "log in"), "login", "renewed"),
        (Refused("the cluster refused: Unauthorized", "", status=401), "login", "expired"),
    ],
)
def test_failed_first_check_omits_dependent_checks(error: EngineError, name: str, word: str) -> None:
    failed = [check for check in found(version=error).values() if check.level != "ok"]
    assert [check.name for check in failed] == [name]
    assert word in failed[0].found
    assert failed[0].fix


@pytest.mark.parametrize(
    ("image", "level", "says"),
    [
        ("localhost/base:1", "ok", "1 of 1 nodes have it; whether it has python3 is not known"),
        ("python:3.12", "ok", "1 of 1 nodes have it"),
        ("localhost/absent:1", "warn", "whether it can be pulled, and has python3, is not known"),
        (None, "warn", "the target names none"),
    ],
)
def test_image_check_passes_only_if_a_node_has_the_image(image: str | None, level: str, says: str) -> None:
    check = found(TARGET.model_copy(update={"image": image}))["image"]
    assert (check.level, says in check.found) == (level, True), check


def test_image_is_unknown_if_nodes_may_not_be_listed() -> None:
    check = found(nodes=FORBIDDEN)["image"]
    assert (check.level, "no node is known that has it" in check.found) == ("warn", True)
    assert "check --on lab --network" in check.fix


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("pytorch/pytorch:2", "docker.io/pytorch/pytorch:2"),
        ("localhost/base:1", "localhost/base:1"),
        ("registry:5000/team/train", "registry:5000/team/train:latest"),
        ("ghcr.io/team/train:1@sha256:ab", "ghcr.io/team/train@sha256:ab"),
    ],
)
def test_image_name_is_completed_like_on_a_node(image: str, name: str) -> None:
    assert full_name(image) == name


def test_missing_namespace_omits_all_other_checks() -> None:
    seen = found(namespace=ABSENT)
    assert list(seen) == ["api", "login", "namespace"]
    assert "create namespace team-a" in seen["namespace"].fix


def test_each_missing_right_is_named() -> None:
    check = found(rights=Rights((Right("batch", "jobs", "delete"), Right("", "pods/exec", "create"))))["rights"]
    assert (check.level, check.found) == ("fail", "this login may not delete jobs.batch, create pods/exec")
    assert "--on lab --role" in check.fix


def test_exec_right_is_required_only_for_supervisors_outside_the_cluster() -> None:
    assert found(rights=Rights(rbac.EXEC))["rights"].level == "fail"
    inside = found(rights=Rights(rbac.EXEC, True))["rights"]
    assert (inside.level, "exec, cp" in inside.found) == ("warn", True)


def test_missing_optional_rights_are_a_warning() -> None:
    ports = found(rights=Rights(rbac.PORTS))["rights"]
    assert (ports.level, "create pods/portforward: port-forward is refused" in ports.found) == ("warn", True)
    assert found(rights=Rights(rbac.CLAIMS))["rights"].level == "warn"
    assert "via: job" in found(rights=Rights(rbac.of_workload(WORKLOADS["jobset"])))["rights"].found


@pytest.mark.parametrize(
    ("supervisor", "rights", "level", "says", "fix"),
    [
        (
            "auto",
            Rights(),
            "ok",
            "on the machine that starts them: namespace team-a has no service",
            "target setup lab",
        ),
        ("auto", READY, "ok", "in the cluster: namespace team-a has the service account", "supervisor: machine of"),
        (
            "auto",
            Rights(rbac.SUPERVISED, True),
            "ok",
            "not update configmaps, update jobs.batch, create secrets",
            "--role",
        ),
        ("auto", Rights(has_account=None), "ok", "may not get serviceaccounts in namespace team-a", "--role"),
        ("machine", READY, "ok", "on the machine that starts them: supervisor: machine", "leave out supervisor:"),
        ("cluster", READY, "ok", "in the cluster", "supervisor: machine of"),
        ("auto", STALE, "warn", f"{LACKS}: runs that need them are supervised on the machine", "setup lab grants"),
        ("cluster", STALE, "warn", f"{LACKS}: runs that need them are not started", "setup lab grants them"),
        ("machine", STALE, "ok", "on the machine that starts them: supervisor: machine", "leave out supervisor:"),
        ("cluster", Rights(), "fail", "supervisor: cluster, and namespace team-a has no", "target setup lab"),
    ],
)
def test_check_reports_supervisor_place_and_how_to_change_it(
    supervisor: str, rights: Rights, level: str, says: str, fix: str
) -> None:
    target = TARGET.model_copy(update={"supervisor": supervisor})
    check = found(target, rights=rights)["supervisor"]
    assert check.level == level
    assert says in check.found
    assert fix in check.fix


def test_no_rights_at_all_are_one_message() -> None:
    check = found(rights=Rights(rbac.useful(SEEN.groups)))["rights"]
    assert check.found == "none of the 45 that are needed in namespace team-a"


def test_forbidden_reads_are_one_line_and_no_failure() -> None:
    seen = found(nodes=FORBIDDEN, quotas=FORBIDDEN, classes=FORBIDDEN, namespace=FORBIDDEN)
    assert seen["not seen"].level == "warn"
    assert seen["not seen"].found.endswith("quota, storage classes, GPU nodes, pod security")
    assert not {"gpus", "quota", "storage", "pod security"} & set(seen)


def test_operators_are_named_with_their_versions() -> None:
    groups = served(WORKLOADS["jobset"].api, "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2", "kubeflow.org/v1")
    kinds = {"resources": [{"name": "pytorchjobs"}, {"name": "pytorchjobs/status"}]}
    text = found(TARGET, Rights(), **{"groups": groups, "kubeflow.org/v1": kinds})["operators"].found
    assert text == "JobSet v1alpha2, Kueue v1beta1, v1beta2, PyTorchJob v1"


def test_check_fails_if_the_target_sets_a_missing_workload_kind() -> None:
    target = TARGET.model_copy(update={"via": "jobset"})
    assert found(target)["operators"].level == "ok"
    assert found(target, groups=served("batch/v1"))["operators"].level == "fail"
    assert found(TARGET.model_copy(update={"via": "mpijob"}))["operators"].level == "fail"


def test_exhausted_quota_is_a_warning() -> None:
    status = {"hard": {"requests.cpu": "4", "pods": "10"}, "used": {"requests.cpu": "4000m", "pods": "1"}}
    check = found(quotas={"items": [{"status": status}]})["quota"]
    assert (check.level, check.found) == (
        "warn",
        "requests.cpu 4000m of 4, pods 1 of 10; used up: requests.cpu",
    )


@pytest.mark.parametrize(
    ("provisioner", "level", "word"),
    [
        ("ebs.csi.aws.com", "warn", "one node at a time"),
        ("fsx.csi.aws.com", "ok", "shared"),
        ("example.com/new", "ok", "unknown"),
    ],
)
def test_shared_storage_classes_are_distinguished(provisioner: str, level: str, word: str) -> None:
    one = {"metadata": {"name": "gp3", "annotations": DEFAULT}, "provisioner": provisioner}
    check = found(classes={"items": [one]})["storage"]
    assert (check.level, word in check.found, "gp3 (default)" in check.found) == (level, True, True)


def test_missing_default_storage_class_is_a_warning() -> None:
    check = found(classes={"items": [{"metadata": {"name": "efs"}, "provisioner": "efs.csi.aws.com"}]})
    assert (check["storage"].level, check["default storage"].level) == ("ok", "warn")
    assert "storage_class" in check["default storage"].fix


@pytest.mark.parametrize(
    ("taints", "level", "words"),
    [
        (("nvidia.com/gpu", "nvidia.com/gpu"), "ok", "nvidia.com/gpu=true:NoSchedule on 2 of 2 nodes; pods of jobs"),
        (("nvidia.com/gpu", "team"), "ok", "team=true:NoSchedule on 1 of 2 nodes"),
        (("team", "team"), "warn", "there is no node for them"),
    ],
)
def test_node_taints_are_listed_with_their_toleration(taints: tuple[str, ...], level: str, words: str) -> None:
    nodes = [
        {**node(key, 0), "spec": {"taints": [{"key": key, "value": "true", "effect": "NoSchedule"}]}} for key in taints
    ]
    check = found(nodes={"items": nodes})["taints"]
    assert (check.level, words in check.found) == (level, True), check
    line = "to use such nodes: tolerations: [team=true:NoSchedule] in target lab"
    assert check.fix == (line if "team" in taints else "")
    assert "taints" not in found()


def test_tolerations_of_the_target_count_in_the_check_of_taints() -> None:
    nodes = [{**node("a", 0), "spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}}]
    target = TARGET.model_copy(update={"tolerations": (Toleration(key="team"),)})
    check = found(target, nodes={"items": nodes})["taints"]
    assert (check.level, check.fix) == ("ok", "")
    assert check.found.endswith("tolerate nvidia.com/gpu, and those of target lab")


def test_free_gpus_are_those_allocated_to_no_pod() -> None:
    label = {"nvidia.com/gpu.product": "Tesla-T4", "node.kubernetes.io/instance-type": "g4dn.xlarge"}
    taken = {"containers": [{"resources": {"limits": {pod_template.GPU: "1"}}}], "nodeName": "a"}
    pods = {"items": [{"spec": taken}, {"spec": {**taken, "nodeName": "gone"}}]}
    nodes = {"items": [node("a", 2, label), node("b", 2, label, ready=False), node("c", 0)]}
    check = found(nodes=nodes, pods=pods)["gpus"]
    assert check.found == "3 free of 4, on 2 of 3 nodes: 2 × Tesla-T4; 2 × g4dn.xlarge; not ready: b"
    assert check.level == "warn"
    assert "may be in use" in found(nodes=nodes, pods=FORBIDDEN)["gpus"].found
