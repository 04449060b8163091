"""`artifacts` lists the files that a local run produced, and prints commands that copy them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.test_checkpoints import write
from tests.cli.test_json import hold

from windlass.runs.events import OutputsUploaded, entry_of
from windlass.runs.store import Store
from windlass.spec.job import Job


@pytest.fixture
def run(recorded: Callable[..., str]) -> str:
    """An ended run without artifacts."""
    return recorded(Job(name="made", command=["true"], python=sys.executable), 0)


def test_outputs_and_checkpoints_are_listed_with_commands_that_copy_them(run: str, home: Path, windlass: Call) -> None:
    folder = home / "runs" / run
    (folder / "output" / "deep").mkdir()
    (folder / "output" / "deep" / "model.pt").write_bytes(b"x" * 2048)
    (folder / "output" / "link").symlink_to("/etc/passwd")
    for step in (10, 1200):
        write(folder / "checkpoints", step)
    (folder / "checkpoints" / "mine.pt").write_bytes(b"x")
    found = windlass("artifacts", run, "-o", "json").json
    hold("artifacts", found)
    outputs, checkpoints = found["artifacts"]
    assert (outputs["kind"], outputs["place"], outputs["files"], outputs["bytes"]) == ("outputs", "folder", 1, 2048)
    assert (checkpoints["kind"], checkpoints["steps"], checkpoints["others"]) == ("checkpoints", [1200, 10], 1)
    assert found["files"] is None
    for at, one in enumerate((outputs, checkpoints)):
        words = shlex.split(one["copy"])
        assert (words[0], words[-1]) == ("windlass", ".")
        assert windlass(*words[1:-1], f"copied-{at}").code == 0
    assert Path("copied-0/deep/model.pt").stat().st_size == 2048
    assert len(list(Path("copied-1").glob("step-*"))) == 2
    named = windlass("artifacts", run, "--files", "-o", "json").json
    hold("artifacts", named)
    assert named["files"] == [{"name": "deep/model.pt", "bytes": 2048}]
    text = windlass("artifacts", run, "--files").out
    assert "2 checkpoints: step 1,200, 10" in text
    assert "deep/model.pt" in text


def test_run_without_artifacts_shows_no_copy_command(run: str, windlass: Call) -> None:
    [outputs] = windlass("artifacts", "-o", "json").json["artifacts"]
    assert (outputs["files"], outputs["copy"]) == (0, "")
    assert "(0 files)" in windlass("artifacts", run).out


def test_file_names_in_the_code_folder_cannot_control_the_terminal(
    recorded: Callable[..., str], home: Path, windlass: Call
) -> None:
    run = recorded(Job(name="made", command=["true"], python=sys.executable), 1)
    with Store(home) as store:
        writer = store.writer(run)
        assert writer is not None
        writer.append(entry_of("resume", {"reason": "asked"}))
        largest = [{"path": "\x1b[5m.pt", "bytes": 1}]
        writer.append(entry_of("code-files", {"node": 0, "folder": "/c", "left": 1, "largest": largest}))
        writer.append(entry_of("end", {"phase": "succeeded", "exit_code": 0}))
        writer.close()
    assert "overwrite them: �[5m.pt" in windlass("artifacts", run).out


def test_outputs_in_a_store_are_listed_from_the_record(
    recorded: Callable[..., str], home: Path, windlass: Call
) -> None:
    run = recorded(Job(name="made", command=["true"], python=sys.executable), 1)
    with Store(home) as store:
        writer = store.writer(run)
        assert writer is not None
        for kind, data in (("resume", {"reason": "asked"}), ("ending", {"phase": "succeeded"})):
            writer.append(entry_of(kind, data))
        writer.append(OutputsUploaded("s3://bucket/two words/", "set:" + "a" * 64, 3, 5_000_000))
        writer.append(entry_of("end", {"phase": "succeeded", "exit_code": 0}))
        writer.close()
    found = windlass("artifacts", run, "-o", "json").json
    hold("artifacts", found)
    uploaded = found["artifacts"][-1]
    assert (uploaded["kind"], uploaded["place"], uploaded["files"]) == ("uploaded", "store", 3)
    assert shlex.split(uploaded["copy"]) == ["windlass", "data", "copy", "s3://bucket/two words/", "FOLDER"]
    assert "set:aaaa" in windlass("artifacts", run).out


def test_outputs_that_wait_for_their_upload_are_announced(
    recorded: Callable[..., str], tmp_path: Path, windlass: Call
) -> None:
    where = f"file://{tmp_path}/store"
    run = recorded(Job(name="made", command=["true"], python=sys.executable, outputs=where), 1)
    uploaded = json.loads(windlass("artifacts", run, "-o", "json").out)["artifacts"][-1]
    assert (uploaded["where"], uploaded["note"]) == (f"{where}/{run}/", "not uploaded")
