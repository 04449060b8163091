"""The next attempt starts in the pods of the previous one if each of them accepts its order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import Request
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, restore_assignments
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.engines.kubernetes.running import reuse
from windlass.errors import EngineError
from windlass.runs.events import PodsReused, entry_of
from windlass.worker import pod_reuse
from windlass.worker.protocol import NodeSpec, RankSpec, unpack

LEAVE = ("leave",)


class Control:
    """Control that answers requests with a code per pod."""

    events = None

    def __init__(self, *codes: int, max_bytes: int = 1 << 20) -> None:
        self.codes = codes
        self.max_bytes = max_bytes
        self.requests: dict[str, Request] = {}

    def call_all(
        self, requests: Sequence[tuple[Mapping[str, Any], Request]], seconds: float
    ) -> Iterator[tuple[int, int | EngineError]]:
        for number, (pod, request) in enumerate(requests):
            self.requests[pod["metadata"]["name"]] = request
            code = self.codes[number]
            yield number, Unreachable("no answer", "") if code < 0 else code


def cluster(phases: Sequence[str], attempt: int = 1) -> Client:
    pods = [
        {
            "metadata": {
                "name": f"pod-{place}",
                "labels": {"windlass.dev/attempt": str(attempt)},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(place)},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"containers": [{"name": "node"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "node", "state": {phase: {}}}]},
        }
        for place, phase in enumerate(phases)
    ]
    return cast(Client, SimpleNamespace(find=lambda *_: {"items": pods}))


REUSED = PodAssignment(2, PodAssignment.new(1, 2).pods)
"""Attempt 2 in the pods of attempt 1."""
SPECS = [NodeSpec(node, "t.py", "python3", "/", {}, (RankSpec(node, 0, ("t.py",), {}),), 1.0) for node in range(2)]


@pytest.mark.parametrize(("codes", "accepted"), [((0, 0), True), ((0, 3), False), ((0, -1), False)])
def test_an_attempt_begins_in_the_pods_if_each_accepts_its_order(codes: tuple[int, ...], accepted: bool) -> None:
    control, ids = Control(*codes), REUSED
    pods = reuse.running(cluster(["running"] * 2), "r-1", ids)
    assert reuse.order(control, ids, SPECS, pods) is accepted
    for node in range(2):
        what, data, attempt = control.requests[f"pod-{node}"].words
        assert (what, attempt) == ("order", "2")
        assert unpack(base64.b64decode(data)) == (2, {node: SPECS[node]})


def test_attempt_does_not_reuse_pods_if_an_order_is_too_large() -> None:
    control, ids = Control(0, 0, max_bytes=20), REUSED
    assert not reuse.order(control, ids, SPECS, reuse.running(cluster(["running"] * 2), "r-1", ids))
    assert control.requests == {}


def test_a_pod_gets_the_node_of_its_place_under_its_own_number() -> None:
    """The second pod of attempt 2 is at the first place, and the pod of attempt 3 does not exist yet."""
    ids = PodAssignment(3, (PodId(2, 1), PodId(3, 0)))
    pods = reuse.running(cluster(["running"] * 2, attempt=2), "r-1", ids)
    assert {place: pod["metadata"]["name"] for place, pod in pods.items()} == {0: "pod-1"}
    control = Control(0, 0)
    assert reuse.order(control, ids, SPECS, pods)
    [request] = control.requests.values()
    assert unpack(base64.b64decode(request.words[1])) == (3, {1: SPECS[0]})


def test_pods_that_have_ended_or_are_deleted_run_no_further_attempt() -> None:
    assert list(reuse.running(cluster(["running", "terminated"]), "r-1", REUSED)) == [0]


@pytest.mark.parametrize(
    "ids", [PodAssignment.new(1, 3).pods, (PodId(1, 0), PodId(3, 0), PodId(1, 2)), PodAssignment.new(3, 3).pods]
)
def test_a_supervisor_that_takes_over_finds_the_decision_on_pods_in_the_record(
    tmp_path: Path, ids: tuple[PodId, ...]
) -> None:
    assignment = PodAssignment(3, ids)
    decided = assignment.event()
    again = cast(PodsReused, entry_of(decided.kind, json.loads(json.dumps(decided.to_json()))))
    restore_assignments(tmp_path, [again.event(1, 1.0)])
    folder = tmp_path / "attempt-3"
    assert PodAssignment.decided(folder, 3, 3) == PodAssignment.of(folder, 3, 3) == assignment
    assert bool(assignment.reused) is (ids[0].made_for < 3)
    assert PodAssignment.decided(tmp_path / "attempt-4", 4, 3) is None


def test_waiting_pods_are_ended_in_spite_of_an_error_of_one() -> None:
    control = Control(0, -1)
    reuse.release(cluster(["running"] * 2), control, "r-1", 1)
    assert {one.words for one in control.requests.values()} == {LEAVE}
    assert control.requests.keys() == {"pod-0", "pod-1"}
    assert pod_reuse.TAKEN == 0
