"""All objects that a plan or a command creates have the same set of labels."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, planned

from windlass.engines.kubernetes.access import probe_pods
from windlass.engines.kubernetes.access.claim_files import claim_files
from windlass.engines.kubernetes.access.exec_copy import RunPods
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight import capacity, network, rbac
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.supervisor.record import Head, head_manifest
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    AttemptPartStep,
    AttemptStep,
    ClaimStep,
    CodeStep,
    NetworkPolicyStep,
    ObjectStep,
    SupervisorStep,
)
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.spec.targets import KubernetesTarget

RECOMMENDED = {
    f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "managed-by", "version")
}
OF_RUN = {*RECOMMENDED, labels.USER, layout.RUN_LABEL, layout.JOB_LABEL}
VALUE = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?")
INSIDE = dataclasses.replace(
    FACTS, user="ana@example.com", cluster=dataclasses.replace(CLUSTER, rights=Rights(has_account=True))
)


def made_objects(plan: Plan) -> list[Mapping[str, Any]]:
    made = plan.manifests(ObjectStep, NetworkPolicyStep, ClaimStep, SupervisorStep, AttemptPartStep, AttemptStep)
    return [*made, *plan.only(CodeStep).pieces]


def templates(one: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the pod templates in an object, and templates of objects that create pods."""
    if isinstance(one, Mapping):
        if {"metadata", "spec"} <= one.keys() and "kind" not in one:
            yield one
        for value in one.values():
            yield from templates(value)
    elif isinstance(one, list):
        for value in one:
            yield from templates(value)


def require(found: Mapping[str, str], wanted: set[str]) -> None:
    assert wanted - found.keys() == set()
    assert [name for name, value in found.items() if not VALUE.fullmatch(value)] == []


@pytest.mark.parametrize("via", WORKLOADS)
def test_every_object_of_a_plan_has_all_labels(via: str) -> None:
    fields: dict[str, Any] = {"launcher": "mpi"} if via == "mpijob" else {}
    plan = planned(INSIDE, nodes=2, kubernetes={"via": via, "results": {"size": "1GiB"}}, queue="team", **fields)
    objects = made_objects(plan)
    assert len(objects) >= 10
    for one in objects:
        require(one["metadata"]["labels"], OF_RUN)
        for template in templates(one):
            require(template["metadata"]["labels"], OF_RUN)
    pods = [template for template in templates(attempt_objects(plan)) if "containers" in template["spec"]]
    assert pods
    for pod in pods:
        assert pod["metadata"]["labels"][labels.COMPONENT] == "training"
        assert pod["metadata"]["labels"][labels.USER] == "ana-example.com"
        assert pod["metadata"]["labels"][labels.INSTANCE] == plan.run_id


def test_objects_created_later_have_all_labels() -> None:
    plan = planned(INSIDE)
    owner_config_map, *_ = plan.manifests(ObjectStep)
    owner_config_map = {**owner_config_map, "metadata": {**owner_config_map["metadata"], "uid": "1"}}
    room = capacity.waiting(attempt_objects(plan), f"{plan.run_id}-capacity", 2)
    for one in (room, *templates(room), head_manifest(owner_config_map, Head((), {}, 0, ""))):
        require(one["metadata"]["labels"], OF_RUN)
    assert layout.ATTEMPT_LABEL not in room["metadata"]["labels"], "its pods train nothing"


def test_objects_without_run_have_recommended_kubernetes_labels() -> None:
    for one in (*network.objects(TARGET, "windlass-net-1"), *rbac.supervisor_objects("team-a", ())):
        require(one["metadata"]["labels"], RECOMMENDED)
        for template in templates(one):
            require(template["metadata"]["labels"], RECOMMENDED)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ana", "ana"),
        ("ana@example.com", "ana-example.com"),
        ("DOMAIN\\ana_", "DOMAIN-ana"),
        ("é", ""),
        ("a" * 80, "a" * 63),
    ],
)
def test_name_is_converted_to_valid_label_value(text: str, wanted: str) -> None:
    assert labels.value(text) == wanted


def test_jobs_of_commands_have_the_options_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    target = KubernetesTarget.model_validate(
        {
            **TARGET.model_dump(exclude_unset=True),
            "supervisor_queue": "small",
            "image_pull_secrets": ["registry"],
            "labels": {"team": "ml"},
            "annotations": {"company.example/cost-center": "42"},
            "tolerations": ["dedicated=ml:NoSchedule"],
            "supervisor_pod": {"spec": {"priorityClassName": "low"}},
        }
    )
    made: list[Mapping[str, Any]] = []

    def takes(_client: Any, _seconds: float, job: Mapping[str, Any]) -> Any:
        made.append(job)
        raise EngineError("the cluster is not asked")

    monkeypatch.setattr(probe_pods, "made", takes)
    client: Any = SimpleNamespace(namespace="research", get_if_exists=lambda *_: {})
    with pytest.raises(EngineError), claim_files(client, target, "data"):
        pass
    plan = planned(FACTS, target, kubernetes={"results": {"size": "1GiB"}}, priority="low")
    ended = Status(plan.run_id, plan.name, plan.target, Phase.SUCCEEDED, Times(0.0, 0.0), plan.output_dir)
    with pytest.raises(EngineError):
        RunPods(client, plan, ended).list_checkpoints(f"{layout.RESULTS}/checkpoints")
    made.append(network.objects(target, "probe")[-1])
    made.append(capacity.waiting(attempt_objects(plan), "probe", 1))
    for job in made:
        meta, spec = job["spec"]["template"]["metadata"], job["spec"]["template"]["spec"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert meta["labels"]["team"] == job["metadata"]["labels"]["team"] == "ml"
        assert meta["annotations"]["company.example/cost-center"] == "42"
        assert {"key": "dedicated", "value": "ml", "effect": "NoSchedule", "operator": "Equal"} in spec["tolerations"]
        assert spec["priorityClassName"] == "low"
    assert len(made) == 4
    for job in made[:3]:
        assert job["metadata"]["labels"][layout.QUEUE_LABEL] == "small"
        spec = job["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"/tmp"} < {one["mountPath"] for one in container["volumeMounts"]}
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
