"""The objects of a supervisor that runs in the cluster. Pure: the same job gives the same bytes.

Job RUN-supervisor         one small pod; the cluster makes another one where its node dies
ConfigMap RUN-supervisor   the supervisor's code, and the run's plan
ConfigMap RUN-record       what it records, see `record.py`
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import layout, manifests, pod_template
from windlass.engines.kubernetes.objects.labels import COMPONENT, SUPERVISOR
from windlass.engines.kubernetes.objects.manifests import core
from windlass.engines.kubernetes.objects.order_client import order_client_fields
from windlass.engines.kubernetes.objects.package import FILE, supervisor_archive
from windlass.engines.kubernetes.objects.pod_template import UNPRIVILEGED, Shape, labels
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
"""A quota that counts limits refuses pods without them."""
HOME_BYTES: Final = 1 << 30
OUTPUTS_SPARE_BYTES: Final = 256 << 20
"""Beside the outputs themselves, which the pod holds until they are fetched: the blocks of small files."""
LOST_SECONDS: Final = 10
"""How long the pod stays on a node that does not answer: another supervisor takes its place at once, by the Lease."""
KEY_BYTES: Final = 32
GRACE_SECONDS: Final = 20
"""How long the supervisor may take to write what it knows when its pod is deleted."""
ENDLESS: Final = 1_000_000
"""How often the pod may fail: a supervisor that ends before its run is always started again."""


def supervisor_objects(shape: Shape, job: Job) -> tuple[Manifest, Manifest, Manifest, Manifest]:
    """The Secret of the run's key, the ConfigMap, the Service and the Job of the supervisor, in that order."""
    return _key(shape, job), _contents(shape, job), _service(shape, job), supervisor_job(shape, job)


def supervisor_job(shape: Shape, job: Job) -> Manifest:
    """The Job of the supervisor."""
    name, its = layout.supervisor_name(shape.run_id), labels(shape, job, SUPERVISOR)
    made = manifests.own_job(shape, name, its, _pod(shape, job.notify), ENDLESS)
    if shape.expires_seconds is not None:  # see `expiry.py`
        made["spec"]["ttlSecondsAfterFinished"] = shape.expires_seconds
    return made


def _contents(shape: Shape, job: Job) -> Manifest:
    """What is mounted into its pod; `filled` adds the data."""
    its = {**labels(shape, job, SUPERVISOR), layout.CODE_LABEL: SUPERVISOR}
    return core("ConfigMap", layout.supervisor_name(shape.run_id), shape.namespace, its)


def _service(shape: Shape, job: Job) -> Manifest:
    """What gives the pod of the supervisor a name."""
    name, its = layout.supervisor_name(shape.run_id), labels(shape, job, SUPERVISOR)
    pods = {layout.RUN_LABEL: shape.run_id, COMPONENT: SUPERVISOR}
    return manifests.naming_service(name, shape.namespace, its, pods, "orders", layout.ORDERS_PORT)


def _key(shape: Shape, job: Job) -> Manifest:
    """The Secret of the run's key; `keyed` adds the key."""
    return core("Secret", layout.key_name(shape.run_id), shape.namespace, labels(shape, job, SUPERVISOR), type="Opaque")


def keyed(made: Mapping[str, Any]) -> Manifest:
    """The same with a new key."""
    return {**made, "data": {layout.KEY_FILE: base64.b64encode(os.urandom(KEY_BYTES)).decode()}}


def filled(made: Mapping[str, Any], plan: str) -> Manifest:
    """The same with the supervisor's code and the run's plan, as JSON text."""
    files = {CODE_FILE: supervisor_archive(), PLAN_FILE: gzip.compress(plan.encode(), mtime=0)}
    return {**made, "binaryData": {name: base64.b64encode(data).decode() for name, data in files.items()}}


def with_digest(made: Mapping[str, Any], plan: str) -> Manifest:
    """The Job with the digest of the plan: more users may change ConfigMaps than may create pods."""
    meta = made["metadata"]
    notes = {**meta.get("annotations", {}), layout.PLAN_ANNOTATION: plan_digest(plan)}
    return {**made, "metadata": {**meta, "annotations": notes}}


def plan_digest(plan: str) -> str:
    """The digest of a plan as JSON text."""
    return f"sha256:{hashlib.sha256(plan.encode()).hexdigest()}"


def stamped(made: Mapping[str, Any]) -> Manifest:
    """The same Job with the digest of the supervisor's code on its pod."""
    template = made["spec"]["template"]
    meta = template["metadata"]
    notes = {**meta["annotations"], layout.DIGEST_ANNOTATION: hashlib.sha256(supervisor_archive()).hexdigest()}
    template = {**template, "metadata": {**meta, "annotations": notes}}
    return {**made, "spec": {**made["spec"], "template": template}}


def _pod(shape: Shape, notify: str | None) -> Manifest:
    name = layout.supervisor_name(shape.run_id)
    spec: Manifest = {
        "restartPolicy": "OnFailure",
        "serviceAccountName": layout.SUPERVISOR_ACCOUNT,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_template.restricted(shape.user),
        "tolerations": pod_template.leaving(LOST_SECONDS),
        "containers": [_container(shape, notify)],
        "volumes": [
            {"name": "supervisor", "configMap": {"name": name}},
            {"name": "home", "emptyDir": {"sizeLimit": _home_limit(shape)}},
            *order_client_fields(shape.run_id, shape.namespace)["volumes"],
        ],
    }
    if shape.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in shape.pull_secrets]
    return spec


def _home_limit(shape: Shape) -> str:
    """Beyond it, the pod would be evicted."""
    size = HOME_BYTES + (shape.outputs_max + OUTPUTS_SPARE_BYTES if shape.outputs_max else 0)
    return f"{-(-size // (1 << 20))}Mi"


def _container(shape: Shape, notify: str | None) -> Manifest:
    env = {"WINDLASS_RUN": shape.run_id, "WINDLASS_NAMESPACE": shape.namespace, "WINDLASS_HOME": HOME}
    secret = []
    if notify is not None:  # a run is supervised whether or not its webhook is known
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
        "securityContext": UNPRIVILEGED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "supervisor", "mountPath": MOUNTED, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            *order_client_fields(shape.run_id, shape.namespace)["volumeMounts"],
        ],
        "ports": [{"name": "orders", "containerPort": layout.ORDERS_PORT}],
    }
