"""Paths in the pods of a run, and the names, label keys and annotation keys of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ROOT: Final = "/windlass"
BOOT: Final = f"{ROOT}/boot"
PIECES: Final = f"{ROOT}/code.d"
ATTEMPT: Final = f"{ROOT}/attempt"
WORK: Final = f"{ROOT}/work"
RESULTS: Final = f"{ROOT}/results"
DATA: Final = f"{ROOT}/data"
"""Where the claim is mounted that has data sets."""
DATA_FOLDER: Final = "windlass-data"
"""The folder of that claim which is."""
MOUNTS: Final = f"{ROOT}/mounts"
"""Where data sets are that the cluster mounts, by their names."""
TRANSFER: Final = f"{ROOT}/transfer"
"""Where the program that moves files is mounted."""
OUTPUT: Final = f"{RESULTS}/output"
CHECKPOINTS: Final = f"{RESULTS}/checkpoints"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
END: Final = f"{ROOT}/end"
"""Where pods that an operator may recreate after the end of their run find the marker of that end."""
SECRETS: Final = f"{ROOT}/secrets"
"""Where a file of the name of each variable is that the job's secrets have."""
KEY: Final = f"{ROOT}/key"
"""Where the key is mounted that a pod and its run's supervisor share."""
KEY_FILE: Final = "key"
NODES_FILE: Final = "nodes.json.gz"
SPARES_FILE: Final = "spares.json"
"""Beside the nodes file, in attempts of runs with spares: by the place of each spec there that is of no pod of this
attempt, the spare that runs it, as the attempt it was made for and its number; null for none."""
CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
"""Names our container: some operators require a certain name, and there may be sidecars."""
MASTER_PORT: Final = 29500
"""torch's own default; a pod has all ports to itself."""
PORTS: Final = 90
"""Number of ports from this one on: a later attempt in the same pods uses the next one."""
ORDERS_PORT: Final = 29300
"""Where a supervisor in the cluster listens for its pods."""
POD_NAME_VARIABLE: Final = "WINDLASS_POD_NAME"
SUPERVISOR_ACCOUNT: Final = "windlass-supervisor"
"""The service account of supervisors in the cluster, and its Role: supervisors run in namespaces that have it."""

MOST_DIGITS: Final = 7
"""Numbers in labels and annotations have fewer: other users of the namespace may write anything into them."""
FIRST_PLACE_ANNOTATION: Final = "windlass.dev/first-place"
"""Which place of an attempt the first pod of a replica type has, where an operator counts each type from 0."""
RUN_LABEL: Final = "windlass.dev/run"
ATTEMPT_LABEL: Final = "windlass.dev/attempt"
JOB_LABEL: Final = "windlass.dev/job"
CODE_LABEL: Final = "windlass.dev/code"
"""Pieces of code have it, so that lists of runs can leave them out."""
MARKER_LABEL: Final = "windlass.dev/marker"
HOW_LABEL: Final = "windlass.dev/how"
"""Of the end marker of a run: `well` or `badly`. As a label it is part of each list of runs."""
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
DIGEST_ANNOTATION: Final = "windlass.dev/code-digest"
SPARES_ANNOTATION: Final = "windlass.dev/spares"
"""Of the object that owns all others: how many pods the run has beside those of its nodes."""
NOTE_ANNOTATION: Final = "windlass.dev/note"
"""Of an owner ConfigMap: what users have written about the run."""
COMMAND_ANNOTATION: Final = "windlass.dev/command"
ENV_ANNOTATION: Final = "windlass.dev/env"
"""Of the pods of a run: the command line of its ranks, and the environment that job and target set, as JSON."""
KEPT_ON_ITS_NODE: Final[Mapping[str, str]] = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations of pods that no node autoscaler evicts to save nodes, see `docs/decisions/0093-…`."""
STATUS_ANNOTATION: Final = "windlass.dev/status"
"""Of the head of a run's record: the run's status in short, so that a list of runs needs no further request."""
WRITER_ANNOTATION: Final = "windlass.dev/writer"
"""Of the same: the supervisor that wrote it last, as its Lease names it."""
PLAN_ANNOTATION: Final = "windlass.dev/plan-digest"
"""Of the Job of a supervisor: the digest of the run's plan, which is in a ConfigMap."""
RIGHTS_ANNOTATION: Final = "windlass.dev/rights"
"""Of the service account of supervisors: the verbs that its Role grants, by resource, as JSON."""
RECORD: Final = "record"
"""Value of MARKER_LABEL of that head."""
STOP_MARKER: Final = "stop"
END_MARKER: Final = "end"
FETCHED_MARKER: Final = "fetched"
"""Values of MARKER_LABEL of markers: a stop was requested; the run has ended; a machine has the outputs that the
supervisor's pod holds, see `supervisor/outputs.py`."""


def attempt_name(run_id: str, number: int) -> str:
    """What makes the pods of an attempt."""
    return f"{run_id}-{number}"


def piece_name(run_id: str, digest: str, number: int) -> str:
    """The object that holds a piece of the code."""
    return f"{run_id}-code-{digest[:8]}-{number}"


def supervisor_name(run_id: str) -> str:
    """The supervisor's own objects, and the name by which pods find it."""
    return f"{run_id}-supervisor"


def key_name(run_id: str) -> str:
    """The Secret of the key that the pods of a run and its supervisor share."""
    return f"{run_id}-key"


def transfer_name(run_id: str, what: str = "transfer") -> str:
    """The program that moves the files of a run; the Job that stages its `data`, or uploads its `outputs`."""
    return f"{run_id}-{what}"


def data_path(namespace: str, run_id: str, name: str) -> str:
    """Where the ranks of a run read a data set that was staged: a link to the set."""
    return f"{DATA}/runs/{namespace}/{run_id}/{name}"


def container_of(pod: Mapping[str, Any]) -> str:
    """What the container of a pod is called in which a node runs."""
    named = pod["metadata"].get("annotations", {}).get(CONTAINER_ANNOTATION)
    return str(named or pod["spec"]["containers"][0]["name"])


def marker_name(run_id: str, marker: str) -> str:
    """A marker of the whole run: `stop` requests its end, `end` records it."""
    return f"{run_id}-{marker}"


def record_name(run_id: str, number: int = 0) -> str:
    """The head of a run's record, or part `number` of what came before it."""
    return f"{run_id}-{RECORD}" + (f"-{number}" if number else "")


def selector(run_id: str) -> str:
    """What all objects of a run have in common."""
    return f"{RUN_LABEL}={run_id}"


def of_attempts(run_id: str) -> str:
    """Selects the objects of a run's attempts, and so its training pods alone."""
    return f"{selector(run_id)},{ATTEMPT_LABEL}"


def attempt_of(one: Mapping[str, Any]) -> int:
    """The attempt for which an object was created; 0 for one of the whole run, or of another user's making."""
    return number_in(str(one["metadata"]["labels"].get(ATTEMPT_LABEL, ""))) or 0


def number_in(text: str) -> int | None:
    """The number that a label or an annotation has; None where it has none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else None
