"""Reads the plan of a run that another machine has submitted: it is input, which others in the namespace can change.

Later commands act by this plan with the rights of their user. So it must be the one with which the Job of the run's
supervisor was created, and may name nothing but the objects of its run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.discovery.snapshot import Place
from windlass.engines.kubernetes.supervisor.manifests import PLAN_FILE, plan_digest
from windlass.engines.kubernetes.supervisor.record import UNPACKED_BYTES, DamagedRecord, unpacked
from windlass.engines.kubernetes.workloads import WORKLOADS
from windlass.errors import StoreTooNew, WindlassError
from windlass.plan.plan import Plan

Json = Mapping[str, Any]

NAMES: Final = {
    "object": ("",), "policy": ("", "-supervisor"), "claim": ("",), "attempt-part": ("-1",), "attempt": ("-1",),
    "supervisor": ("-supervisor", "-key"), "transfer": ("-transfer",), "stage-job": ("-data",),
    "upload-job": ("-outputs",), "check-job": ("-outputs-check",),
}  # fmt: skip
"""By kind of the steps whose requests are objects: what the names of these have after the id of the run."""
KINDS: Final = frozenset({"ConfigMap", "Service", "Secret", "PersistentVolumeClaim", "Job", "NetworkPolicy"}).union(
    *((way.kind, *(kind for kind, _ in way.parts)) for way in WORKLOADS.values())
)


def imported_plan(contents: Json, job: Json, run_id: str, place: Place) -> Plan:
    """The plan of a run for this machine, from the ConfigMap and the Job of its supervisor.

    Raises DamagedRecord, StoreTooNew.
    """
    text = unpacked(contents, PLAN_FILE, UNPACKED_BYTES)
    try:
        plan = Plan.from_json(json.loads(text))
        problem = next(_problems(plan, run_id, place), "")
        if (job["metadata"].get("annotations") or {}).get(layout.PLAN_ANNOTATION) != plan_digest(text):
            problem = f"Job {layout.supervisor_name(run_id)} was created with another one"
        if not problem:
            steps = tuple(replace(step, request=_request(step.kind, step.request, place)) for step in plan.steps)
            return replace(plan, steps=steps)
    except StoreTooNew:
        raise
    except (WindlassError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        problem = f"it is not a plan ({type(error).__name__})"
    raise DamagedRecord(f"the plan in ConfigMap {layout.supervisor_name(run_id)} was changed, and cannot be used: "
                        f"{problem}")  # fmt: skip


def _problems(plan: Plan, run_id: str, place: Place) -> Iterator[str]:
    if (plan.run_id, plan.engine) != (run_id, "kubernetes"):
        yield f"it is of run '{plan.run_id}' of engine '{plan.engine}'"
    for name, kind in (("target", str), ("name", str), ("output_dir", str), ("job", dict), ("policy", dict),
                       ("num_nodes", int), ("procs_per_node", int)):  # fmt: skip
        if type(getattr(plan, name)) is not kind:
            yield f"its {name} is no {kind.__name__}"
    if plan.price is not None and type(plan.price) is not dict:
        yield "its price is no dict"
    [cluster] = plan.requests("cluster")
    if cluster["via"] not in WORKLOADS or cluster["namespace"] != place.namespace:
        yield f"it is of namespace '{cluster['namespace']}', via '{cluster['via']}'"
    [code] = plan.requests("code")
    made = [(request, request["metadata"]["name"] in {run_id + end for end in ends})
            for kind, ends in NAMES.items() for request in plan.requests(kind)]  # fmt: skip
    made += [(piece, piece["metadata"]["name"].startswith(f"{run_id}-code-")) for piece in code["pieces"]]
    for one, is_its in made:
        if one["kind"] not in KINDS or not is_its or one["metadata"]["namespace"] != place.namespace:
            yield f"it makes {one['kind']} {one['metadata']['name']} in namespace {one['metadata']['namespace']}"


def _request(kind: str, request: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    if kind == "cluster":
        return {**request, "context": place.context, "kubeconfig": place.kubeconfig}
    return {**request, "folder": layout.CODE, layout.IMPORTED: True} if kind == "code" else request
