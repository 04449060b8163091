"""The end of a process that transfers files is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import cast

import pytest
from tests.helpers.until import until

from windlass.engines.local.transfer import ProcessTransfer
from windlass.errors import EngineError
from windlass.runs.clock import Clock
from windlass.supervise.transfers import Notes, TransferInterrupted


@pytest.mark.parametrize(
    ("script", "words"),
    [("kill -9 $$", "killed (SIGKILL): by hand, or by the kernel for want of memory"), ("exit 3", "exit code 3")],
)
def test_end_of_transfer_process_is_reported_in_words(script: str, words: str) -> None:
    transfer = ProcessTransfer(["sh", "-c", script], "process that stages the data")
    clock = cast("Clock", types.SimpleNamespace(wake=lambda: None))
    with pytest.raises(EngineError) as told:
        until(lambda: list(transfer.reports(cast("Notes", None), clock)))
    assert told.value.message == f"the process that stages the data ended: {words}"


def test_line_that_is_no_report_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    script = "echo 'a library speaks'; echo 12; echo '{\"name\": \"set\"}'"
    transfer = ProcessTransfer(["sh", "-c", script], "process that stages the data")
    clock = cast("Clock", types.SimpleNamespace(wake=lambda: None))
    assert until(lambda: list(transfer.reports(cast("Notes", None), clock)), seconds=10.0) == [{"name": "set"}]
    until(lambda: list(transfer.reports(cast("Notes", None), clock)) or transfer.is_done)
    assert capfd.readouterr().err == "a library speaks\n12\n"


AWAY = """
if test -e again; then echo '{"name": "set", "digest": "set:0"}'; exit 0; fi
touch again; echo '{"error": "it does not answer", "hint": "", "passes": true}'; cat; exit 1
"""


def test_interrupted_transfer_is_restarted_by_next_call(tmp_path: Path) -> None:
    transfer = ProcessTransfer(["sh", "-c", f"cd {tmp_path}\n{AWAY}"], "process that stages the data")
    clock = cast("Clock", types.SimpleNamespace(wake=lambda: None))
    with pytest.raises(TransferInterrupted, match="it does not answer"):
        until(lambda: list(transfer.reports(cast("Notes", None), clock)))
    [line] = until(lambda: list(transfer.reports(cast("Notes", None), clock)))
    assert line["digest"] == "set:0"
    until(lambda: list(transfer.reports(cast("Notes", None), clock)) or transfer.is_done)


@pytest.mark.parametrize(("source", "passes"), [("s3://bucket/set", True), ("/nowhere", False)])
def test_process_reports_whether_error_is_temporary(tmp_path: Path, source: str, passes: bool) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    words = [str(tmp_path), "set", source, str(tmp_path / "link")]
    command = [sys.executable, "-P", "-m", "windlass.storage.staging", *words]
    with subprocess.Popen(command, env={**os.environ, **keys}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["passes"] is passes
