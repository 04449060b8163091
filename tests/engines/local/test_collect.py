"""Results that a script writes to its code folder are copied to the run, whichever process is killed meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Can, Case, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.engines.local.test_staging import kill_supervisor

from windlass.actions.artifacts import list_artifacts
from windlass.engines.local.engine import LocalEngine
from windlass.runs.events import NodeStarted
from windlass.runs.phase import Phase

SCRIPT = """
import os, pathlib, sys, time
rank = os.environ.get("RANK", "0")
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
print("ready", flush=True)
while len(sys.argv) > 2 and not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
(out / f"model-{rank}.pt").write_bytes(bytes(100_000))
sys.exit(int(sys.argv[1]) if rank == "0" else 0)
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "write.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model-9.pt").write_text("of an earlier run")
    return {"base": tmp_path, "outputs": {"collect": ["out/**"]}}


def copied(run: Run) -> list[str]:
    folder = Path(run.status.output_dir)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestCollect(Case):
    way = Way("local", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})

    @pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
    def test_results_are_in_the_output_once_the_run_has_ended(
        self, harness: Harness, job: dict[str, Any], code: int, phase: Phase
    ) -> None:
        run = harness.start("write.py", str(code), **job)
        assert (run.wait().phase, run.status.exit_code) == (phase, code)
        assert copied(run) == ["out/model-0.pt"], "what is older is another run's"

    def test_patterns_without_match_are_warning_of_succeeded_run(self, harness: Harness, job: dict[str, Any]) -> None:
        job["outputs"] = {"collect": ["outputs/**"]}
        [warning] = harness.start("write.py", "0", **job).succeeded().status.warnings
        assert warning.code == "results-not-collected"
        failed = harness.start("write.py", "1", **job)
        assert (failed.wait().phase, failed.status.warnings) == (Phase.FAILED, ())

    def test_uncopied_result_is_artifact_that_another_run_may_overwrite(
        self, harness: Harness, job: dict[str, Any]
    ) -> None:
        run = harness.start("write.py", "0", base=job["base"]).succeeded()
        [left] = [one for one in list_artifacts(harness.engine, run.id).artifacts if one.kind == "code"]
        assert (left.where, left.files, left.bytes) == (str(job["base"]), 1, 100_000)
        assert left.note == "not with the run, another run may overwrite them: out/model-0.pt"

    def test_nodes_that_share_the_folder_copy_what_any_of_them_has_written(
        self, harness: Harness, job: dict[str, Any]
    ) -> None:
        run = harness.start("write.py", "0", nodes=2, **job).succeeded()
        assert copied(run) == ["out/model-0.pt", "out/model-1.pt"]
        assert max(one.copied for one in run.status.files.code_files) == 2  # the node that ends first copies its own

    def test_a_supervisor_that_is_killed_before_the_copy_loses_nothing(
        self, harness: Harness, job: dict[str, Any]
    ) -> None:
        run = harness.start("write.py", "0", "go", **job).until_ready()
        kill_supervisor(run)
        (job["base"] / "go").touch()
        assert run.wait().phase is Phase.SUCCEEDED
        assert copied(run) == ["out/model-0.pt"]
        assert run.status.files.code_files[-1].copied == 1

    def test_a_supervisor_that_is_killed_during_the_copy_loses_nothing(
        self, harness: Harness, job: dict[str, Any]
    ) -> None:
        (job["base"] / "write.py").write_text("open('out/big.pt', 'wb').truncate(300 << 20)\n")
        run = harness.start("write.py", **job)
        run.until(lambda run: [one for one in run.events if one.kind == "collecting"])
        kill_supervisor(run)
        assert run.wait().phase is Phase.SUCCEEDED
        assert copied(run) == ["out/big.pt"]
        assert Path(run.status.output_dir, "out", "big.pt").stat().st_size == 300 << 20

    def test_a_node_that_is_killed_during_the_copy_leaves_no_part_of_a_file(
        self, harness: Harness, job: dict[str, Any]
    ) -> None:
        (job["base"] / "write.py").write_text("open('out/big.pt', 'wb').truncate(600 << 20)\n")
        run = harness.start("write.py", **job)
        run.until(lambda run: list(Path(run.status.output_dir).glob(".windlass-partial-*")))
        [pid] = [one.entry.pid for one in run.events if isinstance(one.entry, NodeStarted)]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        [warning] = run.wait().warnings
        assert warning.message == "node 0 was lost while it copied files to the output"
        assert copied(run) == []

    def test_uploaded_outputs_include_collected_files(
        self, harness: Harness, job: dict[str, Any], tmp_path: Path
    ) -> None:
        to = {"to": f"file://{tmp_path}/store/runs/"}
        run = harness.start("write.py", "0", **job | {"outputs": {**job["outputs"], **to}}).succeeded()
        assert (tmp_path / "store" / "runs" / run.id / "out" / "model-0.pt").stat().st_size == 100_000
        assert not [one for one in run.status.files.code_files[-1].largest if "store" in one.path]

    @pytest.mark.slow
    def test_output_folder_in_code_folder_is_not_collected(self, harness: Harness, job: dict[str, Any]) -> None:
        fields = job | {"outputs": {"to": "results", "collect": ["**/*.pt"]}}
        for _ in range(2):
            run = harness.start("write.py", "0", **fields).succeeded()
            assert copied(run) == ["out/model-0.pt"]
