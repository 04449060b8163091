"""Diagnosis rules of the Kubernetes engine. Among verdicts with equal scores, that of the earlier rule wins."""

from __future__ import annotations

from functools import partial

from windlass.diagnose.observations import Rule
from windlass.engines.kubernetes.objects.observations import ClusterStatus
from windlass.engines.kubernetes.reading.diagnose import nodes, pods, queues, supervisors


def rules_on(cluster: ClusterStatus) -> tuple[Rule, ...]:
    """Returns all rules, bound to the observed state of a run's newest attempt in its cluster."""
    every = (
        pods.unreachable, supervisors.not_running, pods.not_followed, pods.could_not_start, queues.waits,
        queues.evicted, nodes.awaited, pods.not_started, pods.ended, pods.oom, pods.lost_peer, pods.name_unknown,
    )  # fmt: skip
    return tuple(partial(rule, cluster) for rule in every)
