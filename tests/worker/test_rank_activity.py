"""Ranks that wait for others are detected, with real processes that respond themselves."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.until import until
from tests.worker.test_stack_dump import NATIVE, WAITS, started

from windlass.worker.protocol import LauncherSpec, NodeSpec
from windlass.worker.rank_activity import MET, Activity, activity_of

SPEC = NodeSpec(0, "", "python3", "/", {}, (), 60.0)
IN_TORCH = (
    WAITS.partition("def trains")[0]
    + """
import os
os.makedirs(sys.argv[1] + "/torch/distributed")
path = sys.argv[1] + "/torch/distributed/{name}.py"
with open(path, "w") as file:
    file.write("import os\\ndef all_reduce(read):\\n    os.write(1, b'ready\\\\n')\\n    os.read(read, 1)\\n")
loaded(path).all_reduce(read)
"""
)


def test_rank_in_a_collective_is_waiting(tmp_path: Path) -> None:
    with started(tmp_path, IN_TORCH.replace("{name}", "c10d")) as one:
        until(lambda: activity_of([one], SPEC).waiting == (one,), "it does not say that it waits")


def test_rank_outside_of_collectives_is_working(tmp_path: Path) -> None:
    with started(tmp_path, WAITS) as one:
        until(lambda: activity_of([one], SPEC).working == (one,), "it does not say that it works")


def test_a_rank_without_a_process_group_has_no_peers_to_wait_for(tmp_path: Path) -> None:
    with started(tmp_path, NATIVE.format(library="CDLL")) as one:
        assert activity_of([one], SPEC) == Activity((one,), ())


def test_activity_of_an_unresponsive_rank_is_unknown(tmp_path: Path) -> None:
    launcher = LauncherSpec("mpirun", ("mpirun",), "OMPI_COMM_WORLD_LOCAL_RANK", 3.0)
    with started(tmp_path, NATIVE.format(library="CDLL")) as one:
        assert activity_of([one], SPEC.replace(launch=launcher)) == Activity((), ())
        assert activity_of([one], SPEC.replace(env={"TF_CONFIG": "{}"})) == Activity((), ())
        (tmp_path / f"rank-0{MET}").touch()
        assert activity_of([one], SPEC) == Activity((), ()), "it has a process group, and does not listen"
