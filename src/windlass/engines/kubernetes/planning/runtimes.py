"""Reads which training runtimes a cluster has, and what its version of Kubeflow Trainer lets a TrainJob change of one.

Pure but for `runtimes`, which asks the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client, Refused
from windlass.engines.kubernetes.access.optional import unless_absent
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.objects.workloads.runtimes import API, NODE, STEP, Patching, Runtime, patching_of

KINDS: Final = ("TrainingRuntime", "ClusterTrainingRuntime")
"""The namespace's own come first."""
NAMED: Final = "kubernetes.runtime of the job"


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtime that a job names, as found in a cluster."""

    names: tuple[str, ...] | None
    """All that it has; None where they may not be looked at."""
    found: Json | None = None
    """The one that is named, as the API server has it, with its kind."""
    patching: Patching | None = None
    """How a TrainJob overrides it there; None where the installed version cannot."""


def runtimes(client: Client, name: str, kind: str | None) -> Runtimes:
    """Look for a runtime in the namespace, then in the cluster, unless its kind is given. Raises EngineError."""
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
    """None where the login may not."""
    try:
        return list(client.find(API, kind)["items"])
    except Refused as error:
        if error.status == 404:  # not served: the plan has a note on that already
            return []
        if error.status == 403:
            return None
        raise


def _schema(client: Client) -> Json:
    """That of a TrainJob's spec, which every authenticated user may read; empty where it is not served."""
    document = unless_absent(lambda: client.call("GET", f"/openapi/v3/apis/{API}")) or {}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if any(one.get("kind") == "TrainJob" for one in schema.get("x-kubernetes-group-version-kind", ())):
            found: Json = schema["properties"]["spec"]
            return found
    return {}


def runtime_of(name: str | None, kind: str | None, seen: Runtimes | None) -> Runtime | None:
    """The runtime for a plan; for one that this login may not read, with defaults."""
    if name is None:
        return None
    found = seen.found if seen is not None else None
    where = kind or (str(found["kind"]) if found is not None else KINDS[-1])
    patching = seen.patching if seen is not None else None
    return Runtime(name, where, patching or Patching())


def training(runtime: Json) -> Json:
    """The job of the training in a runtime; empty where it has none."""
    for job in runtime["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", ()):
        if job.get("template", {}).get("metadata", {}).get("labels", {}).get(STEP) == "trainer":
            found: Json = job
            return found
    return {}


def pod_of(runtime: Json) -> Json:
    """The spec of the pods that train."""
    found: Json = training(runtime).get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
    return found


def container_of(runtime: Json) -> Json | None:
    """The container that trains."""
    return next((one for one in pod_of(runtime).get("containers", ()) if one.get("name") == NODE), None)


def image_and_user(seen: Runtimes | None, image: str, user: int) -> dict[str, Any]:
    """Facts of a runtime that other pods of the run need and that are not in the manifests; `image` is the job's."""
    container = container_of(seen.found) if seen is not None and seen.found is not None else None
    return {"image": image or (container or {}).get("image", ""), "user": user}


def unfit(runtime: Json) -> Iterator[tuple[str, str]]:
    """Why no run can stand on a runtime, and what to do."""
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
        yield "it has a launcher of its own (mlPolicy.mpi)", "launcher: mpi and via: mpijob need no runtime"
    ttls = (jobs.get("ttlSecondsAfterFinished"), job["template"].get("spec", {}).get("ttlSecondsAfterFinished"))
    if any(seconds is not None for seconds in ttls):
        yield (
            "it has what has ended removed (ttlSecondsAfterFinished), and a TrainJob makes that anew and trains again",
            "name a runtime without; windlass rm removes a run",
        )
    network = jobs.get("network") or {}
    if network.get("subdomain") or network.get("enableDNSHostnames") is False:
        yield "its pods have names of its own, or none (network)", "name a runtime without network.subdomain"
    if job["template"].get("spec", {}).get("completionMode", "Indexed") != "Indexed":
        yield "its pods have no numbers (completionMode)", "name a runtime whose job is Indexed"
