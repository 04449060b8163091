"""Reads Kubernetes Jobs and JobSets."""

from __future__ import annotations

import re
from typing import Final

from windlass.importers.common import compare, put_start, run_policy, started
from windlass.importers.container_command import Start, start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.operator_variables import OperatorVariables
from windlass.importers.pods import Pods, fields_of, main_container, marks
from windlass.importers.source import View
from windlass.spec.runline import split_run

TRAINING: Final = ("node", "trainer", "worker", "workers", "pytorch")
"""Usual names of the training container, and of the training job in a JobSet."""
RANK_0_NAMES: Final = ("master", "leader", "chief", "head", "launcher")
"""Usual names of the job with rank 0 in a JobSet."""
_NODE_RANK: Final = re.compile(r"--node[-_]rank\b")
RETRIES: Final = 6
"""Default `backoffLimit` of a Job."""


def job(found: Documents, draft: Draft) -> None:
    """Reads a Job with one pod, or an Indexed Job with several."""
    spec = found.job.view.at("spec")
    pods, template = Pods(draft, found), spec.at("template")
    nodes = of_job(spec, draft, pods)
    put_start(draft, started(pods, template), nodes, template, has_group=pods.has_group, given=("index",))


def of_job(spec: View, draft: Draft, pods: Pods, *, is_alone: bool = True) -> int:
    """Reads the spec of a Job; returns its number of pods."""
    run_policy(spec, draft)
    if is_alone and spec.at("backoffLimit").value is None:
        spec.at("backoffLimit").remark(
            f"not set: the default is {RETRIES} more pods after failures",
            f"no restarts are written: restarts: {RETRIES} does the same",
        )
    again = spec.at("template", "spec", "restartPolicy")
    if again.value == "OnFailure" and draft.get("restarts") is None:
        again.report(
            "failed containers are started again", "no restarts are written: restarts: N starts all ranks again"
        )
    pods.read(spec.at("template"), TRAINING)
    parallel, completions = spec.whole("parallelism"), spec.whole("completions")
    nodes = max(1, parallel if parallel is not None else 1)
    if completions is not None and completions != nodes:
        spec.at("completions").report(
            f"{completions} pods one after the other, {nodes} at a time",
            "a job trains on all its nodes at once: run it once for each",
        )
    return nodes


def jobset(found: Documents, draft: Draft) -> None:
    """Reads the training job of a JobSet; other jobs of the set are reported."""
    spec = found.job.view.at("spec")
    spec.at("suspend").take_if(False)
    draft.put_restarts(spec.at("failurePolicy", "maxRestarts"))
    draft.put_seconds("kubernetes.ttl", spec.at("ttlSecondsAfterFinished"))
    pods, template, nodes = of_set(spec, draft, found)
    chosen = training_job(spec)
    # otherwise indices start at 0 in each replica
    is_one = chosen is not None and chosen.at("replicas").value in (None, 1)
    given: tuple[OperatorVariables, ...] = ("index",) if is_one else ()
    put_start(draft, started(pods, template), nodes, template, has_group=pods.has_group, given=given)


def of_set(spec: View, draft: Draft, found: Documents, pods: Pods | None = None) -> tuple[Pods, View, int]:
    """Returns the training pods of a JobSet spec, their template, and their number."""
    chosen = training_job(spec)
    pods = pods or Pods(draft, found)
    if chosen is None:
        return pods, spec, 1
    start = _start_of(chosen)
    jobs = spec.at("replicatedJobs").each()
    alike = [one for one in jobs if one.path == chosen.path or _are_one_training(start, _start_of(one))]
    paths = [one.path for one in alike]
    chosen, *others = sorted(alike, key=lambda one: one.at("name").value not in RANK_0_NAMES)
    for other in jobs:
        if other.path in paths:
            continue
        if _are_numbered(start, _start_of(other)):
            message = "starts other ranks of the same training than the rest of the set, by another command"
            raise other.refused(message, "give all pods that train one command, and import it again")
        other.report(
            f"job {other.at('name').value} of the set, in addition to the training job",
            "run it on its own, or start it in the script",
        )
    restarts = draft.get("restarts")
    template = chosen.at("template", "spec", "template")
    nodes = _pods_read(chosen, draft, pods)
    first = Pods(Draft(), found)
    if others:
        _pods_read(chosen, first.draft, first)
    for other in others:
        further = Pods(Draft(), found)
        nodes += _pods_read(other, further.draft, further)
        compare(fields_of(first), fields_of(further), other.at("template", "spec", "template"))
    if restarts is not None:
        draft.fields["restarts"] = restarts  # restarts of the whole set, not of one job
    return pods, template, nodes


def _pods_read(one: View, draft: Draft, pods: Pods) -> int:
    """Reads a job of a set; returns its number of pods."""
    one.text("name")
    marks(draft, one.at("template", "metadata"))
    replicas = one.whole("replicas")
    nodes = of_job(one.at("template", "spec"), draft, pods, is_alone=False)
    return nodes * max(1, replicas if replicas is not None else 1)


def _start_of(one: View) -> Start:
    """Parses the command of a job of a set before its fields are read."""
    container = main_container(one.at("template", "spec", "template", "spec", "containers"), TRAINING)
    if container is None:
        return Start()
    words = [str(word.value) for name in ("command", "args") for word in container.at(name).each()]
    env = {str(one.at("name").value): str(one.at("value").value) for one in container.at("env").each()}
    return start_of(words, env) if words else Start()


def _are_numbered(first: Start, other: Start) -> bool:
    """Whether both commands set a node rank, as the commands of one training job do."""
    return all(_NODE_RANK.search(start.text) is not None for start in (first, other))


def _are_one_training(first: Start, other: Start) -> bool:
    """Whether two commands start ranks of one training job that Windlass can start: torchrun with the same script."""
    scripts = {split_run(start.fields["run"])[0] if "run" in start.fields else None for start in (first, other)}
    nodes = {str(start.fields.get("nodes", 1)) for start in (first, other)}
    is_same = first.by == other.by == "torchrun" and len(scripts) == 1 and None not in scripts
    return is_same and (_are_numbered(first, other) or (len(nodes) == 1 and nodes != {"1"}))


def training_job(spec: View) -> View | None:
    """Returns the training job of a JobSet: the one with a known name, else the one with the most pods."""
    jobs = spec.at("replicatedJobs").each()
    known = (one for name in TRAINING for one in jobs if one.at("name").value == name)
    return next(known, max(jobs, key=_pods_of, default=None))


def _pods_of(one: View) -> int:
    parallel = one.at("template", "spec", "parallelism").value
    replicas = one.at("replicas").value
    return (parallel if isinstance(parallel, int) else 1) * (replicas if isinstance(replicas, int) else 1)
