"""Ranks whose scripts have ended but whose processes have not are explained, from handwritten stacks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.test_rules import IN_ALL_REDUCE, IN_LOADING, TRACE, hang, seen, stack

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import RankSeen
from windlass.diagnose.verdict import Diagnosis
from windlass.runs.phase import Phase

RANK, THREADING = "/opt/windlass/worker/rank.py", "/usr/lib/python3.11/threading.py"
FINISH = (RANK, 371, "_finish"), (RANK, 98, "end")
MAIN = stack((THREADING, 1590, "_shutdown"), *FINISH).replace("Current thread 0x01", "Thread 0x01")
UPLOADS = stack(("/job/train.py", 9, "upload"), (THREADING, 975, "run")).replace("Current thread 0x01", "Thread 0x02")
PREFETCHES = stack(("/job/data.py", 3, "prefetch")).replace("Current thread 0x01", "Thread 0x03")
NAMES = "thread 0x01: MainThread\nthread 0x02: Thread-1 (upload)\nthread 0x03 (daemon): prefetch\n"


def left(*stacks: str, tails: tuple[str, ...] = (), codes: dict[int, int] | None = None, **fields: Any) -> Diagnosis:
    many = [*tails, *[""] * (len(stacks) - len(tails))]
    ranks = [RankSeen(number, tail=tail, last_output_at=40.0) for number, tail in enumerate(many)]
    ranks += [RankSeen(rank, exit_code=code, ended_at=45.0) for rank, code in (codes or {}).items()]
    return diagnose(seen(Phase.TRAINING, ranks=ranks, more=[hang(*stacks, **fields)]))


@pytest.mark.parametrize("others", [UPLOADS + PREFETCHES, PREFETCHES + UPLOADS])
def test_the_thread_that_keeps_a_rank_is_named_and_no_daemon(others: str) -> None:
    verdict = left(others + MAIN + NAMES, tails=("step 5/5 loss 0.2",), codes={1: 0}).verdict
    assert (verdict.code, verdict.rank) == ("teardown-hang", 0)
    assert verdict.summary == "finished 5 of 5; rank 0 is kept by thread Thread-1 (upload) at train.py:9 in upload"


def test_where_no_name_was_written_no_thread_is_blamed() -> None:
    summary = left(MAIN).verdict.summary
    assert summary == "the script has ended; the script is kept by a thread"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (
            (("/venv/site-packages/wandb/run.py", 7, "join"), ("/venv/site-packages/wandb/run.py", 2, "_atexit")),
            "exit handler _atexit at wandb/run.py:7 in join",
        ),
        ((("/job/train.py", 3, "flush"),), "exit handler flush at train.py:3 in flush"),
        (
            (
                ("/usr/lib/python3.11/multiprocessing/popen_fork.py", 40, "wait"),
                ("/usr/lib/python3.11/multiprocessing/util.py", 360, "_exit_function"),
            ),
            "a child process that it has started (multiprocessing)",
        ),
        ((), "its exit handlers"),
        (((RANK, 144, "write_stacks"),), "its exit handlers"),  # C handlers, interrupted by the request for stacks
    ],
)
def test_an_exit_handler_that_does_not_end_is_named(frames: tuple[tuple[str, int, str], ...], said: str) -> None:
    verdict = left(stack(*frames, *FINISH)).verdict
    assert (verdict.code, verdict.summary.partition(" is kept by ")[2]) == ("teardown-hang", said)


def test_a_rank_that_still_needs_one_whose_script_has_ended_was_left_by_it() -> None:
    verdict = left(UPLOADS + MAIN + NAMES, IN_ALL_REDUCE).verdict
    assert (verdict.code, verdict.rank) == ("rank-left-early", 0)
    assert verdict.summary == "rank 0 has ended its script while the others wait in all_reduce"
    assert "rank 0 is kept by thread Thread-1 (upload) at train.py:9 in upload" in verdict.evidence


def test_a_script_that_raised_an_exception_has_not_ended_its_work() -> None:
    assert left(stack(*FINISH), tails=(f"{TRACE}ValueError: bad label\n",)).verdict.code != "teardown-hang"


def test_a_script_that_runs_is_not_said_to_have_ended() -> None:
    assert left(UPLOADS + IN_LOADING + NAMES).verdict.code == "hang"
    after_end = stack(("/job/rank.py", 3, "finish"), ("/job/rank.py", 9, "main"))
    assert left(after_end).verdict.code == "hang"
