"""Between attempts, a supervisor handles crashes, detaching, an unavailable target and the end of the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.clock import START
from tests.supervise.fakes import FakeAttempt, FakeRun

from windlass.errors import EngineError, StoreFull
from windlass.plan.plan import Plan
from windlass.runs import crash
from windlass.runs.events import RootCause, entry_of
from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.runs.store import RunWriter
from windlass.supervise.adoption import MAX_CRASHES, pause_seconds, settle
from windlass.supervise.availability import TROUBLE_SECONDS
from windlass.supervise.backend import Backend, HeldElsewhere, NotAdmitted, TargetUnavailable
from windlass.supervise.process import main
from windlass.supervise.supervisor import FULL_DISK_PATIENCE_SECONDS
from windlass.supervise.transfers import TransferInterrupted

GONE = TargetUnavailable("LoginFailed", "cannot log in to the cluster: token expired", "log in again")
MakeRun = Callable[..., FakeRun]


def succeed(attempt: FakeAttempt) -> None:
    for node in attempt.nodes:
        node.begin()
        node.end(0)


@pytest.fixture
def pods(make_run: MakeRun) -> FakeRun:
    """Creates a run whose nodes outlive the supervisor's machine."""
    return make_run(outlives=True)


# -- admission --------------------------------------------------------------------------------------------------------


def test_a_run_that_is_never_admitted_ends_as_stopped_with_the_reason(make_run: MakeRun) -> None:
    run = make_run(max_restarts=3)
    run.backend.admissions = [False, NotAdmitted("a-1 ended as failed")]
    assert run.run().phase is Phase.STOPPED
    assert run.status.attempts == ()
    assert run.status.cause == RootCause("a-1 ended as failed")
    assert run.data("end") == [{"phase": "stopped", "exit_code": None, "reason": "not-admitted"}]


def test_a_run_that_waits_to_be_admitted_is_stopped_at_once(make_run: MakeRun) -> None:
    run = make_run()
    run.backend.admissions = [False] * 1000
    run.clock.at(5, lambda: write_stop_request(run.dir, StopRequest()))
    assert run.run().phase is Phase.STOPPED
    assert run.clock.now < START + 7


# -- crashes ----------------------------------------------------------------------------------------------------------


def crashes(writer: RunWriter, count: int, at: float = START) -> None:
    for _ in range(count):
        writer.append(entry_of("adopted", {"crash": "KeyError: 'x'"}), at=at)


def test_six_adoptions_of_one_attempt_lose_no_run(pods: FakeRun) -> None:
    pods.begin()
    for _ in range(6):
        pods.writer.append(entry_of("adopted", {}))
    assert not settle(pods.supervisor())
    assert not pods.status.phase.is_terminal


@pytest.mark.parametrize("outlives", [True, False])
def test_supervisors_that_crashed_again_and_again_lose_a_run_of_which_nothing_lives(
    make_run: MakeRun, outlives: bool
) -> None:
    run = make_run(outlives=outlives, max_restarts=3, restart_on=["node-loss"])
    run.begin()
    run.backend.script = lambda attempt: attempt.nodes[0].die()
    crashes(run.writer, MAX_CRASHES - 1)
    assert not settle(run.supervisor())
    crashes(run.writer, MAX_CRASHES)
    assert settle(run.supervisor())
    assert run.status.phase is Phase.LOST


def test_run_with_live_pods_is_not_lost(pods: FakeRun) -> None:
    pods.begin()
    crashes(pods.writer, 2 * MAX_CRASHES)
    pods.backend.alive = True
    assert not settle(pods.supervisor())
    assert not pods.status.phase.is_terminal


def test_crashes_count_only_without_progress_and_only_for_a_while(pods: FakeRun) -> None:
    pods.begin()
    crashes(pods.writer, MAX_CRASHES - 1)
    pods.writer.append(entry_of("progress", {"step": 7}))
    crashes(pods.writer, MAX_CRASHES - 1)
    assert not settle(pods.supervisor())
    pods.writer.append(entry_of("progress", {"step": 8}))
    crashes(pods.writer, MAX_CRASHES, at=5.0)
    assert not settle(pods.supervisor())


def test_the_log_of_a_supervisor_decides_nothing(pods: FakeRun) -> None:
    pods.begin()
    (pods.dir / "supervisor.log").write_text("ERROR:root:exec: process returned 1\nTraceback (most recent call last)\n")
    assert not settle(pods.supervisor())
    assert not pods.status.phase.is_terminal


def test_the_next_supervisor_waits_if_those_before_it_made_no_progress(pods: FakeRun) -> None:
    pods.begin()
    pods.writer.append(entry_of("adopted", {}), at=START)
    assert pause_seconds(pods.supervisor()) == 0
    for _ in range(4):
        pods.writer.append(entry_of("adopted", {}), at=START)
    assert 0 < pause_seconds(pods.supervisor()) <= 4
    pods.writer.append(entry_of("progress", {"step": 7}))
    assert pause_seconds(pods.supervisor()) == 0


def test_a_crash_marker_is_complete_or_on_a_full_disk_empty(tmp_path: Path) -> None:
    assert crash.read(tmp_path) is None
    crash.mark(tmp_path, KeyError("x"))
    found = crash.read(tmp_path)
    assert found is not None
    assert found.summary == "KeyError: 'x'"
    crash.move_away(tmp_path, 3)
    assert crash.read(tmp_path) is None
    assert "KeyError" in (tmp_path / "supervisor-3.crash").read_text()


@pytest.mark.parametrize(
    ("error", "is_crash"),
    [(KeyError("x"), True), (EngineError("the kubeconfig has no context"), False), (StoreFull("no space left"), False)],
)
def test_only_an_exception_that_is_no_error_of_windlass_is_a_crash(
    run: FakeRun, error: Exception, is_crash: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(_plan: Plan, _run_dir: Path) -> Backend:
        raise error

    argv = [str(run.store.home), "r-1", str(os.dup(run.writer.lock))]
    if is_crash:
        with pytest.raises(KeyError):
            main(argv, fails)
    else:
        assert main(argv, fails) == 1
        assert str(error) in capfd.readouterr().err
    assert (crash.read(run.dir) is not None) == is_crash


# -- detaching --------------------------------------------------------------------------------------------------------


def test_sigterm_leaves_a_run_whose_nodes_outlive_the_machine(pods: FakeRun) -> None:
    supervisor = pods.supervisor()
    pods.clock.at(1, lambda: setattr(supervisor, "terminated", True))
    pods.clock.at(3, lambda: pods.backend.attempts[0].nodes[0].end(0))
    supervisor.run()
    assert supervisor.detached
    assert pods.kinds("attempt", "notice", "attempt-end", "end") == ["attempt"]
    assert pods.backend.attempts[0].nodes[0].sent == []
    assert not pods.backend.attempts[0].is_closed
    assert pods.status.supervision.condition is not None
    assert "no supervisor is attached" in pods.status.supervision.condition.message
    pods.writer.append(entry_of("adopted", {}))
    assert pods.status.supervision.condition is None


def test_a_supervisor_that_lost_the_run_to_another_writes_nothing_more(run: FakeRun) -> None:
    run.clock.at(1, lambda: setattr(run.backend, "lost_to_another", True))
    run.clock.at(1, lambda: run.backend.attempts[0].nodes[0].end(0))
    supervisor = run.supervisor()
    supervisor.run()
    assert supervisor.detached
    assert run.kinds() == ["created", "attempt"]


def test_a_run_that_another_supervisor_holds_is_left_alone(run: FakeRun) -> None:
    run.backend.holds = [HeldElsewhere("the run is supervised by process 7 on there")]
    write_stop_request(run.dir, StopRequest())
    supervisor = run.supervisor()
    supervisor.run()
    assert supervisor.detached
    assert run.kinds() == ["created"]


def test_supervisor_waits_while_holder_is_unknown(run: FakeRun) -> None:
    run.backend.holds = [False, HeldElsewhere("it lives")]
    run.supervisor().run()
    assert run.kinds() == ["created"]
    assert run.backend.holds == []


# -- a target that cannot be used now ---------------------------------------------------------------------------------


def test_expired_login_is_waited_for_and_recorded_once(run: FakeRun) -> None:
    run.backend.starts = [GONE, GONE, GONE]
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert run.kinds("attempt", "condition", "end") == ["attempt", "condition", "condition", "end"]
    noted = run.data("condition")
    assert [one["type"] for one in noted] == ["LoginFailed", None]
    assert "token expired" in noted[0]["message"]
    assert noted[0]["fix"] == "log in again"
    assert run.clock.now - START == pytest.approx(1 + 2 + 4, abs=1), "with back-off"


def test_a_refusal_at_the_start_is_final(run: FakeRun) -> None:
    run.backend.starts = [EngineError("the cluster refused: pods is forbidden", "windlass check")]
    run.supervisor().run()
    assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 127)
    assert run.status.cause is not None
    assert run.status.cause.summary == "could not start: the cluster refused: pods is forbidden (windlass check)"


def test_wait_for_unavailable_target_ends_at_time_limit(make_run: MakeRun) -> None:
    run = make_run(timeout_seconds=300.0)
    run.backend.starts = [GONE] * 1000
    run.supervisor().run()
    assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 124)
    assert run.clock.now - START == pytest.approx(300, abs=1)


def test_a_stop_needs_no_target_before_anything_was_started(run: FakeRun) -> None:
    run.backend.holds = [GONE] * 5
    write_stop_request(run.dir, StopRequest())
    run.supervisor().run()
    assert run.status.phase is Phase.STOPPED


def test_an_attempt_that_was_recorded_and_never_started_is_started(run: FakeRun) -> None:
    """The supervisor was killed while it waited for the cluster, before any pod was created."""
    run.begin()
    run.backend.started.clear()
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert run.kinds("attempt") == ["attempt"]
    assert run.backend.started == {run.dir / "attempt-1"}


def test_an_attempt_that_was_started_and_never_recorded_is_adopted(run: FakeRun) -> None:
    """The supervisor was killed while a full disk blocked the record; its workers continue to train."""
    folder = run.dir / "attempt-1"
    folder.mkdir(parents=True)
    run.backend.started.add(folder)
    run.backend.starts = [EngineError("its workers hold their locks")]
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert run.kinds("attempt") == ["attempt"]


@pytest.mark.parametrize(("seconds", "noted"), [(TROUBLE_SECONDS / 2, []), (2 * TROUBLE_SECONDS, ["Away", None])])
def test_a_target_that_does_not_answer_is_noted_once_that_has_lasted(
    run: FakeRun, seconds: float, noted: list[str | None]
) -> None:
    run.clock.at(1, lambda: setattr(run.backend, "down", TargetUnavailable("Away", "no answer")))
    run.clock.at(1 + seconds, lambda: setattr(run.backend, "down", None))
    run.clock.at(60, lambda: run.backend.attempts[0].nodes[0].end(0))
    run.run(lambda attempt: attempt.nodes[0].begin())
    assert [one["type"] for one in run.data("condition")] == noted


# -- ends -------------------------------------------------------------------------------------------------------------


def test_the_end_is_recorded_before_the_target_is_cleaned_up(run: FakeRun) -> None:
    run.run(succeed)
    assert run.backend.cleaned_up == [Phase.SUCCEEDED]


def test_ranks_that_ended_in_time_while_no_supervisor_was_attached_have_succeeded(make_run: MakeRun) -> None:
    run = make_run(timeout_seconds=100.0)
    run.begin()
    run.clock.now = START + 50

    def script(attempt: FakeAttempt) -> None:
        succeed(attempt)
        run.clock.now = START + 500  # a supervisor is attached only now

    run.run(script)
    assert run.status.phase is Phase.SUCCEEDED


def test_pods_that_their_deadline_ended_are_a_timeout(make_run: MakeRun) -> None:
    run = make_run(timeout_seconds=1e6, max_restarts=3)

    def script(attempt: FakeAttempt) -> None:
        attempt.ended_by_target = "timeout"
        attempt.nodes[0].begin()
        attempt.nodes[0].end(-15)

    run.run(script)
    assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 124)
    assert run.ends == [("failed", "timeout")]


def test_pods_that_a_queue_took_back_are_preempted_however_their_ranks_died(make_run: MakeRun) -> None:
    run = make_run(max_restarts=1, restart_on=["preemption"])

    def script(attempt: FakeAttempt) -> None:
        succeed_or = [attempt.nodes[0].end, lambda code: attempt.nodes[0].end(0)]
        attempt.ended_by_target = "preemption" if len(run.backend.attempts) == 1 else None
        attempt.nodes[0].begin()
        succeed_or[len(run.backend.attempts) - 1](1)

    assert run.run(script).phase is Phase.SUCCEEDED
    assert run.ends == [("preempted", "preemption"), ("succeeded", None)]


def test_a_full_disk_delays_the_end_and_does_not_lose_it(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [False] * 100
    catch_up = RunWriter.catch_up

    def full(writer: RunWriter) -> None:
        if room and not room.pop():
            raise StoreFull("no space left")
        catch_up(writer)

    monkeypatch.setattr(RunWriter, "catch_up", full)
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert 50 < run.clock.now - START < FULL_DISK_PATIENCE_SECONDS


# -- data -------------------------------------------------------------------------------------------------------------


def test_an_attempt_begins_once_its_data_is_there(make_run: MakeRun) -> None:
    run = make_run()
    run.backend.stagings = [False] * 10
    assert run.run(succeed).phase is Phase.SUCCEEDED
    [attempt] = run.events("attempt")
    assert attempt.time >= START + 4


def test_data_that_cannot_be_staged_ends_run_with_reason(make_run: MakeRun) -> None:
    run = make_run(max_restarts=3)
    run.backend.stagings = [False, EngineError("s3://bkt/ has no files", "see: windlass data ls")]
    status = run.run(succeed)
    assert (status.phase, status.exit_code, len(status.attempts)) == (Phase.FAILED, 127, 0)
    assert status.cause is not None
    words = "the data could not be staged: s3://bkt/ has no files (see: windlass data ls)"
    assert status.cause.summary == words


AWAY = TransferInterrupted("s3://bkt/: it does not answer", "check the endpoint")


def test_staging_from_unavailable_store_is_retried_as_often_as_restarts_allow(make_run: MakeRun) -> None:
    run = make_run(max_restarts=3)
    run.backend.stagings = [AWAY, False, AWAY, AWAY]
    status = run.run(succeed)
    assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 1)
    assert 35 <= status.attempts[0].started_at - START < 40
    assert "try 3 of 3 follows in 20 s" in run.data("warning")[-1]["message"]


@pytest.mark.parametrize("policy", [{}, {"max_restarts": 2}, {"max_restarts": 3, "restart_on": ["node-loss"]}])
def test_staging_is_not_retried_beyond_restarts(make_run: MakeRun, policy: dict[str, Any]) -> None:
    run = make_run(**policy)
    run.backend.stagings = [AWAY] * 9
    status = run.run(succeed)
    assert (status.phase, status.exit_code) == (Phase.FAILED, 127)
    assert len(run.backend.stagings) == 9 - 1 - (2 if policy == {"max_restarts": 2} else 0)


def test_upload_of_outputs_is_retried_like_staging(make_run: MakeRun) -> None:
    run = make_run(max_restarts=1)
    run.backend.uploads_outputs = True
    run.backend.uploads = [AWAY]
    assert run.run(succeed).phase is Phase.SUCCEEDED


def test_run_can_be_stopped_during_staging(make_run: MakeRun) -> None:
    run = make_run()
    run.backend.stagings = [False] * 1000
    run.clock.at(5.0, lambda: write_stop_request(run.dir, StopRequest()))
    assert run.run(succeed).phase is Phase.STOPPED
    assert not run.backend.attempts


def test_a_target_that_is_unavailable_for_data_is_asked_again(make_run: MakeRun) -> None:
    run = make_run()
    run.backend.stagings = [TargetUnavailable("ClusterUnreachable", "no answer")] * 2
    assert run.run(succeed).phase is Phase.SUCCEEDED
