"""Strategic merge patches have the result that the API server computes, wherever Windlass does not refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.cluster.bed.api import STRATEGIC, ApiError
from tests.cluster.bed.cluster import Bed
from tests.engines.kubernetes.objects.test_pod_patch import BASE, SIDECAR, container

from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.spec.pod_patch import MERGE_KEYS, NODE, patched

Patch = Mapping[str, Any]

pytestmark = pytest.mark.timeout(600)
HOST = {"name": "rdma", "hostPath": {"path": "/dev/infiniband"}}
SPREAD = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
ANTI_AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}


def spec(**fields: Any) -> Patch:
    return {"spec": fields}


def node(**fields: Any) -> Patch:
    return {"spec": container(**fields)}


def variable(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, **fields}


ROWS: Mapping[str, tuple[Patch, ...]] = {
    # metadata
    "annotation": ({"metadata": {"annotations": {"company.example/cost-center": "4711"}}},),
    "annotation twice": (
        {"metadata": {"annotations": {"a": "1", "b": "1"}}},
        {"metadata": {"annotations": {"a": None, "b": "2"}}},
    ),
    "label": ({"metadata": {"labels": {"team": "ml"}}},),
    # fields of the pod
    "scalar": (spec(runtimeClassName="nvidia", schedulerName="volcano", hostPID=True),),
    "scalar removed": (spec(runtimeClassName="nvidia"), spec(runtimeClassName=None)),
    "absent scalar removed": (spec(runtimeClassName=None),),
    "host network": (spec(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),),
    "security context": (spec(securityContext={"supplementalGroups": [2000, 3000], "fsGroup": None}),),
    "security context removed": (spec(securityContext=None),),
    "nested nulls of a new field": (spec(dnsConfig={"nameservers": ["10.0.0.1"], "searches": None, "options": None}),),
    "nested mapping emptied": (spec(securityContext={"seccompProfile": None}),),
    "null below a null": (spec(securityContext={"seLinuxOptions": {"level": None}}),),
    "node selector": (spec(nodeSelector={"pool": "a", "disk": "ssd"}), spec(nodeSelector={"pool": "b", "disk": None})),
    "node selector removed": (spec(nodeSelector={"pool": "a"}), spec(nodeSelector=None)),
    "overhead": (spec(overhead={"cpu": "250m", "memory": "1Gi"}, runtimeClassName="kata"),),
    "tolerations are replaced": (spec(tolerations=[TOLERATION]), spec(tolerations=[{"operator": "Exists"}])),
    "tolerations removed": (spec(tolerations=None),),
    "affinity merges by kind": (spec(affinity=ANTI_AFFINITY), spec(affinity={"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [IN_ZONE]}}})),
    "affinity lists are replaced": (spec(affinity=ANTI_AFFINITY), spec(affinity={
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "row"}]}})),
    "spread by another key": (spec(topologySpreadConstraints=[SPREAD]),),
    "spread by our key": (spec(topologySpreadConstraints=[
        {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}]),),
    "spread removed": (spec(topologySpreadConstraints=[
        {"topologyKey": "kubernetes.io/hostname", "$patch": "delete"}]),),
    "pull secrets": (spec(imagePullSecrets=[{"name": "a"}, {"name": "b"}]),
                     spec(imagePullSecrets=[{"name": "b", "$patch": "delete"}, {"name": "c"}])),
    "host aliases": (spec(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a"]}]), spec(hostAliases=[
        {"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2", "hostnames": ["c"]}])),
    "scheduling gates": (spec(schedulingGates=[{"name": "example.com/wait"}]),),
    "readiness gates are replaced": (spec(readinessGates=[{"conditionType": "a"}]),
                                     spec(readinessGates=[{"conditionType": "b"}])),
    "resource claims": (spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
                             **container(resources={"claims": [{"name": "gpu"}]})),),
    "operating system": (spec(os={"name": "linux"}),),
    "priority policy": (spec(preemptionPolicy="Never"),),
    # volumes
    "volume": (spec(volumes=[HOST]),),
    "volume merges by name": (
        spec(volumes=[HOST]), spec(volumes=[{"name": "rdma", "hostPath": {"type": "Directory"}}])),
    "volume deleted": (spec(volumes=[HOST]), spec(volumes=[{"name": "rdma", "$patch": "delete"}])),
    "volume of two kinds": (spec(volumes=[HOST]), spec(volumes=[{"name": "rdma", "emptyDir": {}}])),
    "volume of another kind": (
        spec(volumes=[HOST]), spec(volumes=[{"name": "rdma", "hostPath": None, "emptyDir": {"medium": "Memory"}}])),
    "projected sources are replaced": (
        spec(volumes=[{"name": "p", "projected": {"sources": [{"configMap": {"name": "a"}}]}}]),
        spec(volumes=[{"name": "p", "projected": {"sources": [{"secret": {"name": "b"}}], "defaultMode": None}}])),
    "same item twice": (spec(volumes=[HOST, {"name": "rdma", "hostPath": {"type": "Directory"}}]),),
    # the ranks' container
    "variables": (node(env=[variable("A", value="1"), variable("B", value="$(A)")]),),
    "variable changed": (
        node(env=[variable("A", value="1")]),
        node(env=[variable("A", value=None, valueFrom={"fieldRef": {"fieldPath": "status.hostIP"}})])),
    "variable deleted": (node(env=[variable("A", value="1"), variable("B", value="2")]),
                         node(env=[variable("A", **{"$patch": "delete"})])),
    "absent variable deleted": (node(env=[variable("A", **{"$patch": "delete"})]),),
    "mounts merge by path": (
        spec(volumes=[HOST], **container(volumeMounts=[{"name": "rdma", "mountPath": "/dev/infiniband"}])),
        node(volumeMounts=[{"mountPath": "/dev/infiniband", "readOnly": True},
                           {"name": "rdma", "mountPath": "/b", "subPath": "x"}])),
    "devices": (node(volumeDevices=[{"name": "data", "devicePath": "/dev/xvda"}]),
                node(volumeDevices=[{"name": "other", "devicePath": "/dev/xvda"}])),
    "ports": (node(ports=[{"containerPort": 8080}]),
              node(ports=[{"containerPort": 8080, "name": "http"}, {"containerPort": 9090}])),
    "privileges": (node(securityContext={"capabilities": {"add": ["IPC_LOCK"]}, "readOnlyRootFilesystem": True}),),
    "capabilities are replaced": (node(securityContext={"capabilities": {"add": ["IPC_LOCK"], "drop": None}}),
                                  node(securityContext={"capabilities": {"add": ["SYS_PTRACE"]}})),
    "resources": (node(resources={"limits": {"cpu": 2, "memory": "4Gi"}, "requests": {"cpu": "500m"}}),
                  node(resources={"limits": {"cpu": None, "ephemeral-storage": "1Gi"}, "requests": None})),
    "probes": (node(livenessProbe={"exec": {"command": ["true"]}, "periodSeconds": 5}),
               node(livenessProbe={"exec": {"command": ["ls", "/"]}, "periodSeconds": None})),
    "lifecycle": (node(lifecycle={"preStop": {"exec": {"command": ["sleep", "1"]}}}),),
    "http headers are replaced": (
        node(readinessProbe={"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "1"}]}}),
        node(readinessProbe={"httpGet": {"port": 80, "httpHeaders": [{"name": "b", "value": "2"}]}})),
    "resize policy": (node(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),),
    # other containers
    "native sidecar": (spec(initContainers=[SIDECAR]),),
    "native sidecar changed": (
        spec(initContainers=[{**SIDECAR, "env": [variable("A", value="1")]}]),
        spec(initContainers=[{"name": "mesh", "image": "mesh:2", "env": [variable("B", value="2")]}])),
    "init containers keep their order": (
        spec(initContainers=[{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]),),
    "init container deleted": (
        spec(initContainers=[{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]),
        spec(initContainers=[{"name": "a", "$patch": "delete"}])),
    "init container with nulls": (
        spec(initContainers=[{"name": "a", "image": "a", "env": None, "resources": {"limits": {"cpu": None}}}]),),
    "nothing": ({},),
    "empty mappings": ({"metadata": {}, "spec": {}},),
}  # fmt: skip
"""Patches that are applied one after the other, by what they try."""


@pytest.fixture
def templates(bed: Bed, namespace: str) -> str:
    """Collection of the PodTemplates of a namespace."""
    return f"/api/v1/namespaces/{namespace}/podtemplates"


def template(name: str, made: Manifest) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": made}


def stored(bed: Bed, path: str, name: str, made: Manifest) -> Any:
    """Returns a pod template with the defaults of the API server, or the status of its refusal."""
    try:
        return by_key(bed.api.create(f"{path}?dryRun=All", template(name, made))["template"])
    except ApiError as error:
        return error.code


def by_key(value: Any, name: str = "") -> Any:
    """Returns a value with the lists of `MERGE_KEYS` as mappings: their order differs, and has no meaning.

    The API server puts new items first and Windlass last, so that a variable can refer to those before it. Init
    containers, whose order has a meaning, are compared with it.
    """
    if isinstance(value, dict):
        return {key: by_key(one, key) for key, one in value.items()}
    if isinstance(value, list):
        items = [by_key(one) for one in value]
        if name in MERGE_KEYS and name != "initContainers":
            return {one[MERGE_KEYS[name]]: one for one in items}
        return items
    return value


def test_patches_have_the_result_of_the_api_server(bed: Bed, templates: str) -> None:
    for at, (what, patches) in enumerate(ROWS.items()):
        bed.api.create(templates, template(f"t-{at}", BASE))
        theirs: Any = None
        for patch in patches:
            try:
                theirs = bed.api.patch(f"{templates}/t-{at}", {"template": patch}, STRATEGIC)["template"]
            except ApiError as error:
                theirs = error.code
        assert stored(bed, templates, "ours", patched(BASE, patches, NODE)) == by_key(theirs), what
