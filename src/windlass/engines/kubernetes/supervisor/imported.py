"""Reads the plan of a run that another machine has submitted: it is input, which others in the namespace can change.

Later commands act by this plan with the rights of their user. So it must be the one with which the Job of the run's
supervisor was created, and may name nothing but the objects of its run. Steps and fields that are not listed here are
left out: none of them names a program, a folder or a file of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout, ttl
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace
from windlass.engines.kubernetes.objects.supervisor_manifests import PLAN_FILE, plan_digest
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning.provisioning import MACHINES
from windlass.engines.kubernetes.supervisor.record import UNPACKED_BYTES, DamagedRecord, unpacked
from windlass.errors import UnsupportedVersion, WindlassError
from windlass.plan.plan import Plan, Step
from windlass.worker.protocol import NodeSpec
from windlass.worker.values import read_as

Json = Mapping[str, Any]

NAMES: Final = {
    "object": ("",),
    "policy": ("", "-supervisor"),
    "claim": ("",),
    "attempt-part": ("-1",),
    "attempt": ("-1",),
    "supervisor": ("-supervisor", "-key"),
    "transfer": ("-transfer",),
    "stage-job": ("-data",),
    "upload-job": ("-outputs",),
    "check-job": ("-outputs-check",),
}
"""By kind of the steps whose requests are objects: what the names of these have after the id of the run."""
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cluster": {
        "via": str,
        "namespace": str,
        "why": str,
        ttl.AFTER: float,
        "supervisor_queue": str,
        "image": str,
        "user": int,
    },
    "code": {"digest": str, "bytes": int, "source": str, "pieces": tuple[Json, ...]},
    "stage": {"name": str, "source": str, "link": str},
    "mount": {"name": str, "source": str, "kind": str, "claim": str, "folder": str, "why": str},
    "upload": {"source": str, "destination": str, "at": str},
    "collect": {"source": str, "max_bytes": int},
    MACHINES: {"pools": tuple[Json, ...]},
    "node": {"node": int, "cwd": str, "env": Json, "ranks": tuple[Json, ...]},
}
"""The fields, with their types, of the other steps."""
POLICY: Final[Mapping[str, Any]] = {
    "timeout_seconds": float | None,
    "grace_seconds": float,
    "hang_seconds": float | None,
    "max_restarts": int,
    "restart_on": tuple[str, ...],
    "min_nodes": int,
    "node_back_seconds": float | None,
    "notify": str,
}
SECTIONS: Final = ("checkpoint", "kubernetes", "resources")
"""Fields of the job that commands look into without checking it as a whole."""
MAX_RANKS: Final = 1 << 20
KINDS: Final = frozenset({"ConfigMap", "Service", "Secret", "PersistentVolumeClaim", "Job", "NetworkPolicy"}).union(
    *((way.kind, *(kind for kind, _ in way.parts)) for way in WORKLOADS.values())
)


def imported_plan(contents: Json, job: Json, run_id: str, place: ClusterNamespace) -> Plan:
    """The plan of a run for this machine, from the ConfigMap and the Job of its supervisor.

    Raises DamagedRecord, UnsupportedVersion.
    """
    text = unpacked(contents, PLAN_FILE, UNPACKED_BYTES)
    try:
        plan = Plan.from_json(json.loads(text))
        problem = next(_problems(plan, run_id, place), "")
        if (job["metadata"].get("annotations") or {}).get(layout.PLAN_ANNOTATION) != plan_digest(text):
            problem = f"Job {layout.supervisor_name(run_id)} was created with another one"
        if not problem:
            steps = tuple(_step(step, place) for step in plan.steps if step.kind in NAMES or step.kind in FIELDS)
            return replace(plan, steps=steps, policy=_listed(POLICY, plan.policy))
    except UnsupportedVersion:
        raise
    except (WindlassError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"it is not a plan ({type(error).__name__})"
    raise DamagedRecord(
        f"the plan in ConfigMap {layout.supervisor_name(run_id)} was changed, and cannot be used: {problem}"
    )


def _problems(plan: Plan, run_id: str, place: ClusterNamespace) -> Iterator[str]:
    if (plan.run_id, plan.engine) != (run_id, "kubernetes"):
        yield f"it is of run '{plan.run_id}' of engine '{plan.engine}'"
    for name, kind in (
        ("target", str),
        ("name", str),
        ("output_dir", str),
        ("job", dict),
        ("policy", dict),
        ("num_nodes", int),
        ("procs_per_node", int),
    ):
        if type(getattr(plan, name)) is not kind:
            yield f"its {name} is no {kind.__name__}"
    if plan.price is not None and type(plan.price) is not dict:
        yield "its price is no dict"
    if plan.output_dir.startswith("/"):
        yield f"its outputs are in {plan.output_dir}, a folder of a machine"
    if not 0 < plan.num_nodes * plan.procs_per_node <= MAX_RANKS or plan.nodes.num_nodes > plan.num_nodes:
        yield f"it has {plan.num_nodes} nodes of {plan.procs_per_node} ranks"
    if not all(isinstance(plan.job.get(name, {}), Mapping) for name in SECTIONS):
        yield "its job is none"
    [cluster] = plan.requests("cluster")
    if cluster["via"] not in WORKLOADS or cluster["namespace"] != place.namespace:
        yield f"it is of namespace '{cluster['namespace']}', via '{cluster['via']}'"
    [code] = plan.requests("code")
    made = [
        (request, request["metadata"]["name"] in {run_id + end for end in ends})
        for kind, ends in NAMES.items()
        for request in plan.requests(kind)
    ]
    made += [(piece, piece["metadata"]["name"].startswith(f"{run_id}-code-")) for piece in code["pieces"]]
    for one, is_its in made:
        if one["kind"] not in KINDS or not is_its or one["metadata"]["namespace"] != place.namespace:
            yield f"it makes {one['kind']} {one['metadata']['name']} in namespace {one['metadata']['namespace']}"


def _step(step: Step, place: ClusterNamespace) -> Step:
    """A step with the fields that are listed. Raises ValueError."""
    if step.kind in NAMES:
        return Step(step.kind, str(step.summary), step.request)
    request = NodeSpec.from_json(step.request).to_json() if step.kind == "node" else step.request
    found = _listed(FIELDS[step.kind], request)
    if step.kind == "cluster":
        found |= {"context": place.context, "kubeconfig": place.kubeconfig}
    if step.kind == "code":
        found |= {"folder": layout.CODE, layout.IMPORTED: True}
    return Step(step.kind, str(step.summary), found)


def _listed(fields: Mapping[str, Any], found: Json) -> dict[str, Any]:
    """What is listed of a mapping. Raises ShapeError, a ValueError."""
    return {name: read_as(hint, found[name]) for name, hint in fields.items() if name in found}
