"""What ends an attempt on this machine and how the run goes on: hangs, machines that go down, everything killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.lab import Can, Lab, Run, Way
from tests.engines.test_local import plan_local
from tests.worker.metadata import INTERRUPTION, REBALANCE, Service, metadata_service

from windlass.diagnose.diagnose import diagnose
from windlass.engines.keeping.keeper import keeper_pid
from windlass.engines.local.engine import LocalEngine
from windlass.runs.record import Phase
from windlass.worker import process

WAY = Way("local cold", LocalEngine, plan_local, frozenset(Can), {"local": {"start": "cold"}})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(WAY, tmp_path_factory.mktemp("home"))
    yield lab
    lab.close()


def node_pid(run: Run, node: int = 0) -> int:
    line = (run.dir / f"attempt-{len(run.status.attempts)}" / f"node-{node}.events").read_text().splitlines()[0]
    return int(json.loads(line)["pid"])


def keeper(run: Run) -> int:
    pid = keeper_pid(run.dir)
    assert pid is not None
    return pid


def kill(run: Run, *pids: int) -> None:
    """Kill at one moment: nobody sees another die."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    give_up = time.monotonic() + 60
    while any(found is not None and found.state != "Z" for found in map(process.stat, pids)):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def ends(run: Run) -> list[tuple[str, str | None]]:
    """How each attempt ended, and why."""
    return [(attempt.phase.value, attempt.reason) for attempt in run.status.attempts]


def kinds(run: Run, *wanted: str) -> list[str]:
    return [event.kind for event in run.events if event.kind in wanted]


# -- hangs ------------------------------------------------------------------------------------------------------------


def test_a_hung_job_is_started_again_once_its_stacks_are_saved(lab: Lab) -> None:
    # Long enough for a start; and hung ranks are not given the grace period, which is longer than anybody waits here.
    run = lab.finish("hang_once", nodes=2, procs_per_node=2, hang=8, restarts=1, grace=600)
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "hang"), ("succeeded", None)])
    told = kinds(run, "hang", "cause", "attempt-end")
    assert told == ["hang", "hang", "cause", "attempt-end"]
    stacks = [rank["stack"] for event in run.events if event.kind == "hang" for rank in event.data["ranks"]]
    assert len(stacks) == 4
    assert all("in hang_once" in stack for stack in stacks)
    cause = next(event.data for event in run.events if event.kind == "cause")
    assert cause["summary"].startswith("hung: no rank wrote anything for")


@pytest.mark.parametrize("restarts", [0, {"max": 3, "on": ["failure"]}])
def test_a_silence_that_ends_is_told_and_was_no_reason_to_restart(lab: Lab, restarts: object) -> None:
    run = lab.finish("pause", "2.5", hang=1, restarts=restarts)
    assert (run.status.phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 1)
    ends = [event.data for event in run.events if event.kind == "hang-end"]
    assert max(end["seconds"] for end in ends) >= 2.4  # a slow start may be one more silence
    assert all(abs(end["at"] - end["since"] - end["seconds"]) < 0.01 for end in ends)


# -- nodes that have not started ---------------------------------------------------------------------------------------


def test_a_node_that_has_not_started_is_not_lost_when_another_one_fails(lab: Lab, tmp_path: Path) -> None:
    python = tmp_path / "python"
    # The worker of node 1 gets as far as its interpreter, and no farther.
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *node-1.json*) exec sleep 600;; esac\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    run = lab.finish("leave", "3", nodes=2, python=str(python), restarts={"max": 3, "on": ["node-loss"]})
    assert (run.status.phase, ends(run)) == (Phase.FAILED, [("failed", "failure")])
    assert run.status.cause is not None
    assert (run.status.cause["rank"], run.status.cause["victims"]) == (0, [])
    assert "node_lost" not in run.status.cause
    assert [event.data["node"] for event in run.events if event.kind == "not-started"] == [1]
    found = diagnose(lab.engine.observe(run.id)).verdict
    assert (found.code, found.rank) == ("exit-without-a-word", 0)


# -- machines that go down --------------------------------------------------------------------------------------------


def test_sigterm_to_a_node_is_a_preemption_that_all_ranks_hear(lab: Lab) -> None:
    run = lab.start("work_and_wait", "7", nodes=2, restarts=1).until_ready(2)
    os.kill(node_pid(run, 1), signal.SIGTERM)
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert [line.text for line in run.lines(attempt=2)] == ["from 7"] * 2
    (notice,) = [event.data for event in run.events if event.kind == "notice"]
    assert (notice["source"], notice["action"]) == ("sigterm", "terminate")


def test_a_preempted_run_that_may_not_restart_is_stopped_and_nothing_failed(lab: Lab) -> None:
    run = lab.start("work_and_wait", "7").until_ready()
    os.kill(node_pid(run), signal.SIGTERM)
    run.wait()
    assert (run.status.phase, run.status.cause, ends(run)) == (Phase.STOPPED, None, [("preempted", "preemption")])
    assert (run.dir / "checkpoints" / "rank-0").read_text() == "7"


def test_a_supervisor_that_is_terminated_leaves_the_run_to_the_next_command(lab: Lab) -> None:
    run = lab.start("work_and_wait", "7", nodes=2, restarts=1).until_ready(2)
    pid = keeper(run)
    os.kill(pid, signal.SIGTERM)
    run.until(lambda run: process.stat(pid) is None or not lab.store.is_held(run.id))
    left = lab.store.status(run.id)
    assert (left.phase, [attempt.phase for attempt in left.attempts]) == (Phase.RESTARTING, [Phase.PREEMPTED])
    run.wait()  # looks, as a command would
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert kinds(run, "notice", "adopted") == ["notice", "adopted"]


def test_a_supervisor_that_is_terminated_ends_a_run_that_may_not_restart(lab: Lab) -> None:
    run = lab.start("work_and_wait", "7").until_ready()
    os.kill(keeper(run), signal.SIGTERM)
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.STOPPED, [("preempted", "preemption")])


def noticed(lab: Lab, monkeypatch: pytest.MonkeyPatch, service: Service, *words: str, **fields: Any) -> Run:
    """A run on a machine whose metadata `service` has, asked often."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
    plan = lab.plan(*words, **fields)
    steps = [replace(step, request=_asked_often(step.request)) for step in plan.steps]
    lab.engine.submit(replace(plan, steps=tuple(steps)))
    lab.runs.append(Run(lab, plan.run_id))
    return lab.runs[-1]


def _asked_often(request: Mapping[str, Any]) -> Mapping[str, Any]:
    if "notices" not in request:
        return request
    return {**request, "notices": {**request["notices"], "poll_seconds": 0.1}}


def test_a_notice_of_the_machine_reaches_all_ranks_and_is_heeded_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata_service() as service:
        run = noticed(lab, monkeypatch, service, "work_and_wait", "7", nodes=2, restarts=2).until_ready(2)
        service.say(INTERRUPTION, action="terminate", time="2026-09-18T08:22:00Z")
        run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert [line.text for line in run.lines(attempt=2)] == ["from 7"] * 2
    (notice,) = [event.data for event in run.events if event.kind == "notice"]
    assert notice == {"source": "imds", "action": "terminate", "time": "2026-09-18T08:22:00Z"}


@pytest.mark.parametrize(("restarts", "left"), [(0, []), (1, ["preempted"])])
def test_advice_to_leave_is_heeded_by_a_run_that_may_start_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, restarts: int, left: list[str]
) -> None:
    with metadata_service() as service:
        run = noticed(lab, monkeypatch, service, "wait_for", "notice", restarts=restarts, grace=2).until_ready()
        service.say(REBALANCE, noticeTime="2026-09-18T08:10:00Z")
        run.until(lambda run: kinds(run, "notice"))
        (Path(run.status.output_dir) / "notice").touch()
        run.wait()
    assert run.status.phase is Phase.SUCCEEDED
    assert [phase for phase, _ in ends(run)] == [*left, "succeeded"]
    assert kinds(run, "notice") == ["notice"]


# -- taking up --------------------------------------------------------------------------------------------------------


def test_after_a_power_cut_the_next_command_starts_the_run_again(lab: Lab) -> None:
    run = lab.start("killed_once", "9", nodes=2, restarts=1)
    run.until(lambda run: len(run.status.ranks) == 2 and all(state.pid for state in run.status.ranks))
    kill(run, keeper(run), node_pid(run, 0), node_pid(run, 1))
    cut_at = time.time()
    time.sleep(1.0)
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "node-loss"), ("succeeded", None)])
    first = run.status.attempts[0]
    assert first.ended_at is not None
    assert first.ended_at <= cut_at
    assert run.status.phases[Phase.IDLE] >= 0.9


def test_after_a_reboot_the_run_is_started_again(lab: Lab) -> None:
    """The pids of the record may belong to anybody now: only the boot tells."""
    run = lab.start("killed_once", "9", restarts=1)
    run.until(lambda run: len(run.status.ranks) == 1 and all(state.pid for state in run.status.ranks))
    kill(run, keeper(run), node_pid(run))
    events = run.dir / "attempt-1" / "node-0.events"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    lines[0] |= {"boot": "another", "pid": os.getpid()}  # who is signalled by mistake would be this test
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.dir / "supervisor.pid").write_text(f"{os.getpid()} 1 another")
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "node-loss"), ("succeeded", None)])


def test_without_restarts_a_power_cut_is_the_end(lab: Lab) -> None:
    run = lab.start("sleep", "60", nodes=2).until_ready(2)
    kill(run, keeper(run), node_pid(run, 0), node_pid(run, 1))
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.LOST, [("lost", "node-loss")])


def test_a_lost_run_can_be_resumed(lab: Lab) -> None:
    run = lab.start("killed_once", "9")
    run.until(lambda run: len(run.status.ranks) == 1 and all(state.pid for state in run.status.ranks))
    kill(run, keeper(run), node_pid(run))
    assert run.wait().phase is Phase.LOST
    lab.engine.resume(run.id)
    assert (run.wait().phase, ends(run)) == (Phase.SUCCEEDED, [("lost", "node-loss"), ("succeeded", None)])


def test_a_run_whose_supervisor_broke_can_be_resumed(lab: Lab) -> None:
    run = lab.finish("fail_then_tell", "1")
    (run.dir / "supervisor.log").write_text("MemoryError\n")
    lab.engine.resume(run.id)
    assert run.wait().phase is Phase.SUCCEEDED
    assert (run.dir / "supervisor-1.log").read_text() == "MemoryError\n"


def test_a_run_that_was_resumed_and_lost_its_command_at_once_is_taken_up(lab: Lab) -> None:
    """The command that resumed it has written so, and was killed before it started a supervisor."""
    run = lab.start("fail_then_tell", "1", restarts=0)
    run.wait()
    writer = lab.store.writer(run.id)
    assert writer is not None
    writer.append("resume", {"reason": "asked"})
    writer.close()
    assert run.wait().phase is Phase.SUCCEEDED
    assert kinds(run, "resume", "adopted", "end") == ["end", "resume", "adopted", "end"]


def test_a_supervisor_killed_in_its_back_off_is_followed_by_one_that_waits_for_the_rest(lab: Lab) -> None:
    run = lab.start("fail_until", "4", restarts=3)
    run.until(lambda run: kinds(run, "attempt-end") == ["attempt-end"] * 3)  # 2 s of back-off follow
    if pid := keeper_pid(run.dir):  # else this test was not scheduled for so long that nothing is left to kill
        kill(run, pid)
    run.wait()
    assert (run.status.phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 4)
    third, fourth = run.status.attempts[2:]
    assert third.ended_at is not None
    assert fourth.started_at - third.ended_at >= 2.0


def test_a_supervisor_sleeps_in_its_back_off(lab: Lab) -> None:
    run = lab.start("fail_until", "4", restarts=3, grace=1)
    run.until(lambda run: kinds(run, "attempt-end") == ["attempt-end"] * 3)  # 2 s of back-off follow
    time.sleep(1.1)  # what was to be done at the end of the grace period is long over
    before = cpu_seconds(keeper_pid(run.dir))
    time.sleep(0.6)
    used = cpu_seconds(keeper_pid(run.dir)) - before
    if len(run.status.attempts) == 3:  # else this test was not scheduled before the back-off was over
        assert used < 0.2
    assert run.wait().phase is Phase.SUCCEEDED


def cpu_seconds(pid: int | None) -> float:
    """What a process has used so far; nothing where there is none any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
