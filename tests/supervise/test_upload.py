"""A supervisor uploads the outputs between the last attempt and the end of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.clock import START
from tests.supervise.fakes import FakeAttempt, FakeRun, ends_with

from windlass.errors import EngineError
from windlass.runs.events import entry_of
from windlass.runs.ledger import fold_ledger
from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.runs.time_accounting import Spent
from windlass.supervise.adoption import MAX_CRASHES, settle
from windlass.supervise.backend import Intent, TargetUnavailable
from windlass.supervise.transfers import TransferRefused

REFUSED = EngineError("s3://bucket/runs/r-1/: access denied", "check the credentials")


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    """Creates a run of one rank, whose outputs are uploaded."""
    run = make_run()
    run.backend.uploads_outputs = True
    return run


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_a_run_ends_as_its_ranks_did_once_its_outputs_are_uploaded(run: FakeRun, code: int, phase: Phase) -> None:
    run.backend.uploads = [False] * 4
    status = run.run(ends_with(code))
    assert (status.phase, status.exit_code, status.ending) == (phase, code, None)
    assert [kind for kind in run.kinds() if kind in ("cause", "ending", "end")] == [
        *["cause"] * (code > 0),
        "ending",
        "end",
    ]
    spent = fold_ledger(run.store.events("r-1"), run.clock.now).seconds
    assert spent[Spent.UPLOADING] == pytest.approx(2.0)
    assert status.attempts[-1].ended_at == pytest.approx(run.events("ending")[0].time)
    assert run.backend.cleaned_up == [phase]


def test_a_run_whose_outputs_cannot_be_uploaded_fails_and_is_resumed_by_their_upload_alone(run: FakeRun) -> None:
    run.backend.uploads = [REFUSED]
    status = run.run(ends_with(0))
    assert (status.phase, status.exit_code) == (Phase.FAILED, 0)
    assert status.cause is not None
    assert status.cause.summary == (
        "the outputs could not be uploaded: s3://bucket/runs/r-1/: access denied (check the credentials)"
    )
    run.writer.append(entry_of("resume", {"reason": "asked", "restarts": 0}), at=run.clock.now)
    assert run.status.phase is Phase.UPLOADING
    status = run.run()
    assert (status.phase, status.cause) == (Phase.SUCCEEDED, None)
    assert len(run.backend.attempts) == 1


def test_a_resume_that_asks_for_more_trains_on(run: FakeRun) -> None:
    run.backend.uploads = [REFUSED]
    run.run(ends_with(0))
    run.writer.append(entry_of("resume", {"reason": "asked", "restarts": 0, "from": "step-7"}), at=run.clock.now)
    assert run.run().phase is Phase.SUCCEEDED
    assert len(run.backend.attempts) == 2


def test_a_failed_run_keeps_its_root_cause_where_the_upload_fails_too(run: FakeRun) -> None:
    run.backend.uploads = [REFUSED]
    status = run.run(ends_with(3))
    assert (status.phase, status.exit_code) == (Phase.FAILED, 3)
    assert status.cause is not None
    assert "upload" not in status.cause.summary
    assert any("could not be uploaded" in one["message"] for one in run.data("warning"))


def test_a_command_leaves_the_upload_to_a_supervisor(run: FakeRun) -> None:
    run.begin()
    run.backend.script = ends_with(0)
    assert not settle(run.supervisor())
    assert run.status.phase is Phase.UPLOADING
    assert not settle(run.supervisor())
    assert run.run().phase is Phase.SUCCEEDED
    assert run.kinds("ending") == ["ending"]


def test_supervisors_that_crash_again_and_again_end_the_upload(run: FakeRun) -> None:
    run.begin()
    run.backend.script = ends_with(0)
    settle(run.supervisor())
    for _ in range(MAX_CRASHES):
        run.writer.append(entry_of("adopted", {"crash": "KeyError: 'x'"}), at=START)
    assert settle(run.supervisor())
    assert run.status.phase is Phase.FAILED


def test_a_machine_that_shuts_down_leaves_the_upload_to_the_next_supervisor(run: FakeRun) -> None:
    run.backend.script = ends_with(0)
    run.backend.uploads = [False] * 1000
    supervisor = run.supervisor()
    run.clock.at(5.0, lambda: setattr(supervisor, "terminated", True))
    supervisor.run()
    assert (supervisor.detached, run.status.phase) == (True, Phase.UPLOADING)
    run.backend.uploads = []
    assert run.run().phase is Phase.SUCCEEDED


@pytest.mark.parametrize(("now", "phase"), [(False, Phase.SUCCEEDED), (True, Phase.STOPPED)])
def test_stop_now_alone_ends_an_upload(run: FakeRun, now: bool, phase: Phase) -> None:
    run.backend.uploads = [False] * 20
    run.clock.at(5.0, lambda: write_stop_request(run.dir, StopRequest(now=now)))
    status = run.run(ends_with(0))
    assert status.phase is phase
    assert bool(run.backend.uploads) is now
    assert [one["message"] for one in run.data("warning")] == (
        ["the outputs could not be uploaded: `stop --now` ended the upload"] if now else []
    )


def test_a_stopped_run_uploads_what_it_has(run: FakeRun) -> None:
    run.backend.script = lambda attempt: attempt.nodes[0].begin()
    run.clock.at(5.0, lambda: write_stop_request(run.dir, StopRequest()))
    run.backend.uploads = [False] * 4
    assert run.run().phase is Phase.STOPPED
    assert run.backend.uploads == []
    assert run.kinds("stop", "ending", "end") == ["stop", "ending", "end"]


def test_a_run_without_an_attempt_has_nothing_to_upload(run: FakeRun) -> None:
    write_stop_request(run.dir, StopRequest())
    assert run.run().phase is Phase.STOPPED
    assert run.kinds("ending") == []


def test_an_upload_waits_for_a_target_that_does_not_answer(run: FakeRun) -> None:
    away = TargetUnavailable("ClusterUnreachable", "the cluster does not answer")
    run.backend.uploads = [False, away, away, False]
    assert run.run(ends_with(0)).phase is Phase.SUCCEEDED
    assert run.backend.uploads == []
    assert [one.get("type") for one in run.data("condition")] == ["ClusterUnreachable", None]


def test_only_the_supervisor_that_holds_the_run_uploads(run: FakeRun) -> None:
    run.begin()
    run.backend.script = ends_with(0)
    settle(run.supervisor())
    run.backend.holds = [False] * 3
    run.backend.uploads = [False, False]
    assert run.run().phase is Phase.SUCCEEDED
    assert (run.backend.holds, run.backend.uploads) == ([], [])


# -- asked beforehand


NOWHERE = TransferRefused("there is no bucket nowhere", "create it")


def test_a_run_whose_store_refuses_the_outputs_ends_while_it_trains(run: FakeRun) -> None:
    run.backend.checks = [None, None, NOWHERE]
    status = run.run(lambda attempt: attempt.nodes[0].begin())
    assert (status.phase, status.exit_code, run.ends) == (Phase.FAILED, 1, [("failed", "upload")])
    assert status.cause is not None
    assert status.cause.summary == "the outputs cannot be uploaded: there is no bucket nowhere (create it)"
    assert run.kinds("ending") == [], "what the store refuses is not sent to it"
    assert [intent for _, intent in run.node.sent] == [Intent.STOP]


def test_run_with_refused_outputs_is_not_restarted_and_resume_continues_training(
    make_run: Callable[..., FakeRun],
) -> None:
    run = make_run(max_restarts=3)
    run.backend.checks = [NOWHERE]
    assert run.run(lambda attempt: attempt.nodes[0].begin()).phase is Phase.FAILED
    assert len(run.backend.attempts) == 1
    run.writer.append(entry_of("resume", {"reason": "asked", "restarts": 3}), at=run.clock.now)
    assert run.run(ends_with(0)).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("code", [0, 3])
def test_ranks_that_have_ended_by_then_decide_how_the_run_ends(run: FakeRun, code: int) -> None:
    run.backend.checks = [NOWHERE]
    status = run.run(ends_with(code))
    assert (status.phase, status.exit_code) == (Phase.FAILED if code else Phase.SUCCEEDED, code)
    assert len(run.backend.checks) == 1


def test_ranks_that_exit_with_zero_because_of_refusal_have_not_succeeded(run: FakeRun) -> None:
    run.backend.checks = [NOWHERE]

    def obeys(attempt: FakeAttempt) -> None:
        attempt.nodes[0].begin()
        attempt.nodes[0].obeys[Intent.STOP] = lambda: attempt.nodes[0].end(0)

    status = run.run(obeys)
    assert (status.phase, run.ends) == (Phase.FAILED, [("failed", "upload")])
    assert len(run.kinds("cause")) == 1


def test_a_rank_that_failed_by_itself_meanwhile_is_the_cause(run: FakeRun) -> None:
    run.backend.checks = [NOWHERE]

    def fails(attempt: FakeAttempt) -> None:
        attempt.nodes[0].begin()
        attempt.nodes[0].obeys[Intent.STOP] = lambda: attempt.nodes[0].end(3, marked=True)

    assert run.run(fails).exit_code == 3


def test_a_supervisor_that_finds_the_ranks_ended_knows_why(make_run: Callable[..., FakeRun]) -> None:
    run = make_run(max_restarts=3, restart_on=["failure", "preemption"])
    run.begin()
    run.writer.append(entry_of("cause", {"summary": "the outputs cannot be uploaded: no bucket"}), at=START)
    run.writer.append(entry_of("shutdown", {"reason": "upload"}), at=START)

    def ended(attempt: FakeAttempt) -> None:
        node = attempt.nodes[0]
        node.begin()
        node.report("notice", source="sigterm", action="terminate", time="2026-01-01T00:00:00Z")
        node.end(-15, ended_by_us=True)

    status = run.run(ended)
    assert (status.phase, run.ends) == (Phase.FAILED, [("failed", "upload")])
    assert status.cause is not None
    assert status.cause.summary.endswith("no bucket")


def test_preemption_after_refusal_does_not_restart_run(make_run: Callable[..., FakeRun]) -> None:
    run = make_run(max_restarts=3, restart_on=["preemption"])
    run.backend.checks = [None, NOWHERE]

    def preempted(attempt: FakeAttempt) -> None:
        node = attempt.nodes[0]
        node.begin()
        node.report("notice", source="sigterm", action="terminate", time="2026-01-01T00:00:00Z")
        node.obeys[Intent.STOP] = lambda: run.clock.at(5.0, lambda: node.end(-15, ended_by_us=True))

    assert (run.run(preempted).phase, run.ends) == (Phase.FAILED, [("failed", "upload")])


def test_stop_takes_precedence_over_refusal_of_store(run: FakeRun) -> None:
    def stops(attempt: FakeAttempt) -> None:
        node = attempt.nodes[0]
        node.begin()
        node.obeys[Intent.STOP] = lambda: run.clock.at(5.0, lambda: node.end(-15, ended_by_us=True))
        write_stop_request(run.dir, StopRequest())

    run.backend.checks = [NOWHERE]
    assert run.run(stops).phase is Phase.STOPPED
    assert (run.kinds("cause"), len(run.backend.checks)) == ([], 1)
