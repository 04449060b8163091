"""Builds a TrainJob that uses a training runtime of the cluster and overrides the fields that a run needs. Pure.

Kubeflow Trainer has changed the field for overrides: `podTemplateOverrides` in 2.1, `runtimePatches` from 2.2 on. Each
version supports more subfields, which are listed in the schema of the installed version. The field of 2.0,
`podSpecOverrides`, cannot set labels of pods, so that a run could not find its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.engines.kubernetes.objects.workloads.base import Manifest, WorkloadRequest

TRAINER: Final = "trainer.kubeflow.org"
API: Final = f"{TRAINER}/v1alpha1"
STEP: Final = f"{TRAINER}/trainjob-ancestor-step"
NODE: Final = "node"
"""Name of the training job, and of its container, in every runtime of Trainer."""
MANAGER: Final = "windlass.dev/run"
"""Manager name of Windlass's patches in `runtimePatches`."""
RESTARTS: Final = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
OURS: Final = "windlass-"
"""Prefix of the names of Windlass's volumes, so that they differ from the runtime's."""
_FIELDS: Final = {
    "runtimePatches": ("trainingRuntimeSpec", "template", "spec", "replicatedJobs", "template", "spec", "template"),
    "podTemplateOverrides": (),
}
"""Fields of a TrainJob that override the pods of a runtime, the preferred one first, with the path of the pod template
in each."""


@dataclass(frozen=True, slots=True)
class Patching:
    """Overrides of a runtime that the installed version of Trainer supports."""

    field: str = "runtimePatches"
    pod: frozenset[str] = frozenset(
        {
            "serviceAccountName",
            "volumes",
            "containers",
            "imagePullSecrets",
            "securityContext",
            "nodeSelector",
            "tolerations",
            "terminationGracePeriodSeconds",
        }
    )
    """Pod-spec fields that can be overridden."""
    container: frozenset[str] = frozenset({"volumeMounts", "securityContext"})
    """Container fields that can be overridden."""
    has_labels: bool = False
    """Whether a TrainJob can set the labels of the JobSet and Job between it and its pods."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime of the cluster, and the overrides that it supports."""

    name: str
    kind: str
    """`TrainingRuntime` or `ClusterTrainingRuntime`."""
    patching: Patching = field(default_factory=Patching)


def patching_of(spec: Mapping[str, Any]) -> Patching | None:
    """Returns the overrides that the schema of a TrainJob's spec allows; None if they cannot set labels of pods."""
    known = spec.get("properties", {})
    for name, path in _FIELDS.items():
        template = _below(known.get(name, {}), path)
        pod = _below(template, ("spec",)).get("properties", {})
        container = _below(pod.get("containers", {}), ()).get("properties", {})
        if "labels" in _below(template, ("metadata",)).get("properties", {}):
            return Patching(name, frozenset(pod), frozenset(container), "labels" in known)
    return None


def _below(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the schema at a path inside another schema; list items count as no step of the path."""
    for name in path:
        schema = schema.get("items", schema).get("properties", {}).get(name, {})
    found: Mapping[str, Any] = schema.get("items", schema)
    return found


def train_job(runtime: Runtime, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> Manifest:
    """Returns a TrainJob that uses the runtime's pods and overrides only the fields that a run needs."""
    labels, patching = template["metadata"]["labels"], runtime.patching
    [container] = template["spec"]["containers"]
    trainer: Manifest = {
        "numNodes": asked.num_nodes,
        "numProcPerNode": asked.procs_per_node,
        "command": container["command"],
        "env": [*container["env"], {"name": "WINDLASS_REMADE", "valueFrom": {"fieldRef": {"fieldPath": RESTARTS}}}],
    }
    if container["image"]:
        trainer["image"] = container["image"]
    if "resources" in container:
        trainer["resourcesPerNode"] = container["resources"]
    spec: Manifest = {
        "runtimeRef": {"apiGroup": TRAINER, "kind": runtime.kind, "name": runtime.name},
        "trainer": trainer,
        **({"labels": labels} if patching.has_labels else {}),
        patching.field: [_patch(patching.field, labels, _pods(patching, template))],
    }
    return {"apiVersion": API, "kind": "TrainJob", "metadata": meta, "spec": spec}


def _patch(name: str, labels: Manifest, pods: Manifest) -> Manifest:
    if name == "podTemplateOverrides":
        return {"targetJobs": [{"name": NODE}], **pods}
    job = {"name": NODE, "template": {"metadata": {"labels": labels}, "spec": {"template": pods}}}
    template = {"metadata": {"labels": labels}, "spec": {"replicatedJobs": [job]}}
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": template}}


def _pods(patching: Patching, template: Manifest) -> Manifest:
    """Returns the fields of the pod template that override the runtime's, with volume names that are unique to
    Windlass.
    """
    [container] = template["spec"]["containers"]
    ours = {volume["name"]: f"{OURS}{volume['name']}" for volume in template["spec"]["volumes"]}
    given = {key: container[key] for key in ("securityContext",) if key in patching.container}
    spec = {
        **{key: value for key, value in template["spec"].items() if key in patching.pod},
        "volumes": [{**volume, "name": ours[volume["name"]]} for volume in template["spec"]["volumes"]],
        "containers": [{"name": NODE, "volumeMounts": _mounts(container, ours), **given}],
    }
    if initial := spec.get("initContainers"):
        spec["initContainers"] = [
            {**one, "volumeMounts": _mounts(one, ours)} if "volumeMounts" in one else one for one in initial
        ]
    return {"metadata": template["metadata"], "spec": spec}


def _mounts(container: Manifest, ours: Mapping[str, str]) -> list[Manifest]:
    """Returns the mounts of a container, in which Windlass's volumes have new names and the runtime's keep theirs."""
    return [{**mount, "name": ours.get(mount["name"], mount["name"])} for mount in container["volumeMounts"]]
