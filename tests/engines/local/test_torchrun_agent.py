"""The contract with real agents of torchrun, and what differs when they are there."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engines.contract import Contract
from tests.engines.harness import SCRIPTS, Aspect, Can, Harness, Run, Way
from tests.engines.local.planning import plan_local

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.facts import read_facts
from windlass.engines.local.plan import plan
from windlass.engines.local.torchrun_agent import RENDEZVOUS
from windlass.runs.phase import Phase
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget

WAY = Way(
    "local torchrun",
    LocalEngine,
    plan_local,
    # Other interpreters have no torch.
    frozenset(Can) - {Can.ANY_LAUNCHER, Can.PROGRAMS, Can.INTERPRETERS, Can.QUICK_START},
    {"start": "cold", "launcher": "torchrun", "local": {"agent": "torchrun"}},
    differs_in=frozenset({Aspect.START, Aspect.ENDS, Aspect.SIGNALS}),  # where ranks meet is of the tests below
)


@pytest.mark.slow
class TestTorchrun(Contract):
    """The cases, and what is the agents' own; of some runs both are said."""

    way = WAY

    def test_each_node_has_an_agent_and_ranks_meet(self, harness: Harness) -> None:
        run = harness.start("allreduce.py", "10", "well", base=SCRIPTS, nodes=2, procs_per_node=2)
        run.until(lambda run: len(agents(run)) == 2)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        assert [line.text for line in run.lines(ranks=[3])][-1] == "step 5 sum 46"

    def test_ranks_are_numbered_node_by_node_whatever_the_agents_agreed_upon(self, harness: Harness) -> None:
        found = harness.finish("environment", nodes=2, procs_per_node=2).json_of_ranks()
        names = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
        assert {rank: [int(env[name]) for name in names] for rank, env in found.items()} == {
            0: [0, 0, 0, 0], 1: [1, 1, 0, 0], 2: [2, 0, 1, 1], 3: [3, 1, 1, 1],
        }  # fmt: skip
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found.values()}) == 1
        assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in env for env in found.values())
        assert all(env["TORCHELASTIC_USE_AGENT_STORE"] == "False" for env in found.values())

    def test_a_killed_rank_is_the_first_cause_and_the_run_starts_again(self, harness: Harness) -> None:
        run = harness.start("killed_once", "3", nodes=2, procs_per_node=2, restarts=1)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
        cause = next(event.data for event in run.events if event.kind == "cause")
        assert (cause["rank"], cause["exit_code"], cause["victims"]) == (3, -9, [0, 1, 2])

    def test_a_traceback_is_the_ranks_own_and_the_agents_words_are_apart(self, harness: Harness) -> None:
        run = harness.finish("one_raises", "1", procs_per_node=3)
        cause = run.status.cause or {}
        assert (cause["rank"], cause["summary"]) == (1, "ValueError: loss is nan at step 3")
        assert "torch.distributed" not in run.text()
        warnings = [event.data["message"] for event in run.events if event.kind == "warning"]
        is_killed = any("did not end by itself" in message for message in warnings)  # it has three seconds
        assert is_killed or "ChildFailedError" in (run.dir / "attempt-1" / "node-0.out").read_text()

    def test_an_agent_that_dies_takes_its_ranks_with_it(self, harness: Harness) -> None:
        run = harness.start("sleep", "60", nodes=2).until_ready(2)
        dies, beside = agents(run)
        os.kill(beside, signal.SIGSTOP)  # it would end its ranks too, once it misses the other
        os.kill(dies, signal.SIGKILL)
        status = run.wait()
        assert (status.phase, status.exit_code) == (Phase.FAILED, 1)
        assert "torchrun was killed by signal 9 while ranks were running" in (status.cause or {})["summary"]

    def test_an_agent_that_cannot_start_says_why(self, harness: Harness) -> None:
        run = harness.finish("sleep", "60", env={"TORCH_LOGS": "no-such-log"})
        assert (run.status.phase, run.text()) == (Phase.FAILED, "")
        assert "no-such-log" in (run.status.cause or {})["traceback"]

    def test_warm_ranks_and_agents_go_together(self, harness: Harness) -> None:
        run = harness.finish("environment", start="warm", warm=["torch"])
        assert [event.data["start"] for event in run.events if event.kind == "node"] == ["warm"]
        assert run.json_of_ranks()[0]["RANK"] == "0"


def agents(run: Run) -> list[int]:
    """Pids of the agents of a run's live nodes."""
    found = []
    for event in run.events:
        if event.kind == "node":
            with contextlib.suppress(OSError):  # they may go while one looks
                path = Path("/proc/{0}/task/{0}/children".format(event.data["pid"]))
                for pid in path.read_text().split():
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    found += [int(pid)] if b"torch.distributed.run" in words else []
    return found


def test_an_interpreter_without_torch_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    agent: dict[str, Any] = {"launcher": "torchrun", "local": {"agent": "torchrun"}}
    job = Job(name="t", run="train.py", python=str(tmp_path / "python"), **agent)
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ={"PATH": os.environ["PATH"]})
    notes = {note.code: note for note in plan(job, LocalTarget(name="local"), facts, "t-1").notes}
    assert notes["torch-missing"].blocks
    assert "install torch" in notes["torch-missing"].fix


def test_an_interpreter_without_obstore_is_named_where_ranks_reach_a_store_by_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    job = Job(name="t", run="train.py", python=str(tmp_path / "python"), checkpoint={"folder": "gs://bucket/saved"})
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ={"PATH": os.environ["PATH"]})
    notes = {note.code: note for note in plan(job, LocalTarget(name="local"), facts, "t-1").notes}
    assert notes["obstore-missing"].blocks
    assert "pip install" in notes["obstore-missing"].fix


@pytest.mark.parametrize("launcher", ["torchrun", "mpi"])
def test_a_plan_does_not_run_the_interpreter_that_a_job_file_names(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho True\n")
    (tmp_path / "python").chmod(0o755)
    more: dict[str, Any] = {"local": {"agent": "torchrun"}} if launcher == "torchrun" else {}
    job = Job(name="t", run="train.py", python="./python", **{"launcher": launcher, **more})
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ={"PATH": os.environ["PATH"]})
    made = plan(job, LocalTarget(name="local"), facts, "t-1")
    assert not (tmp_path / "ran").exists()
    assert "torch-missing" not in {note.code for note in made.notes}


def test_the_plan_shows_the_command_line_of_each_agent(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    job = Job(name="t", run="train.py", nodes=2, procs_per_node=3, grace=5, local={"agent": "torchrun"})
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ=os.environ)
    lines = [
        request["launch"]["argv"] for request in plan(job, LocalTarget(name="local"), facts, "t-1").requests("node")
    ]
    assert [line[1:7] for line in lines] == [
        ["-m", "torch.distributed.run", "--nnodes", "$NUM_NODES", "--nproc-per-node", "3"]
    ] * 2  # fmt: skip
    for line in lines:
        options = dict(zip(line[3:-6:2], line[4:-5:2], strict=False))
        assert options["--rdzv-endpoint"] == "$MASTER_ADDR:$RENDEZVOUS_PORT"
        assert options["--rdzv-id"] == "t-1.$ATTEMPT"
        assert "is_host=$IS_HOST" in options["--rdzv-conf"]
        assert options["--max-restarts"] == "0"


def test_no_agent_is_left_out_as_long_as_others_wait_for_it() -> None:
    """Else torch starts the others with a smaller world, if an agent was silent for that long when all had joined."""
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

    conf = dict(part.split("=") for part in RENDEZVOUS.split(","))
    silence = int(conf["keep_alive_interval"]) * int(conf["keep_alive_max_attempt"])
    assert silence >= RendezvousTimeout().join.total_seconds()
