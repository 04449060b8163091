"""A TrainJob on a runtime of the cluster: fields of the runtime, and what a run overrides. Pure.

Kubeflow Trainer has changed how that is written: `podTemplateOverrides` in 2.1, `runtimePatches` from 2.2 on, and each
version knows more fields than the one before. The schema of the installed version lists them. The field of 2.0,
`podSpecOverrides`, gives pods no labels, so that a run could not find them.
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
"""What Trainer calls the job of the training, and its container, in every runtime."""
MANAGER: Final = "windlass.dev/run"
"""Whose patches ours are."""
RESTARTS: Final = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"
OURS: Final = "windlass-"
"""How our volumes' names begin, so that none of the runtime's has the same."""
_FIELDS: Final = {
    "runtimePatches": ("trainingRuntimeSpec", "template", "spec", "replicatedJobs", "template", "spec", "template"),
    "podTemplateOverrides": (),
}
"""Fields of a TrainJob that override the pods of a runtime, best first, and where the pods' template is in each."""


@dataclass(frozen=True, slots=True)
class Patching:
    """What a version of Trainer lets a TrainJob put over its runtime."""

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
    """Fields of a pod's spec."""
    container: frozenset[str] = frozenset({"volumeMounts", "securityContext"})
    """Fields of a container of it."""
    has_labels: bool = False
    """Whether the TrainJob itself sets those of the objects between it and its pods."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime of the cluster, and how it can be changed there."""

    name: str
    kind: str
    """`TrainingRuntime` or `ClusterTrainingRuntime`."""
    patching: Patching = field(default_factory=Patching)


def patching_of(spec: Mapping[str, Any]) -> Patching | None:
    """What the schema of a TrainJob's spec lets it put over its runtime; None where that is no label of a pod."""
    known = spec.get("properties", {})
    for name, path in _FIELDS.items():
        template = _below(known.get(name, {}), path)
        pod = _below(template, ("spec",)).get("properties", {})
        container = _below(pod.get("containers", {}), ()).get("properties", {})
        if "labels" in _below(template, ("metadata",)).get("properties", {}):
            return Patching(name, frozenset(pod), frozenset(container), "labels" in known)
    return None


def _below(schema: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The schema at a path below another, through lists."""
    for name in path:
        schema = schema.get("items", schema).get("properties", {}).get(name, {})
    found: Mapping[str, Any] = schema.get("items", schema)
    return found


def train_job(runtime: Runtime, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> Manifest:
    """The TrainJob whose pods are the runtime's, but for what a run needs of them."""
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
    """Of the pods' template, what can be put over the runtime's, with names that are ours alone."""
    [container] = template["spec"]["containers"]
    mounts = [{**mount, "name": f"{OURS}{mount['name']}"} for mount in container["volumeMounts"]]
    given = {key: container[key] for key in ("securityContext",) if key in patching.container}
    spec = {
        **{key: value for key, value in template["spec"].items() if key in patching.pod},
        "volumes": [{**volume, "name": f"{OURS}{volume['name']}"} for volume in template["spec"]["volumes"]],
        "containers": [{"name": NODE, "volumeMounts": mounts, **given}],
    }
    return {"metadata": template["metadata"], "spec": spec}
