"""Reads what Kubernetes itself and JobSet have: a Job, and a JobSet of several."""

from __future__ import annotations

from typing import Any, Final

from windlass.spec.importing.common import automatic, metadata, put_start, run_policy, started
from windlass.spec.importing.documents import Documents
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.pods import Pods
from windlass.spec.importing.source import View

TRAINING: Final = ("node", "trainer", "worker", "workers", "pytorch")
"""What the container, or the job of a set, is mostly called in which the ranks are."""
RETRIES: Final = 6
"""How often a Job makes a pod again, where nothing says how often."""


def job(found: Documents, draft: Draft, where: str) -> None:
    """A Job: one pod, or as many as an Indexed one has."""
    view = found.job.view
    metadata(view, draft)
    pods = Pods(draft, found)
    nodes = of_job(view.at("spec"), draft, pods)
    template = view.at("spec", "template")
    start = started(pods, template, where)
    procs = automatic(template, draft) if start.by == "torchrun" and "procs_per_node" not in start.fields else 1
    put_start(draft, start, pods.start_view or template, nodes, _of_mpi(start, nodes) or procs)


def of_job(spec: View, draft: Draft, pods: Pods, *, is_alone: bool = True) -> int:
    """Read the spec of a Job; gives how many pods it has."""
    run_policy(spec, draft)
    if is_alone and spec.at("backoffLimit").value is None:
        spec.at("backoffLimit").remark(
            f"not there, which means {RETRIES} more pods after a failure",
            f"restarts: {RETRIES} does the same",
            is_ours=True,
        )
    pods.read(spec.at("template"), TRAINING)
    parallel, completions = spec.whole("parallelism"), spec.whole("completions")
    if spec.at("completionMode").value in ("Indexed", "NonIndexed"):
        spec.at("completionMode").leave("whether pods have numbers", "nodes have: NODE_RANK", is_ours=True)
    nodes = max(1, parallel if parallel is not None else 1)
    if completions is not None and completions != nodes:
        spec.at("completions").leave(
            f"{completions} pods one after the other, {nodes} at a time",
            "a job trains on all its nodes at once: run it once for each",
        )
    return nodes


def jobset(found: Documents, draft: Draft, where: str) -> None:
    """A JobSet: the job in it that trains; others are left behind."""
    view = found.job.view
    metadata(view, draft)
    spec = view.at("spec")
    if spec.at("suspend").value is False:
        spec.at("suspend").take()
    if (limit := spec.whole("failurePolicy", "maxRestarts")) is not None:
        draft.put("restarts", {"max": limit}, spec.at("failurePolicy", "maxRestarts"))
    if (seconds := spec.whole("ttlSecondsAfterFinished")) is not None:
        draft.put("kubernetes.ttl", float(seconds), spec.at("ttlSecondsAfterFinished"))
    pods, template, nodes = of_set(spec, draft, found)
    start = started(pods, template, where)
    procs = automatic(template, draft) if start.by == "torchrun" and "procs_per_node" not in start.fields else 1
    put_start(draft, start, pods.start_view or template, nodes, _of_mpi(start, nodes) or procs)


def of_set(spec: View, draft: Draft, found: Documents, pods: Pods | None = None) -> tuple[Pods, View, int]:
    """The pods that train in the template of a JobSet, where their template is, and how many there are."""
    chosen = training_job(spec)
    pods = pods or Pods(draft, found)
    if chosen is None:
        return pods, spec, 1
    for other in spec.at("replicatedJobs").each():
        if other.path != chosen.path:
            other.leave(
                f"job {other.at('name').value} of the set, beside the one that trains",
                "run it on its own, or start it in the script",
            )
    chosen.text("name")
    replicas = chosen.whole("replicas")
    restarts = draft.get("restarts")
    nodes = of_job(chosen.at("template", "spec"), draft, pods, is_alone=False)
    if restarts is not None:
        draft.fields["restarts"] = restarts  # of the set as a whole, not of one of its jobs
    return pods, chosen.at("template", "spec", "template"), nodes * max(1, replicas if replicas is not None else 1)


def training_job(spec: View) -> View | None:
    """The job of a set that trains: the one of a known name, else the one with the most pods."""
    jobs = spec.at("replicatedJobs").each()
    for name in TRAINING:
        for one in jobs:
            if one.at("name").value == name:
                return one
    return max(jobs, key=_pods_of, default=None)


def _pods_of(one: View) -> int:
    parallel = one.at("template", "spec", "parallelism").value
    replicas = one.at("replicas").value
    return (parallel if isinstance(parallel, int) else 1) * (replicas if isinstance(replicas, int) else 1)


def _of_mpi(start: Any, nodes: int) -> int | None:
    """Ranks of a node, where mpirun names those of all."""
    return start.ranks // nodes if start.ranks is not None and start.ranks % nodes == 0 else None
