"""What a plan notes on its queue: it does not exist, admits no jobs, or Kueue does not manage the object. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.engines.kubernetes.access.optional import version_of
from windlass.engines.kubernetes.reading.admission import GROUP, is_suspended, queue_of
from windlass.errors import near
from windlass.plan.plan import Note

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job

IGNORED = "queue-ignored"


def queue_notes(job: Job, cluster: Cluster | None) -> Iterator[Note]:
    """What keeps the job's queue from admitting it."""
    if job.queue is None or cluster is None:
        return
    if not version_of(GROUP, cluster.groups):
        yield Note(
            IGNORED,
            f"queue: {job.queue}, and the cluster has no Kueue: the run would start at once",
            "leave out queue:, or have Kueue installed",
            blocks=True,
        )
    elif cluster.queues is not None:
        queues = dict(cluster.queues)
        if job.queue not in queues:
            hint = near(job.queue, queues)
            meant = f" ({hint})" if hint else ""
            yield Note(
                "queue-missing",
                f"there is no LocalQueue {job.queue} in the namespace{meant}",
                f"there are: {', '.join(sorted(queues)) or 'none'}",
                blocks=True,
            )
        elif queues[job.queue]:
            yield Note(
                "queue-inactive",
                f"queue {job.queue} admits no jobs now: {queues[job.queue]}",
                "the run waits until it does; see: kubectl describe localqueue",
            )


def suspended_supervisor(made: Mapping[str, Any]) -> Note | None:
    """That Kueue would hold back a Job of ours, such as a supervisor's, which names no queue: it manages all Jobs."""
    if queue_of(made) or not is_suspended(made):
        return None
    return Note(
        "supervisor-suspended",
        f"the cluster's Kueue suspends Jobs without a queue, such as {made['metadata']['name']}",
        "set supervisor_queue: of the target, or have Kueue's managedJobsNamespaceSelector exclude the namespace",
        blocks=True,
    )


def ignored(made: Mapping[str, Any]) -> Note | None:
    """That Kueue does not manage an object that names a queue: the API server would create it unsuspended."""
    if not queue_of(made) or is_suspended(made):
        return None
    return Note(
        IGNORED,
        f"queue: {queue_of(made)}, and the cluster's Kueue does not manage objects of kind {made['kind']} here: the "
        "run would start at once",
        "another via:, or have integrations.frameworks of Kueue's configuration name it",
        blocks=True,
    )
