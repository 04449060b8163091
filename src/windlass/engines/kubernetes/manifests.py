"""The objects of a run as they are sent to the API server. Pure: the same job gives the same bytes.

ConfigMap RUN            the anchor: owns all others, so that one delete removes everything
├── ConfigMap RUN-code-… the code, in pieces
├── Service RUN          headless: gives pods their names
├── PersistentVolumeClaim RUN   where a claim was asked for
├── ConfigMap RUN-K      what the nodes of attempt K are asked to do
└── Job, JobSet, TrainJob … RUN-K  attempt K, see `ways/`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.ways import WAYS
from windlass.engines.kubernetes.ways.base import Asked, Manifest
from windlass.engines.kubernetes.ways.runtimes import Runtime
from windlass.spec.job import Job

GPU: Final = "nvidia.com/gpu"
INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
HOST_LABEL: Final = "kubernetes.io/hostname"
DEADLINE_SLACK_SECONDS: Final = 60
"""How much later than the supervisor of a run the cluster ends its pods when the job's time limit is over."""
END_SECONDS: Final = 15
"""How much longer than its ranks a pod may take to end."""
BOOT_FILE: Final = "boot.py"
SILENT: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""What a cluster marks a machine with that it does not hear; after some time it deletes the pods there."""
LOST_SECONDS: Final = 30
"""How long a job that can go on without it waits for such a machine: a kubelet that is restarted is back by then."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the pods of a run have in common, decided by the plan."""

    run_id: str
    namespace: str
    via: str
    """The name of the way: `job`, `jobset`, …"""
    image: str
    python: str
    user: int
    code_digest: str
    num_pieces: int
    procs_per_node: int = 1
    pull_secrets: tuple[str, ...] = ()
    """Secrets with the logins of image registries."""
    gpu_label: tuple[str, str] | None = None
    """The node label, and its value, that stands for the GPU type that was asked for."""
    runtime: Runtime | None = None
    """The runtime of the cluster that a TrainJob stands on; then `image` may be empty, and is the runtime's."""


def labels(shape: Shape, job: Job, attempt: int | None = None) -> dict[str, str]:
    """What ties an object to its run."""
    found = {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: shape.run_id, layout.JOB_LABEL: job.name}
    return found if attempt is None else {**found, layout.ATTEMPT_LABEL: str(attempt)}


def anchor(shape: Shape, job: Job, boot: str) -> Manifest:
    """The object that owns all others, and holds the program that unpacks the code."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": shape.run_id,
            "namespace": shape.namespace,
            "labels": labels(shape, job),
            "annotations": {layout.DIGEST_ANNOTATION: shape.code_digest},
        },
        "data": {BOOT_FILE: boot},
    }


def piece(shape: Shape, job: Job, number: int) -> Manifest:
    """One piece of the code; what it holds is put in as `binaryData` when it is sent."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "immutable": True,
        "metadata": {
            "name": layout.piece_name(shape.run_id, shape.code_digest, number),
            "namespace": shape.namespace,
            "labels": {**labels(shape, job), layout.CODE_LABEL: shape.code_digest[:8]},
        },
    }


def service(shape: Shape, job: Job) -> Manifest:
    """What gives each pod a name. Pods have theirs before they are ready: they meet before they work."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": shape.run_id, "namespace": shape.namespace, "labels": labels(shape, job)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {layout.RUN_LABEL: shape.run_id},
            "ports": [{"name": "master", "port": layout.MASTER_PORT}],
        },
    }


def claim(shape: Shape, job: Job) -> Manifest | None:
    """The claim that is made for the run, if one was asked for."""
    results = job.kubernetes.results
    if results is None or results.claim is not None:
        return None
    spec: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": str(results.size)}}}
    if results.storage_class is not None:
        spec["storageClassName"] = results.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": shape.run_id, "namespace": shape.namespace, "labels": labels(shape, job)},
        "spec": spec,
    }


def attempt(shape: Shape, job: Job, number: int, num_nodes: int) -> list[Manifest]:
    """The objects of one attempt, the one that makes the pods last."""
    name = layout.attempt_name(shape.run_id, number)
    meta: Manifest = {"name": name, "namespace": shape.namespace, "labels": labels(shape, job, number)}
    if job.queue is not None:
        meta["labels"] = {**meta["labels"], layout.QUEUE_LABEL: job.queue}
    ttl = job.kubernetes.ttl
    ttl_seconds = None if ttl is None else round(ttl)
    asked = Asked(num_nodes, job.nodes.min, shape.procs_per_node, ttl_seconds, shape.runtime)
    return WAYS[shape.via].made(meta, _template(shape, job, number, num_nodes), asked)


def _template(shape: Shape, job: Job, number: int, num_nodes: int) -> Manifest:
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": shape.run_id,
        "terminationGracePeriodSeconds": int(job.grace) + END_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": shape.user,
            "runAsGroup": shape.user,
            "fsGroup": shape.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(shape, job)],
        "volumes": _volumes(shape, job, number),
    }
    if job.kubernetes.service_account is not None:
        spec["serviceAccountName"] = job.kubernetes.service_account
    if shape.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in shape.pull_secrets]
    if job.priority is not None:
        spec["priorityClassName"] = job.priority
    if job.timeout is not None:
        spec["activeDeadlineSeconds"] = deadline_seconds(job.timeout, job.grace)
    spec |= _where(shape, job, num_nodes)
    notes = {layout.CONTAINER_ANNOTATION: WAYS[shape.via].container}
    return {"metadata": {"labels": labels(shape, job, number), "annotations": notes}, "spec": spec}


def deadline_seconds(left: float, grace: float) -> int:
    """The deadline of pods of which so much of the job's time limit is left: a supervisor that watches ends them first.

    It is the pods' and not the Job's: a Job deletes its pods at its deadline, and with them their logs. It counts from
    the start of a pod, so that pods which stay for the next attempt keep the deadline of the first.
    """
    return max(1, math.ceil(max(0.0, left) + grace + END_SECONDS + DEADLINE_SLACK_SECONDS))


def bounded(objects: Iterable[Manifest], seconds: int) -> None:
    """Give the pods that these objects make another deadline, wherever one stands in them."""
    waiting: list[Any] = list(objects)
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if "activeDeadlineSeconds" in one:
                one["activeDeadlineSeconds"] = seconds
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _where(shape: Shape, job: Job, num_nodes: int) -> Manifest:
    """Which machines the pods may go to."""
    found: Manifest = {}
    wanted = dict([shape.gpu_label]) if shape.gpu_label is not None else {}
    if job.resources.instance is not None:
        wanted[INSTANCE_LABEL] = job.resources.instance
    wanted |= job.kubernetes.node_labels
    if wanted:
        found["nodeSelector"] = wanted
    if tolerations := _tolerations(job):
        found["tolerations"] = tolerations
    if num_nodes > 1:  # where there is room: what one machine takes with it should be one node
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": HOST_LABEL,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {layout.RUN_LABEL: shape.run_id}},
            }
        ]
    return found


def _tolerations(job: Job) -> list[Manifest]:
    """The machines that pods may go to although others may not, and how long they stay on one that is silent."""
    found: list[Manifest] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if job.resources.gpus else []
    seconds = job.kubernetes.lost_after
    can_go_on = job.nodes.min < job.nodes.max or (job.restarts.max > 0 and "node-loss" in job.restarts.on)
    if seconds is None and can_go_on:
        seconds = LOST_SECONDS
    if seconds is not None:  # else the cluster adds its own
        stay = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": round(seconds)}
        found += [{"key": key, **stay} for key in SILENT]
    return found


def _container(shape: Shape, job: Job) -> Manifest:
    container: Manifest = {
        "name": WAYS[shape.via].container,
        "image": shape.image,
        "command": [shape.python, "-I", "-S", f"{layout.BOOT}/{BOOT_FILE}"],
        "workingDir": layout.WORK,
        "env": [
            {"name": "WINDLASS_CODE_DIGEST", "value": shape.code_digest},
            # A user without an entry in the image's passwd has no home, and libraries want to keep caches in one.
            {"name": "HOME", "value": layout.WORK},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(shape, job),
    }
    if job.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in job.secrets]
    if amounts := _amounts(job):
        container["resources"] = {"requests": amounts, "limits": amounts}
    return container


def _amounts(job: Job) -> dict[str, str]:
    """What a pod is given; asked and granted are the same, so that no neighbour can take it away."""
    asked = job.resources
    found: dict[str, str] = {}
    if asked.cpus is not None:
        found["cpu"] = f"{round(asked.cpus * 1000)}m"
    if asked.memory is not None:
        found["memory"] = str(asked.memory)
    if asked.gpus:
        found[GPU] = str(asked.gpus)
    return found


def _mounts(shape: Shape, job: Job) -> list[Manifest]:
    results: Manifest = {"name": "results", "mountPath": layout.RESULTS}
    if job.kubernetes.results is not None:
        results["subPath"] = f"windlass/{shape.run_id}"
    return [
        {"name": "boot", "mountPath": layout.BOOT, "readOnly": True},
        {"name": "code", "mountPath": layout.PIECES, "readOnly": True},
        {"name": "attempt", "mountPath": layout.ATTEMPT, "readOnly": True},
        {"name": "work", "mountPath": layout.WORK},
        {"name": "shm", "mountPath": "/dev/shm"},
        results,
        *([{"name": "end", "mountPath": layout.END, "readOnly": True}] if WAYS[shape.via].revives else []),
        *({"name": f"volume-{at}", "mountPath": volume.path} for at, volume in enumerate(job.volumes)),
    ]


def _volumes(shape: Shape, job: Job, number: int) -> list[Manifest]:
    shm: Manifest = {"medium": "Memory"}
    if job.resources.shm is not None:
        shm["sizeLimit"] = str(job.resources.shm)
    pieces = [
        {
            "configMap": {
                "name": layout.piece_name(shape.run_id, shape.code_digest, at),
                "items": [{"key": "piece", "path": f"{at:03d}"}],
            }
        }
        for at in range(shape.num_pieces)
    ]
    results = job.kubernetes.results
    kept: Mapping[str, Any] = {"emptyDir": {}}
    if results is not None:
        kept = {"persistentVolumeClaim": {"claimName": results.claim or shape.run_id}}
    return [
        {"name": "boot", "configMap": {"name": shape.run_id}},
        {"name": "code", "projected": {"sources": pieces}},
        {"name": "attempt", "configMap": {"name": layout.attempt_name(shape.run_id, number)}},
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": shm},
        {"name": "results", **kept},
        *([_end(shape)] if WAYS[shape.via].revives else []),
        *(
            {"name": f"volume-{at}", "persistentVolumeClaim": {"claimName": volume.claim}}
            for at, volume in enumerate(job.volumes)
        ),
    ]


def _end(shape: Shape) -> Manifest:
    """The mark of the run's end, which is not there while it goes on."""
    return {"name": "end", "configMap": {"name": layout.mark_name(shape.run_id, "end"), "optional": True}}


def owned(manifest: Mapping[str, Any], owner: Mapping[str, Any]) -> Manifest:
    """The manifest of an object that goes when its owner, an object as the API server knows it, is deleted."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}
