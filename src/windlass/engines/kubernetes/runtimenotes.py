"""Turns what is known of the runtime that a job names into what is against its plan, or to be known of it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.manifests import END_SECONDS
from windlass.engines.kubernetes.runtimes import KINDS, container_of, pod_of, unfit
from windlass.engines.kubernetes.ways.runtimes import NODE
from windlass.plan.plan import Note
from windlass.spec.job import Job

if TYPE_CHECKING:
    from windlass.engines.kubernetes.facts import Cluster
    from windlass.engines.kubernetes.runtimes import Json, Runtimes
    from windlass.engines.kubernetes.ways.runtimes import Patching

GRACE_SECONDS: Final = 30
"""What a cluster gives a pod to end that says nothing of it."""


def runtime_notes(job: Job, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """What is to be said of `kubernetes.runtime`."""
    name, kind = job.kubernetes.runtime, job.kubernetes.runtime_kind
    if name is None:
        if kind is not None:
            yield _blocker("kubernetes.runtime_kind is there, and no runtime is named", "add kubernetes.runtime")
        return
    if via != "trainjob":
        yield _blocker(f"kubernetes.runtime: {name}, and via: {via}", "runtimes are Trainer's: via: trainjob has them")
        return
    if job.nodes.min < job.nodes.max:
        yield _blocker(
            f"kubernetes.runtime: {name}, and a range of nodes: what asks for room has to be as the runtime's pods are",
            "give one number of nodes, or leave the runtime out",
        )
    seen = cluster.runtimes if cluster is not None else None
    if seen is None:
        return
    if seen.found is not None:
        yield from _against(job, seen.found, seen)
    elif seen.names is None:
        yield Note("runtime-unseen", f"this login may not look at runtimes: {name} is taken for a {kind or KINDS[-1]}",
                   "kubernetes.runtime_kind says which it is; what it holds is not checked")  # fmt: skip
    else:
        near = difflib.get_close_matches(name, seen.names, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        where = kind or " or ".join(KINDS)
        yield Note("runtime-missing", f"there is no {where} {name} for this namespace{meant}",
                   f"there are: {', '.join(seen.names) or 'none'}", blocks=True)  # fmt: skip
    if seen.names is not None and seen.patching is None:
        yield _blocker(
            f"kubernetes.runtime: {name}, and with the installed version of Trainer a TrainJob cannot give a runtime's "
            "pods labels, by which a run finds them: 2.1 and newer can",
            "leave it out: a run brings a runtime of its own",
        )


def _blocker(message: str, fix: str) -> Note:
    return Note("runtime", message, fix, blocks=True)


def _against(job: Job, runtime: Json, seen: Runtimes) -> Iterator[Note]:
    called = f"{runtime['kind']} {runtime['metadata']['name']}"
    found = list(unfit(runtime))
    for why, fix in found:
        yield Note("runtime-unfit", f"{called}: {why}", fix, blocks=True)
    if found or seen.patching is None:
        return
    for asked, fix in _not_carried(job, runtime, seen.patching):
        yield Note("runtime-cannot", f"{called}: a TrainJob of this version of Trainer cannot bring it {asked}", fix,
                   blocks=True)  # fmt: skip
    yield from _told(job, runtime, called, seen.patching)


def _not_carried(job: Job, runtime: Json, patching: Patching) -> Iterator[tuple[str, str]]:
    """What the job asks for, and its TrainJob cannot say."""
    if job.secrets:
        yield f"secrets ({', '.join(job.secrets)})", f"name them in envFrom of the runtime's container {NODE}"
    if job.priority is not None and pod_of(runtime).get("priorityClassName") != job.priority:
        yield f"priority: {job.priority}", "say priorityClassName in the runtime"
    fields = {
        "serviceAccountName": ("kubernetes.service_account", job.kubernetes.service_account),
        "nodeSelector": ("node labels", job.kubernetes.node_labels or job.resources.instance or job.resources.gpu_type),
        "imagePullSecrets": ("kubernetes.image_pull_secrets", job.kubernetes.image_pull_secrets),
    }
    for name, (field, asked) in fields.items():
        if asked and name not in patching.pod:
            yield field, f"say {name} in the runtime"
    if not {"volumes", "containers"} <= patching.pod or "volumeMounts" not in patching.container:
        yield "volumes, in which the code comes", "leave kubernetes.runtime out: a run brings a runtime of its own"


def _told(job: Job, runtime: Json, called: str, patching: Patching) -> Iterator[Note]:
    """What differs from a run with a runtime of its own."""
    if job.image is None and not (container_of(runtime) or {}).get("image"):
        yield Note("runtime-image", f"{called}: its container {NODE} has no image", "set image:", blocks=True)
    given = pod_of(runtime).get("terminationGracePeriodSeconds", GRACE_SECONDS)
    if "terminationGracePeriodSeconds" not in patching.pod and given < job.grace + END_SECONDS:
        yield Note("runtime-grace", f"{called}: pods that are taken away have {given} s to end, and grace is "
                   f"{job.grace:g} s", "say terminationGracePeriodSeconds in the runtime")  # fmt: skip
    if job.timeout is not None and "activeDeadlineSeconds" not in patching.pod:
        yield Note("runtime-deadline", f"{called}: its pods can be given no deadline, so that timeout holds only while "
                   "a supervisor watches", "say activeDeadlineSeconds in the runtime")  # fmt: skip
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    if others := [one["name"] for one in jobs if one["name"] != NODE]:
        yield Note("runtime-jobs", f"{called}: has {', '.join(others)} run beside the training, as it says", "")
