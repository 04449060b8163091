"""A rank writes its collectives when requested through a FIFO, with and without torch's recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from windlass.worker import rank
from windlass.worker.flight_recorder import MAX_CALLS, MAX_GROUPS, Flight, condense
from windlass.worker.stack_dump import ask_flight, read_flight, take_flights

ENTRY = {
    "pg_id": 0,
    "process_group": ["0", "default_pg"],
    "p2p_seq_id": 0,
    "is_p2p": False,
    "retired": True,
    "profiling_name": "gloo:all_reduce",
    "input_sizes": [[4]],
    "input_dtypes": ["Float"],
    "state": "scheduled",
}


def entries(number: int, pg_id: int = 0) -> list[dict[str, object]]:
    fields = {"pg_id": pg_id, "process_group": [str(pg_id), "undefined"]} if pg_id else {}
    return [{**ENTRY, **fields, "collective_seq_id": at, "time_created_ns": at * 10**9} for at in range(1, number + 1)]


def test_the_newest_collectives_of_a_group_are_kept() -> None:
    (group,) = condense({"entries": entries(100)}, {"0": [0, 1]})
    assert [call["number"] for call in group["calls"]] == list(range(101 - MAX_CALLS, 101))
    assert (group["enqueued"], group["ranks"], group["calls"][-1]["op"]) == (100, [0, 1], "all_reduce")


def test_last_used_groups_are_kept() -> None:
    dump = {"entries": [entry for number in range(1, 41) for entry in entries(number, number)]}
    assert [group["name"] for group in condense(dump, {})] == [str(n) for n in range(40, 40 - MAX_GROUPS, -1)]


class WithoutRecorder(Flight):
    """Rank whose torch has no recorder: older than 2.5, or built without it."""

    def _recorder(self, name: str) -> None:
        return None


@pytest.mark.parametrize("why", ["asked", "failed", "ended"])
def test_without_a_recorder_nothing_is_written_and_nothing_is_raised(why: str, tmp_path: Path) -> None:
    for module in (types.SimpleNamespace(), types.SimpleNamespace(_world=None), None):
        WithoutRecorder(str(tmp_path / "rank-0"), module).write(why, "all_reduce")
    assert list(tmp_path.iterdir()) == []


def test_request_without_listening_rank_fails(tmp_path: Path) -> None:
    base = str(tmp_path / "rank-0")
    assert not ask_flight(base)
    os.mkfifo(base + ".ask")  # left by a rank that has ended
    assert not ask_flight(base)
    assert read_flight(base) == {}


class FakeFlight(Flight):
    """Rank whose torch always reports one group."""

    def _groups(self, failed_in: str) -> list[dict[str, object]]:
        return condense({"entries": entries(3)}, {})


def test_each_request_is_answered_by_a_thread_the_script_cannot_see(tmp_path: Path) -> None:
    base = str(tmp_path / "rank-0")
    threads = threading.enumerate()
    FakeFlight(base, types.SimpleNamespace()).listen(lambda: None)
    assert threading.enumerate() == threads
    times = []
    for _ in range(3):
        while not ask_flight(base):
            pass
        for _ in range(60):
            if found := take_flights([base]):
                break
        times.append(found[base]["at"])
    assert times == sorted(set(times))


def test_partial_file_counts_as_missing(tmp_path: Path) -> None:
    base = str(tmp_path / "rank-0")
    Path(base + ".flight.json").write_text('{"at": 1')
    assert read_flight(base) == {}


PROGRAM = """
import os, pickle, sys, time, types
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist
from windlass.worker.flight_recorder import Flight
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2, 3))
dump = lambda: torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False)
give_up = time.monotonic() + 60
while not all(entry["retired"] for entry in pickle.loads(dump())["entries"]):  # a thread of torch marks them
    assert time.monotonic() < give_up, pickle.loads(dump())
    time.sleep(0.01)
Flight(sys.argv[2] + "/rank-0", dist.distributed_c10d).write("asked")
with open(sys.argv[2] + "/nccl-trace-rank-0", "wb") as file:
    file.write(dump())
os._exit(0)  # gloo's threads may abort an interpreter that ends
"""


def test_records_of_torch_are_read_as_json_and_as_pickle(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("a torch that records nothing of gloo")
    from windlass.diagnose.flights import flight_of
    from windlass.diagnose.nccl_dumps import read_watchdogs

    folder = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path)]
    subprocess.run(command, check=True, timeout=240, env={**os.environ, "TORCH_FR_BUFFER_SIZE": "10"})
    (told,) = json.loads((tmp_path / "rank-0.flight.json").read_text())["groups"]
    (read,) = read_watchdogs([tmp_path / "nccl-trace-rank-0"])[0].groups
    assert [(call["number"], call["op"], call["sizes"]) for call in told["calls"]] == [
        (number, "all_reduce", [[2, 3]]) for number in (1, 2, 3)
    ]
    assert read.calls == flight_of({"groups": [told]}).groups[0].calls
    assert told["ranks"] == [0]


VARIABLES = {"TORCH_FR_BUFFER_SIZE": "10", "TORCH_FR_DUMP_TEMP_FILE": "/run/nccl-trace-rank-"}


@pytest.mark.parametrize("version", ["2.5.1+cu124", "2.8.0a0+git1234"])
def test_older_torch_gets_recorder_variables_under_their_old_names(version: str) -> None:
    env = {**VARIABLES, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine"}
    rank._name_recorder(version, env)
    assert {name: value for name, value in env.items() if name not in VARIABLES} == {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "10",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine",
    }


@pytest.mark.parametrize("version", ["2.9.0", "2.15.0+cpu", "3.0", "", "unknown"])
def test_newer_torch_gets_no_old_variable_names(version: str) -> None:
    env = dict(VARIABLES)
    rank._name_recorder(version, env)
    assert env == VARIABLES
