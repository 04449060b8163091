"""Runs are stopped, watched, shared and deleted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.engines.harness import PATIENCE_SECONDS, SCRIPTS, Aspect, Can, Case, Harness, Run, differs, needs
from tests.statuses import cause_of

from windlass.errors import NoSuchRun, PlanError, UsageError
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.store import Store

STRANGER = """
import sys
from pathlib import Path
from {module} import {name}
from windlass.runs.store import Store

with Store(Path(sys.argv[1])) as store:
    engine = {name}.way.connect(store)
    print(engine.status(sys.argv[2]).phase)
    engine.stop(sys.argv[2])
    print(engine.wait(sys.argv[2], 240).phase)
"""


def seconds_to_stop(run: Run, *, now: bool = False) -> float:
    """Returns the seconds that a stop takes. Only lower bounds are tested; exit codes show that ranks were not killed
    late.
    """
    start = time.monotonic()
    run.harness.engine.stop(run.id, now=now)
    run.wait()
    return time.monotonic() - start


class Life(Case):
    @differs(Aspect.SIGNALS, Aspect.OBJECTS)
    def test_stop_reaches_every_rank(self, harness: Harness) -> None:
        run = harness.start("sleep", "600", nodes=2, procs_per_node=2).until_ready(4)
        harness.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED
        assert run.exit_codes() == [-signal.SIGTERM] * 4

    @differs(Aspect.SIGNALS)
    def test_rank_may_save_during_grace_period(self, harness: Harness) -> None:
        run = harness.start("last_words", "0.6", nodes=2, procs_per_node=2, grace=60).until_ready(4)
        assert seconds_to_stop(run) >= 0.6
        assert run.text().count("saved\n") == 4
        assert (run.status.phase, run.exit_codes()) == (Phase.STOPPED, [0, 0, 0, 0])
        assert run.status.times.phases[Phase.STOPPING] >= 0.6

    @differs(Aspect.SIGNALS)
    def test_rank_that_ignores_sigterm_is_killed_after_grace_period(self, harness: Harness) -> None:
        run = harness.start("deaf", procs_per_node=2, grace=1).until_ready(2)
        assert seconds_to_stop(run) >= 1
        assert (run.status.phase, run.exit_codes()) == (Phase.STOPPED, [-signal.SIGKILL] * 2)

    def test_peers_of_failed_rank_have_grace_period(self, harness: Harness) -> None:
        run = harness.finish("last_words_or_fail", "1", "0.4", procs_per_node=2, grace=10)
        assert run.text(ranks=[0]).endswith("saving\nsaved\n")
        assert run.status.exit_code == 4

    @needs(Can.STOPS_AT_ONCE)
    def test_stop_now_skips_grace_period(self, harness: Harness) -> None:
        run = harness.start("deaf", procs_per_node=2, grace=600).until_ready(2)
        harness.engine.stop(run.id, now=True)
        assert run.wait().phase is Phase.STOPPED
        assert run.exit_codes() == [-signal.SIGKILL] * 2

    @needs(Can.STOPS_AT_ONCE)
    def test_stop_now_shortens_a_running_stop(self, harness: Harness) -> None:
        run = harness.start("deaf", procs_per_node=2, grace=600).until_ready(2)
        harness.engine.stop(run.id)
        run.until(lambda run: run.status.phase is Phase.STOPPING)
        harness.engine.stop(run.id, now=True)
        run.wait()
        assert run.exit_codes() == [-signal.SIGKILL] * 2

    @differs(Aspect.OBJECTS)
    def test_stop_right_after_submit_ends_run(self, harness: Harness) -> None:
        run = harness.start("sleep", "600", procs_per_node=2)
        harness.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED

    def test_stop_of_ended_run_changes_nothing(self, harness: Harness) -> None:
        run = harness.finish("leave", "3")
        before = run.status
        harness.engine.stop(run.id)
        assert run.status == before

    def test_the_time_limit_ends_the_run(self, harness: Harness) -> None:
        run = harness.finish("sleep", "600", timeout=1, restarts=3)
        assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 124)
        assert "timeout of 1 s" in cause_of(run.status).summary
        assert run.status.times.ended_at is not None
        assert run.status.times.ended_at - run.status.times.created_at >= 1

    def test_time_limit_causes_no_restart(self, harness: Harness) -> None:
        assert (
            len(harness.finish("sleep", "600", timeout=1, restarts=3).status.attempts) <= 1
        )  # a pod may start too late

    def test_another_engine_instance_reads_and_stops_the_run(self, harness: Harness) -> None:
        run = harness.start("sleep", "600", nodes=2).until_ready(2)
        with Store(harness.home) as store:
            other = harness.way.connect(store)
            assert other.status(run.id).phase is Phase.TRAINING
            other.stop(run.id)
            assert other.wait(run.id, PATIENCE_SECONDS).phase is Phase.STOPPED

    def test_another_process_reads_and_stops_the_run(self, harness: Harness) -> None:
        run = harness.start("sleep", "600", nodes=2).until_ready(2)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                STRANGER.format(module=type(self).__module__, name=type(self).__name__),
                str(harness.home),
                run.id,
            ],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.stdout.split() == ["training", "stopped"], done.stderr
        assert run.wait().phase is Phase.STOPPED

    def test_logs_can_be_followed_to_the_end(self, harness: Harness) -> None:
        run = harness.start("last_words", "0", procs_per_node=2)
        seen = []
        with harness.engine.logs(run.id, follow=True) as (folder, is_over):
            for line in RunLogs(folder).read(is_over=is_over):
                seen.append(line.text)
                if seen.count("ready") == 2 and "saving" not in seen:
                    harness.engine.stop(run.id)
        own = [text for text in seen if text in ("ready", "saved", "saving")]  # without stacks
        assert sorted(own) == ["ready"] * 2 + ["saved"] * 2 + ["saving"] * 2

    @needs(Can.FILES)
    def test_all_ranks_resume_from_newest_complete_checkpoint_of_script_that_saves_itself(
        self, harness: Harness
    ) -> None:
        checkpoint = {"find": "saved-*", "resume": "--resume {path}"}
        run = harness.finish("save_and_fail", nodes=2, procs_per_node=2, restarts=1, checkpoint=checkpoint)
        assert run.status.phase is Phase.SUCCEEDED, run.text()
        path = str(run.dir / "checkpoints" / "saved-step=9.pt")
        assert run.json_of_ranks(attempt=2) == {rank: ["--resume", path] for rank in range(4)}
        told = [event.data for event in run.events if event.kind == "checkpoint"]
        assert [(data["action"], data["name"], data.get("step")) for data in told] == [
            ("refused", "saved-step=10.pt", None),
            ("restored", "saved-step=9.pt", 9),
        ]
        assert run.status.attempts[1].restored_step == 9

    def test_wait_returns_at_its_timeout(self, harness: Harness) -> None:
        run = harness.start("sleep", "600").until_ready()
        start = time.monotonic()
        status = harness.engine.wait(run.id, 1.0)
        assert time.monotonic() - start >= 1.0
        assert status.phase is Phase.TRAINING
        harness.engine.stop(run.id, now=True)
        assert harness.engine.wait(run.id, PATIENCE_SECONDS).phase is Phase.STOPPED

    def test_six_concurrent_runs_succeed(self, harness: Harness) -> None:
        runs = [harness.start("environment", procs_per_node=2) for _ in range(6)]
        assert [run.wait().phase for run in runs] == [Phase.SUCCEEDED] * 6
        for run in runs:
            assert {env["WINDLASS_RUN_ID"] for env in run.json_of_ranks().values()} == {run.id}

    @differs(Aspect.MEETING)
    @needs(Can.TORCH)
    def test_concurrent_runs_never_share_a_rendezvous(self, harness: Harness) -> None:
        fields = {"base": SCRIPTS, "procs_per_node": 2, **harness.way.torch_fields}
        runs = [harness.start("allreduce.py", start, "well", **fields) for start in ("10", "100")]
        assert [run.wait().phase for run in runs] == [Phase.SUCCEEDED] * 2, [run.text() for run in runs]
        for run, total in zip(runs, (21, 201), strict=True):
            for rank in (0, 1):
                assert run.text(ranks=[rank]).splitlines()[-1] == f"step 5 sum {total}"

    def test_active_run_cannot_be_deleted(self, harness: Harness) -> None:
        run = harness.start("sleep", "600").until_ready()
        with pytest.raises(UsageError):
            harness.engine.delete(run.id)
        harness.engine.stop(run.id, now=True)
        run.wait()

    @differs(Aspect.OBJECTS)
    def test_deleted_run_leaves_nothing(self, harness: Harness) -> None:
        run = harness.start("leave", "0")
        run.wait()
        harness.engine.delete(run.id)
        harness.runs.remove(run)
        assert not run.dir.exists()
        with pytest.raises(NoSuchRun):
            harness.engine.status(run.id)

    def test_unknown_run_is_not_found(self, harness: Harness) -> None:
        for call in (harness.engine.status, harness.engine.stop, harness.engine.delete, harness.engine.wait):
            with pytest.raises(NoSuchRun):
                call("never-was")

    @needs(Can.SCRIPTS)
    def test_blocked_plan_leaves_no_record(self, harness: Harness) -> None:
        with pytest.raises(PlanError):
            harness.start("not-there.py")
        assert not harness.runs.pop().dir.exists()
