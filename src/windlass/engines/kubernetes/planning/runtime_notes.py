"""What a plan notes on the training runtime that a job names. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects.manifests import END_SECONDS
from windlass.engines.kubernetes.objects.workloads.runtimes import NODE
from windlass.engines.kubernetes.planning.runtimes import KINDS, container_of, pod_of, unfit
from windlass.errors import near
from windlass.plan.plan import Note, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.objects.quantity import Json
    from windlass.engines.kubernetes.objects.workloads.runtimes import Patching
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.engines.kubernetes.planning.runtimes import Runtimes
    from windlass.spec.job import Job

GRACE_SECONDS: Final = 30
"""The default termination grace period of a pod."""


def runtime_notes(job: Job, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """Findings on `kubernetes.runtime`."""
    name, kind = job.kubernetes.runtime, job.kubernetes.runtime_kind
    if name is None:
        if kind is not None:
            yield blocker("runtime", "kubernetes.runtime_kind names no runtime", "add kubernetes.runtime")
        return
    if via != "trainjob":
        yield blocker(
            "runtime", f"kubernetes.runtime: {name}, and via: {via}", "runtimes are Trainer's: via: trainjob has them"
        )
        return
    if job.nodes.min < job.nodes.max:
        yield blocker(
            "runtime",
            f"kubernetes.runtime: {name}, and a range of nodes: capacity probes need the runtime's pod spec",
            "give one number of nodes, or leave the runtime out",
        )
    seen = cluster.runtimes if cluster is not None else None
    if seen is None:
        return
    if seen.found is not None:
        yield from _against(job, seen.found, seen)
    elif seen.names is None:
        yield Note(
            "runtime-unseen",
            f"this login may not read runtimes: {name} is taken for a {kind or KINDS[-1]}",
            "kubernetes.runtime_kind sets which it is; its content is not checked",
        )
    else:
        hint = near(name, seen.names)
        meant = f" ({hint})" if hint else ""
        where = kind or " or ".join(KINDS)
        yield blocker(
            "runtime-missing",
            f"there is no {where} {name} for this namespace{meant}",
            f"there are: {', '.join(seen.names) or 'none'}",
        )
    if seen.names is not None and seen.patching is None:
        yield blocker(
            "runtime",
            f"kubernetes.runtime: {name}, and with the installed version of Trainer a TrainJob cannot give a runtime's "
            "pods labels, by which a run finds them: 2.1 and newer can",
            "leave it out: a run brings a runtime of its own",
        )


def _against(job: Job, runtime: Json, seen: Runtimes) -> Iterator[Note]:
    called = f"{runtime['kind']} {runtime['metadata']['name']}"
    found = list(unfit(runtime))
    for why, fix in found:
        yield blocker("runtime-unfit", f"{called}: {why}", fix)
    if found or seen.patching is None:
        return
    for asked, fix in _not_carried(job, runtime, seen.patching):
        yield blocker("runtime-cannot", f"{called}: a TrainJob of this version of Trainer cannot bring it {asked}", fix)
    yield from _differences(job, runtime, called, seen.patching)


def _not_carried(job: Job, runtime: Json, patching: Patching) -> Iterator[tuple[str, str]]:
    """Fields of the job that its TrainJob cannot express."""
    if job.secrets:
        yield f"secrets ({', '.join(job.secrets)})", f"name them in envFrom of the runtime's container {NODE}"
    if job.priority is not None and pod_of(runtime).get("priorityClassName") != job.priority:
        yield f"priority: {job.priority}", "set priorityClassName in the runtime"
    fields = {
        "serviceAccountName": ("kubernetes.service_account", job.kubernetes.service_account),
        "nodeSelector": ("node labels", job.kubernetes.node_labels or job.resources.instance or job.resources.gpu_type),
        "imagePullSecrets": ("kubernetes.image_pull_secrets", job.kubernetes.image_pull_secrets),
    }
    for name, (field, asked) in fields.items():
        if asked and name not in patching.pod:
            yield field, f"set {name} in the runtime"
    if not {"volumes", "containers"} <= patching.pod or "volumeMounts" not in patching.container:
        yield "volumes, in which the code comes", "leave kubernetes.runtime out: a run brings a runtime of its own"


def _differences(job: Job, runtime: Json, called: str, patching: Patching) -> Iterator[Note]:
    """What differs from a run with a runtime of its own."""
    if job.image is None and not (container_of(runtime) or {}).get("image"):
        yield blocker("runtime-image", f"{called}: its container {NODE} has no image", "set image:")
    given = pod_of(runtime).get("terminationGracePeriodSeconds", GRACE_SECONDS)
    if "terminationGracePeriodSeconds" not in patching.pod and given < job.grace + END_SECONDS:
        yield Note(
            "runtime-grace",
            f"{called}: pods that are deleted have {given} s to end, and grace is {job.grace:g} s",
            "set terminationGracePeriodSeconds in the runtime",
        )
    if job.timeout is not None and "activeDeadlineSeconds" not in patching.pod:
        yield Note(
            "runtime-deadline",
            f"{called}: its pods can be given no deadline, so that timeout holds only while a supervisor watches",
            "set activeDeadlineSeconds in the runtime",
        )
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    if others := [one["name"] for one in jobs if one["name"] != NODE]:
        yield Note("runtime-jobs", f"{called}: has {', '.join(others)} run beside the training, as it says", "")
