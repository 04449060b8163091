"""Builds the pod template of an attempt: scheduling, container and volumes. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout, mount_manifests
from windlass.engines.kubernetes.objects.find_pod_specs import pod_specs
from windlass.engines.kubernetes.objects.lost_pods import LOST_SECONDS, lost_tolerations
from windlass.engines.kubernetes.objects.order_client import READABLE_BY_GROUP, order_client_fields
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.runtimes import Runtime
from windlass.spec.labels import SERVICE_LABEL
from windlass.spec.pod_patch import NODE, patched
from windlass.worker import masking

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.kubernetes import PodOptions, Toleration
    from windlass.spec.sections import Volume
    from windlass.spec.targets import KubernetesTarget

GPU: Final = "nvidia.com/gpu"
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Node labels with the GPU type, as set by NVIDIA's GPU feature discovery, Karpenter on EKS, and GKE."""
GPU_TOLERATION: Final[Manifest] = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
HOST_LABEL: Final = "kubernetes.io/hostname"
DEADLINE_SLACK_SECONDS: Final = 60
"""Seconds added to the pods' deadline, so that a running supervisor ends them first, at the time limit."""
END_SECONDS: Final = 15
"""Seconds that a pod may need to end after its ranks have ended."""
BOOT_FILE: Final = "boot.py"
IMAGE: Final = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"
"""Default image of pods if neither job nor target sets one."""
PYTHON: Final = "python3"
"""Default Python interpreter in the pods' image."""
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
OF_STORES: Final = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_", *PROXIES)
"""Prefixes of environment variables that configure access to a store: endpoints, credentials, proxies and
certificates."""
UNPRIVILEGED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of a container under the `restricted` Pod Security Standard."""
OWN_PRIVILEGES: Final = {**UNPRIVILEGED, "readOnlyRootFilesystem": True}
"""Security context of the containers of Windlass's own pods, which write to volumes only."""
SHM_BYTES: Final = 8 << 30
"""Size limit of `/dev/shm`, in bytes, if the job sets neither `shm` nor `memory`: without a limit, it could fill the
memory of a node."""
READ_ONLY: Final[Manifest] = {"readOnly": True}
TMP: Final = "/tmp"
TMP_VOLUME: Final = "tmp"
SECRETS_VOLUME: Final = "windlass-secrets"
"""Name of a volume that is added after patches, which may have volumes of any other name."""


def _no_options() -> PodOptions:
    from windlass.spec.kubernetes import PodOptions  # a supervisor in the cluster has no pydantic

    return PodOptions()


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties that all pods of a run share, as decided by the plan."""

    run_id: str
    namespace: str
    via: str
    """Name of the workload kind: `job`, `jobset`, …"""
    image: str
    python: str
    user: int
    code_digest: str
    num_pieces: int
    """Number of ConfigMaps that carry the code."""
    code_source: str = ""
    """Address of the code in a store; empty if ConfigMaps carry the code."""
    submitter: str = ""
    """Name of the user who submits the run; empty if unknown."""
    procs_per_node: int = 1
    pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets with credentials of image registries."""
    gpu_label: tuple[str, str] | None = None
    """Node label and its value that select the requested GPU type."""
    is_supervised_inside: bool = False
    """Whether the supervisor of the run runs in a pod of the cluster."""
    keeps_others: bool = False
    """Whether the owner object keeps the remaining pods if one is lost."""
    supervisor_image: str = ""
    """Image of the supervisor's pod; empty to use the run's image."""
    target_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the target sets for every job."""
    expires_seconds: int | None = None
    """Seconds for which a run with a supervisor in the cluster is kept after its end; None to keep it until it is
    removed."""
    pods_seconds: int | None = None
    """Seconds for which the pods of an attempt are kept after their end; None to keep them as long as the run."""
    supervisor_queue: str = ""
    """Kueue queue that admits the supervisor's pod; empty for none."""
    outputs_max: int = 0
    """Largest total size, in bytes, of the outputs that are fetched to the user's machine; 0 if none are fetched."""
    data_claim: str = ""
    """Claim with the data sets that are staged for the run; empty for none."""
    mounts: tuple[mount_manifests.Mounted, ...] = ()
    """Data sets that the cluster mounts."""
    tolerations: tuple[Manifest, ...] = ()
    """Tolerations of node taints, not including those for nodes that do not respond."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the target sets on all objects of every run."""
    pods: PodOptions = field(default_factory=_no_options)
    """Options of the pods, of target and job together."""
    pod_patches: tuple[Mapping[str, Any], ...] = ()
    """Strategic merge patches of the ranks' pod template, in the order in which they apply."""
    supervisor_patches: tuple[Mapping[str, Any], ...] = ()
    """Strategic merge patches of the pod templates of the supervisor and of the pods that copy or check data."""
    runtime: Runtime | None = None
    """Training runtime of the cluster that a TrainJob refers to, or None. With a runtime, an empty `image` means the
    runtime's image."""


def target_shape(target: KubernetesTarget, namespace: str, name: str, data_claim: str = "") -> Shape:
    """Returns the shape of pods on a target, for commands without a run; `name` is that of their objects."""
    return Shape(
        run_id=name,
        namespace=namespace,
        via="job",
        image=target.image or IMAGE,
        python=target.python or PYTHON,
        user=target.user,
        code_digest="",
        num_pieces=0,
        pull_secrets=tuple(target.image_pull_secrets),
        supervisor_image=target.supervisor_image or "",
        supervisor_queue=target.supervisor_queue or "",
        target_env=target.env,
        data_claim=data_claim,
        tolerations=tuple(map(tolerated, target.tolerations)),
        labels=target.labels,
        pods=target,
        pod_patches=(target.pod,) if target.pod else (),
        supervisor_patches=(target.supervisor_pod,) if target.supervisor_pod else (),
    )


def labels(shape: Shape, job: Job, component: str, attempt: int | None = None) -> dict[str, str]:
    """Returns the labels of an object of the run, including those of target and job."""
    return {**shape.labels, **job.labels, **named.of_run(shape.run_id, job.name, shape.submitter, component, attempt)}


def spread(pods: Mapping[str, str]) -> list[Manifest]:
    """Returns the topology constraint that places pods with these labels on separate nodes if capacity allows."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOST_LABEL,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(pods)},
        }
    ]


def pod_template(shape: Shape, job: Job, number: int, num_nodes: int) -> Manifest:
    """Returns the template of the pods of attempt `number` with `num_nodes` nodes. Raises PatchRefused."""
    return _masked(patched(_unpatched(shape, job, number, num_nodes), shape.pod_patches, NODE))


def _unpatched(shape: Shape, job: Job, number: int, num_nodes: int) -> Manifest:
    volumes = list(_volumes(shape, job, number))
    mounts = [{"name": name, "mountPath": path, **more} for name, path, _, more in volumes]
    # A volume may be mounted at several paths, but is listed once.
    sources = {name: {"name": name, **source} for name, _, source, _ in volumes}
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
    notes = {
        **shape.pods.annotations,
        layout.CONTAINER_ANNOTATION: container_name,
        **layout.KEPT_ON_ITS_NODE,
        **_described(shape, job),
    }
    return {"metadata": {"labels": labels(shape, job, named.TRAINING, number), "annotations": notes}, "spec": spec}


def _masked(template: Manifest) -> Manifest:
    """Returns the template with a volume that tells the worker which variables come from Secrets, if any do: the worker
    masks their values in logs.
    """
    [container] = template["spec"]["containers"]
    whole = [one["secretRef"]["name"] for one in container.get("envFrom", ()) if "secretRef" in one]
    keys = [(one["name"], one["valueFrom"]["secretKeyRef"]) for one in container["env"] if _is_of_secret(one)]
    # A missing Secret is reported because of the variables themselves.
    sources = [
        *({"secret": {"name": name, "optional": True}} for name in whole),
        *(
            {"secret": {"name": ref["name"], "items": [{"key": ref["key"], "path": name}], "optional": True}}
            for name, ref in keys
        ),
    ]
    if not sources:
        return template
    volume = {"name": SECRETS_VOLUME, "projected": {"sources": sources, "defaultMode": 0o400}}
    container = {
        **container,
        "env": [*container["env"], {"name": masking.FOLDER, "value": layout.SECRETS}],
        "volumeMounts": [
            *container["volumeMounts"],
            {"name": SECRETS_VOLUME, "mountPath": layout.SECRETS, **READ_ONLY},
        ],
    }
    spec = {**template["spec"], "containers": [container], "volumes": [*template["spec"]["volumes"], volume]}
    return {**template, "spec": spec}


def _is_of_secret(variable: Manifest) -> bool:
    """Returns whether a variable has the value of a key of a Secret; one without name or key is the API server's to
    refuse.
    """
    source = variable.get("valueFrom")
    reference = source.get("secretKeyRef") if isinstance(source, Mapping) else None
    return isinstance(reference, Mapping) and {"name", "key"} <= reference.keys()


def _described(shape: Shape, job: Job) -> dict[str, str]:
    """Returns annotations with the command of the ranks, for reviewers and policy engines: the pods' own command only
    unpacks the code.
    """
    env = {**shape.target_env, **job.env}
    return {
        layout.DIGEST_ANNOTATION: shape.code_digest,
        layout.COMMAND_ANNOTATION: shlex.join(job.script_argv),
        **({layout.ENV_ANNOTATION: json.dumps(env, sort_keys=True)} if env else {}),
    }


def restricted(user: int) -> Manifest:
    """Returns the security context of a pod under the `restricted` Pod Security Standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def deadline_seconds(left: float, grace: float) -> int:
    """Returns the deadline of pods, in seconds, if `left` seconds of the job's time limit remain.

    The deadline is later than the time limit, so that a running supervisor ends the pods first. It is set on pods and
    not on their Job, which would delete the pods and their logs. It counts from the start of a pod, so that reused pods
    keep the deadline of their first attempt.
    """
    return max(1, math.ceil(max(0.0, left) + grace + END_SECONDS + DEADLINE_SLACK_SECONDS))


def bounded(objects: Iterable[Manifest], seconds: int) -> None:
    """Changes the deadline of the pods of these objects to `seconds`, if they have a deadline."""
    for spec in pod_specs(objects):
        if "activeDeadlineSeconds" in spec:
            spec["activeDeadlineSeconds"] = seconds


def _where(shape: Shape, job: Job, num_nodes: int) -> Manifest:
    """Returns the pod-spec fields that select nodes: node selector, tolerations and spread constraints."""
    found: Manifest = {}
    wanted = dict([shape.gpu_label]) if shape.gpu_label is not None else {}
    if job.resources.instance is not None:
        wanted[INSTANCE_LABEL] = job.resources.instance
    wanted |= shape.pods.node_selector
    if wanted:
        found["nodeSelector"] = wanted
    if tolerations := _tolerations(shape, job):
        found["tolerations"] = tolerations
    if num_nodes > 1:  # The loss of one cluster node should affect only one node of the job.
        found["topologySpreadConstraints"] = spread({layout.RUN_LABEL: shape.run_id})
    if affinity := _affinity(shape):
        found["affinity"] = affinity
    return found


def tolerated(asked: Toleration) -> Manifest:
    """Returns a toleration as Kubernetes expects it."""
    fields = {"key": asked.key, "value": asked.value, "effect": asked.effect, "tolerationSeconds": asked.seconds}
    return {
        **{name: value for name, value in fields.items() if value is not None},
        "operator": "Exists" if asked.value is None else "Equal",
    }


def _affinity(shape: Shape) -> Manifest:
    """Returns the rules for the placement of the ranks' pods relative to each other."""
    ranks = {
        "matchLabels": {layout.RUN_LABEL: shape.run_id},
        "matchExpressions": [{"key": layout.ATTEMPT_LABEL, "operator": "Exists"}],
    }
    asked = {"podAffinity": shape.pods.affinity.same, "podAntiAffinity": shape.pods.affinity.apart}
    return {
        kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, "labelSelector": ranks}]}
        for kind, key in asked.items()
        if key is not None
    }


def _tolerations(shape: Shape, job: Job) -> list[Manifest]:
    """Returns the pods' tolerations of node taints, which include how long pods stay on an unreachable node."""
    found = list(shape.tolerations)
    seconds = job.kubernetes.lost_after
    can_go_on = job.nodes.min < job.nodes.max or (job.restarts.max > 0 and "node-loss" in job.restarts.on)
    if seconds is None and can_go_on:
        seconds = LOST_SECONDS
    # If `seconds` is None, the cluster adds its default tolerations of unreachable nodes.
    return found if seconds is None else [*found, *lost_tolerations(round(seconds))]


def _container(shape: Shape, job: Job, mounts: list[Manifest]) -> Manifest:
    container: Manifest = {
        "name": WORKLOADS[shape.via].container,
        "image": shape.image,
        "command": [shape.python, "-I", "-S", f"{layout.BOOT}/{BOOT_FILE}"],
        "workingDir": layout.WORK,
        "env": [
            {"name": "WINDLASS_CODE_DIGEST", "value": shape.code_digest},
            *variables(_stored_code(shape, job)),
            # A user without an entry in the image's passwd file has no home directory, and libraries need one for their
            # caches.
            {"name": "HOME", "value": layout.WORK},
        ],
        "securityContext": _privileges(shape.pods),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if names := shape.pods.env_from:
        container["envFrom"] = [{"configMapRef": {"name": name}} for name in names]
    if job.secrets:  # A Secret takes precedence over a ConfigMap.
        secrets = [{"secretRef": {"name": name}} for name in job.secrets]
        container["envFrom"] = [*container.get("envFrom", ()), *secrets]
    if limits := {**_amounts(job), **shape.pods.limits}:
        container["resources"] = {"requests": {**limits, **shape.pods.requests}, "limits": limits}
    elif shape.pods.requests:
        container["resources"] = {"requests": dict(shape.pods.requests)}
    return container


def _privileges(pods: PodOptions) -> Manifest:
    """Returns the security context of the ranks' container."""
    found: Manifest = dict(UNPRIVILEGED)
    if pods.capabilities:
        found["capabilities"] = {"drop": ["ALL"], "add": list(pods.capabilities)}
    return {**found, "readOnlyRootFilesystem": True} if pods.read_only_root else found


def _stored_code(shape: Shape, job: Job) -> dict[str, str]:
    """Returns the variables with which a pod fetches the code from a store; empty if ConfigMaps carry the code."""
    return {"WINDLASS_CODE_SOURCE": shape.code_source, **of_store(shape, job)} if shape.code_source else {}


def of_store(shape: Shape, job: Job) -> dict[str, str]:
    """Returns the environment variables of target and job that configure access to a store, such as its endpoint."""
    return {name: text for name, text in {**shape.target_env, **job.env}.items() if name.startswith(OF_STORES)}


def variables(env: Mapping[str, str]) -> list[Manifest]:
    """Converts an environment to the `env` list of a container."""
    return [{"name": name, "value": value} for name, value in env.items()]


def _amounts(job: Job) -> dict[str, str]:
    """Returns the resources of a pod, used as both requests and limits, so that no other pod can use them."""
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
    """Yields the volumes of a pod: name, mount path, source, and further fields of the mount."""
    run, pieces = shape.run_id, range(shape.num_pieces)
    code = code_sources(layout.piece_name(run, shape.code_digest, at) for at in pieces)
    # Files in `/dev/shm` count as memory of the pod, so that the pod's memory limit applies to them as well.
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
    yield "work", layout.WORK, {"emptyDir": {}}, {}
    yield "shm", "/dev/shm", {"emptyDir": shm}, {}
    yield "results", layout.RESULTS, kept, {} if results is None else {"subPath": f"windlass/{run}"}
    if SERVICE_LABEL in job.labels:
        secret = {"secretName": layout.key_name(run), "defaultMode": READABLE_BY_GROUP}
        yield "service", layout.SERVICE, {"secret": secret}, READ_ONLY
    if shape.data_claim:
        claimed = {"persistentVolumeClaim": {"claimName": shape.data_claim}}
        yield "data", layout.DATA, claimed, {"subPath": layout.DATA_FOLDER, **READ_ONLY}
    yield from mount_manifests.pod_volumes(shape.mounts)
    # The end marker exists only after the run has ended; pods that are created later read it and exit.
    if WORKLOADS[shape.via].revives or job.kubernetes.spares:
        yield "end", layout.END, {"configMap": {"name": layout.marker_name(run, "end"), "optional": True}}, READ_ONLY
    for at, volume in enumerate(job.volumes):
        mount: Manifest = {"subPath": volume.sub_path} if volume.sub_path else {}
        # The kubelet does not start a pod with two volumes of one claim.
        first = at if volume.claim is None else [one.claim for one in job.volumes].index(volume.claim)
        yield f"volume-{first}", volume.path, _source(volume), {**mount, **(READ_ONLY if volume.read_only else {})}
    if shape.pods.read_only_root and TMP not in [volume.path.rstrip("/") for volume in job.volumes]:
        yield TMP_VOLUME, TMP, {"emptyDir": {}}, {}


def _source(volume: Volume) -> Manifest:
    """Returns the source of a volume of the job."""
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    return dict(volume.source)


def code_sources(names: Iterable[str]) -> list[Manifest]:
    """Returns the pieces of the code as sources of a projected volume; `names` are the names of their ConfigMaps."""
    return [
        {"configMap": {"name": name, "items": [{"key": "piece", "path": f"{at:03d}"}]}} for at, name in enumerate(names)
    ]
