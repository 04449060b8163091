"""Ends of ranks and their effect on the run: exit codes, signals, root cause, restarts."""

from __future__ import annotations

import signal

import pytest
from tests.engines.harness import SCRIPTS, Aspect, Can, Case, Harness, differs, needs
from tests.statuses import cause_of

from windlass.runs.phase import Phase


class Exits(Case):
    def test_run_succeeds_if_all_ranks_return(self, harness: Harness) -> None:
        status = harness.finish("leave", "0", nodes=2, procs_per_node=2).status
        assert (status.phase, status.exit_code, status.cause) == (Phase.SUCCEEDED, 0, None)
        assert [state.exit_code for state in status.ranks] == [0, 0, 0, 0]

    @differs(Aspect.ENDS)
    @pytest.mark.parametrize("code", [3, 1, 255])
    def test_exit_code_of_script_is_exit_code_of_run(self, harness: Harness, code: int) -> None:
        status = harness.finish("leave", str(code)).status
        assert (status.phase, status.exit_code) == (Phase.FAILED, code)
        assert status.ranks[0].exit_code == code

    @differs(Aspect.PROGRAM)
    def test_sys_exit_with_text_prints_it_and_fails(self, harness: Harness) -> None:
        run = harness.finish("leave_with_text", "no such data set")
        assert (run.status.exit_code, run.text()) == (1, "no such data set\n")
        assert "no such data set" in cause_of(run.status).summary

    @differs(Aspect.PROGRAM)
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda n: n.name)
    def test_exit_code_after_signal_is_negative(self, harness: Harness, number: signal.Signals) -> None:
        status = harness.finish("die", str(int(number))).status
        assert (status.phase, status.exit_code) == (Phase.FAILED, -number)
        assert status.cause is not None
        assert status.cause.signal == number.name

    @differs(Aspect.ENDS, Aspect.OBJECTS)
    def test_first_failure_ends_other_ranks(self, harness: Harness) -> None:
        run = harness.finish("one_leaves", "2", "5", nodes=2, procs_per_node=2)
        assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 5)
        # without SIGTERM, the other ranks would exit with 0
        assert run.exit_codes() == [-signal.SIGTERM, -signal.SIGTERM, 5, -signal.SIGTERM]

    def test_rank_that_exits_silently_is_root_cause(self, harness: Harness) -> None:
        cause = harness.finish("one_leaves", "2", "5", nodes=2, procs_per_node=2).status.cause
        assert cause is not None
        assert (cause.rank, cause.victims) == (2, (0, 1, 3))
        assert "no output" in cause.summary

    @differs(Aspect.ENDS)
    def test_killed_rank_is_root_cause(self, harness: Harness) -> None:
        cause = harness.finish("one_dies", "1", "9", nodes=2, procs_per_node=2).status.cause
        assert cause is not None
        assert (cause.rank, cause.exit_code, cause.victims) == (1, -9, (0, 2, 3))

    @differs(Aspect.ENDS)
    def test_rank_that_raises_is_root_cause_with_traceback(self, harness: Harness) -> None:
        cause = harness.finish("one_raises", "1", procs_per_node=3).status.cause
        assert cause is not None
        assert (cause.rank, cause.victims) == (1, (0, 2))
        assert cause.summary == "ValueError: loss is nan at step 3"
        assert cause.traceback.startswith("Traceback")
        assert 'raise ValueError(f"loss is nan at step {step}")' in cause.traceback

    @differs(Aspect.ENDS)
    @needs(Can.TORCH)
    @pytest.mark.parametrize("fate", ["kill", "raise"])
    def test_root_cause_is_found_among_ranks_in_collective(self, harness: Harness, fate: str) -> None:
        run = harness.finish("allreduce.py", "1", fate, base=SCRIPTS, procs_per_node=2, **harness.way.torch_fields)
        cause = run.status.cause
        assert cause is not None
        assert (cause.rank, cause.victims) == (1, (0,)), run.text()
        expected = {"raise": "ValueError: loss is nan at step 3", "kill": "killed (SIGKILL)"}[fate]
        assert cause.summary.startswith(expected)
        assert "step 2 sum 3" in run.text(ranks=[0])
        assert "step 3 sum" not in run.text()

    @needs(Can.SCRIPTS)
    def test_rank_that_raises_is_root_cause_even_if_it_exits_last(self, harness: Harness) -> None:
        cause = harness.finish("lingering.py", base=SCRIPTS, procs_per_node=2).status.cause
        assert cause is not None
        assert (cause.rank, cause.exit_code, cause.victims) == (1, 1, (0,))
        assert cause.summary == "ValueError: no such batch"

    def test_failed_run_is_not_restarted_by_default(self, harness: Harness) -> None:
        assert len(harness.finish("leave", "3").status.attempts) == 1

    @differs(Aspect.MEETING)
    def test_restart_starts_all_ranks(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "3", nodes=2, restarts=2)
        assert (run.status.phase, run.status.exit_code, run.status.cause) == (Phase.SUCCEEDED, 0, None)
        assert [attempt.phase for attempt in run.status.attempts] == [Phase.FAILED, Phase.FAILED, Phase.SUCCEEDED]
        for number in (1, 2, 3):
            ranks = run.json_of_ranks(attempt=number)
            assert ranks  # one of the two ranks may have been ended before it printed anything
            for env in ranks.values():
                assert env["WINDLASS_ATTEMPT"] == str(number)
                assert env["TORCHELASTIC_RESTART_COUNT"] == str(number - 1)
                assert env["TORCHELASTIC_MAX_RESTARTS"] == "2"
        assert Phase.RESTARTING in run.status.times.phases

    @differs(Aspect.MEETING)
    def test_each_attempt_has_its_own_rendezvous(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "3", nodes=2, restarts=2)
        places = [
            {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in run.json_of_ranks(attempt=number).values()}
            for number in (1, 2, 3)
        ]
        assert [len(of_attempt) for of_attempt in places] == [1, 1, 1]
        assert len(set().union(*places)) > 1

    def test_restarts_and_remaining_restarts_are_recorded(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "3", nodes=2, restarts=2)
        assert [attempt.reason for attempt in run.status.attempts] == ["failure", "failure", None]
        begun = [event.data for event in run.events if event.kind == "attempt"]
        assert [data["reason"] for data in begun] == ["first", "failure", "failure"]
        assert [data["members"] for data in begun] == [[0, 1]] * 3
        ends = [event.data for event in run.events if event.kind == "attempt-end"]
        assert [(data["restarts_left"], data["wait_seconds"]) for data in ends] == [(1, 0.0), (0, 1.0)]
        assert run.status.restarts_left == 0

    def test_events_are_recorded_in_order(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "3", nodes=2, restarts=2)
        told = [
            event.kind for event in run.events if event.kind in ("created", "attempt", "cause", "attempt-end", "end")
        ]
        assert told == ["created", *["attempt", "cause", "attempt-end"] * 2, "attempt", "end"]
        assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))

    def test_phase_times_sum_to_wall_clock_over_restarts(self, harness: Harness) -> None:
        status = harness.finish("fail_until", "3", nodes=2, restarts=2).status
        assert status.times.ended_at is not None
        assert sum(status.times.phases.values()) == pytest.approx(
            status.times.ended_at - status.times.created_at, abs=1e-6
        )

    def test_run_fails_when_restarts_are_used_up(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "9", restarts=1)
        assert (run.status.phase, run.status.exit_code, len(run.status.attempts)) == (Phase.FAILED, 7, 2)
        assert cause_of(run.status).rank == 0

    def test_step_that_fails_twice_with_same_error_is_not_retried(self, harness: Harness) -> None:
        run = harness.finish("fail_at_step", "3", restarts=5)
        assert (run.status.phase, len(run.status.attempts)) == (Phase.FAILED, 2)
        assert run.status.attempts[-1].reason == "same-step-twice"
        assert (run.events[-1].kind, run.events[-1].data["step"]) == ("end", 3)
        assert cause_of(run.status).summary == "ValueError: label 11 of 10"

    def test_start_that_fails_twice_with_same_error_is_not_retried(self, harness: Harness) -> None:
        run = harness.finish("fail_at_start", nodes=2, restarts=5)
        assert (run.status.phase, len(run.status.attempts)) == (Phase.FAILED, 2)
        assert run.status.attempts[-1].reason == "same-error-twice"
        assert cause_of(run.status).summary == "ValueError: no shard 11 of 10"

    def test_only_causes_in_restarts_on_cause_restarts(self, harness: Harness) -> None:
        run = harness.finish("fail_until", "2", restarts={"max": 3, "on": ["preemption"]})
        assert (run.status.phase, len(run.status.attempts)) == (Phase.FAILED, 1)
