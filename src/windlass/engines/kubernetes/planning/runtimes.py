"""Reads the training runtime that a job names, and reports what keeps a run from using it.

Pure, except `read_runtimes`, which sends requests to the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import unless_absent
from windlass.engines.kubernetes.objects.pod_template import END_SECONDS, Shape
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.runtimes import API, NODE, STEP, Patching, Runtime, patching_of
from windlass.errors import near
from windlass.plan.notes import Note, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job

KINDS: Final = ("TrainingRuntime", "ClusterTrainingRuntime")
"""Kinds of runtimes, the namespace's own first."""
GRACE_SECONDS: Final = 30
"""Default termination grace period of a pod, in seconds."""


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtime that a job names, as found in a cluster."""

    names: tuple[str, ...] | None
    """Names of all runtimes; None if the login may not list them."""
    found: Json | None = None
    """Manifest of the named runtime from the API server, with its kind; None if it was not found."""
    patching: Patching | None = None
    """Fields of the runtime that a TrainJob can override; None if these do not include labels of pods."""

    @property
    def image(self) -> str:
        """Image of the training container; empty if it has none, or the runtime is not known."""
        return str(((self.found and container_of(self.found)) or {}).get("image", ""))

    @property
    def tolerations(self) -> tuple[Manifest, ...]:
        """Tolerations of the training pods; empty if the runtime is not known."""
        return () if self.found is None else tuple(pod_of(self.found).get("tolerations", ()))


def read_runtimes(client: Client, name: str, kind: str | None) -> Runtimes:
    """Looks for a runtime in the namespace and then in the cluster, or only for the given kind. Raises EngineError."""
    kinds = (kind,) if kind is not None else KINDS
    with ThreadPoolExecutor(3) as pool:
        schema = pool.submit(_schema, client)
        listed = dict(zip(kinds, pool.map(lambda one: _listed(client, one), kinds), strict=True))
        there = [{**item, "kind": one} for one, items in listed.items() for item in items or ()]
        found = next((item for item in there if item["metadata"]["name"] == name), None)
        names = sorted({item["metadata"]["name"] for item in there})
        may_look = all(items is not None for items in listed.values())
        return Runtimes(tuple(names) if may_look or found is not None else None, found, patching_of(schema.result()))


def _listed(client: Client, kind: str) -> list[Json] | None:
    """Lists the objects of a kind; returns None if the login may not list them."""
    try:
        return list(client.find(API, kind)["items"])
    except Refused as error:
        if error.status == 404:  # the kind is not served; another note of the plan already reports this
            return []
        if error.status == 403:
            return None
        raise


def _schema(client: Client) -> Json:
    """Reads the OpenAPI schema of a TrainJob's spec, which every login may read; empty if it is not served."""
    document = unless_absent(lambda: client.call("GET", f"/openapi/v3/apis/{API}")) or {}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if any(one.get("kind") == "TrainJob" for one in schema.get("x-kubernetes-group-version-kind", ())):
            found: Json = schema["properties"]["spec"]
            return found
    return {}


def runtime_of(name: str | None, kind: str | None, seen: Runtimes | None) -> Runtime | None:
    """Returns the runtime for a plan, with defaults if the login may not read it."""
    if name is None:
        return None
    found = seen.found if seen is not None else None
    where = kind or (str(found["kind"]) if found is not None else KINDS[-1])
    patching = seen.patching if seen is not None else None
    return Runtime(name, where, patching or Patching())


def training(runtime: Json) -> Json:
    """Returns the training job among a runtime's replicated jobs; empty if there is none."""
    for job in runtime["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", ()):
        if job.get("template", {}).get("metadata", {}).get("labels", {}).get(STEP) == "trainer":
            found: Json = job
            return found
    return {}


def pod_of(runtime: Json) -> Json:
    """Returns the spec of a runtime's training pods; empty if it has none."""
    found: Json = training(runtime).get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
    return found


def container_of(runtime: Json) -> Json | None:
    """Returns the training container of a runtime, or None if it has none."""
    return next((one for one in pod_of(runtime).get("containers", ()) if one.get("name") == NODE), None)


def unfit(runtime: Json) -> Iterator[tuple[str, str]]:
    """Yields reasons why no run can use a runtime, each with a fix."""
    job = training(runtime)
    jobs = runtime["spec"].get("template", {}).get("spec", {})
    if not job or job["name"] != NODE:
        has = ", ".join(one["name"] for one in jobs.get("replicatedJobs", ())) or "none"
        yield f"it has no job `{NODE}` with the label {STEP}: trainer (its jobs: {has})", "name another runtime"
        return
    if container_of(runtime) is None:
        has = ", ".join(one.get("name", "?") for one in pod_of(runtime).get("containers", ())) or "none"
        yield (
            f"its job `{NODE}` has no container `{NODE}`, which a TrainJob changes (its containers: {has})",
            "name another runtime",
        )
    if "mpi" in (runtime["spec"].get("mlPolicy") or {}):
        yield "it has its own launcher (mlPolicy.mpi)", "launcher: mpi and via: mpijob need no runtime"
    ttls = (jobs.get("ttlSecondsAfterFinished"), job["template"].get("spec", {}).get("ttlSecondsAfterFinished"))
    if any(seconds is not None for seconds in ttls):
        yield (
            "it deletes ended Jobs (ttlSecondsAfterFinished), and a TrainJob creates them again and trains again",
            "name a runtime without; windlass rm removes a run",
        )
    network = jobs.get("network") or {}
    if network.get("subdomain") or network.get("enableDNSHostnames") is False:
        yield "it changes or disables the pods' host names (network)", "name a runtime without network.subdomain"
    if job["template"].get("spec", {}).get("completionMode", "Indexed") != "Indexed":
        yield "its pods have no index (completionMode)", "name a runtime whose job is Indexed"


def runtime_notes(job: Job, cluster: Cluster | None, via: str, shape: Shape) -> Iterator[Note]:
    """Yields notes on `kubernetes.runtime`."""
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
        yield from _against(job, shape, seen.found, seen)
    elif seen.names is None:
        yield Note(
            "runtime-unseen",
            f"this login may not read runtimes: {name} is assumed to be a {kind or KINDS[-1]}",
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
            "leave it out: the run then creates a runtime",
        )


def _against(job: Job, shape: Shape, runtime: Json, seen: Runtimes) -> Iterator[Note]:
    called = f"{runtime['kind']} {runtime['metadata']['name']}"
    found = list(unfit(runtime))
    for why, fix in found:
        yield blocker("runtime-unfit", f"{called}: {why}", fix)
    if found or seen.patching is None:
        return
    for asked, fix in _not_carried(job, shape, runtime, seen.patching):
        yield blocker("runtime-cannot", f"{called}: a TrainJob of this version of Trainer cannot set {asked}", fix)
    yield from _differences(job, runtime, called, seen.patching)


def _not_carried(job: Job, shape: Shape, runtime: Json, patching: Patching) -> Iterator[tuple[str, str]]:
    """Yields fields of the job that its TrainJob cannot express, each with a fix."""
    pods = shape.pods
    if pods.env_from:
        names = ", ".join(pods.env_from)
        yield f"kubernetes.env_from ({names})", f"name them in envFrom of the runtime's container {NODE}"
    if job.secrets:
        yield f"secrets ({', '.join(job.secrets)})", f"name them in envFrom of the runtime's container {NODE}"
    if job.priority is not None and pod_of(runtime).get("priorityClassName") != job.priority:
        yield f"priority: {job.priority}", "set priorityClassName in the runtime"
    fields = {
        "serviceAccountName": ("kubernetes.service_account", job.kubernetes.service_account),
        "nodeSelector": (
            "node labels",
            pods.node_selector or job.resources.instance or job.resources.gpu_type,
        ),
        "imagePullSecrets": ("kubernetes.image_pull_secrets", job.kubernetes.image_pull_secrets),
        "affinity": ("kubernetes.affinity", pods.affinity.same or pods.affinity.apart),
        "tolerations": ("kubernetes.tolerations", pods.tolerations),
        **{
            name: (f"kubernetes.pod.spec.{name}", True) for patch in shape.pod_patches for name in patch.get("spec", {})
        },
    }
    for name, (field, asked) in fields.items():
        if asked and name not in patching.pod:
            yield field, f"set {name} in the runtime"
    for name in sorted(_container_fields(shape) - {*patching.container, "name", "env", "resources"}):
        yield f"{name} of the container", f"set {name} in the runtime"
    there = {one["name"] for one in pod_of(runtime).get("initContainers", ())}
    for one in (one for patch in shape.pod_patches for one in patch.get("spec", {}).get("initContainers", ())):
        if one["name"] not in there:
            yield f"kubernetes.pod.spec.initContainers ({one['name']})", "add this container to the runtime"
        elif more := sorted(one.keys() - {*patching.container, "name"}):
            yield f"{', '.join(more)} of the init container {one['name']}", "set it in the runtime"
    if not {"volumes", "containers"} <= patching.pod or "volumeMounts" not in patching.container:
        yield "volumes, which contain the code", "leave kubernetes.runtime out: the run then creates a runtime"


def _container_fields(shape: Shape) -> set[str]:
    """Returns the fields of the ranks' container that options or patches set."""
    pods = shape.pods
    patches = [one for patch in shape.pod_patches for one in patch.get("spec", {}).get("containers", ())]
    found = {name for one in patches for name in one}
    return found | ({"securityContext"} if pods.capabilities or pods.read_only_root else set())


def _differences(job: Job, runtime: Json, called: str, patching: Patching) -> Iterator[Note]:
    """Yields notes on differences from a run that creates its own runtime."""
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
        yield Note("runtime-jobs", f"{called}: it also runs {', '.join(others)}", "")
