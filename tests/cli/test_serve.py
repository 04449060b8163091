"""`serve` serves a model or the results of a run, by the interpreter of the script."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import WINDLASS, Call
from tests.helpers.until import until

from windlass.actions import serving
from windlass.actions.runs import opened
from windlass.cli.serve import OPTIONS
from windlass.errors import UsageError
from windlass.serving.__main__ import parse
from windlass.spec.job import Job

PREDICT = """
import importlib.util, os, sys

def predict(data):
    return [data, sys.prefix, os.getcwd(), importlib.util.find_spec("starlette") is None]
"""


@pytest.mark.slow
def test_a_run_is_served_by_the_interpreter_of_its_script_which_needs_no_package_of_the_server(
    tmp_path: Path, home: Path, recorded: Callable[..., str], environ: Mapping[str, str]
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    Path("train.py").touch()
    run = recorded(Job(name="made", run="train.py", python=str(bare / "bin" / "python")), 0)
    (home / "runs" / run / "output" / "predict.py").write_text(PREDICT)
    with open("log", "wb") as log:
        process = subprocess.Popen((*WINDLASS, "serve", run, "--port=0"), env=environ, stderr=log, stdout=log)
    try:
        found = until(lambda: re.search(r"listening on (http://127.0.0.1:\d+)\n", Path("log").read_text()))
        until(lambda: "model loaded" in Path("log").read_text())
        headers = {"Content-Type": "application/json"}
        assert found is not None
        with urllib.request.urlopen(urllib.request.Request(f"{found[1]}/invocations", b"7", headers)) as answer:
            assert json.load(answer) == [7, str(bare), str(Path.cwd()), True]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_results_that_are_elsewhere_or_absent_are_refused(recorded: Callable[..., str], windlass: Call) -> None:
    run = recorded(Job(name="made", command=["true"], python=sys.executable), 0)
    for words, message in (
        ((run,), f"{run} has no results"),
        (("absent/model",), "absent/model is not a file or folder"),
        (("absent",), "no run"),
    ):
        done = windlass("serve", *words)
        assert done.code in (2, 102)
        assert message in done.err


def test_files_of_a_runs_code_are_found(tmp_path: Path, home: Path, recorded: Callable[..., str]) -> None:
    Path("train.py").touch()
    run = recorded(Job(name="made", run="train.py", python=sys.executable), 0)
    (home / "runs" / run / "output" / "model.pt").touch()
    script = Path.cwd() / "train.py"
    options = ("--function=train.py:make", "--code=absent.py", "--port=0")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with opened(run) as (engine, run_id), pytest.MonkeyPatch.context() as patch:
        assert serving.of_run(engine, run_id, options).argv[-3:] == options
        patch.chdir(elsewhere)
        command = serving.of_run(engine, run_id, options)
    assert command.argv[:4] == (sys.executable, "-m", "windlass.serving", str(home / "runs" / run / "output"))
    assert command.argv[4:] == (f"--function={script}:make", "--code=absent.py", "--port=0")


def test_results_in_a_cluster_are_to_be_copied_first(
    recorded: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.engines.base import Engine
    from windlass.engines.values import ResultsLocation

    run = recorded(Job(name="made", command=["true"], python=sys.executable), 0)
    with opened(run) as (engine, run_id):
        monkeypatch.setattr(Engine, "results", lambda *_: ResultsLocation("claim", "windlass/made", "results"))
        with pytest.raises(UsageError, match="not on this machine") as refused:
            serving.of_run(engine, run_id, ())
    assert f"windlass cp {run}:output FOLDER" in (refused.value.hint or "")


def test_the_command_has_all_options_of_the_server() -> None:
    words = [f"--{option.name}={option.default or 3}" for option in OPTIONS if option.metavar != "FILE"]
    assert parse(["model", *words, "--allow-pickle"]).queue == 100


def test_missing_server_is_named_with_the_command_that_installs_it(
    windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("predict.py").touch()
    monkeypatch.setitem(sys.modules, "h11", None)
    done = windlass("serve", ".")
    assert "the model server needs h11" in done.err
    assert "pip install uvicorn" in done.err
