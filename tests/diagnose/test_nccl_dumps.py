"""Dumps of NCCL's watchdog are read without executing code from their pickles."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from windlass.diagnose.flights import find, flight_of
from windlass.diagnose.nccl_dumps import read_watchdogs

ENTRY = {
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 7,
    "p2p_seq_id": 0,
    "is_p2p": False,
    "profiling_name": "nccl:all_reduce",
    "input_sizes": ((1024,),),
    "input_dtypes": ["Float"],
    "state": "started",
    "retired": False,
    "time_created_ns": 5_000_000_000,
}


def dump(**fields: Any) -> dict[str, Any]:
    """Returns a dump in the format of torch 2.4."""
    return {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 7, "last_started_collective": 7, "last_completed_collective": 6}
        },
        "entries": [{**ENTRY, **fields}],
    }


def test_the_collectives_of_all_ranks_are_compared(tmp_path: Path) -> None:
    (tmp_path / "nccl-trace-rank-0").write_bytes(pickle.dumps(dump(), protocol=2))
    (tmp_path / "nccl-trace-rank-1").write_bytes(pickle.dumps(dump(input_sizes=((512,),)), protocol=2))
    read = read_watchdogs(tmp_path.iterdir())
    (finding,) = find(read)
    assert (finding.kind, finding.label) == ("mismatch", "all_reduce #7 of the default process group")
    assert read[1].path == str(tmp_path / "nccl-trace-rank-1")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_not_read(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (tmp_path / "nccl-trace-rank-0").write_bytes(pickle.dumps({**dump(), "more": Evil(made)}))
    assert read_watchdogs(tmp_path.iterdir()) == {0: flight_of({}, str(tmp_path / "nccl-trace-rank-0"))}
    assert not made.exists()


@pytest.mark.parametrize("data", [b"", b"\x80\x02}", b"no pickle", pickle.dumps([1]), pickle.dumps({"entries": [{}]})])
def test_a_file_that_is_cut_short_or_strange_is_told_by_its_path(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "nccl-trace-rank-3").write_bytes(data)
    (found,) = read_watchdogs(tmp_path.iterdir()).values()
    assert not found.groups
    assert find({3: found}) == ()
