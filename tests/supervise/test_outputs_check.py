"""When a store is asked whether it takes the outputs of a run, and what counts of its answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.supervise.fakes import FakeRun
from tests.supervise.test_checkpoint_uploads import Scripted

from windlass.errors import EngineError
from windlass.runs.events import CheckpointChanged
from windlass.supervise.backend import HeldElsewhere, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import CHECK_SECONDS, OutputsCheck, TransferRefused

REFUSED = TransferRefused("there is no bucket nowhere", "create it")
AWAY = TargetUnavailable("ClusterUnreachable", "no answer")


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    """A run that trains."""
    run = make_run()
    run.begin()
    return run


@pytest.mark.parametrize("error", [REFUSED, HeldElsewhere("by another")])
def test_a_refusal_is_passed_on(run: FakeRun, error: EngineError) -> None:
    transfer = Scripted()
    transfer.answers = [[], AWAY, error]
    check = OutputsCheck(transfer)
    for _ in range(2):
        check.turn(Recorder(run.writer), run.clock)
    with pytest.raises(type(error)):
        check.turn(Recorder(run.writer), run.clock)


def test_a_job_that_gives_up_decides_nothing_and_is_not_asked_again(run: FakeRun) -> None:
    transfer = Scripted()
    transfer.answers = [EngineError("its pods have failed 7 times"), REFUSED]
    check = OutputsCheck(transfer)
    for _ in range(3):
        check.turn(Recorder(run.writer), run.clock)
    assert (run.kinds("warning"), transfer.has_ended) == ([], True)


def test_a_store_that_takes_too_long_to_answer_is_not_asked_any_more(run: FakeRun) -> None:
    transfer, record = Scripted(), Recorder(run.writer)
    check = OutputsCheck(transfer)
    check.turn(record, run.clock)
    run.clock.wait(CHECK_SECONDS)
    transfer.answers = [REFUSED]
    check.turn(record, run.clock)
    assert (transfer.answers, transfer.has_ended) == ([REFUSED], True)


def test_no_store_is_asked_once_there_is_a_checkpoint(run: FakeRun) -> None:
    transfer, record = Scripted(), Recorder(run.writer)
    transfer.answers = [REFUSED]
    record.note(CheckpointChanged("saved", step=5, name="step-5"))
    OutputsCheck(transfer).turn(record, run.clock)
    assert transfer.answers == [REFUSED]


def test_a_run_without_outputs_asks_none(run: FakeRun) -> None:
    check = OutputsCheck(None)
    check.turn(Recorder(run.writer), run.clock)
    check.end()
