"""Turns a plan into objects that train when somebody applies them, with no Windlass there to watch. Pure.

They are those of a run's first attempt, but for four things: nothing owns the others, whose owner's uid nobody knows
yet; the code is in smaller pieces, since `kubectl apply` notes each object once more in an annotation; pods do not stay
for a next attempt, which nobody would begin; and what would watch the time does so in the pods.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.keeping.membership import composed
from windlass.engines.kubernetes import layout, marks
from windlass.engines.kubernetes.attempt import node_specs
from windlass.engines.kubernetes.plan import numbered
from windlass.engines.kubernetes.ways import WAYS
from windlass.engines.kubernetes.ways.base import Manifest
from windlass.engines.kubernetes.ways.runtimes import OURS
from windlass.plan.plan import Note, Plan
from windlass.plan.pods import pod_spec

PIECE_BYTES: Final = 180_000
"""Of code in one object: 240 KB in base64, and an annotation may hold 256 KiB."""
CODE_VOLUMES: Final = ("code", f"{OURS}code")


@dataclass(frozen=True, slots=True)
class Written:
    """Objects in the order in which they are to be made."""

    run_id: str
    namespace: str
    objects: tuple[Manifest, ...]
    kinds: tuple[str, ...]
    """All kinds among them, as `kubectl delete` takes them: those that make pods first."""
    notes: tuple[Note, ...]
    """What a run that Windlass keeps would do, and these do not."""


def written(plan: Plan, code: bytes, since: float) -> Written:
    """The objects of a run as somebody may apply them.

    `code` is what travels, packed; `since` is now, in unix seconds: a script that saves for itself is not to go on from
    an older checkpoint of another run.
    """
    [cluster] = plan.requests("cluster")
    way = WAYS[cluster["via"]]
    requests = [{**request, "stay_seconds": 0.0} for request in composed(plan, range(plan.num_nodes))]
    asked = node_specs(plan, 1, requests, way.name, since)
    *parts, made = numbered(plan, 1, plan.num_nodes)
    pieces = list(_pieces(plan, code))
    for one in (*parts, made):
        _adapt(pod_spec([one]), pieces, None if _stands_on_another(plan) else plan.policy.get("timeout_seconds"))
    anchor, *others = plan.requests("object")
    spec = _config(anchor, layout.attempt_name(plan.run_id, 1), {layout.NODES_FILE: asked})
    end = _config(anchor, layout.mark_name(plan.run_id, marks.END), {})
    end["metadata"]["labels"][layout.MARK_LABEL] = (
        marks.END
    )  # no attempt follows, so that a failed run is seen to be one
    objects = (dict(anchor), *pieces, spec, end, *map(dict, (*others, *plan.requests("claim"))), *parts, made)
    group = way.api.partition("/")[0]
    makers = [f"{plural}.{group}" for plural in (way.plural, *(plural for _, plural in way.parts if parts))]
    claims = ["persistentvolumeclaims"] if plan.requests("claim") else []
    kinds = (*makers, "services", "configmaps", *claims)
    return Written(plan.run_id, cluster["namespace"], objects, kinds, tuple(_notes(plan)))


def _pieces(plan: Plan, code: bytes) -> Iterator[Manifest]:
    """The code, cut anew."""
    [sent] = plan.requests("code")
    model = sent["pieces"][0] if sent["pieces"] else None
    for number, at in enumerate(range(0, len(code), PIECE_BYTES)):
        if model is not None:
            meta = {**model["metadata"], "name": layout.piece_name(plan.run_id, sent["digest"], number)}
            data = base64.b64encode(code[at : at + PIECE_BYTES]).decode()
            yield {**model, "metadata": meta, "binaryData": {"piece": data}}


def _adapt(spec: Mapping[str, Any], pieces: list[Manifest], timeout_seconds: float | None) -> None:
    """Have pods mount these pieces, and end by themselves in time."""
    for volume in spec.get("volumes", ()):
        if volume["name"] in CODE_VOLUMES:
            volume["projected"]["sources"] = [
                {"configMap": {"name": one["metadata"]["name"], "items": [{"key": "piece", "path": f"{at:03d}"}]}}
                for at, one in enumerate(pieces)
            ]
    if timeout_seconds is not None and isinstance(spec, dict) and spec:
        spec["activeDeadlineSeconds"] = max(1, round(timeout_seconds))


def _stands_on_another(plan: Plan) -> bool:
    """Whether the pods are a runtime's, of which a TrainJob cannot say how long they may take."""
    return plan.job.get("kubernetes", {}).get("runtime") is not None


def _config(anchor: Mapping[str, Any], name: str, data: Mapping[str, bytes]) -> Manifest:
    meta = anchor["metadata"]
    found: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": meta["namespace"], "labels": dict(meta["labels"])},
    }
    if data:
        found["binaryData"] = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return found


def _notes(plan: Plan) -> Iterator[Note]:
    policy = plan.policy
    if policy.get("max_restarts", 0):
        yield Note(
            "written-restarts",
            f"restarts: {policy['max_restarts']}, and nobody is there to start the ranks again: a failure is the end",
            "windlass run --on TARGET keeps a run; or apply another plan, with kubernetes: {results: {claim: NAME}}",
        )
    if policy.get("min_nodes", plan.num_nodes) < plan.num_nodes:
        yield Note(
            "written-nodes",
            f"a range of nodes, and nobody is there to change their number: all {plan.num_nodes} are needed",
            "write nodes: with the number that the cluster has room for",
        )
    if policy.get("timeout_seconds") is not None:
        said = ("is counted in each pod, from the time that a machine takes it", "a queue's wait is not counted")
        if _stands_on_another(plan):
            said = ("the pods of a runtime cannot be told, and nobody is there to end them",
                    "say activeDeadlineSeconds in the runtime")  # fmt: skip
        yield Note("written-timeout", f"timeout: {said[0]}", said[1])
