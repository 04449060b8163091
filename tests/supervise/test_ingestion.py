"""Node events are recorded: the phase of a run whose nodes are provisioned, and what the run waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.helpers.clock import START
from tests.supervise.fakes import FakeAttempt, FakeNode, FakeRun

from windlass.runs.metrics import read_metrics
from windlass.runs.node_events import StageReached
from windlass.runs.phase import Phase
from windlass.supervise.ingestion import EventIngestion, RunProgress
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import NodeEvent, NodeWarning, OutputBegan, ProgressMade


class Ingestion:
    """Two nodes whose events are ingested at once."""

    def __init__(self, run: FakeRun) -> None:
        self.run = run
        run.begin()
        self.record = Recorder(run.writer, clock=run.clock)
        self.progress = RunProgress(self.record, 2)
        self.ingestion = EventIngestion(self.record, self.progress)
        self.nodes = [FakeNode(number, (number,), Path("/nowhere"), run.clock) for number in range(2)]

    def take(self, node: int, event: Callable[[float], NodeEvent]) -> Phase:
        """Ingests an event of the node, one second later."""
        self.run.clock.now += 1
        self.ingestion.take(self.nodes[node], event(self.run.clock.now))
        return self.record.status.phase


def stage(name: str) -> Callable[[float], NodeEvent]:
    return lambda at: StageReached(at, name)


def progress(**reported: object) -> Callable[[float], NodeEvent]:
    return lambda at: ProgressMade(at, reported)


@pytest.fixture
def ingestion(run: FakeRun) -> Ingestion:
    return Ingestion(run)


def test_the_phase_is_that_of_the_node_that_is_least_far(ingestion: Ingestion) -> None:
    reported = [(0, "pulling"), (1, "queued"), (0, "starting"), (1, "pulling"), (1, "starting")]
    phases = [ingestion.take(number, stage(name)) for number, name in reported]
    assert phases == [Phase.PULLING, Phase.QUEUED, Phase.QUEUED, Phase.PULLING, Phase.STARTING]
    assert ingestion.record.status.phases_at(START + 6)[Phase.QUEUED] == pytest.approx(2.0)


def test_a_run_that_trains_does_not_wait_again_for_a_node(ingestion: Ingestion) -> None:
    ingestion.take(0, stage("pulling"))
    ingestion.take(0, OutputBegan)
    assert ingestion.take(0, stage("queued")) is Phase.TRAINING


def test_an_attempt_in_which_a_pod_cannot_be_created_waits_though_others_print(ingestion: Ingestion) -> None:
    """A pod was lost and a quota refuses its replacement, while the other pods of the attempt are running again."""
    ingestion.ingestion = EventIngestion(ingestion.record, ingestion.progress, 2)
    ingestion.take(0, stage("starting"))
    assert ingestion.take(0, OutputBegan) is Phase.STARTING
    assert ingestion.take(1, stage("queued")) is Phase.QUEUED
    ingestion.take(1, lambda at: NodeWarning(at, "exceeded quota", {"waits": True}))
    assert ingestion.record.status.waits_for == "exceeded quota"
    assert ingestion.take(1, stage("starting")) is Phase.TRAINING


def test_what_a_run_waits_for_is_in_its_status_until_it_begins(ingestion: Ingestion) -> None:
    ingestion.take(0, stage("queued"))
    ingestion.take(0, lambda at: NodeWarning(at, "no room", {"waits": True}))
    assert ingestion.run.status.waits_for == "no room"
    ingestion.take(0, OutputBegan)
    assert ingestion.run.status.waits_for is None


def test_a_rate_that_is_no_number_is_recorded_and_not_added_up(ingestion: Ingestion) -> None:
    ingestion.take(0, progress(step=1, samples_per_second="inf"))
    assert ingestion.record.status.progress.to_json()["samples_per_second"] == "inf"


def test_progress_never_looks_older_than_what_another_node_reported(ingestion: Ingestion) -> None:
    """A machine keeps the record with the newer progress."""
    early, late = ingestion.run.clock.now + 0.5, ingestion.run.clock.now + 1.0
    ingestion.take(1, lambda _at: ProgressMade(late, {"step": 7, "rank": 1}))
    ingestion.take(0, lambda _at: ProgressMade(early, {"step": 7, "rank": 0}))
    ingestion.ingestion.save_progress()
    assert ingestion.run.status.progress.to_json() == {"step": 7, "rank": 0, "at": late}


def test_rates_add_up_and_all_else_is_of_the_lowest_node_that_reports_any(ingestion: Ingestion) -> None:
    ingestion.take(1, progress(step=8, samples_per_second=10.0))
    ingestion.take(0, progress(step=9, samples_per_second=20.0))
    ingestion.take(1, progress(step=7, samples_per_second=11.0))
    found = ingestion.record.status.progress
    assert (found.step, found.samples_per_second) == (9, 31.0)


def test_the_status_counts_lines_that_were_lost(ingestion: Ingestion) -> None:
    for num in (100, 7):
        ingestion.take(0, lambda at, num=num: NodeWarning(at, f"{num} are gone", missing={"0": num}))  # type: ignore[misc]
    [lost] = ingestion.run.status.dropped
    assert (lost.rank, lost.lines, lost.why) == (0, 107, "rotated")


def test_progress_that_is_read_late_is_saved_too(ingestion: Ingestion) -> None:
    """An adopting supervisor reads minutes of progress at once, few of which enter the history."""
    for step in range(1, 4):
        event = ProgressMade(START - 600 + step / 10, {"step": step})
        ingestion.ingestion.take(ingestion.nodes[0], event)
    ingestion.ingestion.save_progress()
    assert ingestion.record.status.progress.step == 1
    assert ingestion.run.writer.store.status(ingestion.record.status.id).progress.step == 3


def test_a_new_attempt_leaves_the_progress_of_the_one_before_as_it_was_given_to_the_record(
    ingestion: Ingestion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may write it later, as the store that copies the record to a cluster does."""
    given: list[Mapping[str, object]] = []
    monkeypatch.setattr(ingestion.record.writer, "set_progress", given.append)
    ingestion.take(0, progress(step=798))
    ingestion.ingestion.save_progress()
    ingestion.progress.begin()
    assert [one.get("step") for one in given] == [798]


def test_a_supervisor_that_reads_all_events_again_adds_each_point_once(make_run: Callable[..., FakeRun]) -> None:
    run = make_run(outlives=True)

    def reports(num_events: int) -> Callable[[FakeAttempt], None]:
        def script(attempt: FakeAttempt) -> None:
            attempt.nodes[0].begin()
            for seq in range(1, num_events + 1):
                batch = {"rank": 0, "source": "report", "name": "loss", "steps": [seq], "times": [seq], "values": [0.5]}
                attempt.nodes[0].report("metrics", seq=seq, series=[batch])

        return script

    run.clock.at(1, lambda: setattr(run.backend, "lost_to_another", True))
    run.run(reports(3))
    [loss] = read_metrics(run.dir / "metrics.jsonl")
    assert loss.steps == (1, 2, 3)
    assert not run.status.phase.is_terminal
    run.backend.lost_to_another = False
    run.clock.at(1, lambda: run.node.end(0))
    run.run(reports(5))
    [loss] = read_metrics(run.dir / "metrics.jsonl")
    assert len(run.backend.attempts) == 2
    assert (loss.steps, loss.attempts) == ((1, 2, 3, 4, 5), (1,) * 5)
