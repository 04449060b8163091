"""A supervisor fetches outputs that nodes keep, between the last attempt and the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.supervise.fakes import FakeRun, ends_with

from windlass.errors import EngineError
from windlass.runs.ledger import fold_ledger
from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.runs.time_accounting import Spent
from windlass.supervise.adoption import settle


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    """Creates a run of one rank, whose node keeps outputs."""
    run = make_run()
    run.backend.with_outputs = (0,)
    return run


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_a_run_ends_as_its_ranks_did_once_its_outputs_are_collected(run: FakeRun, code: int, phase: Phase) -> None:
    run.backend.collections = [False] * 4
    status = run.run(ends_with(code))
    assert (status.phase, status.exit_code, status.ending) == (phase, code, None)
    assert run.kinds("ending", "end") == ["ending", "end"]
    assert run.data("ending")[0]["nodes"] == [0]
    assert fold_ledger(run.store.events("r-1"), run.clock.now).seconds[Spent.UPLOADING] == pytest.approx(2.0)
    assert run.backend.collected == [(0,)] * 5


def test_a_run_whose_nodes_keep_nothing_ends_at_once(run: FakeRun) -> None:
    run.backend.with_outputs = ()
    run.run(ends_with(0))
    assert (run.kinds("ending", "end"), run.backend.collected) == (["end"], [])


def test_failed_collection_does_not_change_end_of_run(run: FakeRun) -> None:
    run.backend.collections = [EngineError("no more files")]
    status = run.run(ends_with(0))
    assert (status.phase, status.exit_code, status.cause) == (Phase.SUCCEEDED, 0, None)
    assert run.data("warning")[-1]["message"] == "the outputs could not be fetched: no more files"


def test_the_next_supervisor_goes_on_with_the_same_nodes(run: FakeRun) -> None:
    run.begin()
    run.backend.script = ends_with(0)
    assert not settle(run.supervisor())
    assert run.status.phase is Phase.UPLOADING
    run.backend.with_outputs = ()  # the node's reports are lost with the pod of the first supervisor
    assert run.run().phase is Phase.SUCCEEDED
    assert run.backend.collected == [(0,)]


def test_stop_now_ends_the_collection_and_the_run_has_succeeded(run: FakeRun) -> None:
    run.backend.script = ends_with(0)
    run.backend.collections = [False] * 1000
    run.clock.at(5.0, lambda: write_stop_request(run.store.run_dir("r-1"), StopRequest(now=True)))
    status = run.run()
    assert (status.phase, status.supervision.stop_requested) == (Phase.SUCCEEDED, True)
    assert "`stop --now` ended the collection" in run.data("warning")[-1]["message"]
