"""Strategic merge patches of pod templates, and what no patch may change."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec, pod_templates
from windlass.engines.kubernetes.objects.manifests import attempt
from windlass.engines.kubernetes.objects.pod_template import SECRETS_VOLUME, Shape, pod_template
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_job
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.spec.job import Job
from windlass.spec.pod_patch import MERGE_KEYS, PatchRefused, patched

SHAPE = Shape("r-1", "team", "job", "image", "python3", 1000, "0" * 64, 1)
JOB = Job(name="digits", run="train.py", nodes=2, secrets=["hf"])
BASE = pod_template(SHAPE, JOB, 1, 2)
SIDECAR = {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"}


def merged(**spec: Any) -> Any:
    return patched(BASE, [{"spec": spec}], "node")["spec"]


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "node", **fields}]}


def mount(path: str) -> dict[str, str]:
    return {"name": "x", "mountPath": path}


def test_mappings_merge_and_other_lists_are_replaced() -> None:
    found = merged(
        securityContext={"supplementalGroups": [2000], "fsGroup": None},
        tolerations=[{"key": "a", "operator": "Exists"}],
        runtimeClassName="nvidia",
    )
    assert found["securityContext"]["supplementalGroups"] == [2000]
    assert "fsGroup" not in found["securityContext"]
    assert found["securityContext"]["runAsUser"] == 1000
    assert found["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert found["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("patch", [{"volumes": None}, container(env=None)])
def test_message_shows_no_list_that_a_patch_removes(patch: dict[str, Any]) -> None:
    with pytest.raises(PatchRefused, match="has items or fields in every pod of a run"):
        merged(**patch)


def test_items_of_a_list_with_a_key_merge_by_it() -> None:
    added = {"name": "rdma", "hostPath": {"path": "/dev/infiniband"}}
    variable = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    mount = {"name": "rdma", "mountPath": "/dev/infiniband"}
    found = merged(volumes=[added], initContainers=[SIDECAR], **container(env=[variable], volumeMounts=[mount]))
    assert found["volumes"] == [*BASE["spec"]["volumes"], added]
    [ours] = found["containers"]
    [before] = BASE["spec"]["containers"]
    assert ours["env"] == [*before["env"], variable]
    assert ours["volumeMounts"] == [*before["volumeMounts"], mount]
    assert found["initContainers"] == [SIDECAR]


def test_pods_in_the_network_of_the_host_find_names_of_the_cluster() -> None:
    assert merged(hostNetwork=True)["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert merged(hostNetwork=True, dnsPolicy="Default")["dnsPolicy"] == "Default"


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy"),
        ({"spec": {"subdomain": None}}, "spec.subdomain"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"volumes": None}}, "spec.volumes"),
        ({"spec": {"$patch": "replace", "hostNetwork": True}}, "spec.$patch"),
        ({"spec": {"$retainKeys": ["x"]}}, "spec.$retainKeys"),
        ({"spec": {"containers": [{"name": "sidecar", "image": "x"}]}}, "spec.containers[0].name"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "node", "$patch": "delete"}]}}, "spec.containers[0]"),
        ({"spec": container(command=["sh"])}, "spec.containers[0].command"),
        ({"spec": container(image="other:1")}, "spec.containers[0].image"),
        ({"spec": container(env=[{"name": "A"}, {"name": "RANK"}])}, "spec.containers[0].env[1].name"),
        ({"spec": container(env=[{"name": "HOME", "value": "/root"}])}, "spec.containers[0].env[0]"),
        ({"spec": container(env=None)}, "spec.containers[0].env"),
        ({"spec": container(envFrom=[])}, "spec.containers[0].envFrom"),
        ({"spec": container(volumeMounts=[mount("/windlass/work")])}, "spec.containers[0].volumeMounts[0]"),
        ({"spec": container(volumeMounts=[mount("/windlass/new")])}, "spec.containers[0].volumeMounts[0].mountPath"),
        ({"spec": {"volumes": [{"name": "work", "$patch": "delete"}]}}, "spec.volumes[0]"),
        ({"spec": {"volumes": [{"name": "work", "hostPath": {"path": "/"}}]}}, "spec.volumes[0]"),
        ({"metadata": {"labels": {"windlass.dev/run": "r-2"}}}, "metadata.labels.windlass.dev/run"),
        ({"metadata": {"labels": None}}, "metadata.labels"),
        ({"spec": None}, "spec"),
        ({"spec": {"volumes": {}}}, "spec.volumes"),
        ({"spec": {"containers": {"name": "node"}}}, "spec.containers"),
        ({"spec": container(env="A=1")}, "spec.containers[0].env"),
        ({"spec": container(env=[{"name": 5}])}, "spec.containers[0].env[0]"),
        ({"spec": {"volumes": [{"name": ["a"]}]}}, "spec.volumes[0]"),
        ({"spec": {"volumes": [{"name": "a", "$patch": "replace"}]}}, "spec.volumes[0].$patch"),
        ({"spec": {"affinity": {"$patch": "merge"}}}, "spec.affinity.$patch"),
        ({"spec": {1: "a"}}, "spec.1"),
        ({"metadata": {"finalizers": ["example.com/a"]}}, "metadata.finalizers"),
    ],
)  # fmt: skip
def test_patch_that_would_break_a_run_is_refused_with_its_path(patch: Mapping[str, Any], path: str) -> None:
    with pytest.raises(PatchRefused) as refused:
        patched(BASE, [patch], "node")
    assert refused.value.path == path
    assert refused.value.hint


def test_a_patch_may_change_what_an_earlier_one_has_set() -> None:
    of_target = {"runtimeClassName": "nvidia", "volumes": [{"name": "x", "hostPath": {"path": "/x"}}]}
    of_job = {"runtimeClassName": "kata", "volumes": [{"name": "x", "hostPath": {"path": "/y"}}]}
    found = patched(BASE, [{"spec": of_target}, {"spec": of_job}], "node")["spec"]
    assert found["runtimeClassName"] == "kata"
    assert found["volumes"] == [*BASE["spec"]["volumes"], *of_job["volumes"]]
    with pytest.raises(PatchRefused):
        patched(BASE, [{"spec": of_target}, {"spec": {"subdomain": "x"}}], "node")


NAMES = sorted(
    {*MERGE_KEYS, *MERGE_KEYS.values(), "spec", "valueFrom", "secretKeyRef", "key", "$patch", "securityContext"}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([*NAMES, "node", "delete", "replace", "/tmp", "work"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
CONTAINER = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4).map(lambda fields: container(**fields))


@given(patch=st.fixed_dictionaries({"spec": st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4) | CONTAINER}))
def test_any_patch_is_applied_or_refused(patch: Mapping[str, Any]) -> None:
    with contextlib.suppress(PatchRefused):
        found = pod_template(replace(SHAPE, pod_patches=(patch,)), JOB, 1, 2)["spec"]
        [ours] = found["containers"]
        for name in ("command", "image", "workingDir"):
            assert ours[name] == BASE["spec"]["containers"][0][name]
        for name in ("volumes", "containers"):
            assert {one["name"] for one in BASE["spec"][name]} <= {one["name"] for one in found[name]}


def test_a_value_that_windlass_sets_already_may_be_repeated() -> None:
    work = next(one for one in BASE["spec"]["volumes"] if one["name"] == "work")
    assert patched(BASE, [{"spec": {"volumes": [work]}}], "node") == BASE


@pytest.mark.parametrize("via", WORKLOADS)
def test_patch_reaches_the_pods_of_every_workload_kind(via: str) -> None:
    patch = {"spec": {"runtimeClassName": "nvidia", **container(securityContext={"privileged": True})}}
    objects = attempt(replace(SHAPE, via=via, pod_patches=(patch,)), JOB, 1, 2)
    found = [template["spec"] for one in objects for template in pod_templates(one)]
    assert found
    for spec in found:
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["containers"][0]["securityContext"]["privileged"] is True
        assert spec["containers"][0]["name"] == WORKLOADS[via].container


def test_supervisor_has_its_own_patch_and_a_read_only_root() -> None:
    patch = {"spec": {"priorityClassName": "system", "containers": [{"name": "supervisor", "env": [{"name": "A"}]}]}}
    spec = pod_spec([supervisor_job(replace(SHAPE, supervisor_patches=(patch,)), JOB)])
    assert spec["priorityClassName"] == "system"
    assert {"name": "A"} in spec["containers"][0]["env"]
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in spec["containers"][0]["volumeMounts"]


def test_worker_masks_a_variable_from_one_key_of_a_secret() -> None:
    reference = {"secretKeyRef": {"name": "login", "key": "token"}}
    patch = {"spec": container(env=[{"name": "API_TOKEN", "valueFrom": reference}])}
    spec = pod_template(replace(SHAPE, pod_patches=(patch,)), JOB, 1, 2)["spec"]
    [volume] = [one for one in spec["volumes"] if one["name"] == SECRETS_VOLUME]
    items = [{"key": "token", "path": "API_TOKEN"}]
    assert {"secret": {"name": "login", "items": items, "optional": True}} in volume["projected"]["sources"]
    assert {"secret": {"name": "hf", "optional": True}} in volume["projected"]["sources"]
