"""Only valid events of a node are accepted; no other line stops the supervisor or ends the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.supervise.fakes import FileNode

from windlass.runs import node_events
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.supervise.ingestion import EventIngestion, RunProgress
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import RankFailure, event_of

START = {"kind": "node", "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold"}
GOOD: list[dict[str, Any]] = [
    START,
    {"kind": "rank", "rank": 0, "pid": 8},
    {"kind": "rank", "rank": 0, "exit_code": -9},
    {"kind": "output"},
    {"kind": "progress", "progress": {"step": 3, "loss": "nan", "metrics": {"a": 1.5}}},
    {"kind": "checkpoint", "rank": 0, "action": "saved", "step": 3, "name": "step-3"},
    {"kind": "checkpoint", "action": "skipped"},
    {"kind": "unreachable", "nodes": [1, 2]},
    {"kind": "failing", "rank": 0, "waited": True},
    {"kind": "notice", "source": "sigterm", "action": "terminate", "time": "2026-01-02T03:04:05Z"},
    {"kind": "warning", "message": "m"},
    {"kind": "hang", "ranks": [{"rank": 0, "state": "S", "stack": "", "flight": {"a": [1]}}]},
    {
        "kind": "end",
        "failures": [RankFailure(0, 1, 2.0, "tail").to_json()],
        "ended_by": "failure",
        "host": {"reserved_port": 7},
    },
]


def line(event: object) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.parametrize("event", GOOD, ids=lambda event: str(event["kind"]))
def test_events_of_workers_are_read_unchanged(event: dict[str, Any]) -> None:
    found = node_events.parse(line({"at": 3.0, **event}))
    assert found is not None
    assert event_of({"at": 3.0, **event}) == found.event
    assert found.event.to_json() == {"at": 3.0, **event}


@pytest.mark.parametrize("at", [None, "3", True, -1.0, float("inf"), 1e18, 10**30])
@pytest.mark.parametrize("event", GOOD[:2])
def test_event_without_time_is_ignored(event: dict[str, Any], at: object) -> None:
    assert node_events.parse(line({"at": at, **event})) is None


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "stage", "stage": "queued"},  # an event that only a supervisor creates
        {"kind": "queue", "state": "evicted"},
        {"kind": ["end"]},
        {"kind": "end"},
        {"kind": "end", "failures": [{}]},
        {"kind": "end", "failures": {"rank": 0}},
        {"kind": "rank", "rank": "0"},
        {"kind": "rank", "rank": 0, "exit_code": "x"},
        {"kind": "checkpoint", "action": "saved", "step": "x"},
        {"kind": "progress", "progress": [1]},
        {"kind": "notice"},
        {"kind": "hang", "ranks": [[]]},
        {**START, "pid": "7"},
    ],
)
def test_event_of_wrong_shape_is_ignored(event: dict[str, Any]) -> None:
    assert node_events.parse(line({"at": 3.0, **event})) is None


def test_numbers_and_half_characters_that_no_record_takes_cost_no_event() -> None:
    found = node_events.parse(
        b'{"kind": "warning", "at": 1.0, "message": "a\\ud800b", "big": 1e999, "nan": NaN, '
        b'"whole": 99999999999999999999}'
    )
    assert found is not None
    assert found.event.data() == {"message": "a?b", "big": "inf", "nan": "nan", "whole": "99999999999999999999"}


def test_an_event_without_the_token_of_its_node_is_ignored() -> None:
    deduplicator = node_events.EventDeduplicator()
    own = {**START, "at": 1.0, "k": "secret"}
    forged: dict[str, Any] = {"kind": "end", "at": 2.0, "failures": []}
    assert deduplicator.take(line(own)) == event_of({**START, "at": 1.0})
    assert deduplicator.take(line(forged)) is None
    assert deduplicator.take(line({**forged, "k": "guess"})) is None
    assert deduplicator.take(line({**START, "at": 3.0, "k": "guess"})) is None
    assert deduplicator.num_ignored == 3
    assert deduplicator.take(line({**forged, "k": "secret"})) == event_of(forged)


def test_nodes_that_have_no_token_are_read_as_before() -> None:
    deduplicator = node_events.EventDeduplicator()
    for event in GOOD:
        assert deduplicator.take(line({"at": 1.0, **event})) is not None


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Recorder]:
    with Store(tmp_path / "home") as store:
        writer = store.create("r-1", name="r", target="bed", output_dir="/out", plan="{}", time=1.0)
        recorder = Recorder(writer)
        recorder.note(entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]]}), at=2.0)
        yield recorder
        writer.close()


_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just("\ud800"), st.just(10**400)
)
_json = st.recursive(
    _leaves, lambda more: st.one_of(st.lists(more, max_size=3), st.dictionaries(st.text(max_size=3), more, max_size=3))
)
_fields = [*sorted({name for event in GOOD for name in event} - {"kind"}), "at", "k", "missing", "waits"]
_events = st.builds(
    lambda base, more: {"at": time.time(), **base, **more},
    st.sampled_from(GOOD),
    st.dictionaries(st.sampled_from(_fields), _json, max_size=3),
)
_progress = st.builds(
    lambda more: {"kind": "progress", "at": 1.0, "progress": more},
    st.dictionaries(
        st.sampled_from(["step", "total", "samples_per_second", "phase", "loss", "metrics", "rank", "epoch"]), _json
    ),
)
_lines = st.one_of(
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")),
    st.one_of(_events, _progress, _json).map(lambda event: json.dumps(event, allow_nan=True).encode()),
    st.just(b'{"a":' * 3000),
    st.just(b'{"kind": "rank", "at": 1.0, "rank": 0, "exit_code": 1' + b"0" * 5000 + b"}"),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60
)
@given(st.lists(_lines, max_size=12))
def test_no_line_stops_the_supervisor_or_ends_the_run(record: Recorder, tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / "node-0.events").write_bytes(b"\n".join([*lines, b""]))
    node = FileNode(0, (0,), tmp_path)
    ingestion = EventIngestion(record, RunProgress(record, 1))
    for event in node.updates():
        ingestion.take(node, event)
    assert not record.status.phase.is_terminal
    assert record.writer.store.status("r-1").phase in (Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING)
