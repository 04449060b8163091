"""`why` names the cause of each real fault of `faults.py`, and finds nothing in runs that are well."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.faults.faults import FAULTS, HEALTHY, table
from tests.faults.scene import Fault, Scene

from windlass.actions import runs
from windlass.actions.jobs import ReadyJob
from windlass.actions.why import why
from windlass.diagnose.verdict import Diagnosis
from windlass.engines import engine_class
from windlass.engines.local.warm_pool import WarmPool
from windlass.runs.context import Context
from windlass.runs.logs import RunLogs
from windlass.runs.phase import Phase
from windlass.spec.parse import job_from_mapping

ROOT = Path(__file__).parents[2]
WINDLASS = Path(sys.executable).with_name("windlass")
PATIENCE_SECONDS = 240.0


@dataclass
class World:
    """One home for all rows, so that they share its warm process; and what came of them."""

    home: Path
    rows: list[tuple[str, str, str, float]] = field(default_factory=list)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("home"))
    yield made
    WarmPool(made.home).stop()
    if made.rows:
        reporter = request.config.pluginmanager.getplugin("terminalreporter")
        lines = [f"{name:62} {expected:24} {found:24} {seconds:5.2f} s" for name, expected, found, seconds in made.rows]
        right = sum(expected == found for _, expected, found, _ in made.rows)
        lines.append(f"{right} of {len(lines)} right; slowest verdict {max(row[3] for row in made.rows):.2f} s")
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            reporter.write_line("")
            for line in lines:
                reporter.write_line(line)


QUICK = ("exception", "exit-code", "killed", "node-killed", "none", "segfault")
"""Verdicts of which `make test` plays one row each; CI plays all verdicts."""


def params(rows: tuple[Fault, ...]) -> list[Any]:
    """Returns the rows as parameters; a slow row whose verdict another row already has runs at night."""
    made = []
    quick = set(QUICK)
    verdicts = {row.verdict for row in rows if not row.slow}
    for row in rows:
        at_once = not row.slow and row.verdict in quick
        marks = [pytest.mark.slow] * (not at_once) + [pytest.mark.nightly] * (row.slow and row.verdict in verdicts)
        quick -= {row.verdict} if at_once else set()
        verdicts.add(row.verdict)
        made.append(pytest.param(row, id=re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-"), marks=marks))
    return made


def import_ahead(row: Fault, fields: dict[str, Any], folder: Path, context: Context) -> None:
    """Run the imports of a row alone: a time limit of seconds is not for the first import of torch in its home."""
    (folder / "imports.py").write_text(row.script.splitlines()[0])
    job = {**{name: value for name, value in fields.items() if name != "timeout"}, "run": "imports.py"}
    with context.store() as store:
        made = runs.make_plan(ReadyJob(job_from_mapping(job), folder, "job"), "local", context)
        engine = engine_class(made.engine).connect(store)
        assert engine.wait(engine.submit(made).id, PATIENCE_SECONDS).phase is Phase.SUCCEEDED


def play(row: Fault, world: World, folder: Path) -> Diagnosis:
    """Run a row to its end; gives the verdict as `why -o json` prints it."""
    for name, text in {"train.py": row.script, **row.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if path.suffix in (".sh", ".bin") else 0o644)
    if "python" in row.job:
        python = folder / row.job["python"]
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
    fields = {"name": "fault", "run": "train.py", "python": sys.executable, "grace": "2s", **row.job}
    fields = {name: value for name, value in fields.items() if value is not None}
    fields = json.loads(json.dumps(fields).replace("{folder}", str(folder)))
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # it differs from row to row, and so would the warm processes
    context = Context({**os.environ, "WINDLASS_HOME": str(world.home)}, folder)
    if "timeout" in fields and "torch" in row.script:
        import_ahead(row, fields, folder, context)
    with context.store() as store:
        made = runs.make_plan(ReadyJob(job_from_mapping(fields), folder, "job"), "local", context)
        scene = Scene(folder, made, run_dir=store.run_dir(made.run_id))
        with row.around(scene) if row.around else nullcontext():
            if row.between:
                row.between(scene)
            if row.wrap:
                (folder / "job.yaml").write_text(json.dumps(fields))
                command = [*row.wrap, str(WINDLASS), "run", "-q", "-o", "json"]
                done = subprocess.run(command, cwd=folder, env=dict(context.environ), capture_output=True, check=False)
                run_id = json.loads(done.stdout)["id"]
            else:
                run_id = engine_class(made.engine).connect(store).submit(made).id
            engine = runs.engine_for(run_id, store)
            scene.status = lambda: engine.status(run_id)
            scene.stop = lambda: engine.stop(run_id)
            scene.hung = lambda since, after: {
                rank["rank"]
                for event in store.events(run_id)
                if event.kind == "hang" and event.data["since"] >= since and event.time > after
                for rank in event.data["ranks"]
            }
            scene.lines = lambda: list(RunLogs(store.run_dir(run_id)).read())
            if row.act:
                row.act(scene)
            status = engine.wait(run_id, PATIENCE_SECONDS)
            assert status.phase.is_terminal, f"{status}\n{scene.log()}"
        began = time.perf_counter()
        diagnosis = why(run_id, engine)
        seconds = time.perf_counter() - began
    world.rows.append((row.name, row.verdict, diagnosis.verdict.code, seconds))
    return diagnosis


@pytest.mark.parametrize("row", params(FAULTS))
def test_why_names_the_injected_fault(row: Fault, world: World, tmp_path: Path) -> None:
    if reason := row.needs():
        pytest.skip(reason)
    found = play(row, world, tmp_path)
    verdict = found.verdict
    assert verdict.code == row.verdict, found
    assert row.rank is None or verdict.rank == row.rank, found
    said = "\n".join([verdict.summary, *verdict.evidence, verdict.fix])
    assert [word for word in row.words if word not in said] == [], said
    assert verdict.summary
    assert verdict.fix


@pytest.mark.parametrize("row", params(HEALTHY))
def test_why_finds_no_fault_in_a_healthy_run(row: Fault, world: World, tmp_path: Path) -> None:
    if reason := row.needs():
        pytest.skip(reason)
    found = play(row, world, tmp_path)
    assert found.verdict.code == "none", found
    assert found.others == ()


def test_the_page_shows_the_rows() -> None:
    page = (ROOT / "docs" / "reference" / "tested-verdicts.md").read_text()
    assert table() in page, f"put this into docs/reference/tested-verdicts.md:\n{table()}"


def test_the_page_names_every_verdict() -> None:
    page = (ROOT / "docs" / "concepts" / "why.md").read_text()
    sources = (ROOT / "src" / "windlass").rglob("diagnose/**/*.py")
    codes = {
        code for path in sources for code in re.findall(r'(?:Verdict|Known|of_first)\(\s*"([a-z-]+)"', path.read_text())
    }
    assert len(codes) > 40
    assert sorted(code for code in codes if f"`{code}`" not in page) == []


def test_the_command_says_it_in_json(world: World, tmp_path: Path) -> None:
    play(FAULTS[0], world, tmp_path)
    environ = {**os.environ, "WINDLASS_HOME": str(world.home)}
    done = subprocess.run([str(WINDLASS), "why", "-o", "json"], env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    assert set(said) == {
        "id",
        "phase",
        "verdict",
        "summary",
        "rank",
        "evidence",
        "fix",
        "others",
        "warnings",
        "data_differences",
        "not_seen",
        "restarts",
    }
    assert (said["verdict"], said["rank"], said["phase"]) == ("exception", 2, "failed"), done.stdout.decode()
