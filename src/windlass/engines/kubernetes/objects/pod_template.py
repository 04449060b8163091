"""The pod template of an attempt: where its pods are scheduled, their container and volumes. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout, mount_manifests
from windlass.engines.kubernetes.objects.order_client import order_client_fields
from windlass.engines.kubernetes.objects.pod_spec import pod_specs
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.runtimes import Runtime
from windlass.worker import masking

if TYPE_CHECKING:
    from windlass.spec.job import Job

GPU: Final = "nvidia.com/gpu"
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Node labels with the GPU type: of NVIDIA's discovery, Karpenter on EKS, GKE."""
GPU_TOLERATION: Final[Manifest] = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
HOST_LABEL: Final = "kubernetes.io/hostname"
DEADLINE_SLACK_SECONDS: Final = 60
"""How much later than the supervisor of a run the cluster ends its pods when the job's time limit is over."""
END_SECONDS: Final = 15
"""How much longer than its ranks a pod may take to end."""
BOOT_FILE: Final = "boot.py"
IMAGE: Final = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
"""The image of pods where neither job nor target names one."""
PYTHON: Final = "python3"
"""Their interpreter."""
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
OF_STORES: Final = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_", *PROXIES)
"""Beginnings of variables that name a store, the way to it, or the certificates by which it is known."""
UNPRIVILEGED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""The security context of a container under the restricted profile."""
SHM_BYTES: Final = 8 << 30
"""Most of `/dev/shm` where the job names neither that nor its memory: else it may fill the memory of a node."""
READ_ONLY: Final[Manifest] = {"readOnly": True}
SILENT: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Taints of a node that does not answer; after some time the cluster deletes its pods."""
LOST_SECONDS: Final = 30
"""How long a job that can go on without it waits for such a node: a restarted kubelet is back by then."""


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
    """Objects that carry the code."""
    code_source: str = ""
    """Address of the code in a store; empty where objects carry it."""
    submitter: str = ""
    """The name of the user who submits the run; empty where it is not known."""
    procs_per_node: int = 1
    pull_secrets: tuple[str, ...] = ()
    """Secrets with the logins of image registries."""
    gpu_label: tuple[str, str] | None = None
    """The node label, and its value, for the requested GPU type."""
    is_supervised_inside: bool = False
    """Whether the supervisor of the run is a pod of the cluster."""
    keeps_others: bool = False
    """Whether the owner object keeps the other pods when one is lost."""
    supervisor_image: str = ""
    """Of that pod; empty for the image of the run."""
    target_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the target sets for every job."""
    expires_seconds: int | None = None
    """How long after its end a run with a supervisor in the cluster is kept; None is until it is removed."""
    pods_seconds: int | None = None
    """The same of the pods of an attempt; None is as long as the run."""
    supervisor_queue: str = ""
    """The queue that admits the supervisor's pod; empty where none does."""
    outputs_max: int = 0
    """Bytes that outputs may have to be fetched; 0 if outputs are not fetched."""
    data_claim: str = ""
    """The claim that has the data sets which are staged for the run; empty where none is."""
    mounts: tuple[mount_manifests.Mounted, ...] = ()
    """The data sets that the cluster mounts."""
    tolerations: tuple[Manifest, ...] = ()
    """Of taints of nodes; those for nodes that do not answer come beside them."""
    runtime: Runtime | None = None
    """The runtime of the cluster that a TrainJob stands on; then `image` may be empty, and is the runtime's."""


def labels(shape: Shape, job: Job, component: str, attempt: int | None = None) -> dict[str, str]:
    """What ties an object to its run."""
    return {**job.labels, **named.of_run(shape.run_id, job.name, shape.submitter, component, attempt)}


def spread(pods: Mapping[str, str]) -> list[Manifest]:
    """The constraint that puts pods with these labels on nodes of their own, where there is capacity."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOST_LABEL,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(pods)},
        }
    ]


def pod_template(shape: Shape, job: Job, number: int, num_nodes: int) -> Manifest:
    """The template of the pods of attempt `number`, with so many nodes."""
    volumes = list(_volumes(shape, job, number))
    mounts = [{"name": name, "mountPath": path, **more} for name, path, _, more in volumes]
    sources = {name: {"name": name, **source} for name, _, source, _ in volumes}  # one may be mounted several times
    orders = order_client_fields(shape.run_id, shape.namespace) if shape.is_supervised_inside else {}
    container = _container(shape, job, [*mounts, *orders.get("volumeMounts", ())])
    container["env"] += orders.get("env", ())
    spec: Manifest = {
        "restartPolicy": "Never",
        "subdomain": shape.run_id,
        "terminationGracePeriodSeconds": int(job.grace) + END_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted(shape.user),
        "containers": [container],
        "volumes": [*sources.values(), *orders.get("volumes", ())],
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
    container_name = WORKLOADS[shape.via].container
    notes = {layout.CONTAINER_ANNOTATION: container_name, **layout.KEPT_ON_ITS_NODE, **_described(shape, job)}
    return {"metadata": {"labels": labels(shape, job, named.TRAINING, number), "annotations": notes}, "spec": spec}


def _described(shape: Shape, job: Job) -> dict[str, str]:
    """What the ranks of the pods run, for reviewers and policy engines: the pods' own command only unpacks it."""
    env = {**shape.target_env, **job.env}
    return {
        layout.DIGEST_ANNOTATION: shape.code_digest,
        layout.COMMAND_ANNOTATION: shlex.join(job.script_argv),
        **({layout.ENV_ANNOTATION: json.dumps(env, sort_keys=True)} if env else {}),
    }


def restricted(user: int) -> Manifest:
    """The security context of a pod under the restricted profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def deadline_seconds(left: float, grace: float) -> int:
    """The deadline of pods of which so much of the job's time limit is left: a supervisor that watches ends them first.

    It is the pods' and not the Job's: a Job deletes its pods at its deadline, and with them their logs. It counts from
    the start of a pod, so that pods which stay for the next attempt keep the deadline of the first.
    """
    return max(1, math.ceil(max(0.0, left) + grace + END_SECONDS + DEADLINE_SLACK_SECONDS))


def bounded(objects: Iterable[Manifest], seconds: int) -> None:
    """Give the pods that these objects make another deadline, where they have one."""
    for spec in pod_specs(objects):
        if "activeDeadlineSeconds" in spec:
            spec["activeDeadlineSeconds"] = seconds


def _where(shape: Shape, job: Job, num_nodes: int) -> Manifest:
    """On which nodes the pods may be scheduled."""
    found: Manifest = {}
    wanted = dict([shape.gpu_label]) if shape.gpu_label is not None else {}
    if job.resources.instance is not None:
        wanted[INSTANCE_LABEL] = job.resources.instance
    wanted |= job.kubernetes.node_labels
    if wanted:
        found["nodeSelector"] = wanted
    if tolerations := _tolerations(shape, job):
        found["tolerations"] = tolerations
    if num_nodes > 1:  # a lost cluster node should take one node of the job with it
        found["topologySpreadConstraints"] = spread({layout.RUN_LABEL: shape.run_id})
    return found


def _tolerations(shape: Shape, job: Job) -> list[Manifest]:
    """Taints that the pods tolerate, and for how long they are kept on an unreachable node."""
    found = list(shape.tolerations)
    seconds = job.kubernetes.lost_after
    can_go_on = job.nodes.min < job.nodes.max or (job.restarts.max > 0 and "node-loss" in job.restarts.on)
    if seconds is None and can_go_on:
        seconds = LOST_SECONDS
    return found if seconds is None else [*found, *leaving(round(seconds))]  # else the cluster adds its own


def leaving(seconds: int) -> list[Manifest]:
    """The tolerations by which pods stay so long on a node that does not answer."""
    stay = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    return [{"key": key, **stay} for key in SILENT]


def _container(shape: Shape, job: Job, mounts: list[Manifest]) -> Manifest:
    container: Manifest = {
        "name": WORKLOADS[shape.via].container,
        "image": shape.image,
        "command": [shape.python, "-I", "-S", f"{layout.BOOT}/{BOOT_FILE}"],
        "workingDir": layout.WORK,
        "env": [
            {"name": "WINDLASS_CODE_DIGEST", "value": shape.code_digest},
            *variables(_stored_code(shape, job)),
            # A user without an entry in the image's passwd has no home, and libraries want to keep caches in one.
            {"name": "HOME", "value": layout.WORK},
        ],
        "securityContext": UNPRIVILEGED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if job.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in job.secrets]
        container["env"].append({"name": masking.FOLDER, "value": layout.SECRETS})
    if amounts := _amounts(job):
        container["resources"] = {"requests": amounts, "limits": amounts}
    return container


def _stored_code(shape: Shape, job: Job) -> dict[str, str]:
    """Variables by which a pod fetches the code, where a store has it."""
    return {"WINDLASS_CODE_SOURCE": shape.code_source, **of_store(shape, job)} if shape.code_source else {}


def of_store(shape: Shape, job: Job) -> dict[str, str]:
    """The variables of target and job that name a store: endpoint, region, profile, account."""
    return {name: text for name, text in {**shape.target_env, **job.env}.items() if name.startswith(OF_STORES)}


def variables(env: Mapping[str, str]) -> list[Manifest]:
    """An environment as a container has it."""
    return [{"name": name, "value": value} for name, value in env.items()]


def _amounts(job: Job) -> dict[str, str]:
    """The resources of a pod; requests equal limits, so that no other pod can take them."""
    asked = job.resources
    found: dict[str, str] = {}
    if asked.cpus is not None:
        found["cpu"] = quantity_text("cpu", asked.cpus)
    if asked.memory is not None:
        found["memory"] = str(asked.memory)
    if asked.gpus:
        found[GPU] = str(asked.gpus)
    return found


def _volumes(shape: Shape, job: Job, number: int) -> Iterator[tuple[str, str, Manifest, Manifest]]:
    """The volumes of a pod: name, where it is mounted, its source, and further fields of the mount."""
    run, pieces = shape.run_id, range(shape.num_pieces)
    code = code_sources(layout.piece_name(run, shape.code_digest, at) for at in pieces)
    # What is written there counts as memory of the pod, so that its limit bounds it anyway.
    most = job.resources.shm or job.resources.memory or SHM_BYTES
    shm: Manifest = {"medium": "Memory", "sizeLimit": str(most)}
    results = job.kubernetes.results
    kept: Manifest = {"emptyDir": {}}
    if results is not None:
        kept = {"persistentVolumeClaim": {"claimName": results.claim or run}}
    yield "boot", layout.BOOT, {"configMap": {"name": run}}, READ_ONLY
    if shape.code_source:
        yield "program", layout.TRANSFER, {"configMap": {"name": layout.transfer_name(run)}}, READ_ONLY
    else:
        yield "code", layout.PIECES, {"projected": {"sources": code}}, READ_ONLY
    yield "attempt", layout.ATTEMPT, {"configMap": {"name": layout.attempt_name(run, number)}}, READ_ONLY
    if job.secrets:  # by their files the worker knows which variables to mask; one that is missing is named by envFrom
        named = [{"secret": {"name": name, "optional": True}} for name in job.secrets]
        yield "secrets", layout.SECRETS, {"projected": {"sources": named, "defaultMode": 0o400}}, READ_ONLY
    yield "work", layout.WORK, {"emptyDir": {}}, {}
    yield "shm", "/dev/shm", {"emptyDir": shm}, {}
    yield "results", layout.RESULTS, kept, {} if results is None else {"subPath": f"windlass/{run}"}
    if shape.data_claim:
        claimed = {"persistentVolumeClaim": {"claimName": shape.data_claim}}
        yield "data", layout.DATA, claimed, {"subPath": layout.DATA_FOLDER, **READ_ONLY}
    yield from mount_manifests.pod_volumes(shape.mounts)
    # The end marker of the run, which does not exist while the run is active: for pods that are created later.
    if WORKLOADS[shape.via].revives or job.kubernetes.spares:
        yield "end", layout.END, {"configMap": {"name": layout.marker_name(run, "end"), "optional": True}}, READ_ONLY
    for at, volume in enumerate(job.volumes):
        yield f"volume-{at}", volume.path, {"persistentVolumeClaim": {"claimName": volume.claim}}, {}


def code_sources(names: Iterable[str]) -> list[Manifest]:
    """The pieces of the code as sources of a projected volume, given the names of their ConfigMaps."""
    return [
        {"configMap": {"name": name, "items": [{"key": "piece", "path": f"{at:03d}"}]}} for at, name in enumerate(names)
    ]
