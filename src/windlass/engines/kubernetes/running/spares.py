"""Spares: pods of a run's Jobs that have a place in no attempt yet, and take that of a pod that is lost.

A Job of an attempt has as many pods more as the run has spares. They find no node of theirs in the nodes file, and wait
for an order as pods do that are kept alive (`pods/reuse.py`), for as long as the run lasts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import PodControl
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running import reuse
from windlass.engines.kubernetes.running.pod_watch import Pod, PodId, by_id, has_ended, is_alive
from windlass.plan.plan import Plan
from windlass.plan.price import num_spares
from windlass.runs.record import Attempt, Status
from windlass.worker.protocol import NodeSpec, pack, unpack


@dataclass(frozen=True, slots=True)
class AttemptPods:
    """The pods that the Job of an attempt creates, and what the attempt's ConfigMap describes."""

    specs: Sequence[NodeSpec]
    """Of its own nodes, by place."""
    num_spares: int = 0
    """How many pods it creates beside."""
    taken: Mapping[PodId, NodeSpec] = field(default_factory=dict)
    """Of nodes that spares of earlier attempts begin to run."""
    ahead: NodeSpec | None = None
    """Spec of any node; spares import its modules in advance."""


class Spares:
    """The spares of one run. Without any, nothing here makes a request."""

    def __init__(self, client: Client, control: PodControl, plan: Plan, run_dir: Path) -> None:
        self._client = client
        self._control = control
        self._run_id = plan.run_id
        self._num = num_spares(plan.engine, plan.job)
        self._num_nodes = plan.num_nodes
        self._run_dir = run_dir

    def beside(self, specs: Sequence[NodeSpec]) -> AttemptPods:
        """The pods of an attempt whose pods are all new."""
        return AttemptPods(specs, self._num)

    def left(self, status: Status) -> dict[PodId, Pod]:
        """The spares that have not ended, the oldest first. Raises EngineError."""
        if not self._num:
            return {}
        used, pods = self._placed(status.attempts), self._client.find("v1", "Pod", layout.of_attempts(self._run_id))
        return {
            one: pod
            for one, pod in by_id(pods["items"]).items()
            if one not in used and not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def ready(self, status: Status) -> list[PodId]:
        """Those that run, on nodes that answer. Raises EngineError."""
        return [one for one, pod in self.left(status).items() if is_alive(pod)]

    def missing(self, status: Status, specs: Mapping[PodId, NodeSpec], left: Collection[PodId]) -> AttemptPods:
        """The pods to create for the newest attempt, which runs in these pods, while these spares are left."""
        ids = list(specs)
        new = [spec for one, spec in specs.items() if one.made_for == status.attempts[-1].number]
        taken = {ids[place]: specs[ids[place]] for place in self.taken(status, ids)}
        return AttemptPods(new, max(0, self._num - len(left)), taken, next(iter(specs.values())))

    def taken(self, status: Status, ids: Sequence[PodId]) -> list[int]:
        """The places of spares that begin with the newest attempt, which runs in these pods."""
        number, before = status.attempts[-1].number, self._placed(status.attempts[:-1])
        return [place for place, one in enumerate(ids) if self._num and one.made_for < number and one not in before]

    def end(self, status: Status, before: int | None = None) -> None:
        """End all spares, or those of attempts before one: what does not answer is deleted. Raises EngineError."""
        pods = [pod for one, pod in self.left(status).items() if before is None or one.made_for < before]
        ended = reuse.dismiss(self._control, pods)
        for name in {str(pod["metadata"]["name"]) for pod in pods} - ended:
            self._client.delete("v1", "Pod", name, grace=0)

    def _placed(self, attempts: Sequence[Attempt]) -> set[PodId]:
        """The pods that had a place in any of these attempts."""
        found: set[PodId] = set()
        for one in attempts if self._num else ():
            folder, num_nodes = self._run_dir / f"attempt-{one.number}", len(one.members) or self._num_nodes
            found.update(reuse.pods_of(folder, one.number, num_nodes))
        return found


def prefixes(plan: Plan, ids: Collection[PodId]) -> list[str]:
    """How the names of pods begin that the newest Job of an attempt in these pods creates as spares."""
    newest, spares = max(one.made_for for one in ids), num_spares(plan.engine, plan.job)
    others = (PodId(newest, index) for index in range(plan.num_nodes + spares if spares else 0))
    return [f"{layout.attempt_name(plan.run_id, newest)}-{one.index}-" for one in others if one not in ids]


def first_attempts(folder: Path, number: int, ids: Sequence[PodId]) -> tuple[int, ...]:
    """For each pod of attempt `number`, by place, the first attempt that it ran; `folder` is that of the attempt.

    A spare waited for it; each other pod was made for it.
    """
    firsts = [number] * len(ids)
    before, is_same = number - 1, [True] * len(ids)
    while before >= min((one.made_for for one in ids), default=number) and any(is_same):
        earlier = reuse.pods_of(folder.with_name(f"attempt-{before}"), before, len(ids))
        is_same = [still and one == other for still, one, other in zip(is_same, ids, earlier, strict=True)]
        firsts = [before if still else first for still, first in zip(is_same, firsts, strict=True)]
        before -= 1
    return tuple(firsts)


# -- the object that describes an attempt -----------------------------------------------------------------------------


def described(number: int, pods: AttemptPods) -> dict[str, Any]:
    """The data of the ConfigMap of an attempt: the nodes file, and which of its nodes no pod of this attempt runs."""
    nodes = dict(enumerate(pods.specs))
    others: list[tuple[PodId | None, NodeSpec]] = [*pods.taken.items()]
    if not nodes and not others and pods.ahead is not None:
        others = [(None, pods.ahead)]
    begin = len(nodes) + pods.num_spares  # no pod of the Job has these numbers
    whose = {begin + at: None if one is None else [one.made_for, one.index] for at, (one, _) in enumerate(others)}
    nodes |= {begin + at: spec for at, (_, spec) in enumerate(others)}
    data = {"binaryData": {layout.NODES_FILE: base64.b64encode(pack(number, nodes)).decode()}}
    return {**data, "data": {layout.SPARES_FILE: json.dumps(whose)}} if whose else data


def begun(config: Mapping[str, Any]) -> dict[PodId, NodeSpec]:
    """The pods that begin with an attempt, and their nodes, by its ConfigMap: those made for it, and spares.

    Raises ValueError, OSError.
    """
    number = layout.attempt_of(config)
    _, specs = unpack(base64.b64decode(config["binaryData"][layout.NODES_FILE]))
    whose = json.loads(config.get("data", {}).get(layout.SPARES_FILE, "{}"))
    found = {}
    for place, spec in sorted(specs.items()):
        one = whose.get(str(place), [number, place])
        if one is not None:
            made_for, index = one
            found[PodId(int(made_for), int(index))] = spec
    return found
