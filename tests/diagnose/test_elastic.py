"""Attempts with another number of ranks that cannot load earlier checkpoints are recognized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.diagnose.test_rules import TRACE, seen

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import RankSeen
from windlass.diagnose.verdict import Diagnosis

LOST: tuple[str, dict[str, Any]] = ("lost-node", {"node": 1, "why": "node 1 died"})
TRAINED: tuple[str, dict[str, Any]] = ("progress", {"step": 15})
RESUMED: tuple[str, dict[str, Any]] = ("resume", {"nodes": 1})
SHARDS = "RuntimeError: saved by 2 data-parallel ranks, loaded by 1: optimizer shards cannot be rearranged"


def attempt(number: int, world_size: int) -> tuple[str, dict[str, Any]]:
    nodes = [[rank] for rank in range(world_size)]
    return "attempt", {"number": number, "world_size": world_size, "nodes": nodes, "members": list(range(world_size))}


def failed_again(error: str, more: Sequence[tuple[str, dict[str, Any]]], many: int = 1) -> Diagnosis:
    ranks = [RankSeen(rank, exit_code=1, ended_at=103.0, tail=TRACE + error) for rank in range(many)]
    cause = {"rank": 0, "summary": "", "exit_code": 1, "traceback": "", "victims": []}
    return diagnose(seen(ranks=ranks, cause=cause, more=[attempt(1, 2), *more]))


def test_a_world_that_shrank_is_named_with_the_number_that_the_checkpoint_needs() -> None:
    verdict = failed_again(SHARDS, [TRAINED, LOST, attempt(2, 1), attempt(3, 1)]).verdict
    assert (verdict.code, verdict.rank) == ("world-size-changed", 0)
    assert "the world size changed from 2 to 1 (elastic nodes: node 1 lost)" in verdict.summary
    assert "optimizer shards cannot be rearranged" in verdict.summary
    assert "attempt 1 trained with 2 ranks, attempt 3 began with 1 rank" in verdict.evidence
    assert verdict.fix.startswith("nodes: 2 keeps the number")


def test_grown_world_that_lacks_shard_of_new_rank_is_named() -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/optim_rank2.pt'"
    more = [TRAINED, LOST, attempt(2, 3)]
    verdict = failed_again(error, more, many=3).verdict
    assert (verdict.code, "from 2 to 3" in verdict.summary) == ("world-size-changed", True)


def test_a_number_of_nodes_that_the_user_changed_is_undone_by_resume() -> None:
    verdict = failed_again(SHARDS, [TRAINED, RESUMED, attempt(2, 1)]).verdict
    assert "(it was resumed with nodes: 1)" in verdict.summary
    assert verdict.fix.startswith("windlass resume r-1 --nodes 2")


def test_an_error_that_does_not_name_ranks_may_have_another_cause() -> None:
    found = failed_again("ValueError: bad magic in header", [TRAINED, LOST, attempt(2, 1)])
    assert found.verdict.code == "exception"
    assert [other.code for other in found.others] == ["world-size-changed"]


@pytest.mark.parametrize(
    "more",
    [
        [TRAINED, attempt(2, 2)],  # the same size
        [LOST, attempt(2, 1)],  # nothing was trained before
        [TRAINED, LOST, attempt(2, 1), TRAINED, attempt(3, 1)],  # an attempt of that size was able to train
        [TRAINED, LOST, attempt(2, 1), TRAINED],
    ],
)
def test_the_number_of_ranks_is_not_blamed_without_need(more: list[tuple[str, dict[str, Any]]]) -> None:
    found = failed_again(SHARDS, more)
    assert "world-size-changed" not in [found.verdict.code, *(other.code for other in found.others)]
