"""A separate process uploads outputs after the last attempt, whichever process is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import Can, Case, Harness, Way
from tests.engines.local.planning import plan_local
from tests.engines.local.test_staging import held, kill_supervisor, processes_of
from tests.helpers.until import until

from windlass.actions.runs import require_removable
from windlass.engines.local.engine import LocalEngine
from windlass.errors import UsageError
from windlass.runs.phase import Phase
from windlass.storage.manifest import IN_FOLDER, Manifest

SCRIPT = """
import os, pathlib, sys, time
while len(sys.argv) > 2 and not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
(out / "plots").mkdir(exist_ok=True)
(out / "model.pt").write_bytes(bytes(100_000))
(out / "plots" / "loss.csv").write_text("0,2.3\\n")
sys.exit(int(sys.argv[1]))
"""


CHECKPOINTS = """
import os, pathlib, sys, time
from windlass.train.report import Reporter
reporter = Reporter(os.environ)
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
for step in (1, 2):
    (out / f"{step}.txt").write_text("x")
    reporter.checkpoint({"action": "saved", "step": step, "name": f"step-{step}"})
    while not (pathlib.Path(sys.argv[1]) / os.environ["WINDLASS_RUN_ID"] / f"{step}.txt").exists():
        time.sleep(0.01)
(out / "last.txt").write_text("x")
"""
"""Script that continues only after the outputs of each checkpoint are in the store."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def job(tmp_path: Path, store: Path) -> dict[str, Any]:
    (tmp_path / "write.py").write_text(SCRIPT)
    return {"base": tmp_path, "outputs": f"file://{store}/runs/"}


KINDS = ("ending", "adopted", "outputs", "end")


def uploaded(store: Path, run_id: str) -> Manifest:
    """Returns the manifest of a run's uploaded files, after comparing each file with it."""
    folder = store / "runs" / run_id
    found = Manifest.from_bytes((folder / IN_FOLDER).read_bytes())
    assert {name: (folder / name).stat().st_size for name in found.files} == {"model.pt": 100_000, "plots/loss.csv": 6}
    return found


class TestUpload(Case):
    way = Way("local", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})

    @pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
    def test_outputs_are_uploaded_when_run_has_ended(
        self, harness: Harness, job: dict[str, Any], store: Path, code: int, phase: Phase
    ) -> None:
        run = harness.start("write.py", str(code), **job)
        assert (run.wait().phase, run.status.exit_code) == (phase, code)
        assert run.status.files.outputs is not None
        assert (run.status.files.outputs.files, run.status.files.outputs.bytes) == (2, 100_006)
        assert run.status.files.outputs.digest == uploaded(store, run.id).digest

    @pytest.mark.slow
    def test_failed_upload_fails_run_and_resume_only_uploads(
        self, harness: Harness, job: dict[str, Any], store: Path
    ) -> None:
        run = harness.start("write.py", "0", "go", **job)
        store.write_text("a file")
        (job["base"] / "go").touch()
        assert (run.wait().phase, run.status.exit_code) == (Phase.FAILED, 0)
        verdict = run.verdict
        assert (verdict.code, f"windlass resume {run.id}" in verdict.fix) == ("outputs-not-uploaded", True)
        with pytest.raises(UsageError, match="with it would go its outputs, which are not uploaded"):
            require_removable(harness.engine, run.id)
        store.unlink()
        harness.engine.resume(run.id)
        assert run.wait().phase is Phase.SUCCEEDED
        require_removable(harness.engine, run.id)
        assert len(run.status.attempts) == 1
        uploaded(store, run.id)

    @pytest.mark.slow
    def test_supervisor_killed_during_transfer_is_replaced(
        self, harness: Harness, job: dict[str, Any], store: Path
    ) -> None:
        run = harness.start("write.py", "0", "go", **job)
        with held(store / "runs" / run.id / ".windlass" / "lock"):
            (job["base"] / "go").touch()
            run.until(lambda run: run.status.phase is Phase.UPLOADING)
            [old] = until(lambda: processes_of("windlass.storage.upload", harness))
            kill_supervisor(run)
            until(lambda: old not in processes_of("windlass.storage.upload", harness))
        assert run.wait().phase is Phase.SUCCEEDED
        assert [event.kind for event in run.events if event.kind in KINDS] == ["ending", "adopted", "outputs", "end"]
        uploaded(store, run.id)

    def test_files_that_a_store_cannot_hold_are_skipped_and_named(
        self, harness: Harness, job: dict[str, Any], store: Path
    ) -> None:
        (job["base"] / "write.py").write_text(f"{SCRIPT.replace('sys.exit', 'os.mkfifo(out / chr(112)); sys.exit')}")
        run = harness.start("write.py", "0", **job)
        assert run.wait().phase is Phase.SUCCEEDED
        uploaded(store, run.id)
        [warning] = [event.data["message"] for event in run.events if event.kind == "warning"]
        assert warning.startswith("not uploaded: p: ")

    @pytest.mark.slow
    def test_outputs_are_uploaded_at_checkpoints_during_training(
        self, harness: Harness, job: dict[str, Any], store: Path
    ) -> None:
        (job["base"] / "train.py").write_text(CHECKPOINTS)
        run = harness.start(
            "train.py", str(store / "runs"), **job | {"outputs": {"to": job["outputs"], "at": "checkpoint"}}
        )
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        folder = store / "runs" / run.id
        assert sorted(Manifest.from_bytes((folder / IN_FOLDER).read_bytes()).files) == ["1.txt", "2.txt", "last.txt"]
        kinds = [event.kind for event in run.events if event.kind in KINDS]
        # The last upload may end the second one before it reports; the first was over before the second began.
        assert (kinds[0], kinds[-3:]) == ("outputs", ["ending", "outputs", "end"])
        assert [event for event in run.events if event.kind == "warning"] == []

    def test_stop_now_ends_upload_process(self, harness: Harness, job: dict[str, Any], store: Path) -> None:
        run = harness.start("write.py", "0", "go", **job)
        with held(store / "runs" / run.id / ".windlass" / "lock"):
            (job["base"] / "go").touch()
            until(lambda: processes_of("windlass.storage.upload", harness))
            harness.engine.stop(run.id, now=True)
            assert run.wait().phase is Phase.STOPPED
        assert processes_of("windlass.storage.upload", harness) == []
        assert run.status.files.outputs is None
