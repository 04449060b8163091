"""Each mechanism that ends attempts of real processes is tested once; policies are in
tests/supervise/test_restarts.py.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Can, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.helpers.ports import quiet_port
from tests.helpers.until import until
from tests.worker.metadata import INTERRUPTION, Service, metadata_service

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.facts import is_busy
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.supervise.process import supervisor_pid
from windlass.worker import process

WAY = Way("local cold", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(WAY, tmp_path_factory.mktemp("home"))
    yield harness
    harness.close()


def node_pid(run: Run, node: int = 0) -> int:
    line = (run.dir / f"attempt-{len(run.status.attempts)}" / f"node-{node}.events").read_text().splitlines()[0]
    return int(json.loads(line)["pid"])


def supervisor(run: Run) -> int:
    pid = supervisor_pid(run.dir)
    assert pid is not None
    return pid


def kill(run: Run, *pids: int) -> None:
    """Kills the processes at the same time, so that none observes the end of another."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(found is None or found.state == "Z" for found in map(process.stat, pids)))


def ends(run: Run) -> list[tuple[str, str | None]]:
    """Returns phase and reason of each attempt."""
    return [(attempt.phase.value, attempt.reason) for attempt in run.status.attempts]


def kinds(run: Run, *wanted: str) -> list[str]:
    return [event.kind for event in run.events if event.kind in wanted]


# -- hangs ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hung_job_is_restarted_after_its_stacks_are_saved(harness: Harness) -> None:
    # The limit is long enough for a start. Hung ranks get no grace period, which is longer here than the test waits.
    run = harness.finish("hang_once", nodes=2, procs_per_node=2, hang=5, restarts=1, grace=600)
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "hang"), ("succeeded", None)])
    told = kinds(run, "hang", "cause", "attempt-end")
    assert told == ["hang", "hang", "cause", "attempt-end"]
    stacks = [rank["stack"] for event in run.events if event.kind == "hang" for rank in event.data["ranks"]]
    assert len(stacks) == 4
    assert all("in hang_once" in stack for stack in stacks)
    cause = next(event.data for event in run.events if event.kind == "cause")
    assert cause["summary"].startswith("hung: no rank wrote anything for")


# -- nodes that have not started ---------------------------------------------------------------------------------------


def test_a_node_that_has_not_started_is_not_lost_when_another_one_fails(harness: Harness, tmp_path: Path) -> None:
    python = tmp_path / "python"
    # The worker of node 1 starts its interpreter and gets no further.
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *node-1.json*) exec sleep 600;; esac\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    run = harness.finish("leave", "3", nodes=2, python=str(python), restarts={"max": 3, "on": ["node-loss"]})
    assert (run.status.phase, ends(run)) == (Phase.FAILED, [("failed", "failure")])
    assert run.status.cause is not None
    assert (run.status.cause.rank, run.status.cause.victims) == (0, ())
    assert run.status.cause.node_lost is None
    assert [event.data["node"] for event in run.events if event.kind == "not-started"] == [1]
    found = run.verdict
    assert (found.code, found.rank) == ("exit-without-output", 0)


# -- machines that go down --------------------------------------------------------------------------------------------


def test_sigterm_to_a_node_is_a_preemption_of_all_ranks(harness: Harness) -> None:
    run = harness.start("work_and_wait", "7", nodes=2, restarts=1).until_ready(2)
    os.kill(node_pid(run, 1), signal.SIGTERM)
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert [line.text for line in run.lines(attempt=2)] == ["from 7"] * 2
    (notice,) = [event.data for event in run.events if event.kind == "notice"]
    assert (notice["source"], notice["action"]) == ("sigterm", "terminate")


@pytest.mark.slow
def test_run_has_its_fixed_port_alone_and_again_in_its_next_attempt(harness: Harness) -> None:
    port = quiet_port()
    run = harness.start("work_and_wait", "7", nodes=2, restarts=1, local={"port": port}).until_ready(2)
    assert is_busy(port)
    os.kill(node_pid(run, 1), signal.SIGTERM)
    run.wait()
    assert ends(run) == [("preempted", "preemption"), ("succeeded", None)]
    assert not is_busy(port)


@pytest.mark.slow
def test_next_command_takes_over_run_of_terminated_supervisor(harness: Harness) -> None:
    run = harness.start("work_and_wait", "7", nodes=2, restarts=1).until_ready(2)
    pid = supervisor(run)
    os.kill(pid, signal.SIGTERM)
    run.until(lambda run: process.stat(pid) is None or not harness.store.is_held(run.id))
    left = harness.store.status(run.id)
    assert (left.phase, [attempt.phase for attempt in left.attempts]) == (Phase.RESTARTING, [Phase.PREEMPTED])
    run.wait()  # settles the record, as a command does
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert kinds(run, "notice", "adopted") == ["notice", "adopted"]


def noticed(harness: Harness, monkeypatch: pytest.MonkeyPatch, service: Service, *words: str, **fields: Any) -> Run:
    """Starts a run on a machine whose metadata come from `service` and are polled often."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.endpoint)
    plan = harness.plan(*words, **fields)
    assert plan.nodes.notices is not None
    often = plan.nodes.replace(notices=plan.nodes.notices.replace(poll_seconds=0.1))
    harness.engine.submit(replace(plan, nodes=often))
    harness.runs.append(Run(harness, plan.run_id))
    return harness.runs[-1]


def test_preemption_notice_of_machine_reaches_all_ranks_and_is_handled_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata_service() as service:
        run = noticed(harness, monkeypatch, service, "work_and_wait", "7", nodes=2, restarts=2).until_ready(2)
        service.say(INTERRUPTION, action="terminate", time="2026-09-18T08:22:00Z")
        run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])
    assert [line.text for line in run.lines(attempt=2)] == ["from 7"] * 2
    (notice,) = [event.data for event in run.events if event.kind == "notice"]
    assert notice == {"source": "imds", "action": "terminate", "time": "2026-09-18T08:22:00Z"}


@pytest.mark.slow
def test_preemption_notice_of_machine_ends_setup_script(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = 'if [ "$WINDLASS_ATTEMPT" = 1 ]; then echo ready; sleep 60 & wait; fi'
    with metadata_service() as service:
        run = noticed(harness, monkeypatch, service, command=["true"], setup=setup, restarts=1)
        run.until(lambda run: "ready" in run.text())
        service.say(INTERRUPTION, action="terminate", time="2026-09-18T08:22:00Z")
        run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("preempted", "preemption"), ("succeeded", None)])


# -- adoption ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_next_command_restarts_run_after_power_cut(harness: Harness) -> None:
    run = harness.start("killed_once", "9", nodes=2, restarts=1)
    run.until(lambda run: len(run.status.ranks) == 2 and all(state.pid for state in run.status.ranks))
    kill(run, supervisor(run), node_pid(run, 0), node_pid(run, 1))
    cut_at = time.time()
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "node-loss"), ("succeeded", None)])
    first = run.status.attempts[0]
    assert first.ended_at is not None
    assert first.ended_at <= cut_at


@pytest.mark.slow
def test_run_is_restarted_after_reboot(harness: Harness) -> None:
    """After a reboot, recorded pids may belong to other processes: only the boot id shows that."""
    run = harness.start("killed_once", "9", restarts=1)
    run.until(lambda run: len(run.status.ranks) == 1 and all(state.pid for state in run.status.ranks))
    kill(run, supervisor(run), node_pid(run))
    events = run.dir / "attempt-1" / "node-0.events"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    lines[0] |= {"boot": "another", "pid": os.getpid()}  # a signal sent by mistake would end this test
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.dir / "supervisor.pid").write_text(f"{os.getpid()} 1 another")
    run.wait()
    assert (run.status.phase, ends(run)) == (Phase.SUCCEEDED, [("failed", "node-loss"), ("succeeded", None)])


def test_resumed_run_whose_command_was_killed_is_taken_over(harness: Harness) -> None:
    """The command that resumed the run was killed after it had recorded that, before it started a supervisor."""
    run = harness.start("fail_then_tell", "1", restarts=0)
    run.wait()
    writer = until(lambda: harness.store.writer(run.id))  # the supervisor releases the record after the end
    assert writer is not None
    writer.append(entry_of("resume", {"reason": "asked"}))
    writer.close()
    assert run.wait().phase is Phase.SUCCEEDED
    assert kinds(run, "resume", "adopted", "end") == ["end", "resume", "adopted", "end"]


@pytest.mark.parametrize("supervised", [True, False])
def test_a_command_in_a_copy_of_a_home_ends_no_process_of_the_original(
    harness: Harness, tmp_path: Path, supervised: bool
) -> None:
    run = harness.start("wait_for", str(tmp_path / "go")).until_ready()
    if not supervised:
        kill(run, supervisor(run))
    with Store(copied(harness.home, tmp_path / "copy")) as store:
        status = LocalEngine(store).status(run.id)
        assert (status.phase.is_terminal, store.events(run.id)) == (False, run.events[: status.last_seq])
        assert status.supervision.condition is not None
        assert status.supervision.condition.message.startswith(f"supervised by the original in {run.dir}")
        (tmp_path / "go").touch()
        assert run.wait().phase is Phase.SUCCEEDED
        # The original records its end before it releases its lock; until then, the copy does not take over the run.
        until(lambda: LocalEngine(store).status(run.id).phase.is_terminal)


def copied(home: Path, to: Path) -> Path:
    """Copies a home in which a run is active."""
    shutil.copytree(home, to, ignore=shutil.ignore_patterns("record.*"))
    with closing(sqlite3.connect(home / "record.db")) as old, closing(sqlite3.connect(to / "record.db")) as new:
        old.backup(new)
    return to


# -- grace periods ----------------------------------------------------------------------------------------------------


def test_ranks_killed_after_grace_period_are_named(harness: Harness) -> None:
    run = harness.start("deaf", grace=0.5).until_ready(1)
    harness.engine.stop(run.id)
    run.wait()
    assert [event.data["code"] for event in run.events if event.kind == "warning"] == ["grace-over"]
    [message] = [event.data["message"] for event in run.events if event.kind == "warning"]
    assert message == "rank 0 had not exited 0.5 s after SIGTERM (grace), and was killed"


@pytest.mark.slow
def test_rank_that_saves_alone_has_grace_period_after_peer_failure(harness: Harness) -> None:
    run = harness.finish("last_words_or_fail", "1", "5", procs_per_node=2, grace=60)
    assert run.text(ranks=[0]).endswith("saving\nsaved\n")
    assert "warning" not in kinds(run, "warning")


@pytest.mark.slow
def test_rank_that_saves_alone_has_grace_period_when_world_shrinks(harness: Harness) -> None:
    fields: dict[str, Any] = {"nodes": {"min": 1, "max": 2}, "restarts": 1, "grace": 60, "local": {"back_after": 600}}
    run = harness.start("last_words", "5", **fields).until_ready(2)
    kill(run, node_pid(run, 1))
    run.until(lambda run: len(run.status.attempts) == 2)
    assert run.text(ranks=[0], attempt=1).endswith("saving\nsaved\n")
    harness.engine.stop(run.id)
    run.wait()
