"""`status` and `why` name the same cause, because both start from the recorded root cause."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.statuses import cause_of

from windlass.diagnose.diagnose import diagnose
from windlass.engines.fake import FakeEngine, FakeRank, FakeTarget, plan
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job

PEER_GONE: Final = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


def raises(rank: FakeRank) -> None:
    raise ValueError("loss is nan at step 3")


def dies(number: int) -> Callable[[FakeRank], None]:
    return lambda rank: rank.die(number)


def blames_its_peer(rank: FakeRank) -> int:
    rank.print(f"Traceback (most recent call last):\n  File 'train.py', line 3, in step\n{PEER_GONE}")
    return 1


def misses_a_module(rank: FakeRank) -> None:
    raise ModuleNotFoundError("No module named 'wandb'")


def leaves(rank: FakeRank) -> int:
    return 7


def waits(rank: FakeRank) -> None:
    rank.sleep(100)


PLAYS: dict[str, tuple[int, list[Callable[[FakeRank], object]]]] = {
    "an exception": (1, [waits, raises]),
    "an exception, and a peer that is ended": (0, [raises, waits, waits]),
    "a missing module in all ranks": (-1, [misses_a_module, misses_a_module]),
    "a killed rank": (1, [waits, dies(signal.SIGKILL)]),
    "a segmentation fault": (0, [dies(signal.SIGSEGV), waits]),
    "an exit without output": (1, [waits, leaves]),
    "an exception, and a victim with a traceback": (1, [blames_its_peer, raises]),
    "a rank that is killed, and a victim with a traceback": (1, [blames_its_peer, dies(signal.SIGKILL)]),
    "only victims": (-1, [blames_its_peer, blames_its_peer]),
}
"""For each case, the rank that is the root cause (−1: any), and the behaviour of each rank."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


@pytest.mark.parametrize("case", PLAYS)
def test_status_and_why_name_the_same_rank(store: Store, case: str) -> None:
    expected, plays = PLAYS[case]
    has_cause = threading.Event()  # a rank that fails as a consequence fails after its cause

    def play(rank: FakeRank) -> int | None:
        is_victim = plays[rank.rank] is blames_its_peer
        if is_victim and not all(one is blames_its_peer for one in plays):
            has_cause.wait(100)
            for thread in threading.enumerate():
                if thread.name in {f"fake rank {n}" for n, one in enumerate(plays) if one is not blames_its_peer}:
                    thread.join(100)
        try:
            found = plays[rank.rank](rank)
        finally:
            if not is_victim:
                has_cause.set()
        return found if isinstance(found, int) else None

    engine = FakeEngine(store, play)
    job = Job(name="case", run="train.py", nodes=len(plays))
    engine.submit(plan(job, FakeTarget(), str(store.home), "case-1"))
    status = engine.wait("case-1", 100)
    assert (status.phase, status.cause is not None) == (Phase.FAILED, True)
    cause = cause_of(status)
    verdict = diagnose(engine.observe("case-1")).verdict
    assert verdict.rank in (cause.rank, None), (verdict, cause)
    assert status.exit_code == cause.exit_code
    assert expected in (cause.rank, -1)
