"""`resume` continues an ended run and follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.test_checkpoints import flip, write
from tests.cli.test_json import hold
from tests.helpers.until import until

from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.spec.job import Job

SCRIPT = """
import os
print("world", os.environ["WINDLASS_WORLD_SIZE"], "attempt", os.environ["WINDLASS_ATTEMPT"])
print("from", os.environ.get("WINDLASS_RESUME_FROM", "wherever it was"))
"""


@pytest.fixture
def broken(recorded: Callable[..., str]) -> str:
    """A failed run that would now succeed."""
    Path("train.py").write_text(SCRIPT)
    return recorded(Job(name="train", run="train.py"))


def test_a_resumed_run_is_followed_to_its_end(windlass: Call) -> None:
    Path("train.py").write_text(SCRIPT + "raise ValueError('broken')\n")
    assert windlass("run", "-q", "train.py").code == 100
    Path("train.py").write_text(SCRIPT)
    broken = windlass("ps", "-q").out.strip()
    result = windlass("resume", broken)
    assert result.code == 0, result.err
    assert "attempt 2" in result.out
    assert "attempt 1" not in result.out  # output before the resume is not repeated
    assert "broken" not in result.err
    status = windlass("status", "-o", "json").json
    hold("status", status)
    assert (status["id"], status["phase"], len(status["attempts"])) == (broken, "succeeded", 2)
    assert status["ledger"]["seconds"]["idle"] > 0


def test_a_detached_resume_prints_the_id(windlass: Call, broken: str, ended: Callable[..., Status]) -> None:
    result = windlass("resume", "--detach", "-o", "json")
    hold("resume", result.json)
    assert result.json == {"id": broken}
    assert ended().phase == "succeeded"


def test_last_status_is_printed_as_json(windlass: Call, broken: str) -> None:
    result = windlass("resume", broken, "-o", "json")
    assert result.code == 0, result.err
    hold("resume", result.json)
    assert result.json["phase"] == "succeeded"


def test_resume_accepts_another_number_of_nodes(windlass: Call, broken: str) -> None:
    result = windlass("resume", broken, "--nodes", "2")
    assert result.code == 0, result.err
    assert "world 2 attempt 2" in result.out


@pytest.mark.slow
def test_resume_accepts_other_fields_variables_and_arguments(windlass: Call, home: Path) -> None:
    Path("train.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ)\nassert 'BATCH' in os.environ")
    assert windlass("run", "-q", "train.py", "-e", "SEED=1", "--", "--epochs", "5").code == 100
    run_id = windlass("ps", "-q").out.strip()
    result = windlass("resume", run_id, "-e", "BATCH=16", "--set", "grace=7", "--", "--lr", "0.1")
    assert result.code == 0, result.err
    for words in ("['--epochs', '5', '--lr', '0.1']", "'SEED': '1'", "'BATCH': '16'"):
        assert words in result.out
    again = windlass("rerun", run_id, "-o", "json")  # a rerun has the fields of the resumed run
    with Store(home) as store:
        assert [store.plan(one).job["grace"] for one in (run_id, again.json["id"])] == [7, 7]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "outputs=elsewhere"), "outputs.to cannot change in a resumed run"),
        (("--set", "name=other"), "name cannot change in a resumed run"),
        (("--set", "checkpoint.folder=s3://bucket/x"), "checkpoint.folder cannot change in a resumed run"),
        (("--set", "kubernetes.via=jobset"), "kubernetes.via cannot change in a resumed run"),
        (("--set", "kubernetes.namespace=other"), "kubernetes.namespace cannot change in a resumed run"),
        (("--set", "grace=soon"), "--set grace:"),
        (("--name", "other"), "--name"),
        (("--epochs", "5"), "windlass resume RUN -- --epochs 5"),
    ],
)
def test_fixed_fields_are_refused_before_a_resume(
    windlass: Call, broken: str, words: tuple[str, ...], message: str
) -> None:
    result = windlass("resume", broken, *words)
    assert (result.code, message.replace("RUN", broken) in result.err) == (2, True), result.err
    assert len(windlass("status", broken, "-o", "json").json["attempts"]) == 1


def test_resume_lists_changed_code_files(windlass: Call) -> None:
    Path("train.py").write_text("raise ValueError('then')\n")
    assert windlass("run", "-q", "train.py", "--cold").code == 100
    run_id = windlass("ps", "-q").out.strip()
    Path("train.py").write_text("print('now')\n")
    result = windlass("resume", run_id)
    assert (
        f"1 file of the code differs from what {run_id} began with: train.py; the run continues with the files of now"
        in result.err
    )
    assert "now" in result.out


@pytest.mark.slow
def test_results_in_the_code_folder_are_not_changed_code(windlass: Call) -> None:
    Path("train.py").write_text(
        "import pathlib; pathlib.Path('out').mkdir(exist_ok=True)\n"
        "for i in range(12): pathlib.Path(f'out/ckpt_{i}.pt').write_text('x')\n"
        "pathlib.Path('model.pt').write_text('y')\n"
        "raise ValueError('then')\n"
    )
    assert windlass("run", "-q", "train.py", "--cold").code == 100
    run_id = windlass("ps", "-q").out.strip()
    assert "differ" not in windlass("resume", run_id).err
    Path("train.py").write_text("print('now')\n")
    result = windlass("rerun", run_id)
    assert f"1 file of the code differs from what {run_id} began with: train.py;" in result.err


def test_resume_starts_from_the_given_checkpoint(windlass: Call, broken: str, home: Path) -> None:
    write(home / "runs" / broken / "checkpoints", 10)
    write(home / "runs" / broken / "checkpoints", 20)
    result = windlass("resume", broken, "--from", "10")
    assert result.code == 0, result.err
    assert "from step-00000010-a1f3c1" in result.out


def test_step_number_selects_the_checkpoint_and_not_a_file(
    windlass: Call, broken: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / "runs" / broken / "checkpoints", 10)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "10").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    result = windlass("resume", broken, "--from", "./10")
    assert (result.code, "is no checkpoint" in result.err) == (2, True)
    result = windlass("resume", broken, "--from", "10")
    assert result.code == 0, result.err
    assert "from step-00000010-a1f3c1" in result.out


def test_path_without_a_checkpoint_is_refused_before_a_start(
    windlass: Call, broken: str, home: Path, tmp_path: Path
) -> None:
    write(home / "runs" / broken / "checkpoints", 10)
    (tmp_path / "notes.txt").write_text("no checkpoint")
    for path in (tmp_path, tmp_path / "notes.txt"):
        result = windlass("resume", broken, "--from", str(path))
        assert (result.code, f"{path} is there, but it is no checkpoint" in result.err) == (2, True)
    assert len(windlass("status", broken, "-o", "json").json["attempts"]) == 1


def test_resume_hint_names_the_folder_if_the_checkpoint_list_is_empty(windlass: Call, broken: str, home: Path) -> None:
    """`windlass checkpoints` does not list checkpoints saved by the script itself."""
    folder = home / "runs" / broken / "checkpoints"
    (folder / "checkpoint-400").mkdir(parents=True)
    result = windlass("resume", broken, "--from", "checkpoint-999")
    assert (result.code, f"name a file or folder in {folder}" in result.err) == (2, True)
    write(folder, 10)
    assert f"windlass checkpoints {broken} lists them" in windlass("resume", broken, "--from", "99").err


def test_a_damaged_checkpoint_is_refused_before_anything_starts(windlass: Call, broken: str, home: Path) -> None:
    folder = home / "runs" / broken / "checkpoints"
    flip(write(folder, 10) / "rank-0.safetensors")
    result = windlass("resume", broken, "--from", "10")
    assert (result.code, "step-00000010-a1f3c1 is damaged" in result.err) == (2, True)
    result = windlass("resume", broken, "--from", str(folder / "step-00000010-a1f3c1"))
    assert (result.code, "step-00000010-a1f3c1 is damaged" in result.err) == (2, True)
    for nothing in ("nothing-of-that-name", "", "a" * 5000, "~no-such-user/x"):
        assert windlass("resume", broken, "--from", nothing).code == 2
    assert len(windlass("status", broken, "-o", "json").json["attempts"]) == 1


def test_runs_that_cannot_be_resumed_are_refused(windlass: Call, broken: str) -> None:
    assert windlass("resume", broken, "-q").code == 0
    assert windlass("resume", broken).code == 2  # the run has succeeded by now
    assert windlass("resume", "nope").code == 102
    assert windlass("resume", broken, "--nodes", "0").code == 2


@pytest.mark.slow
def test_stopped_run_suggests_resume_and_why_reports_the_stop(
    windlass: Call, home: Path, ended: Callable[..., Status]
) -> None:
    Path("wait.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    windlass("run", "--detach", "--set", "grace=1s", "wait.py")
    until(lambda: "waits" in windlass("logs").out)  # before its first attempt, a stop leaves none to resume
    stopped = windlass("stop")
    assert stopped.code == 0
    run_id = windlass("ps", "-q").out.strip()
    assert f"windlass resume {run_id}" in stopped.out
    Path("wait.py").write_text("print('no more')\n")
    assert windlass("resume", run_id).code == 0
    assert "the run is resumed" in windlass("events").out
    assert "attempt 2 by a resume" in windlass("why").out
    (restart,) = windlass("why", "-o", "json").json["restarts"]
    assert (restart["attempt"], restart["reason"]) == (2, "resume")
