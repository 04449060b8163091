"""A supervisor that takes over a run on a cluster records what the pods wrote meanwhile, with its times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.supervise.fakes import FileNode

from windlass.runs.events import entry_of
from windlass.runs.ledger import Ledger, fold_ledger
from windlass.runs.node_events import RankSeen
from windlass.runs.store import RunWriter, Store
from windlass.runs.time_accounting import Spent
from windlass.supervise.adoption import observed_until
from windlass.supervise.ingestion import EventIngestion, RunProgress
from windlass.supervise.log_tail import LogTail, last_line_at
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import event_of

BORN = 1_800_000_000.0
OFF_AT, TAKEN_UP_AT = 20.0, 600.0


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    """Creates a run that began to train, and whose supervisor ended after 20 s."""
    with Store(tmp_path) as store:
        made = store.create("r-1", name="r", target="lab", output_dir="/o", plan="{}", time=BORN)
        made.note(entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0]}), at=BORN)
        yield made
        made.close()


def hear(writer: RunWriter, until: float, *more: dict[str, Any]) -> None:
    """Makes a supervisor ingest all reports of the only node up to `until`: one step per second from second 2."""
    record = Recorder(writer)
    if writer.status.attempts and len(writer.events()) > 2:
        record.begin_replay()
    ingestion, node = EventIngestion(record, RunProgress(record, 1)), FileNode(0, (0,), Path("/nowhere"))
    node.pid = 7
    told: list[dict[str, Any]] = [
        {"kind": "node", "at": BORN + 1, "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold"},
        {"kind": "rank", "at": BORN + 1, "rank": 0, "pid": 9},
        {"kind": "output", "at": BORN + 2},
    ]
    told += [
        {"kind": "progress", "at": BORN + 1 + step, "progress": {"rank": 0, "step": step}}
        for step in range(1, int(until))
    ]
    for event in [*told, *more]:
        ingestion.take(node, RankSeen(event["at"]) if event["kind"] == "alive" else event_of(event))


def take_up(writer: RunWriter) -> None:
    writer.note(entry_of("adopted", {"observed_until": observed_until(writer)}), at=BORN + TAKEN_UP_AT)


def ledger(writer: RunWriter, now: float) -> Ledger:
    return fold_ledger(writer.events(), BORN + now)


def test_pod_activity_without_supervisor_is_recorded_from_logs(writer: RunWriter) -> None:
    hear(writer, OFF_AT)
    take_up(writer)
    first_answer = ledger(writer, TAKEN_UP_AT).seconds
    assert first_answer[Spent.UNOBSERVED] == TAKEN_UP_AT - OFF_AT
    assert first_answer[Spent.TRAINING] == OFF_AT - 2
    hear(writer, 101, {"kind": "rank", "at": BORN + 102, "rank": 0, "exit_code": 0})
    writer.note(entry_of("end", {"phase": "succeeded", "exit_code": 0}), at=BORN + TAKEN_UP_AT + 5)
    end = ledger(writer, TAKEN_UP_AT + 5)
    assert end.seconds == {Spent.STARTING: 2, Spent.TRAINING: 100, Spent.IDLE: TAKEN_UP_AT + 5 - 102}
    assert sum(end.node_seconds.values()) == 102


def test_events_ingested_before_are_not_recorded_again(writer: RunWriter) -> None:
    hear(writer, OFF_AT)
    take_up(writer)
    before = len(writer.events())
    hear(writer, 301)
    again = writer.events()[before:]
    assert {event.kind for event in again} == {"progress"}
    assert min(event.time for event in again) > BORN + OFF_AT - 2
    assert [event.data["step"] for event in again] == sorted(event.data["step"] for event in again)
    assert len(again) < 240, "it is as sparse as ever"


def test_a_pod_that_runs_was_alive_all_the_time(writer: RunWriter) -> None:
    """The first supervisor that sees the pod knows this from its state."""
    hear(writer, 2, {"kind": "alive", "at": BORN + 3})
    take_up(writer)
    assert Spent.UNOBSERVED in ledger(writer, TAKEN_UP_AT + 1).seconds
    hear(writer, 2, {"kind": "alive", "at": BORN + TAKEN_UP_AT + 1})
    assert [event.kind for event in writer.events()].count("observed") == 1
    assert Spent.UNOBSERVED not in ledger(writer, TAKEN_UP_AT + 1).seconds


def test_the_last_sign_of_life_of_a_pod_is_its_last_line_whenever_that_was_read(tmp_path: Path) -> None:
    mirror = LogTail(tmp_path, 0, [0])
    mirror.take([b"2026-11-21T14:53:52.5Z [0] step 1", b"2026-11-21T14:53:54.25Z [0] step 2"])
    assert last_line_at(tmp_path / "node-0.cursor") == pytest.approx(1795272834.25, abs=1e-3)
    (tmp_path / "node-1.cursor").write_text("torn")
    assert last_line_at(tmp_path / "node-1.cursor") == last_line_at(tmp_path / "node-2.cursor") == 0.0
