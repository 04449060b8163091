"""Gives each test a separate home, calls the command line in this process, and ends its processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from windlass.actions import runs
from windlass.actions.jobs import ReadyJob
from windlass.cli.main import main
from windlass.runs.context import Context
from windlass.runs.events import entry_of
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job

WINDLASS = (sys.executable, "-P", "-c", "from windlass.cli.entry import main; main()")
"""The command for a separate process, independent of installed scripts."""


REPORT = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "from windlass.cli.main import main\n"
    "try: main({words!r})\n"
    "except SystemExit: pass\n"
    "print('\\n' + 'LOADED', *sorted(set(sys.modules) - before))\n"
)


@dataclasses.dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Result]


def loaded_by(*words: str, environ: Mapping[str, str]) -> set[str]:
    """Returns the modules that a command imports."""
    code = REPORT.format(words=list(words))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return set(done.stdout[done.stdout.rindex("LOADED") :].split()[1:])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provides an empty record, a working folder `work` and an environment without colours or terminals."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("WINDLASS_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NO_COLOR", "FORCE_COLOR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(work)
    yield home
    if (home / "record.db").exists():
        with Store(home) as store:
            unfinished = store.statuses(unfinished=True)
            for status in unfinished:
                runs.engine_for(status.id, store).stop(status.id, now=True)
            for status in unfinished:
                runs.engine_for(status.id, store).wait(status.id, 100)


@pytest.fixture
def windlass(home: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Provides a function that runs a command, `windlass("ps", "--all")`, and returns its exit code and output."""

    def call(*words: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        sys.stdout.flush()
        said = capfd.readouterr()
        return Result(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def environ(home: Path) -> Mapping[str, str]:
    """Provides the environment for a command in a separate process."""
    return dict(os.environ)


@pytest.fixture
def recorded(home: Path) -> Callable[..., str]:
    """Provides a function that records an ended run of one rank, without any process, and returns its id."""

    def record(job: Job, exit_code: int = 1) -> str:
        plan = runs.make_plan(ReadyJob(job, Path.cwd(), "job"), "local", Context(os.environ, Path.cwd()))
        with Store(home) as store:
            writer = store.create(
                plan.run_id,
                name=plan.name,
                target=plan.target,
                output_dir=plan.output_dir,
                plan=plan.to_text(),
                time=time.time(),
                restarts=0,
            )
            events: list[tuple[str, dict[str, Any]]] = [
                ("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"}),
                ("rank", {"rank": 0, "exit_code": exit_code}),
                *([("cause", {"rank": 0, "exit_code": exit_code, "summary": "failed"})] if exit_code else []),
                ("end", {"phase": "failed" if exit_code else "succeeded", "exit_code": exit_code}),
            ]
            for kind, data in events:
                writer.append(entry_of(kind, data))
            writer.close()
            for folder in ("attempt-1", "output", "checkpoints"):
                (store.run_dir(plan.run_id) / folder).mkdir()
        return plan.run_id

    return record


@pytest.fixture
def ended(home: Path) -> Callable[..., Status]:
    """Provides a function that waits for the end of a run and returns its status."""

    def wait(run: str | None = None, timeout: float = 100) -> Status:
        with Store(home) as store:
            engine, run_id = runs.find(run, store)
            status = engine.wait(run_id, timeout)
        assert status.phase.is_terminal
        return status

    return wait
