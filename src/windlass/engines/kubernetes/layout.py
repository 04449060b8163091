"""Where things are inside a pod, and what the objects of a run are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ROOT: Final = "/windlass"
BOOT: Final = f"{ROOT}/boot"
PIECES: Final = f"{ROOT}/code.d"
ATTEMPT: Final = f"{ROOT}/attempt"
WORK: Final = f"{ROOT}/work"
RESULTS: Final = f"{ROOT}/results"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
END: Final = f"{ROOT}/end"
"""Where pods that somebody may make again after the end of their run see the mark of that end."""
NODES_FILE: Final = "nodes.json.gz"
CONTAINER_ANNOTATION: Final = "kubectl.kubernetes.io/default-container"
"""Names the container that is ours: some operators want it called as they please, and others may stand beside it."""
MASTER_PORT: Final = 29500
RENDEZVOUS_PORT: Final = 29400
"""torch's own defaults; a pod has all ports to itself."""

FIRST_PLACE_ANNOTATION: Final = "windlass.dev/first-place"
"""Which place of an attempt the first pod of a replica type has, where an operator counts each type from 0."""
RUN_LABEL: Final = "windlass.dev/run"
ATTEMPT_LABEL: Final = "windlass.dev/attempt"
JOB_LABEL: Final = "windlass.dev/job"
CODE_LABEL: Final = "windlass.dev/code"
"""Pieces of code have it, so that lists of runs can leave them out."""
MARK_LABEL: Final = "windlass.dev/mark"
HOW_LABEL: Final = "windlass.dev/how"
"""Of the mark of a run's end: `well` or `badly`. As a label it comes with each list of runs."""
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
DIGEST_ANNOTATION: Final = "windlass.dev/code-digest"


def attempt_name(run_id: str, number: int) -> str:
    """What makes the pods of an attempt."""
    return f"{run_id}-{number}"


def piece_name(run_id: str, digest: str, number: int) -> str:
    """The object that holds a piece of the code."""
    return f"{run_id}-code-{digest[:8]}-{number}"


def container_of(pod: Mapping[str, Any]) -> str:
    """What the container of a pod is called in which a node runs."""
    named = pod["metadata"].get("annotations", {}).get(CONTAINER_ANNOTATION)
    return str(named or pod["spec"]["containers"][0]["name"])


def mark_name(run_id: str, mark: str) -> str:
    """The object that says something of a run as a whole: `stop` that it is to end, `end` that it has."""
    return f"{run_id}-{mark}"


def selector(run_id: str) -> str:
    """What all objects of a run have in common."""
    return f"{RUN_LABEL}={run_id}"
