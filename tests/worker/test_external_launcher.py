"""A node whose ranks are requested by an external launcher that misbehaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from windlass.worker import rank_proxy
from windlass.worker.protocol import LauncherSpec, NodeSpec, RankSpec

STARTS_ONE = """
import os, subprocess, sys
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, "INDEX": "1"}))
"""


STARTS_A_SMALLER_WORLD = """
import os, subprocess, sys
own = {"INDEX": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, **own}))
"""


SPAWNS_A_CHILD = """
import os, subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "INDEX": n}) for n in "01"]
while not all(os.path.exists(os.path.join(os.environ["FOLDER"], f"started-{n}")) for n in "01"):
    time.sleep(0.01)
print("-" * 74, "a message of the launcher", "-" * 74, "[host:12] one more", "the child speaks", sep="\\n", flush=True)
sys.exit(max(one.wait() for one in ranks))
"""
WAITS_FOR_THE_CHILD = """
import os, time
folder = os.environ["FOLDER"]
open(os.path.join(folder, "started-" + os.environ["INDEX"]), "w")
log = os.path.join(folder, "rank-0.log")
while not os.path.exists(log) or "speaks" not in open(log).read():  # rank 1 may run before rank 0 has a log
    time.sleep(0.01)
"""


PRINTS_A_SECRET = "import os, sys; sys.exit(f'no host takes {os.environ[\"TOKEN\"]}')"


PRINTS_A_SECRET_IN_PARTS = """
import os, sys
secret = os.environ["TOKEN"]
for part in ("no host takes " + secret[:7], secret[7:] + "\\n", secret[:9]):
    print(part, end="", flush=True)
sys.exit(1)
"""


def end_of(
    program: str, folder: Path, world_size: int = 2, script: str = "", output: str | None = None, **env: str
) -> dict[str, Any]:
    """Runs a node of two ranks with this program as launcher, and returns its end event. `output` replaces the file of
    the node's output.
    """
    launch = LauncherSpec("launcher", (sys.executable, "-c", program, rank_proxy.__file__), "INDEX", 5.0)
    trains = (sys.executable, "-c", script or f"open({str(folder / 'trained')!r}, 'w')")
    ranks = tuple(RankSpec(number, number, trains, {}) for number in range(2))
    spec = NodeSpec(
        0, "", sys.executable, "/", env, ranks, 1.0, world_size=world_size, launch=launch, folder=str(folder)
    )
    spec.write()
    command = [sys.executable, "-m", "windlass.worker.run", spec.path("json")]
    with open(output or spec.path("out"), "w") as out:
        subprocess.run(command, check=False, timeout=100, stdout=out, stderr=out)
    *_, end = map(json.loads, Path(spec.path("events")).read_text().splitlines())
    return dict(end)


def test_world_smaller_than_the_job_fails_before_a_rank_starts(tmp_path: Path) -> None:
    """A launcher that does not read its host list starts one world per node, which would train and succeed."""
    [failure] = end_of(STARTS_A_SMALLER_WORLD, tmp_path, world_size=6)["failures"]
    assert (failure["rank"], failure["exit_code"], failure["of_launcher"]) == (0, 1, True)
    assert failure["tail"].startswith("launcher started a world of 1 ranks, and the job has 6")
    assert not (tmp_path / "trained").exists()


def test_rank_never_started_by_the_launcher_is_the_failed_rank(tmp_path: Path) -> None:
    [failure] = end_of(STARTS_ONE, tmp_path)["failures"]
    assert (failure["rank"], failure["of_launcher"]) == (0, True)
    assert failure["tail"].endswith("launcher ended with exit code 0 before all ranks were started")


def test_secret_printed_by_the_launcher_is_masked_in_quotes(tmp_path: Path) -> None:
    end = end_of(PRINTS_A_SECRET, tmp_path, TOKEN="hunter2-hunter2", WINDLASS_SECRET_VARIABLES="TOKEN")
    assert "no host takes ***" in end["failures"][0]["tail"]
    assert "hunter2" not in json.dumps(end)


def test_secret_printed_by_the_launcher_is_masked_in_the_output_of_the_node(tmp_path: Path) -> None:
    end_of(PRINTS_A_SECRET_IN_PARTS, tmp_path, TOKEN="hunter2-hunter2", WINDLASS_SECRET_VARIABLES="TOKEN")
    assert (tmp_path / "node-0.out").read_text() == "no host takes ***\nhunter2-h"


def test_output_of_the_launcher_is_dropped_on_a_full_disk(tmp_path: Path) -> None:
    """The launcher writes twice: no failed write may let the log of rank 0, which is on another disk, lose a line."""
    speaks_first = 'print("before any rank", flush=True)\n' + SPAWNS_A_CHILD
    end = end_of(speaks_first, tmp_path, script=WAITS_FOR_THE_CHILD, output="/dev/full", FOLDER=str(tmp_path))
    assert end["failures"] == []


def test_output_of_spawned_processes_is_in_the_log_of_the_first_rank(tmp_path: Path) -> None:
    assert end_of(SPAWNS_A_CHILD, tmp_path, script=WAITS_FOR_THE_CHILD, FOLDER=str(tmp_path))["failures"] == []
    assert (tmp_path / "rank-0.log").read_text() == "the child speaks\n"
    assert (tmp_path / "rank-1.log").read_text() == ""
    assert "a message of the launcher" in (tmp_path / "node-0.out").read_text()
