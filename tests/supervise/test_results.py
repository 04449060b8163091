"""Only `stop --now` interrupts a node whose ranks have ended while it copies results to the output."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.clock import START
from tests.supervise.fakes import FakeAttempt, FakeRun

from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.supervise.backend import Intent

MakeRun = Callable[..., FakeRun]
LONG_SECONDS = 3600.0


def copying(run: FakeRun, code: int = 0, seconds: float = LONG_SECONDS) -> Callable[[FakeAttempt], None]:
    """Returns a script whose ranks end with this code after a second, and whose node then copies files for
    `seconds`.
    """

    def script(attempt: FakeAttempt) -> None:
        [node] = attempt.nodes
        node.begin()
        node.obeys = {Intent.STOP_NOW: node.die, Intent.KILL: node.die}

        def copy() -> None:
            node.report("rank", rank=0, exit_code=code)
            if code:
                node.report("failing", rank=0, waited=False)
            node.report("collecting", files=1, bytes=10)

        run.clock.at(1, copy)
        run.clock.at(1 + seconds, lambda: node.end(code))

    return script


def test_a_copy_of_results_is_neither_a_hang_nor_late_nor_ended_with_the_grace_period(make_run: MakeRun) -> None:
    run = make_run(hang_seconds=5.0, timeout_seconds=60.0, grace_seconds=1.0, restart_on=["hang"], max_restarts=1)
    assert run.run(copying(run)).phase is Phase.SUCCEEDED
    assert run.kinds("hang", "collecting", "end") == ["collecting", "end"]


def test_the_copy_of_a_failed_node_is_not_cut_short(make_run: MakeRun) -> None:
    run = make_run()
    status = run.run(copying(run, code=3))
    assert (status.phase, status.exit_code) == (Phase.FAILED, 3)
    assert run.node.intents == [Intent.STOP]


def test_stop_waits_for_the_copy_and_stop_now_ends_it(make_run: MakeRun) -> None:
    run = make_run(grace_seconds=1.0)
    run.clock.at(5, lambda: write_stop_request(run.dir, StopRequest()))
    run.clock.at(600, lambda: write_stop_request(run.dir, StopRequest(now=True)))
    assert run.run(copying(run)).phase is Phase.STOPPED
    assert 600 <= run.clock.now - START < 610
    [warning] = run.status.warnings
    assert (warning.code, warning.message) == (
        "results-not-collected",
        "node 0 was lost while it copied files to the output",
    )
