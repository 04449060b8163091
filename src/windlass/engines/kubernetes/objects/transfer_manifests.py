"""Builds the objects that transfer files of a run. Pure: the same job gives the same bytes.

ConfigMap RUN-transfer   the program
Job RUN-data             one pod, which stages the data sets in their claim
Job RUN-outputs          one pod, which uploads the outputs from the claim of the results
Job RUN-outputs-check    one pod, which checks, while the ranks start, that the store accepts its credentials
PersistentVolumeClaim    for the data sets, unless it exists; no run owns it
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.lost_pods import LOST_SECONDS, lost_tolerations
from windlass.engines.kubernetes.objects.manifests import core, own_job, shared_claim
from windlass.engines.kubernetes.objects.package import FILE, transfer_archive
from windlass.engines.kubernetes.objects.pod_template import (
    READ_ONLY,
    TMP,
    Shape,
    labels,
    of_store,
    variables,
)
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.stores.gs_az import KINDS

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.sections import DataClaim

REACHED: Final = ("s3", *KINDS)
"""URL schemes of stores that pods can access: S3 with the standard library alone, the others with obstore in
the image."""
READ: Final = (*REACHED, "http", "https")
"""URL schemes of sources that pods can stage."""
RESULT_FILE: Final = "/dev/termination-log"
AMOUNTS: Final = {"cpu": "250m", "memory": "256Mi"}
LIMITS: Final = {"cpu": "2", "memory": "2Gi"}
"""Limits of a transfer pod: copying needs at most 200 MB; the remaining memory is for the names of millions of
files."""
MAX_FAILURES: Final = 6
"""Backoff limit of a transfer Job: pods mostly fail with their node, and each pod continues the transfer of the
previous one."""
CHECK_SECONDS: Final = 900
"""Deadline of the Job that checks a store, and time for which it is kept after its end, in seconds. The cluster
enforces both, since the submitting machine may be off."""
ASK_AGAIN_SECONDS: Final = 10
"""Seconds before a store that denied access is tried once more: a new IAM role is not effective everywhere at once."""
GRACE_SECONDS: Final = 5


def needs_obstore(address: str) -> bool:
    """Whether a pod needs obstore to access this address."""
    return address.partition("://")[0] in KINDS


def claim_of_data(namespace: str, wanted: DataClaim) -> Manifest:
    """Returns the claim for data sets, which no run owns."""
    assert wanted.size is not None
    its = named.of_setup(named.DATA)
    return shared_claim(wanted.claim, namespace, its, wanted.size, wanted.storage_class)


def helper_objects(shape: Shape, job: Job, sets: Sequence[Mapping[str, str]]) -> tuple[Manifest, Manifest]:
    """Returns the ConfigMap for the transfer program and the Job that stages `sets`, for a command without a run. Both
    names begin with `shape.run_id`.
    """
    its = {**shape.labels, **named.of_helper(shape.run_id, named.TRANSFER)}
    program, made = contents(shape, job), stage_job(shape, job, sets)
    queue = {name: text for name, text in made["metadata"]["labels"].items() if name == layout.QUEUE_LABEL}
    program["metadata"]["labels"] = its
    made["metadata"]["labels"] = {**its, **queue}
    made["spec"]["template"]["metadata"]["labels"] = its
    return program, made


def contents(shape: Shape, job: Job) -> Manifest:
    """Returns the ConfigMap that is mounted into transfer pods, without the program, which `filled` adds."""
    its = {**labels(shape, job, named.TRANSFER), layout.CODE_LABEL: named.TRANSFER}
    return core("ConfigMap", layout.transfer_name(shape.run_id), shape.namespace, its)


def filled(made: Mapping[str, Any]) -> Manifest:
    """Returns the ConfigMap `made` with the packed transfer program added."""
    return {**made, "binaryData": {FILE: base64.b64encode(transfer_archive()).decode()}}


def stage_job(shape: Shape, job: Job, sets: Sequence[Mapping[str, str]]) -> Manifest:
    """Returns the Job that stages these data sets; each has a name, a source and, for a run, the path of its link."""
    asked = {"kind": "stage", "root": layout.DATA, "sets": [dict(one) for one in sets]}
    claimed = (shape.data_claim, layout.DATA, layout.DATA_FOLDER)
    return _job(shape, job, "data", asked, claimed)


def upload_job(shape: Shape, job: Job, claim: str, destination: str) -> Manifest:
    """Returns the Job that uploads the outputs from the run's folder in a claim."""
    asked = {
        "kind": "upload",
        "state": f"{layout.RESULTS}/upload",
        "name": "outputs",
        "source": layout.OUTPUT,
        "destination": destination,
    }
    return _job(shape, job, "outputs", asked, (claim, layout.RESULTS, f"windlass/{shape.run_id}"))


def check_job(shape: Shape, job: Job, destination: str) -> Manifest:
    """Returns the Job that checks access to the store of the outputs by listing the destination."""
    asked = {"kind": "check", "destination": destination, "pause_seconds": ASK_AGAIN_SECONDS}
    made = _job(shape, job, "outputs-check", asked)
    made["spec"] |= {"activeDeadlineSeconds": CHECK_SECONDS, "ttlSecondsAfterFinished": CHECK_SECONDS}
    return made


Claimed: TypeAlias = tuple[str, str, str]
"""Name of a claim, its mount path, and the folder of the claim that is mounted."""


def _job(shape: Shape, job: Job, what: str, asked: Mapping[str, Any], claimed: Claimed | None = None) -> Manifest:
    name, its = layout.transfer_name(shape.run_id, what), labels(shape, job, named.TRANSFER)
    return own_job(shape, job, name, its, _pod(shape, job, asked, claimed), MAX_FAILURES)


def _pod(shape: Shape, job: Job, asked: Mapping[str, Any], claimed: Claimed | None) -> Manifest:
    volumes: list[Manifest] = [{"name": "program", "configMap": {"name": layout.transfer_name(shape.run_id)}}]
    mounts: list[Manifest] = [{"name": "program", "mountPath": layout.TRANSFER, **READ_ONLY}]
    if claimed is not None:
        claim, path, folder = claimed
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "claim", "mountPath": path, "subPath": folder})
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": lost_tolerations(LOST_SECONDS),
        "containers": [transfer_container(shape, job, asked, mounts)],
        "volumes": volumes,
    }
    if job.kubernetes.service_account is not None:
        spec["serviceAccountName"] = job.kubernetes.service_account
    return spec


def transfer_container(shape: Shape, job: Job, asked: Mapping[str, Any], mounts: list[Manifest]) -> Manifest:
    """Returns a container with the transfer `asked` (see `storage/pod.py`) of the program that `mounts` contains."""
    stores = [one["source"] for one in asked.get("sets", ())] or [asked["destination"]]
    alone = [] if any(map(needs_obstore, stores)) else ["-S"]  # -S: without the packages installed in the image
    env = {
        "HOME": TMP,
        **of_store(shape, job),
        "WINDLASS_TRANSFER": json.dumps(asked, sort_keys=True),
        "WINDLASS_TRANSFER_RESULT": RESULT_FILE,
    }
    made: Manifest = {
        "name": named.TRANSFER,
        "image": shape.supervisor_image or shape.image,
        "command": [shape.python, "-I", *alone, f"{layout.TRANSFER}/{FILE}"],
        "env": variables(env),
        "resources": {"requests": AMOUNTS, "limits": LIMITS},
        "terminationMessagePath": RESULT_FILE,
        "volumeMounts": mounts,
    }
    if job.secrets:
        made["envFrom"] = [{"secretRef": {"name": name}} for name in job.secrets]
    return made
