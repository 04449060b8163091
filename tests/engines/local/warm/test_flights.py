"""Flight recorder entries of hanging and failing collectives are the same for cold and forked ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Harness, Run

from windlass.diagnose.verdict import Verdict

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
BEGIN = """\
import datetime, os, sys, threading, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=200))
rank, x = dist.get_rank(), torch.ones(4)
for _ in range(5):
    dist.all_reduce(x)
dist.set_timeout(datetime.timedelta(seconds=int(os.environ.get("PATIENCE", "200"))))  # now that they have met
print("ready", flush=True)
"""
AWAKE = 'time.sleep(1.5)\nprint("awake", flush=True)\n'
"""Output that ends a hang in any case: a line that is printed while stacks are written does not count after a slow
start."""
SCRIPTS = {
    "skips": BEGIN + AWAKE + "if rank == 1:\n    time.sleep(500)\ndist.all_reduce(x)\n",
    "differs": BEGIN + AWAKE + "dist.all_reduce(x) if rank == 0 else dist.broadcast(x, 1)\ndist.barrier()\n",
    "crosses": BEGIN
    + AWAKE
    + "groups = [dist.new_group([0, 1]) for _ in range(2)]\ndist.all_reduce(x, group=groups[rank])\n",
    "leaves": BEGIN + "if rank == 1:\n    sys.exit(0)\ndist.all_reduce(x)\n",
    "counts": BEGIN
    + "assert threading.active_count() == 1\n"
    + "assert not any('flight' in name or 'windlass' in name for name in sys.modules)\n"
    + "assert dist.distributed_c10d._update_default_pg.__module__ == dist.distributed_c10d.__name__\n"
    + "assert all(type(finder).__name__ != '_Imported' for finder in sys.meta_path)\n"
    + "pid = os.fork()\nif pid == 0:\n    os._exit(len(os.listdir('/proc/self/task')) - 1)\n"
    + "assert os.waitpid(pid, 0)[1] == 0\n",
    "alone": "import _thread, torch, torch.distributed\nprint(_thread._count())\n",
}


@pytest.fixture(params=[pytest.param("cold", marks=pytest.mark.nightly), "warm"])
def harness(request: pytest.FixtureRequest) -> Harness:
    found: Harness = request.getfixturevalue(request.param)
    return found


def start(harness: Harness, folder: Path, name: str, **fields: Any) -> Run:
    (folder / "job.py").write_text(SCRIPTS[name])
    return harness.start("job.py", base=folder, **{"procs_per_node": 2, "restarts": 0, "grace": 1, **fields})


def flights(run: Run) -> list[Any]:
    """Returns the entries of collectives that ranks reported for the newest hang. A slow start does not count as a
    hang.
    """
    awake = [line.time_ns / 1e9 for line in run.lines() if line.text == "awake"]
    if len(awake) < 2:
        return []
    hangs = [event for event in run.events if event.kind == "hang" and event.data["since"] > max(awake) - 1]
    return [rank["flight"] for rank in hangs[-1].data["ranks"] if "flight" in rank] if hangs else []


def hung(harness: Harness, folder: Path, name: str) -> tuple[Run, Verdict]:
    run = start(harness, folder, name, hang=2).until(lambda run: len(flights(run)) == 2)
    found = run.verdict
    harness.engine.stop(run.id, now=True)
    run.wait()
    return run, found


def test_the_rank_that_skips_a_collective_is_named_with_its_number(harness: Harness, tmp_path: Path) -> None:
    run, found = hung(harness, tmp_path, "skips")
    assert (found.code, found.rank) == ("collective-not-joined", 1)
    assert "did not join all_reduce #6 of the default process group, in which rank 0 waits" in found.summary
    assert "flight recorder: rank 1 came to #5, all_reduce [4] Float" in found.evidence
    folder = run.dir / "attempt-1"
    assert sorted(path.name for path in folder.glob("*.flight.json")) == ["rank-0.flight.json", "rank-1.flight.json"]
    assert all(path.stat().st_size < 10_000 for path in folder.glob("*.flight.json"))
    assert not list(folder.glob("*.ask"))


def test_verdict_names_both_differing_collectives(harness: Harness, tmp_path: Path) -> None:
    _, found = hung(harness, tmp_path, "differs")
    assert found.code == "collective-mismatch"
    assert "collective #6 of the default process group: all_reduce [4] Float against broadcast [4] Float" in (
        found.summary
    )
    assert "flight recorder: rank 1 called broadcast [4] Float as #6 of the default process group" in found.evidence


@pytest.mark.nightly
def test_different_order_of_process_groups_is_reported(harness: Harness, tmp_path: Path) -> None:
    _, found = hung(harness, tmp_path, "crosses")
    assert found.code == "collective-mismatch"
    assert found.summary.startswith("ranks wait for each other: rank 0 in all_reduce #1 of process group 1")


@pytest.mark.nightly
def test_rank_that_exits_is_reported_with_its_last_collective(harness: Harness, tmp_path: Path) -> None:
    run = start(harness, tmp_path, "leaves")
    run.wait()
    found = run.verdict
    assert (found.code, found.rank) == ("rank-left-early", 1)
    assert "flight recorder: rank 0 called all_reduce [4] Float as #6 of the default process group" in found.evidence
    assert "flight recorder: rank 1 came to #5" in found.evidence


def test_collective_timeout_is_reported_with_missing_rank(harness: Harness, tmp_path: Path) -> None:
    run = start(harness, tmp_path, "skips", env={"PATIENCE": "4"})
    run.wait()
    found = run.verdict
    assert (found.code, found.rank) == ("collective-not-joined", 1)
    assert "all_reduce #6 of the default process group" in found.summary
    assert "flight recorder: rank 1 came to #5, all_reduce [4] Float" in found.evidence


def test_verdict_uses_stacks_without_flight_recorder(harness: Harness, tmp_path: Path) -> None:
    run = start(harness, tmp_path, "skips", env={"PATIENCE": "4", "TORCH_FR_BUFFER_SIZE": "0"})
    run.wait()
    found = run.verdict
    assert (found.code, found.rank) == ("collective-not-joined", 1)
    assert not any("flight recorder" in line for line in found.evidence)


def test_script_cannot_observe_flight_recorder(harness: Harness, tmp_path: Path) -> None:
    run = start(harness, tmp_path, "counts")
    assert run.wait().phase == "succeeded", run.text()


def test_no_thread_is_started_before_first_process_group(harness: Harness, tmp_path: Path) -> None:
    run = start(harness, tmp_path, "alone", procs_per_node=1)
    run.wait()
    assert run.text() == "0\n"
