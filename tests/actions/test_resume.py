"""A run is resumed on other nodes from what its record knows: folder, interpreter, target and job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import windlass
from windlass.actions import runs
from windlass.actions.edge import Edge
from windlass.engines.fake import FakeEngine, FakeRank
from windlass.runs.logs import RunLogs
from windlass.runs.record import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job

SCRIPT = """
import os, sys
print(os.environ["WORLD_SIZE"], os.environ.get("WINDLASS_RESUME_FROM"), sys.executable, os.getcwd(), flush=True)
sys.exit(3 if os.environ["WINDLASS_ATTEMPT"] == "1" else 0)
"""


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return Edge({**environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


@pytest.mark.parametrize("code", [".", "src", "src/deep", "./src"])
def test_the_plan_for_other_nodes_is_that_of_the_same_job(code: str, edge: Edge, tmp_path: Path) -> None:
    folder = tmp_path / code
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    fields = {"name": "digits", "run": "train.py", "code": code, "nodes": 1, "local": {"start": "cold"}}
    run = windlass.run(fields, edge=edge)
    assert run.wait(check=False).phase is Phase.FAILED
    elsewhere = Edge({**edge.environ, "VIRTUAL_ENV": "/nowhere"}, Path("/"))
    with elsewhere.store() as store:
        runs.resume(run.id, store, elsewhere, nodes=2, checkpoint="step-1")
        assert runs.wait(run.id, store, timeout=200).phase is Phase.SUCCEEDED
        lines = sorted(line.text for line in RunLogs(store.run_dir(run.id)).read(attempt=2))
        assert lines == [f"2 step-1 {sys.executable} {folder}"] * 2
        assert store.plan(run.id)["job"]["nodes"] == {"min": 2, "max": 2}


def test_an_elastic_job_may_still_shrink_as_far(edge: Edge, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    old = windlass.make_plan({"name": "d", "run": "train.py", "nodes": {"min": 2, "max": 4}}, edge=edge).to_json()
    assert runs.replanned(old, 3, edge).job["nodes"] == {"min": 2, "max": 3}
    assert "nodes" not in runs.replanned(old, 1, edge).job  # one, as is usual
    assert runs.replanned(old, 8, edge).run_id == old["run_id"]


def test_a_run_of_the_api_resumes_itself(tmp_path: Path) -> None:
    def play(rank: FakeRank) -> int:
        return 3 if rank.attempt == 1 else 0

    with Store(tmp_path) as store:
        run = windlass.run(Job(name="d", run="train.py"), on=FakeEngine(store, play))
        assert run.wait(10, check=False).phase is Phase.FAILED
        assert run.resume().wait(10).phase is Phase.SUCCEEDED
