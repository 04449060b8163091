"""An ended run is resumed in the same record and folder, with a new count of restarts, and on other nodes if
requested.
"""

from __future__ import annotations

import pytest
from tests.engines.harness import BEHAVIOURS, Aspect, Can, Case, Harness, Run, differs

from windlass.errors import NoSuchRun, UsageError
from windlass.plan.plan import Plan
from windlass.runs.phase import Phase
from windlass.spec.job import Job


def plan_again(harness: Harness, run: Run, words: str, **fields: object) -> Plan:
    """Returns a plan for an existing run."""
    job = Job.model_validate({"name": "case", "run": f"behaviours.py {words}", **harness.way.fields, **fields})
    return harness.way.plan(job, BEHAVIOURS.parent, harness.home, run.id)


class Resume(Case):
    def test_failed_run_resumes_in_same_record(self, harness: Harness) -> None:
        run = harness.start("fail_then_tell", "1", nodes=2)
        assert run.wait().phase is Phase.FAILED
        before = run.events
        resumed = harness.engine.resume(run.id)
        assert (resumed.phase, resumed.exit_code, resumed.times.ended_at) == (Phase.RESTARTING, None, None)
        status = run.wait()
        assert (status.phase, status.exit_code) == (Phase.SUCCEEDED, 0)
        assert [(one.phase, one.reason) for one in status.attempts] == [("failed", "failure"), ("succeeded", None)]
        assert run.events[: len(before)] == before
        told = [event.kind for event in run.events if event.kind in ("attempt", "attempt-end", "end", "resume")]
        assert told == ["attempt", "end", "resume", "attempt", "end"]
        begun = [event.data["reason"] for event in run.events if event.kind == "attempt"]
        assert begun == ["first", "resume"]
        assert {env["WINDLASS_ATTEMPT"] for env in run.json_of_ranks(attempt=2).values()} == {"2"}
        wall = sum(status.phases_at(0.0).values())
        assert status.times.ended_at is not None
        assert abs(wall - (status.times.ended_at - status.times.created_at)) < 0.05

    @differs(Aspect.OBJECTS)
    def test_stopped_run_resumes(self, harness: Harness) -> None:
        run = harness.start("hang_once", procs_per_node=2).until_ready(2)
        harness.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED
        harness.engine.resume(run.id)
        status = run.wait()
        assert (status.phase, status.supervision.stop_requested) == (Phase.SUCCEEDED, False)
        assert [one.reason for one in status.attempts] == ["stop", None]

    def test_a_resumed_run_can_be_stopped_again(self, harness: Harness) -> None:
        run = harness.start("sleep", "600").until_ready()
        harness.engine.stop(run.id)
        run.wait()
        harness.engine.resume(run.id)
        run.until(lambda run: run.status.phase is Phase.TRAINING)
        harness.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED
        assert len(run.status.attempts) == 2

    def test_resume_resets_restarts_and_time_limit(self, harness: Harness) -> None:
        run = harness.start("fail_then_tell", "1", "2", "3", restarts=1, timeout=600)
        assert (run.wait().phase, len(run.status.attempts), run.status.restarts_left) == (Phase.FAILED, 2, 0)
        harness.engine.resume(run.id)
        assert (run.wait().phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 4)

    @pytest.mark.slow
    def test_resumed_run_gets_full_time_limit_again(self, harness: Harness) -> None:
        """The run reaches its limit again after the resume, although the limit since the first start has passed."""
        # Not over before the first attempt has begun; the supervisor itself may be a pod that has to start.
        share = 40 if Can.PROCESSES in harness.way.can else 20
        limit = 4.0 if Can.QUICK_START in harness.way.can else harness.way.patience_seconds / share
        run = harness.start("sleep", "600", timeout=limit)
        assert (run.wait().phase, [one.reason for one in run.status.attempts]) == (Phase.FAILED, ["timeout"])
        harness.engine.resume(run.id)
        assert (run.wait().phase, [one.reason for one in run.status.attempts]) == (Phase.FAILED, ["timeout"] * 2)
        (resumed_at,) = [event.time for event in run.events if event.kind == "resume"]
        assert run.status.times.ended_at is not None
        assert run.status.times.ended_at - resumed_at >= limit

    def test_ranks_get_name_of_chosen_checkpoint(self, harness: Harness) -> None:
        run = harness.start("fail_then_tell", "1", "2", restarts={"max": 1, "on": ["hang", "failure"]})
        run.wait()
        harness.engine.resume(run.id, checkpoint="step-00000020-a2f3c1")
        run.wait()
        assert run.json_of_ranks(attempt=3)[0]["WINDLASS_RESUME_FROM"] == "step-00000020-a2f3c1"
        (resume,) = [event.data for event in run.events if event.kind == "resume"]
        assert resume.items() >= {"reason": "asked", "restarts": 1, "from": "step-00000020-a2f3c1"}.items()

    @differs(Aspect.OBJECTS)
    def test_run_may_resume_with_another_job(self, harness: Harness) -> None:
        run = harness.start("fail_then_tell", "1", "2", nodes=2)
        run.wait()
        harness.engine.resume(run.id, plan_again(harness, run, "fail_then_tell 1", nodes=3, env={"BATCH": "16"}))
        assert run.wait().phase is Phase.SUCCEEDED
        told = run.json_of_ranks(attempt=2)
        assert [(env["WINDLASS_WORLD_SIZE"], env["BATCH"]) for env in told.values()] == [("3", "16")] * 3
        assert (harness.store.plan(run.id).num_nodes, run.status.attempts[1].world_size) == (3, 3)

    def test_active_or_succeeded_run_cannot_be_resumed(self, harness: Harness) -> None:
        run = harness.start("sleep", "600").until_ready()
        with pytest.raises(UsageError, match="has not ended"):
            harness.engine.resume(run.id)
        assert run.status.phase is Phase.TRAINING
        harness.engine.stop(run.id, now=True)
        run.wait()
        done = harness.finish("leave", "0")
        before = done.events
        with pytest.raises(UsageError, match="has succeeded"):
            harness.engine.resume(done.id)
        assert done.events == before
        with pytest.raises(NoSuchRun):
            harness.engine.resume("never-was")
