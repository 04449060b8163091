"""A store is checked before it receives the outputs of a run, and only permanent errors count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.clock import START
from tests.supervise.fakes import FakeRun
from tests.supervise.test_checkpoint_uploads import Scripted

from windlass.errors import EngineError
from windlass.runs.events import CheckpointChanged, entry_of
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import CHECK_SECONDS, Line, OutputsCheck, TransferRefused

REFUSED = TransferRefused("there is no bucket nowhere", "create it")
AWAY = TargetUnavailable("ClusterUnreachable", "no answer")


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    """Creates a run that trains."""
    run = make_run()
    run.begin()
    return run


def recorder(run: FakeRun) -> Recorder:
    return Recorder(run.writer, clock=run.clock)


def test_refusal_of_store_is_raised(run: FakeRun) -> None:
    transfer, record = Scripted(), recorder(run)
    transfer.answers = [[], AWAY, REFUSED]
    check = OutputsCheck(transfer)
    for _ in range(2):
        check.turn(record, run.clock)
    with pytest.raises(TransferRefused):
        check.turn(record, run.clock)


@pytest.mark.parametrize("answer", [[{"digest": ""}], EngineError("its pods have failed 7 times")])
def test_finished_check_is_removed_and_not_repeated(run: FakeRun, answer: list[Line] | EngineError) -> None:
    transfer, record = Scripted(), recorder(run)
    transfer.answers = [answer, REFUSED]
    check = OutputsCheck(transfer)
    for _ in range(3):
        check.turn(record, run.clock)
    assert (run.kinds("warning"), transfer.has_ended, transfer.answers) == ([], True, [REFUSED])


def late(run: FakeRun) -> None:
    run.clock.now += CHECK_SECONDS


def has_saved(run: FakeRun) -> None:
    run.writer.append(CheckpointChanged("saved", step=5, name="step-5"), at=START)


def is_second(run: FakeRun) -> None:
    run.writer.append(entry_of("attempt-end", {"phase": "failed", "reason": "failure", "restarts_left": 1}), at=START)
    run.writer.append(entry_of("attempt", {"number": 2, "world_size": 1, "nodes": [[0]], "members": [0]}), at=START)


@pytest.mark.parametrize("change", [late, has_saved, is_second])
def test_store_is_not_checked_after_training(run: FakeRun, change: Callable[[FakeRun], None]) -> None:
    change(run)
    transfer, record = Scripted(), recorder(run)
    transfer.answers = [REFUSED]
    OutputsCheck(transfer).turn(record, run.clock)
    assert (transfer.answers, transfer.has_ended) == ([REFUSED], True)


def test_store_is_not_checked_without_outputs(run: FakeRun) -> None:
    check = OutputsCheck(None)
    check.turn(recorder(run), run.clock)
    check.end()
