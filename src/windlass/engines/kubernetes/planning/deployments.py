"""Plans a deployment of a model: reads the cluster's API groups, builds the objects, and sends them as a dry run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.deployments import NAME_PATTERN, DeploymentPlan, DeploymentRequest
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import groups_of
from windlass.engines.kubernetes.objects import deployment_manifests as manifests
from windlass.engines.kubernetes.objects.deployment_manifests import KSERVE, KSERVE_CONTAINER, WORKLOADS, ModelFiles
from windlass.engines.kubernetes.objects.exposure_manifests import AWS_GROUP
from windlass.engines.kubernetes.objects.pod_template import Shape, target_shape
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.planning.model_files import model_files
from windlass.engines.kubernetes.reading.admission import is_suspended
from windlass.engines.kubernetes.reading.preflight.pod_admission import Pods, findings, pod_from
from windlass.engines.kubernetes.reading.preflight.refusals import Author, Patch
from windlass.engines.model_files import model_digest
from windlass.errors import EngineError, UsageError

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

METRICS_GROUP: Final = "metrics.k8s.io/v1beta1"
MIN_CPUS: Final = 0.001
"""Smallest amount of CPU that Kubernetes knows."""
PODS: Final = "the pods of the server"
OF_TRAINING: Final = "sidecar-added"
"""Code of a note that matters only for pods that end."""


def shape_of(asked: DeploymentRequest, target: KubernetesTarget, namespace: str) -> Shape:
    """Returns the settings of the target for a deployment's pods, with the requested image."""
    found = target_shape(target, namespace, asked.name)
    return replace(found, image=asked.image) if asked.image else found


def request_digest(asked: DeploymentRequest) -> str:
    """Returns the digest of a request and its files. The end time and the interpreter on this machine are not part of
    it, because they differ when the command is repeated. Raises UsageError.
    """
    fields = {**asdict(asked), "model": model_digest(asked.model)}
    del fields["ends_at"], fields["python"]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def plan_deployment(client: Client, target: KubernetesTarget, asked: DeploymentRequest, now: float) -> DeploymentPlan:
    """Returns the plan of a deployment. Raises UsageError for a request that the cluster cannot fulfil, EngineError for
    objects that it refuses.
    """
    _require_possible(asked)
    files, _ = model_files(asked, target)
    groups = groups_of(client.call("GET", "/apis"))
    if asked.uses_kserve and KSERVE not in groups:
        raise UsageError(f"the cluster has no KServe: it does not serve {KSERVE}", "deploy without --kserve")
    shape = shape_of(asked, target, client.namespace)
    owned = list(manifests.owned_objects(shape, asked, files, has_aws_controller=AWS_GROUP in groups))
    ids = [manifests.id_of(one) for one in owned]
    owner = manifests.owner_job(shape, asked, request_digest(asked), ids, now)
    objects = [owner, *owned]
    _require_admitted(client, objects, has_end=asked.ends_at is not None)
    notes = [*_pod_notes(client, target, asked, objects), *_notes(asked, groups, target)]
    return DeploymentPlan(asked, target.name, tuple(_steps(asked, files)), tuple(notes), objects=tuple(objects))


def _require_possible(asked: DeploymentRequest) -> None:
    """Raises UsageError for a request that no cluster could fulfil."""
    if not re.fullmatch(NAME_PATTERN, asked.name):
        raise UsageError(
            f"{asked.name} is no name of a deployment", "use up to 40 letters, digits and dashes: digits-2"
        )
    if asked.is_serverless or asked.instance:
        raise UsageError("--serverless and --instance are options of SageMaker", "use --cpus, --memory and --gpus")
    if asked.replicas < 1 or 0 < asked.max_replicas < asked.replicas:
        raise UsageError(
            f"{asked.replicas} to {asked.max_replicas or asked.replicas} replicas are not possible", "start with 1"
        )
    if not MIN_CPUS <= asked.cpus < math.inf:
        raise UsageError(f"--cpus {asked.cpus:g} is not possible", "write it as 2 or 0.5")
    if any(option.startswith("--idle") for option in asked.server_options):
        raise UsageError(
            "--idle-limit is not supported on a cluster: the cluster would restart the server",
            "limit its time: --for 2h",
        )
    if asked.uses_kserve and asked.exposure is not None:
        raise UsageError("--expose is not supported with --kserve: its controller makes the Service", "use one of both")


def _require_admitted(client: Client, objects: list[Manifest], *, has_end: bool) -> None:
    """Sends the objects as a dry run. Raises EngineError for a new object that the API server refuses, and UsageError
    if Kueue would suspend the owner, whose deadline would not count.
    """
    with ThreadPoolExecutor(len(objects)) as pool:
        answers = list(pool.map(lambda one: _answer(client, one), objects))
    for made, answer in zip(objects, answers, strict=True):
        if isinstance(answer, Refused) and client.get_if_exists(*manifests.id_of(made)) is None:
            raise EngineError(f"{made['kind']} {made['metadata']['name']}: {answer.message}", answer.hint) from answer
    if has_end and isinstance(answers[0], dict) and is_suspended(answers[0]):
        raise UsageError(
            "the cluster's Kueue suspends Jobs without a queue, and the deadline of a suspended Job does not count",
            "have Kueue's managedJobsNamespaceSelector exclude the namespace; or use --keep, and end it yourself",
        )


def _answer(client: Client, made: Manifest) -> dict[str, Any] | Refused:
    try:
        return client.create(made, dry_run=True)
    except Refused as error:
        return error


def _pod_notes(
    client: Client, target: KubernetesTarget, asked: DeploymentRequest, objects: list[Manifest]
) -> Iterator[str]:
    """Yields notes on the pods, unless they exist: a quota that they use up would refuse them again. Raises UsageError
    if the API server would refuse them.
    """
    workload = next(one for one in objects if one["kind"] in WORKLOADS)
    if client.get_if_exists(*manifests.id_of(workload)) is not None:
        return
    pod = pod_from(workload, _template(workload))
    author = Author(target.name, has_job=False, patches=[Patch(f"target {target.name}: pod", False, "", target.pod)])
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}
    group = Pods(PODS, pod, asked.max_replicas or asked.replicas, asked.replicas, is_own=False)
    for note, _ in findings(client, [group], author, (), asked.name, made):
        if note.blocks:
            raise UsageError(note.message, note.fix)
        if note.code != OF_TRAINING:
            yield f"{note.message}; {note.fix}" if note.fix else note.message


def _template(workload: Mapping[str, Any]) -> Manifest:
    """Returns the pod template of a Deployment, or of the pods that KServe creates for an InferenceService."""
    if workload["kind"] == "Deployment":
        template: Manifest = workload["spec"]["template"]
        return template
    of_kserve = ("minReplicas", "maxReplicas", "labels", "annotations")
    spec = {name: value for name, value in workload["spec"]["predictor"].items() if name not in of_kserve}
    return {"metadata": {"labels": workload["spec"]["predictor"]["labels"]}, "spec": spec}


def _notes(asked: DeploymentRequest, groups: frozenset[str], target: KubernetesTarget) -> Iterator[str]:
    if asked.max_replicas and METRICS_GROUP not in groups:
        yield "the autoscaler gets no measurements: the cluster has no metrics server"
    if asked.exposure is not None and AWS_GROUP not in groups:
        yield "the cluster's own provider makes the load balancer: see that it keeps to loadBalancerSourceRanges"
    if asked.uses_kserve:
        yield f"KServe's controller makes the pods from container {KSERVE_CONTAINER}; Windlass is not tested with it"
    if asked.ends_at is None:
        yield f"nothing ends the deployment: windlass undeploy {asked.name} --on {target.name}"


def _steps(asked: DeploymentRequest, files: ModelFiles) -> Iterator[str]:
    name = asked.name
    yield f"make Job {name}, which runs no pod: the cluster removes the deployment with it" + (
        " at its deadline" if asked.ends_at is not None else ""
    )
    yield f"make Secret {name} with a certificate, its key and a token, and ConfigMap {name}-server"
    if files.made_bytes:
        yield f"make PersistentVolumeClaim {files.claim}, and copy the model to it"
    elif files.num_pieces:
        yield f"make {files.num_pieces} ConfigMaps with {'the code of the model' if asked.source else 'the model'}"
    if asked.source:
        yield f"read the model from {asked.source} in the pods"
    replicas = f"{asked.replicas} to {asked.max_replicas}" if asked.max_replicas else str(asked.replicas)
    if asked.uses_kserve:
        yield f"make InferenceService {name} with {replicas} replicas"
        return
    where = "inside the cluster"
    if asked.exposure is not None:
        where = f"by a load balancer, from {', '.join(asked.exposure.source_cidrs)} alone"
    yield f"make Service {name}, reached {where} with TLS and the token"
    yield f"make Deployment {name} with {replicas} replicas, and wait until they are ready"
