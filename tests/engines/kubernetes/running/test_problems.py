"""The record has the reasons why pods wait, each once, and again if a pod returns to waiting."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.engines.kubernetes.running.test_provisioning import DONE, claim, event
from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.observations import ObjectReport
from windlass.engines.kubernetes.reading import claims
from windlass.engines.kubernetes.running import problems
from windlass.engines.kubernetes.running.problems import LOOK_SECONDS, PodProblems
from windlass.runs.events import NodeProvisioning
from windlass.runs.node_events import Reported, StageReached
from windlass.worker.protocol import NodeWarning

Object = dict[str, Any]
NAME = "r-1-0-x"
NO_NODE = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
NO_CAPACITY = "no capacity is left of p4d.24xlarge"
QUOTA = ObjectReport("Job", "r-1", "FailedCreate", "exceeded quota: gpus")
POD: Object = {
    "metadata": {"name": NAME, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE}]
    },
}


class Waiting:
    """Attempt of one pod that waits for a node, with a fake clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock(1_767_225_700.0)
        monkeypatch.setattr(background, "start", lambda *_args: None)
        monkeypatch.setattr(problems, "time", self.clock)
        self.pods = types.SimpleNamespace(pod=lambda _place: POD, owner=types.SimpleNamespace(ends=[], eviction=None))
        self.queue = types.SimpleNamespace(holds=False)
        client = cast("Client", types.SimpleNamespace(health=None))
        self.problems = PodProblems(
            client, "r", 1, cast("Any", self.pods), (), 1, cast("Any", self.queue), lambda: None
        )

    def nominated(self, name: str, *claims: Object, failed: bool = False) -> None:
        """Karpenter creates a NodeClaim for the pod, which exists or has failed."""
        answers = {
            "claims": claims,
            "of claims": [event("InsufficientCapacityError", NO_CAPACITY, name, "NodeClaim", at=9)] if failed else [],
        }
        nomination = event("Nominated", f"Pod should schedule on: nodeclaim/{name}", NAME)
        self.problems._provisioning.take([POD], [nomination], answers, self.clock.now)

    def told(self) -> list[str]:
        """Returns what the next read reports: stages, and messages of warnings."""
        found: list[str] = []
        for _ in range(2):  # a state counts after a second
            events = (*self.problems.of_pod(0, 0), *self.problems.of_objects())
            found += [
                one.stage if isinstance(one, StageReached) else one.message
                for one in events
                if isinstance(one, (StageReached, NodeWarning))
            ]
            self.clock.now += LOOK_SECONDS / 2
        return found


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


def count(words: str, told: Sequence[str]) -> int:
    return sum(words in one for one in told)


def test_a_reason_to_wait_is_recorded_once(waiting: Waiting) -> None:
    told = waiting.told() + waiting.told()
    assert told[0] == "queued"
    assert (len(told), count(NO_NODE, told)) == (2, 1)


def test_pod_that_waits_again_has_its_reason_recorded_again(waiting: Waiting) -> None:
    waiting.told()
    waiting.nominated("gpus-1", claim("gpus-1"))
    assert waiting.told()[0] == "provisioning"
    waiting.nominated("gpus-1", failed=True)
    told = waiting.told()
    assert NO_CAPACITY in told[told.index("queued") :][-1]
    waiting.nominated("gpus-2", claim("gpus-2"))
    assert waiting.told()[0] == "provisioning"
    waiting.nominated("gpus-2", failed=True)
    told = waiting.told()
    assert NO_CAPACITY in told[told.index("queued") :][-1]
    assert waiting.told() == []


def test_creation_problems_are_not_reported_while_a_queue_holds_the_attempt(waiting: Waiting) -> None:
    waiting.problems._objects = [QUOTA]
    waiting.queue.holds = True
    assert count(QUOTA.message, waiting.told()) == 0
    waiting.queue.holds = False
    assert count(QUOTA.message, waiting.told()) == 1


def test_node_that_joins_and_runs_the_pod_between_two_reads_is_recorded(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = waiting.problems._provisioning
    there = claim("gpus-2", *DONE, ("Initialized", "True", "Initialized"), nodeName="n2")
    answers: dict[str, Any] = {"claims": []}
    monkeypatch.setattr(read, "read", lambda pods, events: read.take(pods, events, answers, waiting.clock.now))
    waiting.problems._read_provisioning()
    assert waiting.told()[0] == "queued"
    answers["claims"] = [there]
    runs = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    running = {**POD, "spec": {"nodeName": "n2", "containers": [{"name": "main"}]}, "status": runs}
    waiting.pods.pod = lambda _place: running
    waiting.problems._read_provisioning()
    recorded = [one.entry for one in waiting.problems.of_objects() if isinstance(one, Reported)]
    assert [(one.name, one.state) for one in recorded if isinstance(one, NodeProvisioning)] == [
        ("gpus-2", state) for state in claims.STATES
    ]
    monkeypatch.setattr(read, "read", lambda *_: pytest.fail("a pod that runs waits for no node"))
    waiting.problems._read_provisioning()
