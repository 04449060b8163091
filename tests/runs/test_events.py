"""Every kind of event can be read from any record, and is written as it was read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.runs import events
from windlass.runs.events import KINDS, Event, entry_of
from windlass.runs.phase import Phase

RECORD_PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "record.md"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def test_the_page_of_the_record_lists_every_kind() -> None:
    table = RECORD_PAGE.read_text().partition("| kind | carries |")[2].partition("\n\n")[0]
    named = {kind for row in table.splitlines()[2:] for kind in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert named == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_kind_reads_any_values_and_writes_them_back(kind: str, data: st.DataObject) -> None:
    names = [name.rstrip("_") for name in KINDS[kind].fields()]
    written = data.draw(st.dictionaries(st.sampled_from([*names, "other"]), ANYTHING))
    assert entry_of(kind, written).to_json() == written


def test_an_event_of_an_unknown_kind_is_kept() -> None:
    event = Event(1, 0.0, "teleported", {"to": "mars"})
    assert isinstance(event.entry, events.Unknown)
    assert event.entry.to_json() == {"to": "mars"}


@pytest.mark.parametrize(
    ("entry", "written"),
    [
        (events.PhaseEntered(Phase.TRAINING), {"phase": "training"}),
        (events.StopRequested("SIGTERM", now=True), {"reason": "SIGTERM", "now": True}),
        (events.RunResumed(from_="step-4"), {"from": "step-4"}),
        (
            events.AttemptStarted(1, 2, ((0, 1),), (3,)),
            {"number": 1, "world_size": 2, "nodes": [[0, 1]], "members": [3]},
        ),
        (
            events.HangDetected((events.RankStack(0, "S", "at x"),), 5.0),
            {"ranks": [{"rank": 0, "state": "S", "stack": "at x"}], "seconds": 5.0},
        ),
        (
            events.NetworkCreated("eth0", None, (events.NodeAddress(0, "a", "ns", "10.0.0.1"),)),
            {
                "interface": "eth0",
                "rate": None,
                "nodes": [{"node": 0, "host": "a", "namespace": "ns", "address": "10.0.0.1"}],
            },
        ),
    ],
)
def test_an_entry_writes_what_is_known_and_reads_it_back(entry: events.Entry, written: dict[str, Any]) -> None:
    assert json.loads(json.dumps(entry.to_json())) == written
    assert type(entry).from_json(written) == entry


def test_a_value_of_another_type_reads_as_unknown() -> None:
    entry = events.Progress.from_json({"step": "x", "rate": float("inf"), "total": True, "metrics": "odd"})
    assert (entry.step, entry.rate, entry.total, entry.metrics) == (None, None, None, {})
