"""Reads a Kubernetes Job, and a JobSet."""

from __future__ import annotations

from typing import Final

from windlass.importers.common import put_start, run_policy, started
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.operator_variables import Given
from windlass.importers.pods import Pods
from windlass.importers.source import View

TRAINING: Final = ("node", "trainer", "worker", "workers", "pytorch")
"""Usual names of the container that trains, and of the job of a JobSet that does."""
RETRIES: Final = 6
"""Default `backoffLimit` of a Job."""


def job(found: Documents, draft: Draft) -> None:
    """A Job: one pod, or several of an Indexed one."""
    spec = found.job.view.at("spec")
    pods, template = Pods(draft, found), spec.at("template")
    nodes = of_job(spec, draft, pods)
    put_start(draft, started(pods, template), nodes, template, has_group=pods.has_group, given=("index",))


def of_job(spec: View, draft: Draft, pods: Pods, *, is_alone: bool = True) -> int:
    """Read the spec of a Job; returns its number of pods."""
    run_policy(spec, draft)
    if is_alone and spec.at("backoffLimit").value is None:
        spec.at("backoffLimit").remark(
            f"not set: the default is {RETRIES} more pods after failures",
            f"restarts: {RETRIES} does the same",
            is_ours=True,
        )
    pods.read(spec.at("template"), TRAINING)
    parallel, completions = spec.whole("parallelism"), spec.whole("completions")
    nodes = max(1, parallel if parallel is not None else 1)
    if completions is not None and completions != nodes:
        spec.at("completions").leave(
            f"{completions} pods one after the other, {nodes} at a time",
            "a job trains on all its nodes at once: run it once for each",
        )
    return nodes


def jobset(found: Documents, draft: Draft) -> None:
    """A JobSet: its job that trains; the others are reported."""
    spec = found.job.view.at("spec")
    spec.at("suspend").take_if(False)
    draft.put_restarts(spec.at("failurePolicy", "maxRestarts"))
    draft.put_seconds("kubernetes.ttl", spec.at("ttlSecondsAfterFinished"))
    pods, template, nodes = of_set(spec, draft, found)
    chosen = training_job(spec)
    is_one = chosen is not None and chosen.at("replicas").value in (None, 1)  # else each replica counts from 0
    given: tuple[Given, ...] = ("index",) if is_one else ()
    put_start(draft, started(pods, template), nodes, template, has_group=pods.has_group, given=given)


def of_set(spec: View, draft: Draft, found: Documents, pods: Pods | None = None) -> tuple[Pods, View, int]:
    """The pods that train in the spec of a JobSet, their template, and their number."""
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
    """The job of a JobSet that trains: the one with a known name, else the one with the most pods."""
    jobs = spec.at("replicatedJobs").each()
    known = (one for name in TRAINING for one in jobs if one.at("name").value == name)
    return next(known, max(jobs, key=_pods_of, default=None))


def _pods_of(one: View) -> int:
    parallel = one.at("template", "spec", "parallelism").value
    replicas = one.at("replicas").value
    return (parallel if isinstance(parallel, int) else 1) * (replicas if isinstance(replicas, int) else 1)
