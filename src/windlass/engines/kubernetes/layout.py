"""Where things are inside a pod, and what the objects of a run are called."""

from __future__ import annotations

from typing import Final

ROOT: Final = "/windlass"
BOOT: Final = f"{ROOT}/boot"
PIECES: Final = f"{ROOT}/code.d"
ATTEMPT: Final = f"{ROOT}/attempt"
WORK: Final = f"{ROOT}/work"
RESULTS: Final = f"{ROOT}/results"
CODE: Final = f"{WORK}/code"
TRAVEL: Final = f"{WORK}/travel"
NODES_FILE: Final = "nodes.json.gz"
CONTAINER: Final = "node"
"""What the container is called, as Kubeflow's trainer calls it."""
MASTER_PORT: Final = 29500
RENDEZVOUS_PORT: Final = 29400
"""torch's own defaults; a pod has all ports to itself."""

RUN_LABEL: Final = "windlass.dev/run"
ATTEMPT_LABEL: Final = "windlass.dev/attempt"
JOB_LABEL: Final = "windlass.dev/job"
CODE_LABEL: Final = "windlass.dev/code"
"""Pieces of code have it, so that lists of runs can leave them out."""
MARK_LABEL: Final = "windlass.dev/mark"
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
DIGEST_ANNOTATION: Final = "windlass.dev/code-digest"
REPLICATED: Final = "n"
"""What a JobSet's one job is called; short, for it becomes part of host names."""


def attempt_name(run_id: str, number: int) -> str:
    """The Job or JobSet of an attempt."""
    return f"{run_id}-{number}"


def host_name(run_id: str, number: int, via: str, node: int) -> str:
    """The name by which the pods of an attempt find one of them, in any namespace's search path."""
    job = attempt_name(run_id, number)
    pod = f"{job}-{REPLICATED}-0-{node}" if via == "jobset" else f"{job}-{node}"
    return f"{pod}.{run_id}"


def master_addr(run_id: str, number: int, via: str, num_nodes: int) -> str:
    """Where the ranks of an attempt meet: on the first pod, whose name nobody needs who is alone."""
    return host_name(run_id, number, via, 0) if num_nodes > 1 else "127.0.0.1"


def piece_name(run_id: str, digest: str, number: int) -> str:
    """The object that holds a piece of the code."""
    return f"{run_id}-code-{digest[:8]}-{number}"


def mark_name(run_id: str, mark: str) -> str:
    """The object that says something of a run as a whole: `stop` that it is to end, `end` that it has."""
    return f"{run_id}-{mark}"


def selector(run_id: str) -> str:
    """What all objects of a run have in common."""
    return f"{RUN_LABEL}={run_id}"
