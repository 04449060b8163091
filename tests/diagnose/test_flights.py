"""torch's flight recorder explains ranks that hang or fail, with handwritten records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.diagnose.test_rules import (
    C10D,
    IN_ALL_REDUCE,
    IN_LOADING,
    PEER_GONE,
    TRACE,
    hang,
    seen,
    stack,
)

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.flights import find, flights_of
from windlass.diagnose.observations import RankSeen
from windlass.runs.phase import Phase

IN_SYNC = stack(("/venv/site-packages/torch/cuda/__init__.py", 1, "synchronize"), ("/job/train.py", 9, "main"))


def call(number: int, op: str = "all_reduce", *, size: int = 4, state: str = "ended", kind: str = "Float") -> Any:
    return {
        "number": number,
        "op": op,
        "sizes": [[size]],
        "types": [kind],
        "is_p2p": False,
        "state": state,
        "at": 1000.0 + number,
    }


def group(*calls: Any, name: str = "0", about: str = "default_pg", ranks: Sequence[int] = ()) -> dict[str, Any]:
    return {
        "id": int(name),
        "name": name,
        "about": about,
        "ranks": list(ranks),
        "calls": list(calls),
        "enqueued": max([one["number"] for one in calls], default=0),
    }


def flight(*groups: Any, why: str = "asked", failed_in: str = "", at: float = 2000.0) -> dict[str, Any]:
    return {"at": at, "why": why, "failed_in": failed_in, "groups": list(groups)}


def waits(number: int, op: str = "all_reduce", **fields: Any) -> Any:
    return call(number, op, state="scheduled", **fields)


def hung(flights: dict[int, Any], *stacks: str) -> Any:
    kind, data = hang(*stacks)
    for rank in data["ranks"]:
        if rank["rank"] in flights:
            rank["flight"] = flights[rank["rank"]]
    ranks = [RankSeen(number, last_output_at=40.0) for number in range(len(stacks))]
    return diagnose(seen(Phase.TRAINING, ranks=ranks, more=[(kind, data)])).verdict


def test_the_missing_rank_is_named_with_the_number_of_the_collective() -> None:
    flights = {0: flight(group(call(5), waits(6))), 1: flight(group(call(5)))}
    verdict = hung(flights, IN_ALL_REDUCE, IN_LOADING)
    assert (verdict.code, verdict.rank) == ("collective-not-joined", 1)
    assert "did not join all_reduce #6 of the default process group, in which rank 0 waits" in verdict.summary
    assert "flight recorder: rank 1 came to #5, all_reduce [4] Float" in verdict.evidence


def test_missing_rank_is_named_if_all_stacks_are_equal() -> None:
    """With NCCL the collectives are queued, and the script waits for the device."""
    flights = {0: flight(group(waits(7))), 1: flight(group(waits(7))), 2: flight(group(call(6)))}
    verdict = hung(flights, IN_SYNC, IN_SYNC, IN_SYNC)
    assert (verdict.code, verdict.rank) == ("collective-not-joined", 2)
    assert "rank 2 did not join all_reduce #7" in verdict.summary


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (waits(3), waits(3, size=5), "all_reduce [4] Float against all_reduce [5] Float"),
        (waits(3), waits(3, kind="Double"), "all_reduce [4] Float against all_reduce [4] Double"),
        (waits(3), waits(3, "broadcast"), "all_reduce [4] Float against broadcast [4] Float"),
    ],
)
def test_calls_that_differ_are_named_though_all_stacks_are_alike(one: Any, other: Any, words: str) -> None:
    flights = {0: flight(group(call(2), one)), 1: flight(group(call(2), one)), 2: flight(group(call(2), other))}
    verdict = hung(flights, IN_ALL_REDUCE, IN_ALL_REDUCE, IN_ALL_REDUCE)
    assert (verdict.code, verdict.rank) == ("collective-mismatch", 2)
    assert f"#3 of the default process group: {words}" in verdict.summary
    assert "flight recorder: ranks 0, 1 called all_reduce [4] Float as #3 of the default process group" in (
        verdict.evidence
    )


def test_the_first_call_that_differs_counts_and_not_where_ranks_wait_since() -> None:
    flights = {0: flight(group(call(2), waits(3, "barrier"))), 1: flight(group(call(2, "broadcast"), waits(3)))}
    assert "#2" in hung(flights, IN_ALL_REDUCE, IN_ALL_REDUCE).summary


def test_parts_of_different_sizes_are_no_mismatch_where_they_may_differ() -> None:
    flights = {0: flight(group(waits(3, "all_to_all"))), 1: flight(group(waits(3, "all_to_all", size=9)))}
    assert [finding.kind for finding in find(flights_of(flights))] == ["stuck"]


def test_groups_used_in_different_order_are_reported_together() -> None:
    a: dict[str, Any]
    b: dict[str, Any]
    a, b = {"name": "1", "about": "data", "ranks": [0, 1]}, {"name": "2", "about": "model", "ranks": [0, 1]}
    flights = {
        0: flight(group(waits(4), **a), group(call(3), **b)),
        1: flight(group(call(3), **a), group(waits(4), **b)),
    }
    verdict = hung(flights, IN_ALL_REDUCE, IN_ALL_REDUCE)
    assert verdict.code == "collective-mismatch"
    assert "rank 0 in all_reduce #4 of process group 1 (data)" in verdict.summary
    assert "same order" in verdict.fix


def test_ranks_outside_a_group_are_not_missing_in_it() -> None:
    flights = {
        0: flight(group(waits(2), name="1", ranks=[0, 1])),
        1: flight(group(call(1), name="1", ranks=[0, 1])),
        2: flight(group(call(9))),
    }
    (finding,) = find(flights_of(flights))
    assert (finding.kind, finding.joined, finding.missing) == ("not-joined", (0,), (1,))


def test_rank_without_recording_is_not_called_missing() -> None:
    assert [finding.missing for finding in find(flights_of({0: flight(group(waits(2), ranks=[0, 1]))}))] == []


def test_outdated_recording_is_ignored() -> None:
    flights = {0: flight(group(waits(900))), 1: flight(group(call(5)), at=1900.0)}
    assert find(flights_of(flights)) == ()


def failure(flights: dict[int, Any], *ranks: RankSeen) -> Any:
    cause = {"rank": 0, "summary": "", "exit_code": 1, "victims": []}
    return diagnose(seen(ranks=ranks, cause=cause, flights=flights)).verdict


def test_rank_that_left_is_reported_with_its_last_collective() -> None:
    flights = {
        0: flight(group(call(3), call(4, state="failed")), why="failed", failed_in="all_reduce"),
        1: flight({"id": 0, "enqueued": 3, "calls": []}, why="ended", at=100.0),
    }
    gone = RankSeen(0, exit_code=1, ended_at=103.0, tail=PEER_GONE)
    verdict = failure(flights, gone, RankSeen(1, exit_code=0, ended_at=102.0))
    assert (verdict.code, verdict.rank) == ("rank-left-early", 1)
    assert "flight recorder: rank 1 came to #3" in verdict.evidence


def test_a_failure_in_calls_that_differ_is_a_mismatch_and_no_lost_connection() -> None:
    flights = {
        0: flight(group(call(1, state="failed")), why="failed", failed_in="all_reduce"),
        1: flight(group(waits(1, "broadcast"))),
    }
    ranks = [RankSeen(0, exit_code=1, ended_at=103.0, tail=PEER_GONE), RankSeen(1, exit_code=-15, ended_by_us=True)]
    verdict = failure(flights, *ranks)
    assert verdict.code == "collective-mismatch"
    assert "all_reduce [4] Float against broadcast [4] Float" in verdict.summary


def test_a_rank_with_an_exception_of_its_own_stays_the_cause() -> None:
    flights = {
        0: flight(group(call(3)), why="failed"),
        1: flight(group(call(3), call(4, state="failed")), why="failed", failed_in="all_reduce"),
    }
    ranks = [
        RankSeen(0, exit_code=1, ended_at=102.0, tail=TRACE + "ValueError: bad label\n"),
        RankSeen(1, exit_code=1, ended_at=103.0, tail=PEER_GONE),
    ]
    assert failure(flights, *ranks).code == "exception"


def test_recorder_blames_no_rank_in_a_running_run() -> None:
    kind, data = hang(IN_ALL_REDUCE, IN_LOADING)
    data["ranks"][0]["flight"] = flight(group(waits(2)))
    data["ranks"][1]["flight"] = flight(group(call(1)))
    ranks = [RankSeen(0, last_output_at=900.0), RankSeen(1, last_output_at=900.0)]
    assert diagnose(seen(Phase.TRAINING, ranks=ranks, more=[(kind, data)])).verdict.code == "none"


def test_backward_pass_is_reported_with_its_collective() -> None:
    backward = stack(("/venv/site-packages/torch/autograd/graph.py", 5, "_engine_run_backward"), ("/job/t.py", 8, "m"))
    assert C10D not in backward
    verdict = hung({0: flight(group(waits(6))), 1: flight(group(call(5)))}, backward, IN_LOADING)
    assert "did not join backward (all_reduce #6 of the default process group)" in verdict.summary
