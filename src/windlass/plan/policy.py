"""What a supervisor applies of a job: time limit, grace period, hang, restarts, webhook. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.spec.job import Job


def secret_variable(name: str) -> str:
    """The environment variable with a secret: that of `slack-url` is `SLACK_URL`."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def policy(job: Job) -> dict[str, Any]:
    """The policy of a plan, without what depends on the target; times are in seconds."""
    return {
        "timeout_seconds": job.timeout,
        "grace_seconds": job.grace,
        "hang_seconds": job.hang,
        "max_restarts": job.restarts.max,
        "restart_on": list(job.restarts.on),
        "min_nodes": job.nodes.max if job.launcher == "mpi" else job.nodes.min,
        "node_back_seconds": job.local.back_after,
        **({"notify": job.notify} if job.notify is not None else {}),
    }
