"""Converts a plan to objects that train when another program applies them, without a supervisor. Pure.

The objects are those of a run's first attempt, with these differences:

- No object owns the others, since the owner's uid is not known yet.
- The code is in smaller pieces, since `kubectl apply` stores each object a second time in an annotation.
- Pods do not wait for a next attempt, and do not connect to a supervisor.
- The time limit is enforced in the pods.
- Nothing expires unless the job sets a TTL.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.engines.exported import Manifests
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_specs
from windlass.engines.kubernetes.objects.manifests import core
from windlass.engines.kubernetes.objects.order_client import order_client_fields
from windlass.engines.kubernetes.objects.planned import numbered
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, attempt_facts, config_data
from windlass.engines.kubernetes.objects.pod_template import bounded, code_sources
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.job import keeps_others
from windlass.engines.kubernetes.objects.workloads.runtimes import OURS
from windlass.errors import UsageError
from windlass.plan.compose import Continuation, compose
from windlass.plan.notes import Note
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    AttemptPartStep,
    ClaimStep,
    ClusterStep,
    CodeStep,
    MountClaimStep,
    MountVolumeStep,
    NetworkPolicyStep,
    ObjectStep,
    StageStep,
    SupervisorStep,
    UploadStep,
)

PIECE_BYTES: Final = 180_000
"""Bytes of code in one object: 240 KB in base64; an annotation may hold 256 KiB."""
CODE_VOLUMES: Final = ("code", f"{OURS}code")


def manifests(plan: Plan, code: bytes, since: float) -> Manifests:
    """Returns the objects of a run, to be applied by another program.

    `code` is the packed archive; `since` is the current time in Unix seconds: a script with its own checkpoints must
    not resume from an older checkpoint of another run.

    Raises UsageError if the run needs data that a supervisor stages, or if its code is in a store.
    """
    if sets := [one.name for one in plan.every(StageStep)]:
        message = f"data {', '.join(sets)}: a supervisor stages it before the first attempt, and there is none"
        raise UsageError(message, "give a path in a claim as source:, with volumes:; or via: stream")
    if source := plan.only(CodeStep).source:
        raise UsageError(
            f"the code goes to {source}, where only windlass run puts it",
            "write less code: see windlass plan; or windlass run --on TARGET",
        )
    cluster = plan.only(ClusterStep)
    way = WORKLOADS[cluster.via]
    assignment = PodAssignment.new(1, plan.num_nodes)
    facts = attempt_facts(plan, assignment, way.name, since, Continuation())
    specs = compose(plan.nodes.replace(reuse_wait_seconds=0.0, outputs_max=0), attempt=facts)
    *parts, made = numbered(plan, 1, plan.num_nodes)  # without spares, which would wait forever
    pieces = list(_pieces(plan, code))
    if plan.first(SupervisorStep):
        _leave_out_supervisor(plan.run_id, cluster.namespace, [*parts, made])
    if keeps_others(made):  # these limits are for a supervisor that replaces lost pods
        del made["spec"]["backoffLimitPerIndex"]
        made["spec"]["backoffLimit"] = 0
    if plan.job.get("kubernetes", {}).get("ttl") is None:
        _leave_out_ttl(made)
    for one in pod_specs([*parts, made]):
        _mount(one, pieces)
    if (limit := plan.policy.timeout_seconds) is not None and not _stands_on_another(plan):
        bounded([*parts, made], max(1, round(limit)))
    owner_config_map, *others = plan.manifests(ObjectStep)
    namespace, its = cluster.namespace, owner_config_map["metadata"]["labels"]
    spec = core("ConfigMap", layout.attempt_name(plan.run_id, 1), namespace, its, **config_data(assignment, specs))
    # With an end marker, a run whose pods failed is listed as failed instead of restarting.
    ended = {**its, layout.MARKER_LABEL: layout.END_MARKER}
    end = core("ConfigMap", layout.marker_name(plan.run_id, layout.END_MARKER), namespace, ended)
    policies = plan.manifests(NetworkPolicyStep)[:1]  # only the first policy: the others are for a supervisor
    volumes = map(dict, plan.manifests(MountVolumeStep, MountClaimStep))
    objects = (
        dict(owner_config_map),
        *pieces,
        spec,
        end,
        *map(dict, (*others, *policies, *plan.manifests(ClaimStep))),
        *volumes,
        *parts,
        made,
    )
    group = way.api.partition("/")[0]
    makers = [f"{plural}.{group}" for plural in (way.plural, *(plural for _, plural in way.parts if parts))]
    claims = ["persistentvolumeclaims"] if plan.first(ClaimStep) else []
    kinds = (*makers, "services", "configmaps", *(["networkpolicies"] if policies else ()), *claims)
    return Manifests(plan.run_id, cluster.namespace, objects, kinds, tuple(_notes(plan)))


def _pieces(plan: Plan, code: bytes) -> Iterator[Manifest]:
    """Yields ConfigMaps with the code, in pieces of PIECE_BYTES."""
    sent = plan.only(CodeStep)
    model = sent.pieces[0] if sent.pieces else None
    for number, at in enumerate(range(0, len(code), PIECE_BYTES)):
        if model is not None:
            meta = {**model["metadata"], "name": layout.piece_name(plan.run_id, sent.digest, number)}
            data = base64.b64encode(code[at : at + PIECE_BYTES]).decode()
            yield {**model, "metadata": meta, "binaryData": {"piece": data}}


def _leave_out_ttl(made: Manifest) -> None:
    """Removes the default TTL: a program that applies the objects repeatedly would train again after their deletion."""
    for where in (made["spec"], made["spec"].get("runPolicy", {})):
        where.pop("ttlSecondsAfterFinished", None)


def _leave_out_supervisor(run_id: str, namespace: str, objects: list[Manifest]) -> None:
    """Removes the fields by which pods connect to a supervisor in the cluster."""
    fields = order_client_fields(run_id, namespace)
    for spec in pod_specs(objects):
        for one in (spec, *spec["containers"]):
            for name in fields.keys() & one.keys():
                one[name] = [part for part in one[name] if part not in fields[name]]


def _mount(spec: Mapping[str, Any], pieces: list[Manifest]) -> None:
    """Replaces the sources of the pods' code volumes with these pieces."""
    for volume in spec.get("volumes", ()):
        if volume["name"] in CODE_VOLUMES:
            volume["projected"]["sources"] = code_sources(one["metadata"]["name"] for one in pieces)


def _stands_on_another(plan: Plan) -> bool:
    """Returns whether the pods are defined by an existing runtime, for which a TrainJob cannot set a deadline."""
    return plan.only(ClusterStep).via == "trainjob" and not plan.manifests(AttemptPartStep)


def _notes(plan: Plan) -> Iterator[Note]:
    policy = plan.policy
    if policy.max_restarts:
        yield Note(
            "written-restarts",
            f"restarts: {policy.max_restarts}, and no supervisor starts the ranks again: the first failure is final",
            "windlass run --on TARGET supervises the run; or apply another plan with kubernetes: {results: …}",
        )
    if policy.min_nodes < plan.num_nodes:
        yield Note(
            "written-nodes",
            f"a range of nodes, and no supervisor changes their number: all {plan.num_nodes} are needed",
            "write nodes: with the number that the cluster has capacity for",
        )
    if plan.num_spares:
        message = "kubernetes.spares: none are created, since no supervisor replaces a lost pod with them"
        yield Note("written-spares", message, "windlass run --on TARGET supervises the run")
    for upload in plan.every(UploadStep):
        yield Note(
            "written-outputs",
            f"outputs: {upload.destination}, and no supervisor uploads them: they stay in the claim of the results",
            "windlass run --on TARGET supervises the run",
        )
    if policy.timeout_seconds is not None:
        said = ("is counted in each pod, from the time that it is on a node", "time in a queue is not counted")
        if _stands_on_another(plan):
            said = (
                "Windlass sets no time limit on the pods of a runtime, and no supervisor ends them",
                "set activeDeadlineSeconds in the runtime",
            )
        yield Note("written-timeout", f"timeout: {said[0]}", said[1])
