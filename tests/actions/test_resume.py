"""A run is resumed on other nodes with the folder, interpreter, target and job from its record."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.cli.test_checkpoints import flip, write

import windlass
from windlass.actions import runs
from windlass.engines.fake import FakeEngine, FakeRank
from windlass.runs.context import Context
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job

SCRIPT = """
import os, sys
print(os.environ["WINDLASS_WORLD_SIZE"], os.environ.get("WINDLASS_RESUME_FROM"), sys.executable, os.getcwd(),
      flush=True)
sys.exit(3 if os.environ["WINDLASS_ATTEMPT"] == "1" else 0)
"""


@pytest.fixture
def context(tmp_path: Path) -> Context:
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return Context({**environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


@pytest.mark.parametrize("code", [".", "src", "src/deep", "./src"])
def test_plan_for_other_nodes_keeps_the_job(code: str, context: Context, tmp_path: Path) -> None:
    folder = tmp_path / code
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    fields = {"name": "digits", "run": "train.py", "code": code, "nodes": 1, "start": "cold"}
    run = windlass.run(fields, context=context)
    assert run.wait(check=False).phase is Phase.FAILED
    elsewhere = Context({**context.environ, "VIRTUAL_ENV": "/nowhere"}, Path("/"))
    with elsewhere.store() as store:
        engine = runs.engine_for(run.id, store)
        Path(engine.checkpoint_dir(run.id), "step-1").touch()
        runs.resume(run.id, engine, elsewhere, changes={"nodes": 2}, checkpoint="step-1")
        assert engine.wait(run.id, 200).phase is Phase.SUCCEEDED
        lines = sorted(line.text for line in RunLogs(store.run_dir(run.id)).read(attempt=2))
        assert lines == [f"2 step-1 {sys.executable} {folder}"] * 2
        assert store.plan(run.id).job["nodes"] == {"min": 2, "max": 2}


def test_elastic_job_keeps_its_minimum_nodes(context: Context, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    old = windlass.make_plan({"name": "d", "run": "train.py", "nodes": {"min": 2, "max": 4}}, context=context)
    assert runs.replanned(old, {"nodes": 3}, (), context).job["nodes"] == {"min": 2, "max": 3}
    assert "nodes" not in runs.replanned(old, {"nodes": 1}, (), context).job  # the default is one
    assert runs.replanned(old, {"nodes": 8}, (), context).run_id == old.run_id


def test_launcher_is_kept_when_a_run_shrinks_to_one_rank(context: Context, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {"name": "d", "run": "train.py", "nodes": 2}
    old = windlass.make_plan(job, context=context)
    assert runs.replanned(old, {"nodes": 1}, (), context).nodes.launcher == "torchrun"
    alone = windlass.make_plan({**job, "nodes": 1}, context=context)
    assert runs.replanned(alone, {"nodes": 1}, (), context).nodes.launcher == "plain"
    assert runs.replanned(alone, {"nodes": 2}, (), context).nodes.launcher == "torchrun"


def test_run_is_resumed_by_the_api(tmp_path: Path) -> None:
    def play(rank: FakeRank) -> int:
        return 3 if rank.attempt == 1 else 0

    with Store(tmp_path) as store:
        run = windlass.run(Job(name="d", run="train.py"), on=FakeEngine(store, play))
        assert run.wait(100, check=False).phase is Phase.FAILED
        assert run.resume().wait(100).phase is Phase.SUCCEEDED


def test_the_api_changes_fields_and_adds_arguments(context: Context, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nprint(sys.argv[1:])\nassert 'BATCH' in os.environ")
    run = windlass.run({"name": "d", "run": "train.py 1", "start": "cold"}, context=context)
    run.wait(100, check=False)
    run.resume(changes={"env": {"BATCH": "16"}}, arguments=["--lr", "0.1"]).wait(100)
    assert [line.text for line in run.logs()][-1] == "['1', '--lr', '0.1']"
    assert run.status.attempts[1].phase is Phase.SUCCEEDED


def test_api_resumes_from_a_checkpoint_by_name_step_or_path(tmp_path: Path) -> None:
    said: list[str | None] = []

    def play(rank: FakeRank) -> int:
        said.append(rank.env.get("WINDLASS_RESUME_FROM"))
        return 3

    with Store(tmp_path) as store:
        engine = FakeEngine(store, play)
        run = windlass.run(Job(name="d", run="train.py"), on=engine)
        run.wait(100, check=False)
        for step in (1, 2):
            write(Path(engine.checkpoint_dir(run.id)), step)
        second, first = run.checkpoints()
        for wanted in (first.name, 1, "1", Path(first.path)):
            run.resume(checkpoint=wanted).wait(100, check=False)
        assert said == [None, first.name, first.name, first.name, first.path]
        flip(Path(second.path, "rank-0.safetensors"))
        for wanted, words in (("typo", "has no checkpoint called 'typo'"), (2, f"{second.name} is damaged")):
            with pytest.raises(windlass.UsageError, match=words):
                run.resume(checkpoint=wanted)
        assert len(run.status.attempts) == 5
