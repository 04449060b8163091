"""A home of its own for each test, the command line called in this process, and nothing left running."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from windlass.actions import runs
from windlass.cli.main import main
from windlass.runs.record import Status
from windlass.runs.store import Store

WINDLASS = (sys.executable, "-c", "from windlass.cli.main import main; main()")
"""The command as another process, whatever is installed."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty record, a working folder `work` and an environment without colours or terminals."""
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
                runs.stop(status.id, store, now=True)
            for status in unfinished:
                runs.wait(status.id, store, timeout=100)


@pytest.fixture
def windlass(home: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """`windlass("ps", "--all")` → its code and what it wrote."""

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
    """The environment for a command in another process."""
    return dict(os.environ)


@pytest.fixture
def ended(home: Path) -> Callable[..., Status]:
    """Waits for the end of a run; gives its status."""

    def wait(run: str | None = None, timeout: float = 100) -> Status:
        with Store(home) as store:
            status = runs.wait(run, store, timeout=timeout)
        assert status.phase.is_terminal
        return status

    return wait
