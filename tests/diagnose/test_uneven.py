"""Uneven inputs are recognized behind mismatched collectives, from handwritten records."""

from __future__ import annotations

from typing import Any

from tests.diagnose.test_flights import call, flight, group, waits
from tests.diagnose.test_rules import IN_ALL_REDUCE, PEER_GONE, hang, seen

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import RankSeen
from windlass.diagnose.verdict import Verdict
from windlass.runs.phase import Phase

DIFFER = {
    0: flight(group(call(1), call(2), waits(3, "barrier", size=1))),
    1: flight(group(call(1), call(2), waits(3))),
}
"""Rank 0 has left a loop that rank 1 is still running."""


def hung(*tails: str, flights: dict[int, Any] = DIFFER) -> Verdict:
    kind, data = hang(*[IN_ALL_REDUCE] * len(tails))
    for rank in data["ranks"]:
        rank["flight"] = flights[rank["rank"]]
    ranks = [RankSeen(number, tail=tail, last_output_at=40.0) for number, tail in enumerate(tails)]
    return diagnose(seen(Phase.TRAINING, ranks=ranks, more=[(kind, data)])).verdict


def test_ranks_with_different_numbers_of_batches_have_uneven_inputs() -> None:
    verdict = hung("step 10/10 loss 0.1\n", "step 10/11 loss 0.1\n")
    assert verdict.code == "uneven-inputs"
    assert "10 on rank 0, 11 on rank 1" in verdict.summary
    assert "rank 1 has printed step 10 of 11" in verdict.evidence
    assert "flight recorder: rank 0 called barrier [1] Float as #3 of the default process group" in verdict.evidence
    assert "drop_last=True" in verdict.fix
    assert "model.join()" in verdict.fix
    assert "same shape" not in verdict.fix


def test_a_rank_that_has_finished_while_a_silent_one_repeats_its_calls_has_fewer_batches() -> None:
    verdict = hung("step 10/10 loss 0.1\n", "")
    assert (verdict.code, "rank 0 has finished its 10 batches" in verdict.summary) == ("uneven-inputs", True)


def test_uneven_inputs_are_one_of_two_explanations_without_step_counts() -> None:
    for tails in (
        ("", ""),
        ("step 3/10 loss 0.1\n", "step 3/10 loss 0.1\n"),
        ("step 9/9 loss 1\n", "step 9/9 loss 1\n"),
    ):
        verdict = hung(*tails)
        assert (verdict.code, "join()" in verdict.fix, "same shape" in verdict.fix) == (
            "collective-mismatch",
            True,
            True,
        )


def test_other_calls_at_the_end_of_equal_loops_are_a_mismatch() -> None:
    ends = {0: flight(group(call(1), waits(2, "barrier"))), 1: flight(group(call(1), waits(2, "all_gather")))}
    verdict = hung("step 1/1 loss 1\n", "", flights=ends)
    assert (verdict.code, "join()" in verdict.fix) == ("collective-mismatch", False)


def test_uneven_inputs_are_told_where_gloo_fails_at_their_sizes_too() -> None:
    tail = PEER_GONE.replace("Connection", "op.preamble.length <= op.nbytes. 16 vs 4 Connection")
    ranks = [RankSeen(n, exit_code=1, ended_at=103.0, tail=f"step 10/{10 + n} loss 1\n{tail}") for n in (0, 1)]
    cause = {"rank": 0, "summary": "", "exit_code": 1, "traceback": "", "victims": []}
    assert diagnose(seen(ranks=ranks, cause=cause)).verdict.code == "uneven-inputs"


def test_a_collective_after_the_last_step_that_one_rank_skips_is_no_matter_of_batches() -> None:
    ranks = [
        RankSeen(0, exit_code=1, ended_at=104.0, tail="step 5/5 loss 1\n" + PEER_GONE),
        RankSeen(1, exit_code=0, ended_at=103.0, tail="step 5/5 loss 1\n"),
    ]
    cause = {"rank": 0, "summary": "", "exit_code": 1, "traceback": "", "victims": []}
    verdict = diagnose(seen(ranks=ranks, cause=cause)).verdict
    assert verdict.code == "rank-left-early"
    assert "rank 0 had finished 5 of 5 steps" in verdict.evidence
    assert "if rank == 0" in verdict.fix
