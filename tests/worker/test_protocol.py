"""Node specs and node events are read as they were written; data of another shape is refused with its location."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.worker.protocol import (
    EVENTS,
    CheckpointReported,
    HeartbeatSpec,
    HostReport,
    LauncherSpec,
    NetworkSpec,
    NodeEnded,
    NodeEvent,
    NodeSpec,
    NodeWarning,
    NoticeSpec,
    ProgressMade,
    RankChanged,
    RankFailure,
    RankSpec,
    RankStack,
    ResumeSpec,
    StacksTaken,
    event_of,
    pack,
    unpack,
)
from windlass.worker.values import ShapeError, read_as

text, number = st.text(max_size=6), st.integers(-5, 9)
env = st.dictionaries(text, text, max_size=3)
words = st.lists(text, max_size=3).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda more: st.lists(more, max_size=2) | st.dictionaries(text, more, max_size=2),
)
anything = st.dictionaries(text.map(lambda name: f"x{name}"), json_values, max_size=3)
networks = st.builds(NetworkSpec, text, text, env)
specs = st.builds(
    NodeSpec,
    node=number, script=text, worker_python=text, cwd=text, env=env,
    ranks=st.lists(st.builds(RankSpec, number, number, words, env), min_size=1, max_size=3).map(tuple),
    grace_seconds=st.floats(0, 9), warm=words, progress=st.none() | text, network=st.none() | networks,
    resume=st.none() | st.builds(ResumeSpec, text, words, text, text, own=words),
    notices=st.none() | st.builds(NoticeSpec, text, number, st.lists(words, max_size=2).map(tuple)),
    heartbeat=st.none() | st.builds(HeartbeatSpec, text, number, text, env, port=number),
    launch=st.none() | st.builds(
        LauncherSpec, text, words, text, number, env, networks=st.dictionaries(text, networks, max_size=2),
        port=st.none() | number, serves=st.booleans()),
    found=st.lists(anything, max_size=2).map(tuple), reserved_port=st.none() | number,
)  # fmt: skip
failures = st.builds(RankFailure, number, number, number, text, st.none() | number, st.booleans(), st.booleans())
hosts = st.none() | st.builds(HostReport, st.none() | number, reserved_port=st.none() | number)
events = st.one_of(
    st.builds(RankChanged, number, number, pid=st.none() | number, exit_code=st.none() | number),
    st.builds(ProgressMade, number, anything),
    st.builds(CheckpointReported, number, st.just("saved"), step=st.none() | number, more=anything),
    st.builds(NodeWarning, number, text, anything, missing=st.none() | st.dictionaries(text, number, max_size=2)),
    st.builds(StacksTaken, number, st.lists(st.builds(RankStack, number, text, text), max_size=2).map(tuple)),
    st.builds(NodeEnded, number, st.lists(failures, max_size=2).map(tuple), text, hosts),
)


@given(specs)
def test_a_spec_is_read_as_it_was_written(spec: NodeSpec) -> None:
    assert NodeSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@given(st.lists(specs, min_size=1, max_size=3), number)
def test_packed_specs_are_unpacked_unchanged(specs: list[NodeSpec], attempt: int) -> None:
    by_place = dict(enumerate(specs))
    packed = pack(attempt, by_place)
    assert unpack(packed) == (attempt, by_place)
    assert unpack(packed, len(specs) - 1) == (attempt, {len(specs) - 1: specs[-1]})


@given(events)
def test_an_event_is_read_as_it_was_written(event: NodeEvent) -> None:
    assert event_of(json.loads(json.dumps(event.to_json()))) == event
    assert "at" not in event.data()


@given(st.sampled_from(sorted(EVENTS)), json_values, anything)
def test_arbitrary_data_is_an_event_or_refused(kind: str, at: Any, more: dict[str, Any]) -> None:
    with contextlib.suppress(ShapeError):
        assert isinstance(event_of({"kind": kind, "at": at, **more}), EVENTS[kind])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"node": True}, "node: expected int, not bool"),
        ({"env": {"A": 1}}, "env: expected str, not int"),
        ({"ranks": [{"rank": 0}]}, "ranks: local_rank: required field missing"),
        ({"ranks": {}}, "ranks: expected a list, not dict"),
        ({"resume": []}, "resume: expected an object, not list"),
        ({"version": 99}, "node spec of version 99; this worker reads 1"),
    ],
)
def test_spec_of_another_shape_is_refused_with_the_field(changes: dict[str, Any], says: str) -> None:
    spec = NodeSpec(0, "train.py", "python", "/", {}, (RankSpec(0, 0, ("x",), {}),), 1.0)
    with pytest.raises(ShapeError, match=says):
        NodeSpec.from_json({**spec.to_json(), **changes})


def test_fields_of_another_version_are_ignored_in_specs_and_kept_in_warnings() -> None:
    spec = NodeSpec(0, "train.py", "python", "/", {}, (RankSpec(0, 0, ("x",), {}),), 1.0)
    assert NodeSpec.from_json({**spec.to_json(), "of_later": 1}) == spec
    assert event_of({"kind": "warning", "at": 1.0, "message": "m", "of_later": 1}).data() == {
        "message": "m",
        "of_later": 1,
    }


@pytest.mark.parametrize("pair", [["a"], ["a", 1, 2], [1, "a"]])
def test_tuple_of_two_types_has_exactly_these_items(pair: list[Any]) -> None:
    assert read_as(tuple[str, int], ["a", 1]) == ("a", 1)
    with pytest.raises(ShapeError, match="expected"):
        read_as(tuple[str, int], pair)


def test_values_are_frozen_and_refuse_unknown_fields() -> None:
    event = RankChanged(1.0, 0, pid=7)
    with pytest.raises(AttributeError, match="frozen"):
        event.pid = 8  # type: ignore[misc]
    with pytest.raises(TypeError, match="has the fields at, rank, pid, exit_code"):
        RankChanged(1.0, 0, ppid=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="required field missing: rank"):
        RankChanged(1.0)  # type: ignore[call-arg]
    assert event.replace(pid=8) == RankChanged(1.0, 0, 8)


def test_the_worker_needs_neither_dataclasses_nor_inspect() -> None:
    """Importing these modules takes longer than the rest of the worker."""
    program = "import sys, windlass.worker.protocol; sys.exit('dataclasses' in sys.modules or 'inspect' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-S", "-c", program], check=False, env={"PYTHONPATH": ":".join(sys.path)}
        ).returncode
        == 0
    )
