"""A TensorBoard or a notebook whose connection fails stays up, and the user reads until when and how to end it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.actions.test_services import started
from tests.cli.conftest import Call

from windlass.actions import boards
from windlass.cli import boards as commands
from windlass.errors import EngineError
from windlass.runs.context import here


def test_failed_connection_names_the_service_that_is_still_up(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "START_SECONDS", 0.1)  # nothing listens at its port
    with pytest.raises(EngineError):
        commands._open(started, 0, "table", detach=False, no_open=True)
    [line] = [one for one in capsys.readouterr().err.splitlines() if "is up until" in one]
    name = line.split()[0]
    assert line.endswith(f"open it: windlass notebook {name}; end it: windlass close {name}")


def test_options_that_cannot_change_a_running_notebook_are_refused(home: Path, windlass: Call) -> None:
    context = here()
    with context.store() as store:
        name = started(store, context).run_id
    done = windlass("notebook", name, "--for", "2h", "--idle", "30min", "--detach")
    assert done.code == 2
    assert f"{name} is up already: leave out --for, --idle" in done.err
    assert windlass("notebook", name, "--detach").code == 0
