"""All workload kinds create the same pods, and use the features that their controllers have."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec, pod_templates
from windlass.engines.kubernetes.objects.manifests import attempt
from windlass.engines.kubernetes.objects.pod_template import Shape
from windlass.engines.kubernetes.objects.pods import by_id
from windlass.engines.kubernetes.objects.workloads import OWNER_KINDS, WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.runtimes import Runtime
from windlass.spec.job import Job

ANYWHERE = ("containers", "restartPolicy", "subdomain")
"""Pod-spec fields that may differ between workload kinds."""


def made(via: str, pods_seconds: int | None = None, **fields: Any) -> list[Manifest]:
    job = Job.model_validate({"name": "digits", "run": "train.py", "nodes": 4, **fields})
    shape = Shape(
        "r-1",
        "team",
        via,
        "image",
        "python3",
        1000,
        "0" * 64,
        1,
        pull_secrets=("registry",),
        pods_seconds=pods_seconds,
        pods=job.kubernetes,
    )
    return attempt(shape, job, 2, job.nodes.max)


def labels_of_pods(objects: list[Manifest]) -> dict[str, str]:
    return next(template["metadata"]["labels"] for one in objects for template in pod_templates(one))


@pytest.mark.parametrize("via", WORKLOADS)
def test_pods_are_equal_for_every_workload_kind(via: str) -> None:
    def common(spec: Any) -> Any:
        # Only kinds that recreate ended pods have this volume.
        volumes = [one for one in spec["volumes"] if one["name"] != "end"]
        return {**{key: value for key, value in spec.items() if key not in ANYWHERE}, "volumes": volumes}

    assert common(pod_spec(made(via))) == common(pod_spec(made("job")))
    [container], [other] = pod_spec(made(via))["containers"], pod_spec(made("job"))["containers"]
    assert container["name"] == WORKLOADS[via].container
    assert container["env"][: len(other["env"])] == other["env"]
    assert pod_spec(made(via))["imagePullSecrets"] == [{"name": "registry"}]
    assert labels_of_pods(made(via)) == labels_of_pods(made("job"))


@pytest.mark.parametrize("via", WORKLOADS)
def test_training_pods_are_annotated_against_autoscaler_evictions(via: str) -> None:
    for one in made(via):
        for template in pod_templates(one):
            assert template["metadata"]["annotations"].items() >= layout.KEPT_ON_ITS_NODE.items()


def test_pods_on_a_cluster_runtime_are_annotated_against_evictions() -> None:
    job = Job.model_validate({"name": "digits", "run": "train.py"})
    shape = Shape(
        "r-1",
        "team",
        "trainjob",
        "image",
        "python3",
        1000,
        "0" * 64,
        1,
        runtime=Runtime("torch-distributed", "ClusterTrainingRuntime"),
    )
    [found] = attempt(shape, job, 1, 1)
    [patch] = found["spec"]["runtimePatches"]
    [replicated] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pods = replicated["template"]["spec"]["template"]
    assert pods["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


@pytest.mark.parametrize("via", WORKLOADS)
def test_objects_are_labelled_with_run_and_attempt_and_owner_object_is_last(via: str) -> None:
    found = made(via, queue="team-a")
    for one in found:
        assert one["metadata"]["name"] == "r-1-2"
        assert one["metadata"]["namespace"] == "team"
        assert one["metadata"]["labels"][layout.RUN_LABEL] == "r-1"
        assert one["metadata"]["labels"][layout.ATTEMPT_LABEL] == "2"
    assert (found[-1]["apiVersion"], found[-1]["kind"]) == (WORKLOADS[via].api, WORKLOADS[via].kind)
    assert (found[-1]["apiVersion"], found[-1]["kind"]) in OWNER_KINDS
    assert found[-1]["metadata"]["labels"][layout.QUEUE_LABEL] == "team-a"
    # Kueue treats each object with the label as a separate job.
    assert [layout.QUEUE_LABEL in one["metadata"]["labels"] for one in found].count(True) == 1


def test_ttl_is_set_on_workload_kinds_that_support_it() -> None:
    def found(via: str) -> Any:
        spec = made(via, pods_seconds=3600)[-1]["spec"]
        return spec.get("runPolicy", spec).get("ttlSecondsAfterFinished")

    assert {via: found(via) for via, way in WORKLOADS.items() if not way.no_ttl} == {
        "job": 3600,
        "jobset": 3600,
        "pytorchjob": 3600,
    }


def test_nodes_can_be_selected_by_any_label() -> None:
    spec = pod_spec(made("job", kubernetes={"node_selector": {"topology.kubernetes.io/zone": "eu-west-1a"}}))
    assert spec["nodeSelector"] == {"topology.kubernetes.io/zone": "eu-west-1a"}


def test_replicated_job_names_fit_the_limit_of_trainer_2_4() -> None:
    """According to Trainer's release notes, names have at most 20 characters, in the runtime and in the patches of a
    TrainJob.
    """
    names = [job["name"] for one in (*made("trainjob"), *made("jobset")) for job in replicated_jobs(one)]
    assert names == ["node", "n"]
    assert max(map(len, names)) <= 20


def replicated_jobs(one: Manifest) -> list[Manifest]:
    spec = one["spec"]["template"]["spec"] if one["kind"] == "TrainingRuntime" else one["spec"]
    return list(spec.get("replicatedJobs", []))


def test_trainjob_has_a_separate_runtime() -> None:
    runtime, job = made("trainjob")
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    [replicated] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 4


def test_pods_that_may_be_recreated_mount_the_end_marker() -> None:
    ends = {via: [one for one in pod_spec(made(via))["volumes"] if one["name"] == "end"] for via in WORKLOADS}
    assert ends.pop("trainjob") == [{"name": "end", "configMap": {"name": "r-1-end", "optional": True}}]
    assert not any(ends.values())


def test_pytorchjob_has_only_workers_with_their_index() -> None:
    [job] = made("pytorchjob")
    [[kind, replicas]] = job["spec"]["pytorchReplicaSpecs"].items()
    assert (kind, replicas["replicas"], replicas["restartPolicy"]) == ("Worker", 4, "Never")
    assert "elasticPolicy" not in job["spec"]
    spec = replicas["template"]["spec"]
    assert "restartPolicy" not in spec  # The operator warns about a restart policy in the pod template.
    name = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert {"name": "WINDLASS_POD_NAME", "valueFrom": name} in spec["containers"][0]["env"]


def test_an_mpijobs_launcher_is_node_0_and_its_workers_are_the_others() -> None:
    [job] = made("mpijob", launcher="mpi", procs_per_node=2)
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert {role: one["replicas"] for role, one in replicas.items()} == {"Launcher": 1, "Worker": 3}
    assert place_of(replicas["Launcher"]["template"], "r-1-2-launcher-x7k2p") == 0
    assert [place_of(replicas["Worker"]["template"], f"r-1-2-worker-{at}") for at in (0, 2)] == [1, 3]
    assert job["spec"]["runLauncherAsWorker"]
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    way = WORKLOADS["mpijob"]
    assert [way.host("r-1-1", "r-1", node) for node in (0, 1)] == ["r-1-1-launcher.r-1-1", "r-1-1-worker-0.r-1-1"]


def test_an_mpijob_of_one_node_has_no_workers() -> None:
    [job] = made("mpijob", launcher="mpi", nodes=1)
    assert list(job["spec"]["mpiReplicaSpecs"]) == ["Launcher"]


def place_of(template: Manifest, name: str) -> int:
    """Returns the place that a pod with this name computes for itself."""
    [found] = by_id([{"metadata": {**template["metadata"], "name": name}}])
    return found.index


def test_elastic_pytorchjob_sets_its_range_and_lets_workers_finish() -> None:
    [job] = made("pytorchjob", nodes={"min": 2, "max": 4})
    policy = job["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (2, 4)
    assert job["spec"]["runPolicy"]["cleanPodPolicy"] == "None"
