"""Turns what is known of a cluster's queues into what is against a plan that names one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.engines.kubernetes.queueing import api_of, is_suspended, queue_of
from windlass.plan.plan import Note
from windlass.spec.job import Job

if TYPE_CHECKING:
    from windlass.engines.kubernetes.facts import Cluster

IGNORED = "queue-ignored"


def queue_notes(job: Job, cluster: Cluster | None) -> Iterator[Note]:
    """What keeps the job's queue from admitting it."""
    if job.queue is None or cluster is None:
        return
    if not api_of(cluster.groups):
        yield Note(IGNORED, f"queue: {job.queue}, and the cluster has no Kueue: the run would start at once",
                   "leave out queue:, or have Kueue installed", blocks=True)  # fmt: skip
    elif cluster.queues is not None:
        queues = dict(cluster.queues)
        if job.queue not in queues:
            import difflib

            near = difflib.get_close_matches(job.queue, queues, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            yield Note("queue-missing", f"there is no LocalQueue {job.queue} in the namespace{meant}",
                       f"there are: {', '.join(sorted(queues)) or 'none'}", blocks=True)  # fmt: skip
        elif queues[job.queue]:
            yield Note("queue-inactive", f"queue {job.queue} admits nobody now: {queues[job.queue]}",
                       "the run waits until it does; see: kubectl describe localqueue")  # fmt: skip


def ignored(made: Mapping[str, Any]) -> Note | None:
    """That Kueue does not manage an object that names a queue, as the API server would make it: what it does, waits."""
    if not queue_of(made) or is_suspended(made):
        return None
    return Note(
        IGNORED,
        f"queue: {queue_of(made)}, and the cluster's Kueue does not manage objects of kind {made['kind']} here: the "
        "run would start at once",
        "another via:, or have integrations.frameworks of Kueue's configuration name it",
        blocks=True,
    )
