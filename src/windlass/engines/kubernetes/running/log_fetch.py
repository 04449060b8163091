"""Copies the logs of a run's pods into files on this machine, without the run's record.

The ConfigMaps of the attempts contain the node specs, which suffice to create a supervisor's log readers.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ExecControl
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, beginning_pods
from windlass.engines.kubernetes.objects.pod_status import container_state, has_ended
from windlass.engines.kubernetes.objects.pods import Pod, PodId, by_id
from windlass.engines.kubernetes.objects.workloads import OWNER_KINDS
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.running.attempt import PodAttempt
from windlass.errors import NoSuchRun
from windlass.plan.plan import Plan, Policy
from windlass.plan.steps import AttemptStep
from windlass.supervise.log_tail import LogTail
from windlass.worker.protocol import NodeSpec

READERS: Final = 16
"""Number of logs that are read in parallel."""
TURN_SECONDS: Final = 1.0
"""Seconds between two checks of a followed run for a new attempt and for its end."""


class _Begun(NamedTuple):
    """A pod, its node spec, and the first attempt that it runs."""

    first: int
    id: PodId
    spec: NodeSpec
    pod: Pod


class _FollowedAttempt(PodAttempt):
    """An attempt whose logs are followed. Unlike a supervisor, a log reader never deletes a suspended owner object, so
    `is_evicted` is false.
    """

    is_evicted = False


class LogReader:
    """Reads the logs of a run's existing pods into a folder with the layout of a record."""

    def __init__(self, client: Client, run_id: str, folder: Path) -> None:
        self._client = client
        self._run_id = run_id
        self._folder = folder
        self._attempts: dict[tuple[int, int], _FollowedAttempt] = {}
        """Followed attempts, by two numbers: the first attempt that their pods ran, and the attempt itself."""
        self._over = threading.Event()
        self._closed = threading.Event()

    def read(self) -> bool:
        """Reads all log lines written so far; returns whether any pod has a log. Raises EngineError, OSError."""
        pods = by_id(self._client.find("v1", "Pod", layout.of_attempts(self._run_id))["items"])
        of_nodes: dict[int, list[_Begun]] = defaultdict(list)
        for config in self._configs():
            for one, spec in beginning_pods(config).items():
                if one in pods:
                    of_nodes[spec.node].append(_Begun(layout.attempt_of(config), one, spec, pods[one]))
        # If a node has a newer pod, the log of its older pod is read only up to the newer pod's first attempt.
        wanted = [
            (pod, None if newer is None else newer.first)
            for of_node in of_nodes.values()
            for pod, newer in itertools.zip_longest(of_node, of_node[1:])
            if container_state(pod.pod)[0] != "waiting" or has_ended(pod.pod)
        ]
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(lambda one: self._read(*one), wanted))
        return bool(wanted)

    def follow(self) -> None:
        """Starts a thread that reads new lines, also of later attempts. No line is read twice."""
        threading.Thread(target=self._run, name=f"logs of {self._run_id}", daemon=True).start()

    def is_over(self) -> bool:
        """Returns whether the run has ended and all its lines were written to the folder."""
        return self._over.is_set()

    def close(self) -> None:
        """Stops reading."""
        self._closed.set()
        for attempt in list(self._attempts.values()):
            attempt.close()

    # -- logs of one attempt ------------------------------------------------------------------------------------------

    def _read(self, one: _Begun, end: int | None) -> None:
        """Reads the lines of a pod so far, for all attempts before `end` that ran in the pod. A deleted log counts as
        empty.
        """
        name, container = one.pod["metadata"]["name"], layout.container_of(one.pod)
        waited, ranks = one.first != one.id.made_for, _ranks(one.spec)
        for number in itertools.count(one.first):
            tail = LogTail(self._attempt_dir(number), one.spec.node, ranks, number, one.first, waited)
            with contextlib.suppress(Refused):
                for line in self._client.logs(name, container=container, follow=False, since=tail.begin()):
                    tail.put(line)
                    if tail.is_finished:
                        break
                tail.flush()
            if not tail.is_finished or number + 1 == end:
                return

    def _begin(self, number: int, config: Mapping[str, Any], nodes: Collection[int] | None = None) -> None:
        """Follows attempt `number` in the pods that `config` created, or only in the pods of `nodes`. Does nothing
        without an owner object. Raises EngineError.
        """
        first = layout.attempt_of(config)
        of = {one: spec for one, spec in beginning_pods(config).items() if nodes is None or spec.node in nodes}
        assignment = PodAssignment(number, tuple(of))
        owner = self._owner_object(assignment.newest) if of else None
        if owner is None:
            return
        specs = list(of.values())
        plan = Plan(
            run_id=self._run_id,
            name="",
            target="",
            engine="kubernetes",
            output_dir="",
            num_nodes=len(specs),
            procs_per_node=len(_ranks(specs[0])),
            policy=Policy(None, 0.0, None, 0, (), 1),
            job={},
            steps=(AttemptStep("", owner),),
        )
        for other in self._attempts.values():  # new pods replace older ones that waited for this attempt
            if other.number == number and _nodes(other).intersection(spec.node for spec in specs):
                other.close()
        control, folder = ExecControl(self._client, specs[0].worker_python), self._attempt_dir(number)
        self._attempts[first, number] = _FollowedAttempt(
            self._client,
            plan,
            number,
            specs,
            folder,
            lambda: None,
            control,
            assignment=assignment,
            firsts=[first] * len(specs),
        )

    def _attempt_dir(self, number: int) -> Path:
        return self._folder / f"attempt-{number}"

    def _configs(self) -> list[dict[str, Any]]:
        """Returns the ConfigMaps of all attempts that created pods, oldest first. Raises EngineError."""
        found = self._client.find("v1", "ConfigMap", layout.of_attempts(self._run_id))["items"]
        return sorted(found, key=layout.attempt_of)

    def _owner_object(self, number: int) -> dict[str, Any] | None:
        for api, kind in OWNER_KINDS:
            try:
                found = self._client.get(api, kind, layout.attempt_name(self._run_id, number))
                return {**found, "apiVersion": api, "kind": kind}
            except Refused as error:
                if error.status not in (403, 404):
                    raise
        return None

    # -- following a run ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        background.run(f"logs of {self._run_id}", self._paced_turn, self._closed, self._client.health)
        if self._closed.is_set():
            self.close()  # this thread may have begun to follow attempts meanwhile
        self._over.set()

    def _paced_turn(self) -> bool:
        return self._turn() or self._closed.wait(TURN_SECONDS)

    def _turn(self) -> bool:
        """Follows new attempts; returns whether the run is over."""
        try:
            # The phase is read first: no attempt starts after the end of a run.
            phase = discovery.one(self._client, self._run_id).phase
        except NoSuchRun:
            return True
        configs = {layout.attempt_of(config): config for config in self._configs()}
        for number, config in configs.items():
            if number not in {first for first, _ in self._attempts}:
                self._begin(number, config)
        nodes = [node for attempt in self._attempts.values() for node in attempt.nodes]
        for node in nodes:
            node.log.catch_up()
        if any(node.lives() for node in nodes):
            return False
        is_over = phase.is_terminal
        for first, number in dict(sorted(self._attempts)).items():  # `dict` keeps the newest attempt of each pod
            if first in configs and (waiting := self._waiting(first, number)):
                self._begin(number + 1, configs[first], waiting)
                is_over = False
        return is_over

    def _waiting(self, first: int, number: int) -> set[int]:
        """Returns the nodes whose pods wait for the next attempt, without nodes that have newer pods in it."""
        of_newer = [one for (by, next_one), one in self._attempts.items() if by > first and next_one == number + 1]
        complete = {node.number for node in self._attempts[first, number].nodes if node.log.is_finished}
        return complete.difference(*map(_nodes, of_newer))


def _nodes(attempt: PodAttempt) -> set[int]:
    return {node.number for node in attempt.nodes}


def _ranks(spec: NodeSpec) -> tuple[int, ...]:
    return tuple(rank.rank for rank in spec.ranks)
