"""Reports of an import have the right heading and advice that a user can follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass.errors import JobFileError
from windlass.importers.convert import Imported, import_text

POD = "{containers: [{name: a, image: example/a:1, command: [torchrun, /a/train.py]%s}]%s}"


def job(container: str = "", pod: str = "", meta: str = "", spec: str = "backoffLimit: 0, ") -> Imported:
    spec += f"template: {{spec: {POD % (container, pod)}}}"
    text = f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a{meta}}}\nspec: {{{spec}}}\n"
    return import_text(text, "job.yaml")


def sky(text: str) -> Imported:
    return import_text(f"run: torchrun --nproc_per_node=2 train.py\n{text}\n", "task.yaml", form="sky")


def lost(made: Imported) -> dict[str, str]:
    return {one.field: one.instead for one in made.actionable}


def test_fields_that_no_patch_may_set_are_reported_with_the_reason() -> None:
    made = job(
        ", env: [{name: HOME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", ", shareProcessNamespace: true"
    )
    pod = "spec.template.spec"
    assert lost(made) == {
        f"{pod}.shareProcessNamespace": "a node is one container here",
        f"{pod}.containers[0].env[0].valueFrom": "write its value: env: {HOME: …}",
    }
    other = job(pod=", hostAliases: [{hostnames: [a]}]")
    assert lost(other)[f"{pod}.hostAliases"] == "add ip:"
    assert made.job.kubernetes.pod == other.job.kubernetes.pod == {}


def test_booleans_of_pods_are_read_as_kubectl_reads_them() -> None:
    init = "{name: yes, image: a/b:1, securityContext: {runAsNonRoot: off}}"
    made = job(", securityContext: {privileged: on}", f", hostNetwork: Yes, hostPID: no, initContainers: [{init}]")
    spec = made.job.kubernetes.pod["spec"]
    assert (spec["hostNetwork"], spec.get("hostPID"), made.actionable) == (True, None, ())
    assert spec["containers"][0]["securityContext"]["privileged"] is True
    assert spec["initContainers"][0]["securityContext"] == {"runAsNonRoot": False}
    assert spec["initContainers"][0]["name"] == "yes"
    quoted = job(pod=', hostNetwork: "yes"')
    assert quoted.job.kubernetes.pod["spec"]["hostNetwork"] == "yes"


def test_secret_in_an_init_container_is_reported_and_not_written() -> None:
    token = "hf_neverinanyjobfile00000000000000000"
    made = job(pod=f", initContainers: [{{name: i, image: a/b:1, env: [{{name: HF_TOKEN, value: {token}}}]}}]")
    assert "spec.template.spec.initContainers[0]" in lost(made)
    assert any("contains the value of a secret" in one.meaning for one in made.actionable)
    assert token not in f"{made.text}{made.unmapped}"


def test_toleration_without_a_key_is_imported_only_if_it_tolerates_every_taint() -> None:
    invalid = job(pod=", tolerations: [{value: ml, effect: NoSchedule}]")
    assert invalid.job.kubernetes.tolerations == ()
    assert lost(invalid)["spec.template.spec.tolerations[0]"] == "the API server refuses it"
    every = job(pod=", tolerations: [{operator: Exists}]")
    assert [one.key for one in every.job.kubernetes.tolerations] == [None]
    assert not every.actionable


def test_efa_provider_without_devices_is_reported() -> None:
    efa = ", env: [{name: FI_PROVIDER, value: efa}]"
    assert any("the job requests no EFA devices" in one.meaning for one in job(efa).actionable)
    assert not job(f"{efa}, resources: {{limits: {{vpc.amazonaws.com/efa: 4}}}}").actionable
    assert not job(", env: [{name: FI_PROVIDER, value: tcp}]").actionable


def test_valid_labels_become_labels_of_the_job_and_others_are_reported() -> None:
    made = job(meta=", labels: {team: vision, app.kubernetes.io/part-of: x, bad: 'two words'}, annotations: {a/b: c}")
    assert dict(made.job.labels) == {"team": "vision"}
    assert made.job.kubernetes.annotations == {"a/b": "c"}
    assert set(lost(made)) == {
        "metadata.labels.app.kubernetes.io/part-of",
        "metadata.labels.bad",
    }
    assert not any("labels: {KEY" in instead for instead in lost(made).values())


@pytest.mark.parametrize(("disk", "size"), [("2000", "2000GiB"), ("2TB", "2TiB"), ("'64+'", "64GiB")])
def test_disk_size_is_kept(disk: str, size: str) -> None:
    assert f"size: {size}" in lost(sky(f"resources: {{disk_size: {disk}}}"))["resources.disk_size"]


@pytest.mark.parametrize("text", ["resources: {use_spot: true}", "resources: {job_recovery: FAILOVER}"])
def test_advice_on_restarts_uses_the_number_of_the_original(text: str) -> None:
    [instead] = lost(sky(text)).values()
    assert "max: N" in instead


def test_restarts_by_the_cluster_are_reported_for_a_decision() -> None:
    made = job(spec="")
    assert (made.job.restarts.max, "spec.backoffLimit" in lost(made)) == (0, True)
    again = job(pod=", restartPolicy: OnFailure", spec="")
    assert "restarts: N" in lost(again)["spec.template.spec.restartPolicy"]
    assert "spec.template.spec.restartPolicy" not in lost(job(pod=", restartPolicy: OnFailure"))


def test_restarts_that_differ_between_launcher_and_manifest_are_reported() -> None:
    template = "{containers: [{name: pytorch, image: a/b:1, command: [torchrun, --max-restarts=0, /a/t.py]}]}"
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {runPolicy: {backoffLimit: 4}, "
        f"nprocPerNode: '1', pytorchReplicaSpecs: {{Master: {{template: {{spec: {template}}}}}}}}}\n"
    )
    made = import_text(text, "job.yaml")
    assert made.job.restarts.max == 4
    assert any("the launcher restarts 0 times, the manifest 4" in one.meaning for one in made.actionable)


def test_empty_mapping_that_selects_gang_scheduling_is_reported() -> None:
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\n"
        "spec: {runtimeRef: {name: r}, "
        "trainer: {numNodes: 2, command: [torchrun, /a/t.py]}}\n---\napiVersion: trainer.kubeflow.org/v1alpha1\n"
        "kind: TrainingRuntime\nmetadata: {name: r}\n"
        "spec: {podGroupPolicy: {coscheduling: {}}, mlPolicy: {torch: {}}}\n"
    )
    assert "TrainingRuntime/r: spec.podGroupPolicy" in lost(import_text(text, "job.yaml"))


# -- buckets of SkyPilot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mount", "data"),
    [
        ("s3://b/x", {"source": "s3://b/x"}),
        ("{source: s3://b/x, mode: COPY}", {"source": "s3://b/x"}),
        ("{source: s3://b/x}", {"source": "s3://b/x", "via": "mount", "write": True}),
        ("{source: gs://b/x, mode: MOUNT_CACHED}", {"source": "gs://b/x", "via": "mount", "write": True}),
        ("{name: b, store: s3, mode: MOUNT}", {"source": "s3://b", "via": "mount", "write": True}),
    ],
)
def test_mounted_bucket_is_writable(mount: str, data: dict[str, Any]) -> None:
    [found] = sky(f"file_mounts: {{/out: {mount}}}").job.data
    assert found.model_dump(exclude_defaults=True) == {"name": "out", **data}


@pytest.mark.parametrize("mount", ["oci://b/x", "{source: r2://b/x, mode: COPY}", "{name: b, mode: MOUNT}"])
def test_bucket_of_an_unsupported_store_is_reported(mount: str) -> None:
    made = sky(f"file_mounts: {{/out: {mount}}}")
    assert made.job.data == ()
    assert "file_mounts./out" in lost(made)


def test_bucket_deleted_after_the_task_is_reported() -> None:
    assert "file_mounts./out.persistent" in lost(sky("file_mounts: {/out: {source: s3://b/x, persistent: false}}"))


# -- SageMaker --------------------------------------------------------------------------------------------------------


def training_job(given: dict[str, str], resources: dict[str, Any]) -> Imported:
    body = {
        "TrainingJobName": "a",
        "ResourceConfig": resources,
        "HyperParameters": {"sagemaker_program": "t.py", **given},
    }
    return import_text(json.dumps(body), "job.json")


def test_mpirun_options_are_read_and_other_toolkit_settings_are_reported() -> None:
    given = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_custom_mpi_options": '"-x NCCL_DEBUG=INFO --brand-new 1"',
        "sagemaker_region": '"eu-west-1"',
        "sagemaker_parameter_server_enabled": "true",
    }
    made = training_job(given, {"InstanceCount": 2, "InstanceType": "ml.c5.large"})
    assert dict(made.job.env) == {"NCCL_DEBUG": "INFO"}
    assert any("--brand-new" in one.meaning for one in made.actionable)
    assert "HyperParameters.sagemaker_parameter_server_enabled" in lost(made)
    broken = training_job({**given, "sagemaker_mpi_custom_mpi_options": "-x 'A"}, {"InstanceCount": 2})
    assert "HyperParameters.sagemaker_mpi_custom_mpi_options" in lost(broken)


def test_instances_in_one_group_are_the_nodes_and_several_groups_are_refused() -> None:
    group = {"InstanceGroupName": "g", "InstanceType": "ml.g5.xlarge", "InstanceCount": 3}
    made = training_job({}, {"InstanceGroups": [group], "VolumeSizeInGB": 50})
    assert made.job.nodes.max == 3
    assert "instance: ml.g5.xlarge" in made.target
    with pytest.raises(JobFileError, match="is another group of instances"):
        training_job({}, {"InstanceGroups": [group, {**group, "InstanceGroupName": "h"}]})
