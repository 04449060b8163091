"""Reads the plan of a run that another machine submitted, as untrusted input.

Other users of the namespace can change the plan, and later commands execute it with the permissions of their user. The
plan must therefore match the digest with which the Job of the run's supervisor was created, and may name only objects
of its run. `Plan.from_json` refuses unknown kinds of steps and unknown fields. Only the fields that a step's class
lists as `shared` are kept: none of them names a program, a folder or a file of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace
from windlass.engines.kubernetes.objects.supervisor_manifests import PLAN_FILE, plan_digest
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.supervisor.record import UNPACKED_BYTES, DamagedRecord, unpacked
from windlass.errors import UnsupportedVersion, WindlassError
from windlass.plan.plan import Plan
from windlass.plan.steps import ClusterStep, CodeStep, ManifestStep, Step

Json = Mapping[str, Any]

SECTIONS: Final = ("checkpoint", "kubernetes", "resources")
"""Sections of a job that commands read without validating the whole job."""
MAX_RANKS: Final = 1 << 20
KINDS: Final = frozenset({"ConfigMap", "Service", "Secret", "PersistentVolumeClaim", "Job", "NetworkPolicy"}).union(
    *((way.kind, *(kind for kind, _ in way.parts)) for way in WORKLOADS.values())
)


def imported_plan(contents: Json, job: Json, run_id: str, place: ClusterNamespace) -> Plan:
    """Returns the plan of a run for this machine, from the ConfigMap and the Job of its supervisor.

    Raises DamagedRecord, UnsupportedVersion.
    """
    text = unpacked(contents, PLAN_FILE, UNPACKED_BYTES)
    try:
        plan = Plan.from_json(json.loads(text))
        problem = next(_problems(plan, run_id, place), "")
        if (job["metadata"].get("annotations") or {}).get(layout.PLAN_ANNOTATION) != plan_digest(text):
            problem = f"Job {layout.supervisor_name(run_id)} was created with another one"
        if not problem:
            return replace(plan, steps=tuple(_step(step, place) for step in plan.steps if _is_of_run(step)))
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
        ("num_nodes", int),
        ("procs_per_node", int),
        ("num_spares", int),
    ):
        if type(getattr(plan, name)) is not kind:
            yield f"its {name} is no {kind.__name__}"
    if plan.output_dir.startswith("/"):
        yield f"its outputs are in {plan.output_dir}, a folder of a machine"
    if not 0 < plan.num_nodes * plan.procs_per_node <= MAX_RANKS or plan.nodes.num_nodes > plan.num_nodes:
        yield f"it has {plan.num_nodes} nodes of {plan.procs_per_node} ranks"
    if not 0 <= plan.num_spares <= MAX_RANKS:
        yield f"it has {plan.num_spares} spares"
    if not all(isinstance(plan.job.get(name, {}), Mapping) for name in SECTIONS):
        yield "its job is none"
    for step in plan.steps:
        if step.shared is None and not isinstance(step, ManifestStep):
            yield f"it has a step of kind {step.kind}, which no run in a cluster has"
    cluster = plan.only(ClusterStep)
    if cluster.via not in WORKLOADS or cluster.namespace != place.namespace:
        yield f"it is of namespace '{cluster.namespace}', via '{cluster.via}'"
    made = [
        (step.manifest, step.manifest["metadata"]["name"] in {run_id + end for end in step.names})
        for step in plan.every(ManifestStep)
        if _is_of_run(step)
    ]
    pieces = plan.only(CodeStep).pieces
    made += [(piece, piece["metadata"]["name"].startswith(f"{run_id}-code-")) for piece in pieces]
    for one, is_its in made:
        if one["kind"] not in KINDS or not is_its or one["metadata"]["namespace"] != place.namespace:
            yield f"it makes {one['kind']} {one['metadata']['name']} in namespace {one['metadata']['namespace']}"


def _is_of_run(step: Step) -> bool:
    """Returns whether a step belongs to this run alone. Objects that several runs share were created by the submitting
    machine.
    """
    return bool(step.names) if isinstance(step, ManifestStep) else True


def _step(step: Step, place: ClusterNamespace) -> Step:
    """Returns a step whose local values, such as the kubeconfig, are those of this machine."""
    found = step.as_shared()
    if isinstance(found, ClusterStep):
        return found.replace(context=place.context, kubeconfig=place.kubeconfig)
    if isinstance(found, CodeStep):
        return found.replace(folder=layout.CODE, is_imported=True)
    return found
