"""Assigns pods to the nodes of an attempt, and builds the ConfigMap with their node specs."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pods import Pod, PodId, by_id, selector
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.errors import EngineError
from windlass.plan.compose import AttemptFacts, Continuation, Rendezvous
from windlass.plan.environment import consecutive_ports
from windlass.plan.plan import Plan
from windlass.runs.events import Event, PodsReused, entries
from windlass.worker.protocol import NodeSpec, pack, unpack

STAY_SECONDS: Final = 60.0
"""Seconds for which pods wait for a next attempt: enough for a supervisor to start it, but short, since idle pods cost
money."""
MOST_ATTEMPTS: Final = 1_000_000
_FILE: Final = "made-for"


@dataclass(frozen=True, slots=True)
class PodAssignment:
    """The pods that run the nodes of one attempt."""

    attempt: int
    pods: tuple[PodId, ...]
    """Pod of each node, indexed by the node's place in the attempt."""

    @classmethod
    def new(cls, attempt: int, num_nodes: int) -> PodAssignment:
        """Returns an assignment in which all pods are created for the attempt."""
        return cls(attempt, tuple(PodId(attempt, index) for index in range(num_nodes)))

    @classmethod
    def decided(cls, folder: Path, attempt: int, num_nodes: int) -> PodAssignment | None:
        """Returns the assignment that a supervisor stored in the folder of the attempt, or None if none is stored."""
        try:
            found = json.loads((folder / _FILE).read_text())
            if isinstance(found, int):
                return cls(attempt, cls.new(found, num_nodes).pods)
            pods = tuple(PodId(*one) for one in found)
        except (OSError, ValueError, TypeError):
            return None
        return cls(attempt, pods) if len(pods) == num_nodes else None

    @classmethod
    def of(cls, folder: Path, attempt: int, num_nodes: int) -> PodAssignment:
        """Returns the assignment stored in the folder of the attempt, or one with new pods for all nodes if none is
        stored.
        """
        return cls.decided(folder, attempt, num_nodes) or cls.new(attempt, num_nodes)

    @property
    def newest(self) -> int:
        """Attempt of the newest owner object. Only this owner object may still create pods."""
        return max(one.made_for for one in self.pods)

    @property
    def created(self) -> list[int]:
        """Places of the nodes whose pods are created for the attempt."""
        return [place for place, one in enumerate(self.pods) if one.made_for == self.attempt]

    @property
    def reused(self) -> list[int]:
        """Places of the nodes whose pods were created for an earlier attempt."""
        return [place for place, one in enumerate(self.pods) if one.made_for < self.attempt]

    def selector(self, run_id: str) -> str:
        """Returns the label selector of all pods, including spares, of the owner objects in this assignment."""
        return selector(run_id, self.pods)

    def by_place(self, pods: Iterable[Pod]) -> dict[int, Pod]:
        """Returns the pods that have a place in the attempt, by place."""
        found = by_id(pods)
        return {place: found[one] for place, one in enumerate(self.pods) if one in found}

    def first_attempts(self, folder: Path) -> tuple[int, ...]:
        """Returns for each pod the first attempt that it ran; `folder` is the folder of this attempt.

        A spare first ran a later attempt than the one for which it was created; for every other pod both are the same.
        """
        firsts, before, is_same = [self.attempt] * len(self.pods), self.attempt - 1, [True] * len(self.pods)
        while before >= min((one.made_for for one in self.pods), default=self.attempt) and any(is_same):
            earlier = PodAssignment.of(folder.with_name(f"attempt-{before}"), before, len(self.pods)).pods
            is_same = [still and one == was for still, one, was in zip(is_same, self.pods, earlier, strict=True)]
            firsts = [before if still else first for still, first in zip(is_same, firsts, strict=True)]
            before -= 1
        return tuple(firsts)

    def spare_prefixes(self, plan: Plan) -> list[str]:
        """Returns the name prefixes of the pods that the newest Job creates as spares."""
        spares = plan.num_spares
        others = (PodId(self.newest, index) for index in range(plan.num_nodes + spares if spares else 0))
        name = layout.attempt_name(plan.run_id, self.newest)
        return [f"{name}-{one.index}-" for one in others if one not in self.pods]

    def event(self) -> PodsReused:
        """Returns the event that records this assignment."""
        reused = Counter(self.pods[place].made_for for place in self.reused)
        [(made_for, _)] = reused.most_common(1) or [(self.attempt, 0)]
        if self.pods == PodAssignment.new(made_for, len(self.pods)).pods:
            return PodsReused(self.attempt, made_for)
        return PodsReused(self.attempt, made_for, tuple((one.made_for, one.index) for one in self.pods))


def store_assignment(folder: Path, decided: PodsReused) -> None:
    """Stores an assignment in the folder of its attempt. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / _FILE).write_text(json.dumps(decided.pods or decided.made_for))


def restore_assignments(run_dir: Path, events: Iterable[Event]) -> None:
    """Stores the assignments that a supervisor on another machine recorded in these events. Raises OSError."""
    for one in entries(events, PodsReused):
        made_for = [one.made_for, *(made_for for made_for, _ in one.pods)]
        # Events with invalid attempt numbers are skipped, since the numbers become names of folders.
        if all(0 < number <= one.attempt < MOST_ATTEMPTS for number in made_for):
            store_assignment(run_dir / f"attempt-{one.attempt}", one)


def attempt_facts(plan: Plan, assignment: PodAssignment, via: str, since: float, asked: Continuation) -> AttemptFacts:
    """Returns the facts of an attempt that runs in these pods: hosts, ports, and the checkpoint from which it
    continues.
    """
    ids, number = assignment.pods, assignment.attempt
    names = [(layout.attempt_name(plan.run_id, one.made_for), one.index) for one in ids]
    hosts = tuple(WORKLOADS[via].host(name, plan.run_id, index) for name, index in names)
    master = hosts[0] if len(hosts) > 1 else "127.0.0.1"  # The only pod of an attempt needs no host name.
    # Each attempt has another port, so that ranks of an earlier attempt on a disconnected node cannot connect to ranks
    # of this attempt in a reused pod.
    later = (number - ids[0].made_for) % layout.PORTS
    ports = consecutive_ports(plan.nodes.launcher, len(hosts), plan.procs_per_node, later)
    meet = Rendezvous(master, layout.MASTER_PORT + later, hosts, ports)
    return AttemptFacts(number, f"{layout.WORK}/attempt", meet, since, continuation=asked)


# -- the ConfigMap of an attempt ---------------------------------------------------------------------------------------


def config_data(
    assignment: PodAssignment, specs: Sequence[NodeSpec], num_spares: int = 0, from_spares: Collection[int] = ()
) -> dict[str, Any]:
    """Returns the data of an attempt's ConfigMap: the node specs of the pods that start with it. `specs` are in the
    order of places.

    The attempt's owner object creates these pods, including `num_spares` spares. Spares of earlier attempts also start,
    at the places `from_spares`. Pods that ran the previous attempt receive their specs with the order to start.
    """
    nodes = {assignment.pods[place].index: specs[place] for place in assignment.created}
    others: list[tuple[PodId | None, NodeSpec]] = [(assignment.pods[place], specs[place]) for place in from_spares]
    if not nodes and not others:
        others = [(None, specs[0])]  # New spares import the modules of this spec in advance.
    begin = len(nodes) + num_spares  # The owner object creates no pods with indexes from `begin` on.
    whose = {begin + at: None if one is None else [one.made_for, one.index] for at, (one, _) in enumerate(others)}
    nodes |= {begin + at: spec for at, (_, spec) in enumerate(others)}
    data = {"binaryData": {layout.NODES_FILE: base64.b64encode(pack(assignment.attempt, nodes)).decode()}}
    return {**data, "data": {layout.SPARES_FILE: json.dumps(whose)}} if whose else data


def beginning_pods(config: Mapping[str, Any]) -> dict[PodId, NodeSpec]:
    """Returns the node specs in an attempt's ConfigMap, by pod: new pods and spares that start with the attempt.

    Raises EngineError if they cannot be read, because others have changed the ConfigMap.
    """
    number, found = layout.attempt_of(config), {}
    try:
        _, specs = unpack(base64.b64decode(config["binaryData"][layout.NODES_FILE]))
        whose = json.loads((config.get("data") or {}).get(layout.SPARES_FILE, "{}"))
        for place, spec in sorted(specs.items()):
            one = whose.get(str(place), [number, place])
            if one is not None:
                made_for, index = one
                found[PodId(int(made_for), int(index))] = spec
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EngineError(
            f"ConfigMap {config['metadata']['name']} was changed, and cannot be read ({type(error).__name__})",
            "windlass stop ends its pods",
        ) from error
    return found
