"""Pure functions determine which nodes of an elastic run take part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.events import entry_of
from windlass.supervise.membership import Membership, cut_off


def told(nodes: Membership, *events: tuple[str, dict[str, Any]], begin: float = 100.0) -> Membership:
    """Returns the membership after these events, one second apart."""
    for seconds, (kind, data) in enumerate(events):
        nodes.take(entry_of(kind, data), begin + seconds)
    return nodes


def test_a_lost_node_may_come_back_after_its_time() -> None:
    nodes = told(Membership(3, 1, return_seconds=10), ("lost-node", {"node": 1}))
    assert (nodes.members, nodes.is_enough) == ((0, 2), True)
    assert (nodes.may_come_back(109.9), nodes.may_come_back(110)) == ([], [1])
    assert told(nodes, ("node-back", {"node": 1})).members == (0, 1, 2)


def test_a_run_of_fixed_size_waits_for_all_its_nodes() -> None:
    nodes = told(Membership(2, 2, return_seconds=10), ("lost-node", {"node": 1}))
    assert (nodes.is_elastic, nodes.is_enough) == (False, False)
    assert nodes.may_come_back(100) == [1]  # waiting has no benefit, because the other nodes are idle


def test_nodes_that_are_all_lost_need_not_wait() -> None:
    nodes = told(Membership(2, 1, return_seconds=10), ("lost-node", {"node": 0}), ("lost-node", {"node": 1}))
    assert nodes.may_come_back(101) == [0, 1]


def test_node_missing_in_attempt_is_away_since_its_loss() -> None:
    events: list[tuple[str, dict[str, Any]]] = [
        ("attempt", {"members": [0, 1, 2]}),
        ("lost-node", {"node": 2}),
        ("attempt", {"members": [0, 1]}),
    ]
    assert told(Membership(3, 1, 10), *events).away == {2: 101.0}
    assert told(Membership(3, 1, 10), *events, ("attempt", {"members": [0, 1, 2]})).away == {}
    assert told(Membership(3, 1, 10), ("attempt", {})).away == {}  # an event from a record without members


def test_nodes_that_a_resume_has_added_were_never_away() -> None:
    before: tuple[str, dict[str, Any]] = ("attempt", {"members": [0, 1]})
    nodes = told(Membership(4, 2, 1000), before, ("resume", {"nodes": 4}))
    assert (nodes.members, nodes.away) == ((0, 1, 2, 3), {})
    fewer = told(Membership(1, 1, 10), ("lost-node", {"node": 1}), before, ("resume", {"nodes": 1}))
    assert fewer.may_come_back(1000) == []
    as_it_was = told(Membership(4, 2, 1000), before, ("resume", {}))
    assert as_it_was.members == (0, 1)
    lost = told(
        Membership(2, 1, 1000), ("lost-node", {"node": 1}), ("attempt", {"members": [0]}), ("resume", {"nodes": 2})
    )
    assert lost.members == (0,)


@pytest.mark.parametrize(
    ("silent", "lost"),
    [
        ({}, set()),
        ({0: [2], 1: [2]}, {2}),
        ({2: [0, 1]}, {2}),
        ({0: [1, 2]}, {0}),  # the rendezvous node is cut off from the two others
        ({0: [2]}, set()),  # 0 and 2 still reach each other through 1, so no side is lost
        ({0: [1, 2], 1: [0, 2]}, {1, 2}),
        ({7: [9], 0: [8]}, set()),  # nodes that do not take part
    ],
)
def test_smaller_side_of_partition_is_lost(silent: dict[int, list[int]], lost: set[int]) -> None:
    assert cut_off([0, 1, 2], silent) == lost


def test_side_with_lowest_node_is_kept_in_equal_partition() -> None:
    assert cut_off([1, 2, 3, 4], {1: [3, 4], 2: [3, 4]}) == {3, 4}


@given(st.sets(st.integers(0, 9), min_size=1), st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 9))))
def test_partition_keeps_at_least_one_member(members: set[int], silent: dict[int, set[int]]) -> None:
    lost = cut_off(members, silent)
    assert lost < members
    assert len(members - lost) >= len(lost) or len(members) > 2
