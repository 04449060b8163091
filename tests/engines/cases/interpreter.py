"""A script behaves as under `python script.py`, and no process that it starts outlives the run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.engines.harness import SCRIPTS, Aspect, Can, Case, Harness, differs, needs
from tests.helpers.until import until
from tests.statuses import cause_of

from windlass.worker import process
from windlass.worker.protocol import FileSize


def other_pythons() -> dict[str, str]:
    """Returns one interpreter of each other version from 3.9 that is on the PATH or installed by pyenv."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found: dict[str, str] = {}
    for folder, minor in itertools.product(folders, range(9, 20)):
        name = f"python3.{minor}"
        if minor != sys.version_info.minor and name not in found and os.access(path := f"{folder}/{name}", os.X_OK):
            works = subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
            found |= {name: path} if works else {}
    return found


OTHER_PYTHONS = other_pythons()
NO_OTHER = pytest.param("", marks=pytest.mark.skip(reason="no other Python from 3.9 on is on the PATH or in ~/.pyenv"))


def bare(*words: str, base: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    """Runs `python WORDS…` in a folder."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=240, check=False)


def alive(mark: str) -> list[int]:
    """Returns the pids of processes whose command line ends with `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().rstrip(b"\0").endswith(mark.encode()):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


class Interpreter(Case):
    @needs(Can.SCRIPTS, Can.FILES)
    @pytest.mark.parametrize("words", [("sub/where.py", "a", "-b"), ("-m", "sub.module", "a")], ids=["file", "module"])
    def test_script_sees_same_process_as_under_python(self, harness: Harness, words: tuple[str, ...]) -> None:
        run = harness.finish(*words, base=SCRIPTS)
        assert 0 in run.json_of_ranks(), (run.status, run.text())
        seen = run.json_of_ranks()[0]
        assert seen == json.loads(bare(*words).stdout)

    @needs(Can.SCRIPTS, Can.FILES)
    def test_traceback_has_no_frame_of_windlass(self, harness: Harness) -> None:
        run = harness.finish("broken.py", base=SCRIPTS)
        assert (run.text(), run.status.exit_code) == (bare("broken.py").stderr, 1)

    @needs(Can.SCRIPTS, Can.FILES)
    def test_syntax_error_is_reported_as_under_python(self, harness: Harness, tmp_path: Path) -> None:
        (tmp_path / "wrong.py").write_text('print("a" if True else "b"\n')
        run = harness.finish("wrong.py", base=tmp_path)
        assert (run.text(), run.status.exit_code) == (bare("wrong.py", base=tmp_path).stderr, 1)
        assert cause_of(run.status).summary.startswith("SyntaxError")

    @differs(Aspect.PROGRAM)
    @needs(Can.SCRIPTS)
    def test_root_cause_includes_chained_exceptions(self, harness: Harness) -> None:
        cause = harness.finish("broken.py", base=SCRIPTS).status.cause
        assert cause is not None
        assert cause.summary == "RuntimeError: no checkpoint"
        assert "KeyError: 'weights'" in cause.traceback

    @differs(Aspect.PROGRAM)
    @needs(Can.SCRIPTS)
    def test_rank_can_spawn_processes(self, harness: Harness) -> None:
        run = harness.finish("spawn.py", base=SCRIPTS)
        assert (run.text(), run.status.exit_code) == ("[0, 1, 4, 9, 16]\n", 0)

    @needs(Can.TORCH)
    def test_data_loader_can_have_workers(self, harness: Harness) -> None:
        run = harness.finish("loader.py", base=SCRIPTS, **harness.way.torch_fields)
        assert (run.text(), run.status.exit_code) == ("140\n", 0)

    @needs(Can.SCRIPTS, Can.FILES)
    def test_interpreter_shutdown_runs_as_under_python(self, harness: Harness) -> None:
        run = harness.finish("ending.py", base=SCRIPTS, env={"PYTHONUNBUFFERED": ""})
        assert run.status.exit_code == 0
        assert run.text() == "no newline, not flushedthread ended\nfirst\nsecond\n"
        folder = Path(run.status.output_dir)
        assert (folder / "left-open.txt").read_text() == "all of it"
        assert (folder / "raw.bin").read_bytes() == b"bytes too"

    @differs(Aspect.OUTPUT)
    @needs(Can.SCRIPTS)
    def test_results_that_a_script_leaves_in_its_folder_are_copied_or_listed(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        (tmp_path / "unchanged.py").write_text((SCRIPTS / "unchanged.py").read_text())
        run = harness.start("unchanged.py", base=tmp_path, outputs={"collect": ["out/**"]}).succeeded()
        [found] = run.status.files.code_files
        assert (found.copied, found.copied_bytes) == (1, 1000), found
        assert found.largest == (FileSize("notes.txt", 4),), "the code itself is not new"
        assert run.status.warnings == ()

    @needs(Can.PROCESSES)
    def test_no_process_of_a_rank_outlives_the_run(self, harness: Harness) -> None:
        mark = f"left-{uuid.uuid4()}"
        run = harness.finish("leaver.py", mark, base=SCRIPTS)
        assert (run.text(), run.status.exit_code) == ("left them\n", 0)
        assert alive(mark) == []

    @differs(Aspect.SIGNALS)
    @needs(Can.PROCESSES, Can.PROGRAMS)
    def test_no_process_of_a_rank_outlives_a_stop(self, harness: Harness) -> None:
        mark = f"left-{uuid.uuid4()}"
        script = f"for i in 1 2 3; do sh -c 'sleep 300; : {mark}' sh {mark} & done; echo ready; wait"
        run = harness.start(command=["sh", "-c", script], procs_per_node=2).until_ready(2)
        run.until(lambda _: len(alive(mark)) == 6)
        harness.engine.stop(run.id)
        run.wait()
        assert alive(mark) == []

    @differs(Aspect.SIGNALS)
    @needs(Can.PROCESSES)
    def test_no_process_of_windlass_is_left(self, harness: Harness) -> None:
        run = harness.start("leave", "0", nodes=2)
        run.wait()
        supervisor = int((run.dir / "supervisor.pid").read_text().split()[0])
        nodes = [event.data["pid"] for event in run.events if event.kind == "node"]
        until(lambda: not [pid for pid in [supervisor, *nodes] if process.of_session(pid)], "a process of ours is left")

    @needs(Can.INTERPRETERS)
    def test_an_interpreter_without_windlass_can_import_what_scripts_import(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=240)
        python = tmp_path / "bare" / "bin" / "python"
        assert (
            subprocess.run([python, "-c", "import windlass"], capture_output=True, check=False, cwd="/").returncode == 1
        )
        run = harness.finish("train_anywhere.py", base=SCRIPTS, python=str(python))
        assert (run.status.exit_code, run.text().split()[:2]) == (0, ["by", str(python)]), run.text()
        assert run.status.progress.step == 3

    @needs(Can.INTERPRETERS)
    @pytest.mark.parametrize("name", sorted(OTHER_PYTHONS) or [NO_OTHER])
    def test_other_versions_of_python_run_scripts(self, harness: Harness, name: str) -> None:
        run = harness.finish("train_anywhere.py", base=SCRIPTS, python=OTHER_PYTHONS[name], procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        assert run.text().endswith(f"{name.removeprefix('python')}\n")
        assert run.status.progress.step == 3
