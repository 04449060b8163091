"""A run whose nodes have to be brought is in the phase of the one that is least far, until a rank says something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.engines.keeping.hearing import Hearing, ProgressOfNodes
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.told import Told
from windlass.runs.record import Phase
from windlass.runs.store import Store


class NodeOfTest(Told):
    """A node that says what a test says, and has no process."""

    exit_code = 1

    def lives(self) -> bool:
        return True

    def send(self, number: object) -> None:
        """Nobody hears it."""

    def sweep(self) -> None:
        """Nothing outlives it."""


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Recording]:
    with Store(tmp_path) as store:
        writer = store.create("r-1", name="r", target="bed", output_dir="/out", plan="{}", time=1.0)
        recording = Recording(writer)
        recording.note("attempt", {"number": 1, "world_size": 2, "nodes": [[0], [1]]}, at=2.0)
        yield recording
        writer.close()


def test_the_phase_is_that_of_the_node_that_is_least_far(record: Recording, tmp_path: Path) -> None:
    hearing = Hearing(record, ProgressOfNodes(record, 2))
    nodes = [NodeOfTest(number, (number,), tmp_path) for number in range(2)]
    told = [(0, "pulling"), (1, "queued"), (0, "starting"), (1, "pulling"), (1, "starting")]
    phases = []
    for at, (number, stage) in enumerate(told, 3):
        hearing.hear(nodes[number], {"kind": "stage", "stage": stage, "at": float(at)})
        phases.append(record.status.phase)
    assert phases == [Phase.PULLING, Phase.QUEUED, Phase.QUEUED, Phase.PULLING, Phase.STARTING]
    assert record.status.phases_at(8.0)[Phase.QUEUED] == pytest.approx(1.0 + 2.0)


def test_a_run_that_trains_does_not_wait_again_for_a_node(record: Recording, tmp_path: Path) -> None:
    hearing = Hearing(record, ProgressOfNodes(record, 2))
    node = NodeOfTest(0, (0,), tmp_path)
    hearing.hear(node, {"kind": "stage", "stage": "pulling", "at": 3.0})
    hearing.hear(node, {"kind": "output", "at": 4.0})
    hearing.hear(node, {"kind": "stage", "stage": "queued", "at": 5.0})
    assert record.status.phase is Phase.TRAINING


def test_what_a_run_waits_for_is_in_its_status_until_it_begins(record: Recording, tmp_path: Path) -> None:
    hearing = Hearing(record, ProgressOfNodes(record, 2))
    node = NodeOfTest(0, (0,), tmp_path)
    hearing.hear(node, {"kind": "stage", "stage": "queued", "at": 3.0})
    hearing.hear(node, {"kind": "warning", "message": "no room", "waits": True, "at": 4.0})
    assert record.writer.store.status("r-1").waits_for == "no room"
    hearing.hear(node, {"kind": "output", "at": 5.0})
    assert record.writer.store.status("r-1").waits_for is None
