"""A TrainJob with an existing runtime has only fields that the installed version of Trainer supports.

`trainer/trainjob-VERSION.json` are the fields of a TrainJob's spec, by the schemas that Kubeflow has published.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, blockers, planned

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.planned import attempt_objects, numbered
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.runtimes import STEP, patching_of
from windlass.engines.kubernetes.planning.runtimes import Runtimes
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.plan.plan import Plan
from windlass.plan.steps import ClusterStep, UploadJobStep

SCHEMAS = {
    path.stem.removeprefix("trainjob-"): json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "trainer").glob("*.json"))
}
FIELDS = {"2.1.0": "podTemplateOverrides", "2.2.0": "runtimePatches", "2.3.0": "runtimePatches"}


def runtime(kind: str = "ClusterTrainingRuntime", *, label: str = "trainer", **changed: Any) -> dict[str, Any]:
    """Returns the runtime that Trainer installs; `container` is the name of its container, other fields are those of
    JobSet.
    """
    pod = {
        "containers": [{"name": changed.pop("container", "node"), "image": "pytorch/pytorch:2.7.1"}],
        **changed.pop("pod", {}),
    }
    job = {"name": "node", "template": {"metadata": {"labels": {STEP: label}}, "spec": {"template": {"spec": pod}}}}
    policy = changed.pop("policy", {"numNodes": 1, "torch": {}})
    jobs = [*changed.pop("beside", ()), job]
    spec = {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs, **changed}}}
    return {"kind": kind, "metadata": {"name": "torch-distributed"}, "spec": spec}


def on(found: Mapping[str, Any] | None = None, version: str = "2.1.0", **fields: Any) -> Plan:
    """Returns the plan of a job that names a runtime, in a cluster that has this one."""
    named = {"runtime": "torch-distributed", **fields.pop("kubernetes", {})}
    names = fields.pop("names", ("deepspeed-distributed", "torch-distributed"))
    seen = Runtimes(names, found, patching_of(SCHEMAS[version]))
    rights = Rights(has_account=fields.pop("has_account", False))
    cluster = dataclasses.replace(CLUSTER, runtimes=seen, rights=rights)
    facts = dataclasses.replace(FACTS, cluster=cluster)
    return planned(facts, kubernetes=named, **{"nodes": 2, **fields})


def train_job(plan: Plan) -> dict[str, Any]:
    [made] = attempt_objects(plan)
    return dict(made)


def unknown(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Yields fields that a schema does not have; below a schema without fields, all are known."""
    if isinstance(value, list):
        for one in value:
            yield from unknown(one, schema.get("items", {}), at)
    elif isinstance(value, Mapping) and "properties" in schema:
        for name, below in value.items():
            if name not in schema["properties"]:
                yield f"{at}.{name}"
            else:
                yield from unknown(below, schema["properties"][name], f"{at}.{name}")


@pytest.mark.parametrize("version", FIELDS)
def test_trainjob_has_only_fields_of_its_version_and_overrides_the_runtime_accordingly(
    version: str,
) -> None:
    fields: dict[str, Any] = {
        "resources": {"gpus": 1},
        "kubernetes": {"service_account": "trains", "node_selector": {"zone": "a"}},
    }
    spec = train_job(on(runtime(), version, **fields))["spec"]
    assert list(unknown(spec, SCHEMAS[version])) == []
    assert (FIELDS[version] in spec, spec["runtimeRef"]["kind"]) == (True, "ClusterTrainingRuntime")
    pods = pod_spec([spec[FIELDS[version]]])
    assert (pods["serviceAccountName"], pods["nodeSelector"]) == ("trains", {"zone": "a"})
    assert ("securityContext" in pods, "terminationGracePeriodSeconds" in pods) == {
        "2.1.0": (False, False),
        "2.2.0": (True, False),
        "2.3.0": (True, True),
    }[version]


@pytest.mark.parametrize("version", FIELDS)
def test_pods_of_a_runtime_have_run_labels_and_the_code_volume(version: str) -> None:
    spec = train_job(on(runtime(), version))["spec"]
    said = json.dumps(spec[FIELDS[version]])
    assert f'"{layout.RUN_LABEL}": "digits-7f3k2"' in said
    pods = pod_spec([spec[FIELDS[version]]])
    assert {volume["name"].partition("-")[0] for volume in pods["volumes"]} == {"windlass"}
    [container] = pods["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pods["volumes"]}
    assert "env" not in container  # Trainer refuses it: a TrainJob has a separate field for variables
    assert spec["trainer"]["command"][-1] == f"{layout.BOOT}/boot.py"
    assert "WINDLASS_CODE_DIGEST" in [one["name"] for one in spec["trainer"]["env"]]


def test_settings_missing_in_the_job_come_from_the_runtime() -> None:
    trainer = train_job(on(runtime()))["spec"]["trainer"]
    assert "image" not in trainer
    assert "resourcesPerNode" not in trainer
    asked: dict[str, Any] = {"image": "mine:1", "resources": {"cpus": 2}}
    trainer = train_job(on(runtime(), **asked))["spec"]["trainer"]
    assert (trainer["image"], trainer["resourcesPerNode"]["limits"]) == ("mine:1", {"cpu": "2"})
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)


@pytest.mark.parametrize(
    ("found", "image"), [(runtime(), "pytorch/pytorch:2.7.1"), (None, "localhost/base:1")], ids=["seen", "unseen"]
)
def test_helper_pods_use_the_image_of_the_runtime(found: dict[str, Any] | None, image: str) -> None:
    """A Job has no runtime from which to take the image; the target's image is used if the login may not read
    runtimes.
    """
    fields: dict[str, Any] = {
        "outputs": "s3://bucket/runs",
        "kubernetes": {"results": {"size": "1GiB"}},
        "has_account": True,
        "names": ("torch-distributed",) if found else None,
    }
    made = on(found, **fields)
    assert blockers(made) == {}
    jobs = [step.request for step in made.steps if step.request.get("kind") == "Job"]
    assert len(jobs) == 4, "the supervisor, the check and the upload of outputs, and the reader of the claim"
    containers = [one for job in jobs for one in job["spec"]["template"]["spec"]["containers"]]
    assert {one["image"] for one in containers} == {image}
    [upload] = on(found, image="own:1", **fields).manifests(UploadJobStep)
    assert upload["spec"]["template"]["spec"]["containers"][0]["image"] == "own:1"


def test_resource_requests_of_a_runtime_are_used_in_diagnosis() -> None:
    pods = pod_spec(attempt_objects(on(runtime(), resources={"gpus": 8})))
    assert pods["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "resources" not in pod_spec(attempt_objects(on(runtime())))["containers"][0]


def test_each_attempt_has_a_separate_trainjob_for_the_same_runtime() -> None:
    plan = on(runtime())
    [made] = numbered(plan, 3, 1)
    assert (made["metadata"]["name"], made["spec"]["runtimeRef"]["name"]) == ("digits-7f3k2-3", "torch-distributed")
    assert made["spec"]["trainer"]["numNodes"] == 1
    volumes = pod_spec([made["spec"]["podTemplateOverrides"]])["volumes"]
    assert {"name": "windlass-attempt", "configMap": {"name": "digits-7f3k2-3"}} in volumes
    assert WORKLOADS["trainjob"].remakes(made)
    assert not WORKLOADS["trainjob"].remakes(attempt_objects(planned(kubernetes={"via": "trainjob"}))[-1])


def test_namespaced_runtime_is_referenced_by_its_kind() -> None:
    assert train_job(on(runtime("TrainingRuntime")))["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"


def test_unknown_runtime_is_refused_with_a_similar_name() -> None:
    found = blockers(on(None, names=("torch-distributd", "deepspeed-distributed")))
    assert found == {
        "runtime-missing": "there is no TrainingRuntime or ClusterTrainingRuntime torch-distributed for this namespace "
        "(did you mean torch-distributd?)"
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (runtime(container="trainer"), "no container `node`"),
        (runtime(label="other"), "no job `node`"),
        (runtime(policy={"mpi": {}}), "mlPolicy.mpi"),
        (runtime(ttlSecondsAfterFinished=60), "trains again"),
        (runtime(network={"subdomain": "mine"}), "pods' host names"),
    ],
)
def test_unusable_runtime_is_refused(found: dict[str, Any], said: str) -> None:
    refused = blockers(on(found))
    assert list(refused) == ["runtime-unfit"]
    assert said in refused["runtime-unfit"]
    assert refused["runtime-unfit"].startswith("ClusterTrainingRuntime torch-distributed: ")


@pytest.mark.parametrize(
    ("fields", "said"), [({"secrets": ["keys"]}, "secrets (keys)"), ({"priority": "high"}, "priority: high")]
)
def test_settings_that_a_trainjob_cannot_override_are_refused(fields: dict[str, Any], said: str) -> None:
    cluster = dataclasses.replace(CLUSTER, secrets=frozenset({"keys"}))
    seen = Runtimes(("torch-distributed",), runtime(), patching_of(SCHEMAS["2.3.0"]))
    facts = dataclasses.replace(FACTS, cluster=dataclasses.replace(cluster, runtimes=seen))
    found = blockers(planned(facts, kubernetes={"runtime": "torch-distributed"}, **fields))
    assert list(found) == ["runtime-cannot"]
    assert said in found["runtime-cannot"]


def test_range_of_nodes_is_refused_with_a_runtime() -> None:
    assert "range of nodes" in blockers(on(runtime(), nodes={"min": 1, "max": 2}))["runtime"]


def test_priority_that_equals_the_runtimes_is_accepted() -> None:
    assert blockers(on(runtime(pod={"priorityClassName": "high"}), priority="high")) == {}


def test_trainer_version_without_pod_labels_is_refused() -> None:
    assert patching_of(SCHEMAS["2.0.1"]) is None
    assert "2.1 and newer can" in blockers(on(runtime(), "2.0.1"))["runtime"]


def test_runtime_requires_a_trainjob() -> None:
    assert "via: trainjob" in str([note.fix for note in on(runtime(), kubernetes={"via": "job"}).notes if note.blocks])
    assert on(runtime()).only(ClusterStep).why == "kubernetes.runtime of the job"


def test_assumptions_about_an_unreadable_runtime_are_noted() -> None:
    plan = on(None, names=None, kubernetes={"runtime_kind": "TrainingRuntime"})
    assert blockers(plan) == {}
    assert ["runtime-unseen" in note.code for note in plan.notes].count(True) == 1
    assert train_job(plan)["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"


def test_differences_from_the_default_runtime_are_noted() -> None:
    beside = [{"name": "dataset-initializer", "template": {}}]
    codes = [note.code for note in on(runtime(beside=beside), grace=60).notes]
    assert {"runtime-grace", "runtime-jobs"} <= set(codes)
    assert "runtime-grace" not in [note.code for note in on(runtime(), "2.3.0", grace=60).notes]


MESH: dict[str, Any] = {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"}
FETCH: dict[str, Any] = {"name": "fetch", "volumeMounts": [{"name": "cache", "mountPath": "/c"}]}
HOSTS = [{"name": "cache", "hostPath": {"path": "/cache"}}]


def patch(**spec: Any) -> dict[str, Any]:
    return {"kubernetes": {"pod": {"spec": spec}}}


@pytest.mark.parametrize(
    ("version", "fields", "said"),
    [
        ("2.3.0", patch(runtimeClassName="nvidia"), "kubernetes.pod.spec.runtimeClassName"),
        ("2.3.0", patch(hostNetwork=True), "kubernetes.pod.spec.hostNetwork"),
        ("2.1.0", patch(securityContext={"supplementalGroups": [7]}), "kubernetes.pod.spec.securityContext"),
        ("2.3.0", patch(containers=[{"name": "node", "lifecycle": {}}]), "lifecycle of the container"),
        ("2.1.0", {"kubernetes": {"capabilities": ["IPC_LOCK"]}}, "securityContext of the container"),
        ("2.1.0", {"kubernetes": {"read_only_root": True}}, "securityContext of the container"),
        ("2.3.0", {"kubernetes": {"env_from": ["nccl"]}}, "kubernetes.env_from (nccl)"),
        ("2.3.0", patch(initContainers=[MESH]), "kubernetes.pod.spec.initContainers (mesh)"),
        ("2.3.0", patch(initContainers=[{**FETCH, "image": "other:1"}], volumes=HOSTS),
         "image of the init container fetch"),
        ("2.3.0", patch(containers=[{"name": "node", "env": [{"name": "A", "value": "1"}]}]), ""),
        ("2.3.0", {"kubernetes": {"capabilities": ["IPC_LOCK"], "limits": {"vpc.amazonaws.com/efa": 4}}}, ""),
        ("2.3.0", {"kubernetes": {"tolerations": ["a:NoSchedule"], "affinity": {"same": "zone"}}}, ""),
    ],
)  # fmt: skip
def test_each_option_that_the_installed_trainer_cannot_carry_is_refused(
    version: str, fields: dict[str, Any], said: str
) -> None:
    found = blockers(on(runtime(pod={"initContainers": [{"name": "fetch", "image": "f:1"}]}), version, **fields))
    assert list(found) == (["runtime-cannot"] if said else [])
    assert said in found.get("runtime-cannot", "")


def test_init_container_of_the_runtime_mounts_a_volume_of_the_patch_and_its_own() -> None:
    own = {"name": "own", "mountPath": "/o"}
    fields = patch(initContainers=[{**FETCH, "volumeMounts": [*FETCH["volumeMounts"], own]}], volumes=HOSTS)
    plan = on(runtime(pod={"initContainers": [{"name": "fetch", "image": "f:1"}]}), "2.3.0", **fields)
    [fetch] = pod_spec([train_job(plan)["spec"]["runtimePatches"]])["initContainers"]
    assert fetch["volumeMounts"] == [{"name": "windlass-cache", "mountPath": "/c"}, own]
    volumes = pod_spec([train_job(plan)["spec"]["runtimePatches"]])["volumes"]
    assert {"name": "windlass-cache", "hostPath": {"path": "/cache"}} in volumes


def test_options_that_a_trainjob_carries_are_in_it() -> None:
    kubernetes = {"capabilities": ["IPC_LOCK"], "limits": {"vpc.amazonaws.com/efa": 4}, "annotations": {"a": "1"}}
    spec = train_job(on(runtime(), "2.3.0", kubernetes=kubernetes))["spec"]
    assert spec["trainer"]["resourcesPerNode"]["limits"] == {"vpc.amazonaws.com/efa": "4"}
    pods = pod_spec([spec["runtimePatches"]])
    assert pods["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert '"a": "1"' in json.dumps(spec["runtimePatches"])
    assert list(unknown(spec, SCHEMAS["2.3.0"])) == []
