"""Paths in the pods of a run, and the names, label keys and annotation keys of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from windlass.spec import labels, pod_patch

ROOT: Final = pod_patch.ROOT
BOOT: Final = f"{ROOT}/boot"
PIECES: Final = f"{ROOT}/code.d"
ATTEMPT: Final = f"{ROOT}/attempt"
WORK: Final = f"{ROOT}/work"
RESULTS: Final = f"{ROOT}/results"
DATA: Final = f"{ROOT}/data"
"""Mount path of the claim that contains data sets."""
DATA_FOLDER: Final = "windlass-data"
"""Folder for data sets inside their claim."""
MOUNTS: Final = f"{ROOT}/mounts"
"""Folder with a mount point, named like the data set, for each data set that the cluster mounts."""
TRANSFER: Final = f"{ROOT}/transfer"
"""Mount path of the program that stages data and uploads outputs."""
OUTPUT: Final = f"{RESULTS}/output"
CHECKPOINTS: Final = f"{RESULTS}/checkpoints"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
END: Final = f"{ROOT}/end"
"""Mount path of the run's end marker, in pods that an operator may recreate after the run has ended."""
SECRETS: Final = f"{ROOT}/secrets"
"""Folder with the job's secrets: one file per variable, named like the variable."""
KEY: Final = f"{ROOT}/key"
"""Mount path of the authentication key that a pod shares with its run's supervisor."""
KEY_FILE: Final = "key"
SERVICE: Final = f"{ROOT}/service"
"""Folder of a service with its certificate, key and token: the Secret of the run."""
SERVICE_PORT: Final = 8443
"""Port of a service in its pod, which listens on the loopback address only."""
NODES_FILE: Final = "nodes.json.gz"
SPARES_FILE: Final = "spares.json"
"""File that assigns the node specs in the nodes file to spares. Its keys are the specs' numbers. Its values identify
spares: the attempt for which a spare was created, and its index. If a value is null, spares only import the spec's
modules in advance."""
CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
"""Annotation with the name of the container that runs the node, since some operators require a certain name, and pods
may have sidecars."""
MASTER_PORT: Final = 29500
"""Rendezvous port, torch's default. No other program uses it, since each pod has its own network namespace."""
PORTS: Final = 90
"""Number of rendezvous ports, starting at MASTER_PORT. Each later attempt in the same pods uses the next port."""
ORDERS_PORT: Final = 29300
"""Port on which a supervisor in the cluster accepts the connections of its pods."""
POD_NAME_VARIABLE: Final = "WINDLASS_POD_NAME"
SUPERVISOR_ACCOUNT: Final = "windlass-supervisor"
"""Name of the service account of supervisors in the cluster, and of its Role. Supervisors run only in namespaces that
have both."""

MOST_DIGITS: Final = 7
"""Number of digits from which a number in a label or annotation is ignored: other users of the namespace can write any
text there."""
FIRST_PLACE_ANNOTATION: Final = "windlass.dev/first-place"
"""Annotation with the place in the attempt of a replica type's first pod. Some operators number the pods of each type
from 0."""
PREFIX: Final = "windlass.dev/"
"""Prefix of labels and annotations that Windlass alone sets."""
RUN_LABEL: Final = labels.RUN_LABEL
ATTEMPT_LABEL: Final = labels.ATTEMPT_LABEL
JOB_LABEL: Final = "windlass.dev/job"
DEPLOYMENT_LABEL: Final = "windlass.dev/deployment"
"""Label with the name of the deployment that an object belongs to. Objects of deployments have no RUN_LABEL: they
outlive the run that produced their model."""
CODE_LABEL: Final = "windlass.dev/code"
"""Label of the ConfigMaps that carry the code, so that lists of runs can exclude them."""
MARKER_LABEL: Final = "windlass.dev/marker"
HOW_LABEL: Final = "windlass.dev/how"
"""Label of an end marker with the outcome of the run: `well` or `badly`. Lists of runs read it without a request per
run."""
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
DIGEST_ANNOTATION: Final = "windlass.dev/code-digest"
SPARES_ANNOTATION: Final = "windlass.dev/spares"
"""Annotation of the owner ConfigMap: number of spare pods of the run, in addition to the pods of its nodes."""
NOTE_ANNOTATION: Final = "windlass.dev/note"
"""Annotation of the owner ConfigMap: the users' note on the run."""
COMMAND_ANNOTATION: Final = "windlass.dev/command"
ENV_ANNOTATION: Final = "windlass.dev/env"
"""`COMMAND_ANNOTATION` and `ENV_ANNOTATION` of pods contain the ranks' command line, and as JSON the environment that
job and target set."""
KEPT_ON_ITS_NODE: Final[Mapping[str, str]] = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations that prevent node autoscalers from evicting a pod to save nodes, see `docs/decisions/0093-…`."""
STATUS_ANNOTATION: Final = "windlass.dev/status"
"""Annotation of a record's head ConfigMap: a summary of the run's status, so that a list of runs needs no further
request."""
WRITER_ANNOTATION: Final = "windlass.dev/writer"
"""Annotation of a record's head ConfigMap: the Lease identity of the supervisor that wrote the record last."""
PLAN_ANNOTATION: Final = "windlass.dev/plan-digest"
"""Annotation of a supervisor's Job: the digest of the run's plan, which is stored in a ConfigMap."""
RIGHTS_ANNOTATION: Final = "windlass.dev/rights"
"""Annotation of the service account of supervisors: the verbs that its Role grants, by resource, as JSON."""
RECORD: Final = "record"
"""Value of MARKER_LABEL for the head ConfigMap of a run's record."""
STOP_MARKER: Final = "stop"
END_MARKER: Final = "end"
FETCHED_MARKER: Final = "fetched"
"""`STOP_MARKER`, `END_MARKER` and `FETCHED_MARKER` are values of MARKER_LABEL: stop requested, run ended, and outputs
fetched from the supervisor's pod (`supervisor/outputs.py`)."""


def attempt_name(run_id: str, number: int) -> str:
    """Returns the name of the owner object of an attempt's pods."""
    return f"{run_id}-{number}"


def piece_name(run_id: str, digest: str, number: int) -> str:
    """Returns the name of the ConfigMap with one piece of the code."""
    return f"{run_id}-code-{digest[:8]}-{number}"


def supervisor_name(run_id: str) -> str:
    """Returns the name of the supervisor's objects, which is also the host name at which pods connect to it."""
    return f"{run_id}-supervisor"


def capacity_name(run_id: str) -> str:
    """Returns the name of the Job whose idle pods probe the capacity for the missing nodes of a run."""
    return f"{run_id}-capacity"


def key_name(run_id: str) -> str:
    """Returns the name of the Secret with the key that the pods of a run share with its supervisor."""
    return f"{run_id}-key"


def transfer_name(run_id: str, what: str = "transfer") -> str:
    """Returns the name of a transfer object of a run: the ConfigMap with the program (`transfer`), the Job that stages
    `data`, or the Job that uploads `outputs`.
    """
    return f"{run_id}-{what}"


def data_path(namespace: str, run_id: str, name: str) -> str:
    """Returns the path at which the ranks of a run read a staged data set: a symbolic link to the set."""
    return f"{DATA}/runs/{namespace}/{run_id}/{name}"


def container_of(pod: Mapping[str, Any]) -> str:
    """Returns the name of the pod's container that runs the node, as opposed to sidecars."""
    named = pod["metadata"].get("annotations", {}).get(CONTAINER_ANNOTATION)
    return str(named or pod["spec"]["containers"][0]["name"])


def marker_name(run_id: str, marker: str) -> str:
    """Returns the name of a run's marker: `stop` requests the end of the run, `end` records it."""
    return f"{run_id}-{marker}"


def record_name(run_id: str, number: int = 0) -> str:
    """Returns the name of a ConfigMap of a run's record: the head (number 0), or a part with older events."""
    return f"{run_id}-{RECORD}" + (f"-{number}" if number else "")


def metrics_name(run_id: str) -> str:
    """Returns the name of the ConfigMap with the run's metrics."""
    return f"{run_id}-metrics"


def selector(run_id: str) -> str:
    """Returns the label selector of all objects of a run."""
    return f"{RUN_LABEL}={run_id}"


def of_attempts(run_id: str) -> str:
    """Returns the label selector of the objects of a run's attempts, whose only pods are training pods."""
    return f"{selector(run_id)},{ATTEMPT_LABEL}"


def attempt_of(one: Mapping[str, Any]) -> int:
    """Returns the attempt for which an object was created, or 0 if the object belongs to the whole run or has no valid
    label.
    """
    return number_in(str(one["metadata"]["labels"].get(ATTEMPT_LABEL, ""))) or 0


def number_in(text: str) -> int | None:
    """Returns the number in the text of a label or annotation, or None if the text is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else None
