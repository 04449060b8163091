"""Builds the objects of a run as they are sent to the API server. Pure: the same job gives the same bytes.

ConfigMap RUN            the owner ConfigMap: owns all other objects, so that deleting it deletes them
├── ConfigMap RUN-code-… the code, in pieces
├── Service RUN          headless: gives pods their names
├── NetworkPolicy RUN    admits only connections between the pods of the run
├── PersistentVolumeClaim RUN   if the job requests a claim for its results
├── ConfigMap RUN-K      the node specs of attempt K
└── Job, JobSet, TrainJob … RUN-K  attempt K, see `workloads/`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_template import (
    BOOT_FILE,
    GPU_LABELS,
    OWN_PRIVILEGES,
    TMP,
    TMP_VOLUME,
    Shape,
    labels,
    pod_template,
    restricted,
)
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest, WorkloadRequest
from windlass.spec.pod_patch import patched

if TYPE_CHECKING:
    from windlass.spec.job import Job

RATHER_WITHOUT_GPUS: Final[Manifest] = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {
                    "matchExpressions": [{"key": label, "operator": "DoesNotExist"} for label in GPU_LABELS],
                },
            }
        ]
    }
}
"""Affinity of pods that need no GPU: they prefer nodes without GPUs, so that they do not occupy expensive nodes."""
PIECE_BYTES: Final = 1_000_000
"""Maximum size of one piece of the code, in bytes. Kubernetes limits an object to 1 MiB."""
MAX_PIECES: Final = 8
"""Maximum number of ConfigMaps that carry the code of a run. Larger code is uploaded to a store."""


@dataclass(frozen=True, slots=True)
class RunObjects:
    """Manifests of a run, including those of its first attempt."""

    owner_config_map: Manifest
    """ConfigMap that owns all other objects of the run."""
    pieces: tuple[Manifest, ...]
    """ConfigMaps that carry the code."""
    service: Manifest
    claim: Manifest | None
    """Claim for the results; None if the run creates no claim."""
    attempt: tuple[Manifest, ...]
    """Manifests of the first attempt; the last one is the owner object of the pods."""
    policies: tuple[Manifest, ...]


def run_objects(shape: Shape, job: Job, boot: str) -> RunObjects:
    """Returns the objects of a run. `boot` is the source text of the program that unpacks the code in each pod."""
    return RunObjects(
        owner_config_map=owner_config_map(shape, job, boot),
        pieces=tuple(_piece(shape, job, number) for number in range(shape.num_pieces)),
        service=_service(shape, job),
        claim=_claim(shape, job),
        attempt=tuple(attempt(shape, job, 1, job.nodes.max + job.kubernetes.spares)),
        policies=tuple(_network_policies(shape, job)),
    )


def num_pieces(size: int) -> int:
    """Returns the number of ConfigMaps needed for `size` bytes of code."""
    return -(-size // PIECE_BYTES)


def core(kind: str, name: str, namespace: str, labels: Mapping[str, str], **fields: Any) -> Manifest:
    """Returns the manifest of an object of the core API (`v1`)."""
    meta = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, **fields}


def owner_config_map(shape: Shape, job: Job, boot: str) -> Manifest:
    """Returns the ConfigMap that owns all other objects of the run and contains the program that unpacks the code."""
    made = core("ConfigMap", shape.run_id, shape.namespace, labels(shape, job, named.RUN), data={BOOT_FILE: boot})
    spares = {layout.SPARES_ANNOTATION: str(job.kubernetes.spares)} if job.kubernetes.spares else {}
    made["metadata"]["annotations"] = {layout.DIGEST_ANNOTATION: shape.code_digest, **spares}
    return made


def _piece(shape: Shape, job: Job, number: int) -> Manifest:
    """Returns the ConfigMap of one piece of the code, without the piece itself, which is added as `binaryData` before
    sending.
    """
    name = layout.piece_name(shape.run_id, shape.code_digest, number)
    its = {**labels(shape, job, named.CODE), layout.CODE_LABEL: shape.code_digest[:8]}
    return core("ConfigMap", name, shape.namespace, its, immutable=True)


def _service(shape: Shape, job: Job) -> Manifest:
    """Returns the headless Service that gives each pod of the run a host name."""
    its, pods = labels(shape, job, named.TRAINING), {layout.RUN_LABEL: shape.run_id}
    return naming_service(shape.run_id, shape.namespace, its, pods, "master", layout.MASTER_PORT)


def naming_service(
    name: str, namespace: str, labels: Mapping[str, str], pods: Mapping[str, str], port: str, number: int
) -> Manifest:
    """Returns a headless Service that gives a host name to each pod with the labels `pods`; `port` and `number` are the
    name and number of the pods' port.

    Host names resolve before pods are ready, since ranks connect to each other before then.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(pods),
        "ports": [{"name": port, "port": number}],
    }
    return core("Service", name, namespace, labels, spec=spec)


def _network_policies(shape: Shape, job: Job) -> Iterator[Manifest]:
    """Yields the network policies of a run: its pods accept connections only from pods of the run, and its supervisor
    only on the port for orders.
    """
    run = {"matchLabels": {layout.RUN_LABEL: shape.run_id}}
    pods = {**run, "matchExpressions": [{"key": layout.ATTEMPT_LABEL, "operator": "Exists"}]}
    yield _policy(shape.run_id, shape, labels(shape, job, named.TRAINING), pods, {"from": [{"podSelector": run}]})
    if shape.is_supervised_inside:
        port = {"protocol": "TCP", "port": layout.ORDERS_PORT}
        its = {"matchLabels": {layout.RUN_LABEL: shape.run_id, named.COMPONENT: named.SUPERVISOR}}
        orders = {"from": [{"podSelector": pods}], "ports": [port]}
        yield _policy(layout.supervisor_name(shape.run_id), shape, labels(shape, job, named.SUPERVISOR), its, orders)


def _policy(name: str, shape: Shape, labels: Mapping[str, str], pods: Manifest, ingress: Manifest) -> Manifest:
    meta = {"name": name, "namespace": shape.namespace, "labels": dict(labels)}
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [ingress]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def _claim(shape: Shape, job: Job) -> Manifest | None:
    """Returns the claim that is created for the results of the run, or None if the job requests none."""
    results = job.kubernetes.results
    if results is None or results.claim is not None:
        return None
    assert results.size is not None
    its = labels(shape, job, named.RESULTS)
    return shared_claim(shape.run_id, shape.namespace, its, results.size, results.storage_class)


def shared_claim(
    name: str, namespace: str, labels: Mapping[str, str], size: int, storage_class: str | None
) -> Manifest:
    """Returns a claim of `size` bytes that pods on all nodes may mount."""
    spec: Manifest = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": str(size)}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return core("PersistentVolumeClaim", name, namespace, labels, spec=spec)


def attempt(shape: Shape, job: Job, number: int, num_nodes: int) -> list[Manifest]:
    """Returns the objects of one attempt, the owner object of the pods last."""
    name = layout.attempt_name(shape.run_id, number)
    meta: Manifest = {"name": name, "namespace": shape.namespace, "labels": labels(shape, job, named.TRAINING, number)}
    if shape.pods.annotations:
        meta["annotations"] = dict(shape.pods.annotations)
    if job.queue is not None:
        meta["labels"] = {**meta["labels"], layout.QUEUE_LABEL: job.queue}
    asked = WorkloadRequest(
        num_nodes, job.nodes.min, shape.procs_per_node, shape.pods_seconds, shape.runtime, shape.keeps_others
    )
    return WORKLOADS[shape.via].made(meta, pod_template(shape, job, number, num_nodes), asked)


def own_job(
    shape: Shape, job: Job | None, name: str, its: Mapping[str, str], pod: Manifest, max_failures: int
) -> Manifest:
    """Returns a Job with one pod of Windlass itself, which has the options of target and job; `its` are the labels of
    both Job and pod.

    The pod keeps to the `restricted` Pod Security Standard, and tolerates the same taints as the training pods: all
    nodes of the cluster may have these taints. Raises PatchRefused.
    """
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted(shape.user),
        **with_tmp(pod),
        "tolerations": [*shape.tolerations, *pod["tolerations"]],
        "affinity": RATHER_WITHOUT_GPUS,
    }
    if shape.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in shape.pull_secrets]
    if job is not None and job.priority is not None:
        pod["priorityClassName"] = job.priority  # A run of a higher priority must not evict the supervisor of this one.
    queue = {layout.QUEUE_LABEL: shape.supervisor_queue} if shape.supervisor_queue else {}
    notes = dict(shape.pods.annotations)
    meta = {"name": name, "namespace": shape.namespace, "labels": {**its, **queue}, "annotations": notes}
    template = {"metadata": {"labels": dict(its), "annotations": {**notes, **layout.KEPT_ON_ITS_NODE}}, "spec": pod}
    template = patched(template, shape.supervisor_patches, named.SUPERVISOR)
    spec = {"backoffLimit": max_failures, "podReplacementPolicy": "TerminatingOrFailed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def with_tmp(pod: Manifest) -> Manifest:
    """Returns the spec of a pod of Windlass itself with a writable `/tmp`, since the root of its container is not."""
    [container] = pod["containers"]
    mounts = [*container.get("volumeMounts", ()), {"name": TMP_VOLUME, "mountPath": TMP}]
    container = {**container, "securityContext": OWN_PRIVILEGES, "volumeMounts": mounts}
    return {
        **pod,
        "containers": [container],
        "volumes": [*pod.get("volumes", ()), {"name": TMP_VOLUME, "emptyDir": {}}],
    }


def owned(manifest: Mapping[str, Any], owner: Mapping[str, Any], *, is_first: bool = False) -> Manifest:
    """Returns the manifest with an owner reference; `owner` is an object as returned by the API server.

    With `is_first`, a foreground deletion of the owner waits until this object is deleted.
    """
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        **({"blockOwnerDeletion": True} if is_first else {}),
    }
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}
