"""The contract with threads as ranks: a fake run reports what a real run would report."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.engines import behaviours
from tests.engines.contract import Contract
from tests.engines.harness import Can, Way
from tests.helpers.until import until
from tests.statuses import cause_of, checkpoint_of

from windlass.engines.fake import FakeEngine, FakeRank, FakeTarget, plan
from windlass.errors import StoreError
from windlass.plan.plan import Plan, Policy
from windlass.runs import crash
from windlass.runs.crash import LOST
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.runs.store import Store
from windlass.spec.job import Job
from windlass.spec.sections import Restarts

VANISHES = """
import os, sys
from pathlib import Path
from typing import Any
from windlass.engines.fake import FakeEngine, FakeTarget, plan
from windlass.runs.store import Store
from windlass.spec.job import Job

store = Store(Path(sys.argv[1]))
engine = FakeEngine(store, lambda rank: rank.sleep(600))
engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), sys.argv[1], "case-1"))
os._exit(0)
"""


def plan_fake(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    return plan(job, FakeTarget(), str(home), run_id)


class TestFake(Contract):
    can = frozenset({Can.ANY_LAUNCHER, Can.QUICK_START, Can.FILES, Can.EVERY_LINE})
    way = Way("fake", lambda store: FakeEngine(store, behaviours.play), plan_fake, can, has_every_value=True)


def vanish(home: Path) -> FakeEngine:
    """Returns an engine for the record of a process that has ended."""
    subprocess.run([sys.executable, "-c", VANISHES, str(home)], check=True, timeout=100)
    return FakeEngine(Store(home), lambda rank: None)


def test_run_is_lost_when_its_process_has_ended(tmp_path: Path) -> None:
    engine = vanish(tmp_path)
    with engine.store:
        status = engine.status("case-1")
        assert (status.phase, status.exit_code) == (Phase.LOST, None)
        assert cause_of(status).summary == LOST


def test_a_lost_run_can_be_resumed_by_a_process_that_has_its_function(tmp_path: Path) -> None:
    engine = vanish(tmp_path)
    with engine.store:
        assert engine.status("case-1").phase is Phase.LOST
        engine.resume("case-1")
        assert engine.wait("case-1", 100).phase is Phase.SUCCEEDED


def test_log_and_crash_report_of_supervisor_are_kept_on_resume(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        engine = FakeEngine(store, lambda rank: rank.attempt - 2)
        engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), str(tmp_path), "case-1"))
        assert engine.wait("case-1", 100).phase is Phase.FAILED
        run_dir = store.run_dir("case-1")
        (run_dir / "supervisor.log").write_text("MemoryError\n")
        crash.mark(run_dir, MemoryError())
        engine.resume("case-1")
        assert engine.wait("case-1", 100).phase is Phase.SUCCEEDED
        assert (run_dir / "supervisor-1.log").read_text() == "MemoryError\n"
        assert crash.read(run_dir) is None


def test_run_with_stop_request_is_stopped_when_its_process_has_ended(tmp_path: Path) -> None:
    engine = vanish(tmp_path)
    write_stop_request(engine.store.run_dir("case-1"), StopRequest())
    with engine.store:
        assert engine.status("case-1").phase is Phase.STOPPED


def test_the_same_inputs_give_the_same_plan() -> None:
    job = Job(name="case", run="train.py --epochs 5", nodes=2, procs_per_node="auto")
    plans = [plan(job, FakeTarget(gpus_per_node=4, env={"A": "b"}), "/home", "case-1") for _ in range(2)]
    assert plans[0].to_text() == plans[1].to_text()
    assert (plans[0].world_size, Plan.from_json(plans[0].to_json())) == (8, plans[0])


def test_a_fake_run_has_the_policy_of_a_real_one() -> None:
    job = Job(name="case", run="train.py", hang=60.0, timeout=100.0, notify="slack-url", restarts=Restarts(max=2))
    assert plan(job, FakeTarget(), "/home", "case-1").policy == Policy.of_job(job)


def test_silent_ranks_count_as_hung_and_are_restarted(tmp_path: Path) -> None:
    def play(rank: FakeRank) -> None:
        rank.print("step 1")
        if rank.attempt == 1:
            rank.sleep(100)

    with Store(tmp_path) as store:
        engine = FakeEngine(store, play)
        job = Job(name="case", run="train.py", hang=0.2, restarts=Restarts(max=1, on=["hang"]))
        engine.submit(plan(job, FakeTarget(), str(tmp_path), "case-1"))
        status = engine.wait("case-1", 100)
        kinds = [event.kind for event in store.events("case-1")]
        assert (status.phase, len(status.attempts), kinds.count("hang")) == (Phase.SUCCEEDED, 2, 1)


def test_a_run_id_is_used_once(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        engine = FakeEngine(store, lambda rank: None)
        engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), str(tmp_path), "case-1"))
        engine.wait("case-1", 100)
        with pytest.raises((StoreError, FileExistsError)):
            engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), str(tmp_path), "case-1"))


def test_checkpoint_reports_of_fake_rank_are_recorded(tmp_path: Path) -> None:
    def play(rank: FakeRank) -> int:
        if rank.attempt == 1:
            rank.checkpoint(step=5, name="step-5", bytes=100)
            rank.checkpoint(step=6, name="step-6")
            return 1
        rank.checkpoint("restored", step=6, name="step-6")
        return 0

    with Store(tmp_path) as store:
        engine = FakeEngine(store, play)
        job = Job(name="case", run="train.py", restarts=Restarts(max=1))
        engine.submit(plan(job, FakeTarget(), str(tmp_path), "case-1"))
        status = engine.wait("case-1", 100)
        assert (status.phase, [attempt.restored_step for attempt in status.attempts]) == (Phase.SUCCEEDED, [None, 6])
        assert checkpoint_of(status).name == "step-6"
        told = [event.data for event in store.events("case-1") if event.kind == "checkpoint"]
        assert told[0] == {"rank": 0, "action": "saved", "step": 5, "name": "step-5", "bytes": 100}
        assert len(told) == 3


def test_rank_writes_text_and_bytes_alike(tmp_path: Path) -> None:
    def play(rank: FakeRank) -> None:
        rank.write("größer ")
        rank.write("größer\n".encode())

    with Store(tmp_path) as store:
        engine = FakeEngine(store, play)
        engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), str(tmp_path), "case-1"))
        assert engine.wait("case-1", 100).phase == Phase.SUCCEEDED
        assert [line.text for line in RunLogs(store.run_dir("case-1")).read()] == ["größer größer"]


def test_output_of_killed_rank_is_dropped(tmp_path: Path) -> None:
    """A thread that never calls a method of its rank cannot be ended; its later output is dropped."""
    go_on, ended = threading.Event(), threading.Event()

    def play(rank: FakeRank) -> None:
        rank.print("busy")
        go_on.wait(100)
        try:
            rank.print("too late")
        finally:
            ended.set()

    with Store(tmp_path) as store:
        engine = FakeEngine(store, play)
        engine.submit(plan(Job(name="case", run="train.py"), FakeTarget(), str(tmp_path), "case-1"))
        until(lambda: engine.status("case-1").phase is Phase.TRAINING)
        engine.stop("case-1", now=True)
        status = engine.wait("case-1", 100)
        go_on.set()
        assert ended.wait(100)
        assert (status.phase, status.ranks[0].exit_code) == (Phase.STOPPED, -9)
        assert [line.text for line in RunLogs(store.run_dir("case-1")).read()] == ["busy"]


def test_example_of_guide_works(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "guides" / "test-your-program.md"
    names: dict[str, Any] = {}
    exec(page.read_text().split("```python\n")[1].split("```")[0], names)
    names["test_a_failure_names_the_first_cause"](tmp_path)
