"""Runs a chaos case on a test cluster: a job with its supervisor in the cluster, injected faults, and final checks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.harness import TRAIN, steps_in
from tests.chaos.plans import Strike
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.sharing import strikes_since, striking
from tests.cluster.chaos_plans import Case
from tests.cluster.chaos_strikes import PATIENCE_SECONDS, Striker
from tests.cluster.proxy import Proxy
from tests.engines.harness import Harness, Run
from tests.helpers.until import passed, until

from windlass.runs.events import Event
from windlass.runs.phase import Phase

EVERY_STEPS = 25
EPOCHS = 14
STEPS = 57 * EPOCHS
PAUSE_SECONDS = 0.02
"""Pause after each step, in seconds: some 800 steps take half a minute, during which faults are injected."""
LAUNCHER: Final = "torchrun"
"""torchrun, since the script needs its variables even with one rank."""
JOB: dict[str, Any] = {
    "launcher": LAUNCHER,
    "grace": "5s",
    "restarts": {"max": 30, "on": ["failure", "preemption", "node-loss"]},
}
LEFT_SECONDS = 240.0
LABELLED = "jobs,jobsets,pods,services,configmaps,secrets,leases,persistentvolumeclaims"
FALSE = frozenset({"lost-node", "cause", "attempt-end", "notice", "stop", "hang"})
"""Events that a run without harmful faults must not have."""


@dataclass
class Play:
    """One run with its injected faults."""

    case: Case
    bed: Bed
    namespace: str
    harness: Harness
    proxy: Proxy
    kubeconfig: Path
    """Kubeconfig of the user's machine, which accesses the cluster through the proxy."""
    did: list[str] = field(default_factory=list)
    run: Run = field(init=False)
    striker: Striker = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def play(self) -> None:
        """Runs the case up to the end of the run."""
        words = (TRAIN.name, "--every", str(EVERY_STEPS), "--epochs", str(EPOCHS), "--pause", str(PAUSE_SECONDS))
        nodes = {"min": 1, "max": self.case.nodes} if self.case.is_elastic else self.case.nodes
        shape = {"nodes": nodes, "procs_per_node": self.case.procs_per_node}
        with striking(self.bed):
            self.run = self.harness.start(*words, base=TRAIN.parent, **shape)
        self.striker = Striker(self.bed, self.namespace, self.run, self.proxy, self.kubeconfig)
        until(lambda: self.striker.pods(is_supervisor=True), "no supervisor", PATIENCE_SECONDS)
        for strike in self.case.strikes:
            if not self._moment_of(strike):
                break
            self.did.append(f"{strike}: {self.striker.strike(strike) or 'nothing'}")
        self.run.until(lambda run: run.status.phase.is_terminal, PATIENCE_SECONDS)

    # -- what is seen from outside ------------------------------------------------------------------------------------

    @property
    def marks(self) -> Path:
        """Folder in which the ranks record their steps; a claim of a test cluster is a folder of this machine."""
        claim = self.striker.kubectl("get", "pvc", "results", "-o", "jsonpath={.spec.volumeName}")
        return self.bed.layout.volumes / claim / "windlass" / self.run.id / "output"

    def digest(self) -> str:
        path = self.marks / "digest"
        return path.read_text() if path.exists() else ""

    def _moment_of(self, strike: Strike) -> bool:
        """Waits for the moment of a fault; returns False if the run ends before."""
        if strike.after_steps is None:
            passed(strike.after_seconds)
            return not self._is_over()
        marks = self.marks
        goal = max((high for _, high in steps_in(marks).values()), default=0) + strike.after_steps

        def newest() -> int:
            return list(steps_in(marks).values() or [[0, 0]])[-1][1]

        until(lambda: self._is_over() or newest() >= goal, lambda: f"no progress: {self.story()}", PATIENCE_SECONDS)
        return not self._is_over()

    def _is_over(self) -> bool:
        return self.harness.engine.status(self.run.id).phase.is_terminal

    def events(self) -> list[Event]:
        return self.harness.store.events(self.run.id)

    def story(self) -> str:
        """Describes the run's events and the injected faults."""
        left_out = {"progress", "phase", "rank", "node", "checkpoint"}
        lines = [
            f"{e.seq} {e.time:.1f} {e.kind} {json.dumps(e.data)[:400]}" for e in self.events() if e.kind not in left_out
        ]
        return "\n".join(
            [str(self.case), *self.did, str(self.harness.store.status(self.run.id).supervision.condition), *lines]
        )

    # -- what must be true --------------------------------------------------------------------------------------------

    def problems(self, expected: str) -> Iterator[str]:
        """Yields deviations from the expected state at the end of the run."""
        status, events = self.harness.store.status(self.run.id), self.events()
        yield from self.striker.problems
        if status.phase is not Phase.SUCCEEDED:
            yield f"the run is {status.phase}"
        if [event.seq for event in events] != list(range(1, status.last_seq + 1)):
            yield f"numbers of events: {[event.seq for event in events]}"
        yield from self._false_weights(expected, events)
        yield from self._false_events(events)
        yield from self._lost_steps(events)

    def _false_weights(self, expected: str, events: list[Event]) -> Iterator[str]:
        """Yields wrong weights: an elastic run has the expected weights if no attempt had fewer nodes; otherwise it
        completes all steps.
        """
        made = max((high for _, high in steps_in(self.marks).values()), default=0)
        if made != STEPS or not self.digest():
            yield f"{made} of {STEPS} steps, digest '{self.digest()[:12]}'"
        is_whole = all(len(one.data["members"]) == self.case.nodes for one in events if one.kind == "attempt")
        if is_whole and self.digest() != expected:
            yield f"weights {self.digest()[:12]}, undisturbed {expected[:12]}"

    def _false_events(self, events: list[Event]) -> Iterator[str]:
        """Yields recorded events of faults that were not injected."""
        # A node that another test has removed may have affected this run.
        others = [one for one in strikes_since(self.bed, self.began) if one[0] == "node of the supervisor"]
        num_harmful = self.striker.num_harmful + len(others)
        has_lost_pods = self.striker.has_lost_pods or others
        num_attempts = sum(event.kind == "attempt" for event in events)
        # an elastic run has one attempt that shrinks and one that grows
        if num_attempts > 1 + num_harmful * (2 if self.case.is_elastic else 1):
            yield f"{num_attempts} attempts by {num_harmful} strikes"
        false = FALSE if not num_harmful else frozenset() if has_lost_pods else frozenset({"lost-node"})
        yield from (f"false event: {event.kind} {event.data}" for event in events if event.kind in false)

    def _lost_steps(self, events: list[Event]) -> Iterator[str]:
        """Yields attempts that restored an older checkpoint than the newest one recorded before."""
        restored = {number: first for number, (first, _) in steps_in(self.marks).items()}
        saved = attempt = 0
        for event in events:
            if event.kind == "checkpoint" and event.data["action"] == "saved":
                saved = max(saved, int(event.data["step"]))
            elif event.kind == "attempt":
                attempt += 1
                if restored.get(attempt, saved) < saved:
                    yield f"attempt {attempt} restored step {restored[attempt]}, and {saved} was saved"

    def left(self) -> str:
        """Lists the objects in the cluster with the label of the run."""
        return self.striker.kubectl("get", LABELLED, "-l", f"windlass.dev/run={self.run.id}", "-o", "name")
