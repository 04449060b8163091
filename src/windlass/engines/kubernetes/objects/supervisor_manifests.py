"""Builds the objects of a supervisor that runs in the cluster. Pure: the same job gives the same bytes.

Job RUN-supervisor         one small pod; the Job replaces it if its node fails
ConfigMap RUN-supervisor   the supervisor's code, and the run's plan
ConfigMap RUN-record       the events and status that the supervisor records, see `record.py`
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import layout, manifests
from windlass.engines.kubernetes.objects.labels import COMPONENT, SUPERVISOR
from windlass.engines.kubernetes.objects.lost_pods import SUPERVISOR_LOST_SECONDS, lost_tolerations
from windlass.engines.kubernetes.objects.manifests import core
from windlass.engines.kubernetes.objects.order_client import order_client_fields
from windlass.engines.kubernetes.objects.package import FILE, supervisor_archive
from windlass.engines.kubernetes.objects.pod_template import Shape, labels
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.plan.environment import secret_variable

if TYPE_CHECKING:
    from windlass.spec.job import Job

MOUNTED: Final = f"{layout.ROOT}/supervisor"
HOME: Final = f"{layout.ROOT}/home"
CODE_FILE: Final = FILE
PLAN_FILE: Final = "plan.json.gz"
AMOUNTS: Final = {"cpu": "50m", "memory": "96Mi"}
LIMITS: Final = {"cpu": "1", "memory": "512Mi"}
"""Limits of the supervisor's container: a ResourceQuota on limits rejects pods without them."""
HOME_BYTES: Final = 1 << 30
OUTPUTS_SPARE_BYTES: Final = 256 << 20
"""Bytes added to the home volume for outputs, since small files occupy whole blocks."""
KEY_BYTES: Final = 32
GRACE_SECONDS: Final = 20
"""Grace period of the supervisor's pod, in seconds, in which it writes the record."""
ENDLESS: Final = 1_000_000
"""Backoff limit of the supervisor's Job: a supervisor that ends before its run is always restarted."""


def supervisor_objects(shape: Shape, job: Job) -> tuple[Manifest, Manifest, Manifest, Manifest]:
    """Returns the Secret with the run's key, and the supervisor's ConfigMap, Service and Job, in this order."""
    return _key(shape, job), _contents(shape, job), _service(shape, job), supervisor_job(shape, job)


def supervisor_job(shape: Shape, job: Job) -> Manifest:
    """Returns the Job of the supervisor."""
    name, its = layout.supervisor_name(shape.run_id), labels(shape, job, SUPERVISOR)
    made = manifests.own_job(shape, job, name, its, _pod(shape, job.notify), ENDLESS)
    if shape.expires_seconds is not None:  # `expiry.py` describes the expiry of runs.
        made["spec"]["ttlSecondsAfterFinished"] = shape.expires_seconds
    return made


def _contents(shape: Shape, job: Job) -> Manifest:
    """Returns the ConfigMap that is mounted into the supervisor's pod, without its data, which `filled` adds."""
    its = {**labels(shape, job, SUPERVISOR), layout.CODE_LABEL: SUPERVISOR}
    return core("ConfigMap", layout.supervisor_name(shape.run_id), shape.namespace, its)


def _service(shape: Shape, job: Job) -> Manifest:
    """Returns the headless Service that gives the supervisor's pod a host name."""
    name, its = layout.supervisor_name(shape.run_id), labels(shape, job, SUPERVISOR)
    pods = {layout.RUN_LABEL: shape.run_id, COMPONENT: SUPERVISOR}
    return manifests.naming_service(name, shape.namespace, its, pods, "orders", layout.ORDERS_PORT)


def _key(shape: Shape, job: Job) -> Manifest:
    """Returns the Secret for the run's key, without the key, which `keyed` adds."""
    return core("Secret", layout.key_name(shape.run_id), shape.namespace, labels(shape, job, SUPERVISOR), type="Opaque")


def keyed(made: Mapping[str, Any], service_files: Mapping[str, bytes]) -> Manifest:
    """Returns the Secret `made` with a new random key added, and with the files of a service."""
    files = {**service_files, layout.KEY_FILE: os.urandom(KEY_BYTES)}
    return {**made, "data": {name: base64.b64encode(data).decode() for name, data in files.items()}}


def filled(made: Mapping[str, Any], plan: str) -> Manifest:
    """Returns the ConfigMap `made` with the supervisor's code and the run's plan (JSON text) added."""
    files = {CODE_FILE: supervisor_archive(), PLAN_FILE: gzip.compress(plan.encode(), mtime=0)}
    return {**made, "binaryData": {name: base64.b64encode(data).decode() for name, data in files.items()}}


def with_digest(made: Mapping[str, Any], plan: str) -> Manifest:
    """Returns the supervisor's Job, annotated with the digest of the plan. The supervisor compares the plan in its
    ConfigMap with this digest, since more users may change ConfigMaps than create pods.
    """
    meta = made["metadata"]
    notes = {**meta.get("annotations", {}), layout.PLAN_ANNOTATION: plan_digest(plan)}
    return {**made, "metadata": {**meta, "annotations": notes}}


def plan_digest(plan: str) -> str:
    """Returns the SHA-256 digest of a plan's JSON text."""
    return f"sha256:{hashlib.sha256(plan.encode()).hexdigest()}"


def stamped(made: Mapping[str, Any]) -> Manifest:
    """Returns the supervisor's Job, whose pods are annotated with the digest of the supervisor's code."""
    template = made["spec"]["template"]
    meta = template["metadata"]
    notes = {**meta["annotations"], layout.DIGEST_ANNOTATION: hashlib.sha256(supervisor_archive()).hexdigest()}
    template = {**template, "metadata": {**meta, "annotations": notes}}
    return {**made, "spec": {**made["spec"], "template": template}}


def _pod(shape: Shape, notify: str | None) -> Manifest:
    name = layout.supervisor_name(shape.run_id)
    return {
        "restartPolicy": "OnFailure",
        "serviceAccountName": layout.SUPERVISOR_ACCOUNT,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": lost_tolerations(SUPERVISOR_LOST_SECONDS),
        "containers": [_container(shape, notify)],
        "volumes": [
            {"name": "supervisor", "configMap": {"name": name}},
            {"name": "home", "emptyDir": {"sizeLimit": _home_limit(shape)}},
            *order_client_fields(shape.run_id, shape.namespace)["volumes"],
        ],
    }


def _home_limit(shape: Shape) -> str:
    """Returns the size limit of the supervisor's home volume; the kubelet evicts a pod that exceeds it."""
    size = HOME_BYTES + (shape.outputs_max + OUTPUTS_SPARE_BYTES if shape.outputs_max else 0)
    return f"{-(-size // (1 << 20))}Mi"


def _container(shape: Shape, notify: str | None) -> Manifest:
    env = {"WINDLASS_RUN": shape.run_id, "WINDLASS_NAMESPACE": shape.namespace, "WINDLASS_HOME": HOME}
    secret = []
    if notify is not None:  # The Secret is optional: a run is supervised even without its webhook.
        variable = secret_variable(notify)
        secret = [
            {"name": variable, "valueFrom": {"secretKeyRef": {"name": notify, "key": variable, "optional": True}}}
        ]
    return {
        "name": SUPERVISOR,
        "image": shape.supervisor_image or shape.image,
        "command": [shape.python, "-I", "-S", f"{MOUNTED}/{CODE_FILE}"],
        "env": [*({"name": name, "value": value} for name, value in env.items()), *secret],
        "resources": {"requests": AMOUNTS, "limits": LIMITS},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "supervisor", "mountPath": MOUNTED, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            *order_client_fields(shape.run_id, shape.namespace)["volumeMounts"],
        ],
        "ports": [{"name": "orders", "containerPort": layout.ORDERS_PORT}],
    }
