"""Builds the objects of a deployment of a model. Pure: the same request gives the same bytes.

Job NAME                     the owner: runs no pod; its deadline ends the deployment
├── Secret NAME              certificate, key and token of the server
├── ConfigMap NAME-server    the server
├── ConfigMap NAME-transfer  the program that fetches the model, if it is in an object store
├── ConfigMap NAME-model-N   a small model, or the code of one, in pieces
├── PersistentVolumeClaim NAME-model   a larger model from the user's machine
├── Service NAME
├── Deployment NAME, or InferenceService NAME
└── HorizontalPodAutoscaler NAME
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout, model_program
from windlass.engines.kubernetes.objects import transfer_manifests as transfers
from windlass.engines.kubernetes.objects.exposure_manifests import server_service
from windlass.engines.kubernetes.objects.helper_manifests import sleeping
from windlass.engines.kubernetes.objects.manifests import PIECE_BYTES, RATHER_WITHOUT_GPUS, core, own_job, shared_claim
from windlass.engines.kubernetes.objects.package import FILE, transfer_archive
from windlass.engines.kubernetes.objects.pod_template import (
    GPU,
    GPU_TOLERATION,
    OWN_PRIVILEGES,
    READ_ONLY,
    TMP,
    TMP_VOLUME,
    Shape,
    code_sources,
    restricted,
    spread,
    variables,
)
from windlass.engines.kubernetes.objects.quantity import quantity_text
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.spec.pod_patch import NODE, patched

if TYPE_CHECKING:
    from windlass.engines.deployments import DeploymentRequest

PORT: Final = 8443
START_SECONDS: Final = 900
"""Maximum seconds until the pods of a deployment are ready."""
GRACE_SECONDS: Final = 30
LEAVE_SECONDS: Final = 3
"""Seconds for which a terminating pod still answers, until the cluster has stopped sending it requests."""
SERVER: Final = f"{layout.ROOT}/server"
SERVER_FILE: Final = "server.zip"
CREDENTIALS: Final = f"{layout.ROOT}/credentials"
MODEL: Final = f"{layout.ROOT}/model"
SOURCE: Final = f"{layout.ROOT}/source"
FETCHED: Final = f"{SOURCE}/model"
DIGEST_ANNOTATION: Final = "windlass.dev/deployment-digest"
"""Annotation of the owner: digest of the request, which identifies a repeated request."""
OBJECTS_ANNOTATION: Final = "windlass.dev/deployment-objects"
"""Annotation of the owner with `KIND/NAME` of each object that it owns, separated by commas."""
OWNER_ANNOTATION: Final = "windlass.dev/owner"
RUN_ANNOTATION: Final = "windlass.dev/model-of-run"
APPS: Final = "apps/v1"
AUTOSCALING: Final = "autoscaling/v2"
KSERVE: Final = "serving.kserve.io/v1beta1"
KSERVE_CONTAINER: Final = "kserve-container"
"""Name that KServe requires for the container of a predictor with a custom server."""
KSERVE_MODE: Final = {"serving.kserve.io/deploymentMode": "RawDeployment"}
"""Annotation that makes KServe use a plain Deployment. KServe 0.16 calls this mode `Standard`, and accepts both
names."""
CPU_PERCENT: Final = 80
"""Average use of the requested CPU, in percent, above which the autoscaler adds replicas."""
WORKLOADS: Final = ("Deployment", "InferenceService")
"""Kinds of objects whose controllers make the pods."""
OWNED: Final = {
    "Secret": "v1",
    "ConfigMap": "v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Deployment": APPS,
    "InferenceService": KSERVE,
    "HorizontalPodAutoscaler": AUTOSCALING,
}
"""API version of each kind of object that an owner owns."""
Id = tuple[str, str, str]
"""API version, kind and name of an object."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """How the files of a model reach the pods of its deployment."""

    num_pieces: int = 0
    """Number of ConfigMaps that contain the folder of the request; 0 if the folder is not in ConfigMaps."""
    claim: str = ""
    """Claim that the pods mount; empty for none."""
    path: str = ""
    """Path of the model in the claim, or its address in an object store; empty if all files are in ConfigMaps."""
    made_bytes: int = 0
    """Size in bytes of a claim that is created for the deployment; 0 for an existing claim, or without one."""
    storage_class: str | None = None

    @property
    def is_fetched(self) -> bool:
        """Whether the pods fetch the model from an object store."""
        return bool(self.path) and not self.claim


def owner_job(shape: Shape, asked: DeploymentRequest, digest: str, owned: Sequence[Id], now: float) -> Manifest:
    """Returns the Job that owns all other objects; `owned` are their ids, `now` is in Unix seconds. Raises
    PatchRefused.

    A Job with `parallelism: 0` runs no pod. Its deadline counts from its creation all the same, and nothing restarts
    the count.
    """
    pod = sleeping(shape.supervisor_image or shape.image, shape.python, 0)
    made = own_job(shape, None, asked.name, labels(shape, asked), pod, 0)
    made["spec"] |= {"parallelism": 0, "completions": 1, "ttlSecondsAfterFinished": 0}
    if asked.ends_at is not None:
        made["spec"]["activeDeadlineSeconds"] = max(1, math.ceil(asked.ends_at - now))
    made["metadata"]["labels"].pop(layout.QUEUE_LABEL, None)  # It needs no quota, and must not wait for any.
    made["metadata"]["annotations"] |= {
        **about(asked),
        DIGEST_ANNOTATION: digest,
        OBJECTS_ANNOTATION: ",".join(f"{kind}/{name}" for _, kind, name in owned),
    }
    return made


def labels(shape: Shape, asked: DeploymentRequest) -> dict[str, str]:
    """Returns the labels of all objects of a deployment."""
    return {**shape.labels, **named.of_deployment(asked.name, asked.owner)}


def about(asked: DeploymentRequest) -> dict[str, str]:
    """Returns the annotations that describe a deployment."""
    return {OWNER_ANNOTATION: asked.owner, **({RUN_ANNOTATION: asked.run_id} if asked.run_id else {})}


def pods_of(name: str) -> dict[str, str]:
    """Returns the labels that only the pods of this deployment have."""
    return {layout.DEPLOYMENT_LABEL: name, named.COMPONENT: named.SERVER}


def owned_objects(
    shape: Shape, asked: DeploymentRequest, files: ModelFiles, *, has_aws_controller: bool
) -> Iterator[Manifest]:
    """Yields the objects that the owner owns, in their order of creation, without their data. Raises PatchRefused."""
    its, name, namespace = labels(shape, asked), asked.name, shape.namespace
    yield core("Secret", name, namespace, its, type="Opaque")
    yield core("ConfigMap", f"{name}-server", namespace, its)
    if files.is_fetched:
        yield core("ConfigMap", layout.transfer_name(name), namespace, its)
    yield from (core("ConfigMap", piece_name(name, at), namespace, its) for at in range(files.num_pieces))
    if files.made_bytes:
        claim = shared_claim(files.claim, namespace, its, files.made_bytes, files.storage_class)
        if max(asked.replicas, asked.max_replicas) == 1:  # Block storage, which only one node can mount, is enough.
            claim["spec"]["accessModes"] = ["ReadWriteOnce"]
        yield claim
    if asked.uses_kserve:
        yield _inference_service(shape, asked, files)
        return
    yield server_service(
        name, namespace, its, pods_of(name), PORT, asked.exposure, has_aws_controller=has_aws_controller
    )
    yield _deployment(shape, asked, files)
    if asked.max_replicas:
        yield _autoscaler(shape, asked)


def piece_name(name: str, number: int) -> str:
    """Returns the name of the ConfigMap with one piece of the model."""
    return f"{name}-model-{number}"


def filled(made: Manifest, credentials: Mapping[str, bytes], server: bytes, model: bytes) -> Manifest:
    """Returns an object of `owned_objects` with its data: the server's credentials, the archive of the server, or a
    piece of the archive of the model.
    """
    kind, name = made["kind"], made["metadata"]["name"]
    if kind == "Secret":
        return {**made, "data": _encoded(credentials)}
    if kind != "ConfigMap":
        return made
    if name == layout.transfer_name(deployment_of(made)):
        return {**made, "binaryData": _encoded({FILE: transfer_archive()})}
    if name == f"{deployment_of(made)}-server":
        return {**made, "binaryData": _encoded({SERVER_FILE: server})}
    at = int(name.rpartition("-")[2]) * PIECE_BYTES
    return {**made, "binaryData": _encoded({"piece": model[at : at + PIECE_BYTES]})}


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def deployment_of(made: Mapping[str, Any]) -> str:
    """Returns the name of the deployment that an object belongs to; empty for other objects."""
    return str((made["metadata"].get("labels") or {}).get(layout.DEPLOYMENT_LABEL, ""))


def id_of(made: Mapping[str, Any]) -> Id:
    """Returns the id of an object."""
    return made["apiVersion"], made["kind"], made["metadata"]["name"]


# -- the workload -----------------------------------------------------------------------------------------------------


def _deployment(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Manifest:
    spec = {
        "replicas": asked.replicas,
        "selector": {"matchLabels": pods_of(asked.name)},
        "progressDeadlineSeconds": START_SECONDS,
        "revisionHistoryLimit": 1,
        "template": server_template(shape, asked, files),
    }
    return {"apiVersion": APPS, "kind": "Deployment", "metadata": _meta(shape, asked), "spec": spec}


def _inference_service(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Manifest:
    """Returns an InferenceService of KServe whose predictor is Windlass's model server."""
    template = server_template(shape, asked, files)
    [container] = template["spec"]["containers"]
    meta = _meta(shape, asked)
    meta["annotations"] |= KSERVE_MODE
    predictor = {
        **template["spec"],
        "labels": template["metadata"]["labels"],
        "annotations": {**template["metadata"]["annotations"], layout.CONTAINER_ANNOTATION: KSERVE_CONTAINER},
        "containers": [{**container, "name": KSERVE_CONTAINER}],
        "minReplicas": asked.replicas,
        "maxReplicas": asked.max_replicas or asked.replicas,
    }
    return {"apiVersion": KSERVE, "kind": "InferenceService", "metadata": meta, "spec": {"predictor": predictor}}


def _autoscaler(shape: Shape, asked: DeploymentRequest) -> Manifest:
    use = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": CPU_PERCENT}}
    spec = {
        "scaleTargetRef": {"apiVersion": APPS, "kind": "Deployment", "name": asked.name},
        "minReplicas": asked.replicas,
        "maxReplicas": asked.max_replicas,
        "metrics": [{"type": "Resource", "resource": use}],
    }
    meta = _meta(shape, asked)
    return {"apiVersion": AUTOSCALING, "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


def _meta(shape: Shape, asked: DeploymentRequest) -> Manifest:
    notes = {**shape.pods.annotations, **about(asked)}
    return {"name": asked.name, "namespace": shape.namespace, "labels": labels(shape, asked), "annotations": notes}


def server_template(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Manifest:
    """Returns the template of the server's pods, with the options and patches of the target. Raises PatchRefused."""
    spec: Manifest = {
        "terminationGracePeriodSeconds": GRACE_SECONDS + LEAVE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": restricted(shape.user),
        "initContainers": list(_init_containers(shape, asked, files)),
        "containers": [_server(shape, asked, files)],
        "volumes": [{"name": name, **source} for name, source in _volumes(asked, files)],
        "tolerations": [*shape.tolerations, *([GPU_TOLERATION] if asked.gpus else [])],
    }
    if not asked.gpus:
        spec["affinity"] = RATHER_WITHOUT_GPUS
    if asked.service_account:
        spec["serviceAccountName"] = asked.service_account
    if shape.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in shape.pull_secrets]
    if shape.pods.node_selector:
        spec["nodeSelector"] = dict(shape.pods.node_selector)
    if max(asked.replicas, asked.max_replicas) > 1:
        spec["topologySpreadConstraints"] = spread(pods_of(asked.name))
    notes = {**shape.pods.annotations, **about(asked), layout.CONTAINER_ANNOTATION: NODE}
    template = {"metadata": {"labels": labels(shape, asked), "annotations": notes}, "spec": spec}
    return patched(template, shape.pod_patches, NODE)


def _server(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Manifest:
    # The server takes the last of equal options: the user's replace neither the credentials nor the port.
    command = [shape.python, "-m", "windlass.serving", MODEL, *asked.server_options]
    command += ["--host", "0.0.0.0", "--port", str(PORT)]
    command += ["--certificate", f"{CREDENTIALS}/tls.crt", "--key", f"{CREDENTIALS}/tls.key"]
    command += ["--token-file", f"{CREDENTIALS}/token"]
    amounts = {"cpu": quantity_text("cpu", asked.cpus), "memory": str(asked.memory_bytes)}
    if asked.gpus:
        amounts[GPU] = str(asked.gpus)
    limits = {**amounts, **shape.pods.limits}
    env = {**shape.target_env, "HOME": TMP, "PYTHONPATH": f"{SERVER}/{SERVER_FILE}"}
    leave = f"import time; time.sleep({LEAVE_SECONDS})"
    made: Manifest = {
        "name": NODE,
        "image": shape.image,
        "command": command,
        # Python imports modules from the working folder first, and the image's working folder may contain others.
        "workingDir": TMP,
        "env": variables(env),
        "resources": {"requests": {**limits, **shape.pods.requests}, "limits": limits},
        "ports": [{"name": "https", "containerPort": PORT}],
        "startupProbe": _probe("/live", 2, START_SECONDS // 2),
        "livenessProbe": _probe("/live", 10, 6),
        "readinessProbe": _probe("/ping", 2, 5),
        "lifecycle": {"preStop": {"exec": {"command": [shape.python, "-I", "-S", "-c", leave]}}},
        "securityContext": OWN_PRIVILEGES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "windlass-server", "mountPath": SERVER, **READ_ONLY},
            {"name": "windlass-credentials", "mountPath": CREDENTIALS, **READ_ONLY},
            {"name": "windlass-model", "mountPath": MODEL, **READ_ONLY},
            *_source_mounts(files, READ_ONLY),
            {"name": TMP_VOLUME, "mountPath": TMP},
        ],
    }
    if names := shape.pods.env_from:
        made["envFrom"] = [{"configMapRef": {"name": name}} for name in names]
    return made


def _probe(path: str, period: int, failures: int) -> Manifest:
    asked = {"path": path, "port": PORT, "scheme": "HTTPS"}
    return {"httpGet": asked, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _init_containers(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Iterator[Manifest]:
    """Yields the init containers: one fetches a model from an object store, one fills the folder of the model."""
    if files.is_fetched:
        yield {**_fetch(shape, asked, files), "name": "fetch", "securityContext": OWN_PRIVILEGES}
    source = FETCHED if files.is_fetched else f"{SOURCE}/{files.path}" if files.path else ""
    mounts = [{"name": "windlass-model", "mountPath": MODEL}, *_source_mounts(files, READ_ONLY)]
    if files.num_pieces:
        mounts.append({"name": "windlass-pieces", "mountPath": layout.PIECES, **READ_ONLY})
    words = [model_program_text(), MODEL, source, layout.PIECES if files.num_pieces else ""]
    yield {
        "name": "model",
        "image": shape.image,
        "command": [shape.python, "-I", "-S", "-c", *words],
        "resources": {"requests": transfers.AMOUNTS, "limits": transfers.LIMITS},
        "securityContext": OWN_PRIVILEGES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _fetch(shape: Shape, asked: DeploymentRequest, files: ModelFiles) -> Manifest:
    from windlass.spec.job import Job

    sets = [{"name": "model", "source": files.path, "link": FETCHED}]
    mounts = [
        {"name": "windlass-program", "mountPath": layout.TRANSFER, **READ_ONLY},
        {"name": TMP_VOLUME, "mountPath": TMP},
        *_source_mounts(files, {}),
    ]
    job = Job(name=asked.name, command=["true"], secrets=asked.secrets)
    return transfers.transfer_container(shape, job, {"kind": "stage", "root": SOURCE, "sets": sets}, mounts)


def _source_mounts(files: ModelFiles, fields: Manifest) -> list[Manifest]:
    return [{"name": "windlass-source", "mountPath": SOURCE, **fields}] if files.path else []


def _volumes(asked: DeploymentRequest, files: ModelFiles) -> Iterator[tuple[str, Manifest]]:
    """Yields the name and the source of each volume of a pod."""
    name = asked.name
    yield "windlass-server", {"configMap": {"name": f"{name}-server"}}
    yield "windlass-credentials", {"secret": {"secretName": name, "defaultMode": 0o440}}
    yield "windlass-model", {"emptyDir": {}}
    if files.num_pieces:
        sources = code_sources(piece_name(name, at) for at in range(files.num_pieces))
        yield "windlass-pieces", {"projected": {"sources": sources}}
    if files.claim:
        yield "windlass-source", {"persistentVolumeClaim": {"claimName": files.claim, **READ_ONLY}}
    elif files.path:
        yield "windlass-program", {"configMap": {"name": layout.transfer_name(name)}}
        yield "windlass-source", {"emptyDir": {}}
    yield TMP_VOLUME, {"emptyDir": {}}


def model_program_text() -> str:
    """Returns the source text of the program that fills the folder of the model."""
    import inspect

    return inspect.getsource(model_program)
