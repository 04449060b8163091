"""`init`, `check`, `schema`, `doctor` and `completion` on the command line."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import jsonschema
import pexpect
import pytest
from ruamel.yaml import YAML
from tests.cli.conftest import WINDLASS, Call

from windlass.spec.job import Job

TRAIN = 'import torch.distributed as dist\nif __name__ == "__main__":\n    dist.init_process_group()\n'


# -- init and check ---------------------------------------------------------------------------------------------------


def test_init_writes_a_job_that_check_accepts_and_plan_plans(windlass: Call) -> None:
    Path("train.py").write_text(TRAIN)
    made = windlass("init")
    assert made.code == 0
    assert "torchrun: it imports torch.distributed" in made.out
    checked = windlass("check")
    assert checked.code == 0
    assert "job.yaml: ok  work: 1 node × 2 ranks on local" in checked.out
    assert windlass("plan").code == 0


@pytest.mark.parametrize("words", [["src/mine.py"], ["--script", "src/mine.py"]])
def test_init_uses_the_given_script(words: list[str], windlass: Call) -> None:
    Path("src").mkdir()
    for name in ("train.py", "src/mine.py"):
        Path(name).write_text(TRAIN)
    assert windlass("init", *words).code == 0
    assert "run: src/mine.py" in Path("job.yaml").read_text()
    assert windlass("init", "--force", "train.py", "--script", "src/mine.py").code == 2


def test_init_does_not_overwrite_unless_forced(windlass: Call) -> None:
    Path("train.py").write_text(TRAIN)
    Path("job.yaml").write_text("mine")
    refused = windlass("init")
    assert refused.code == 2
    assert "--force" in refused.err
    assert Path("job.yaml").read_text() == "mine"
    assert windlass("init", "--force", "--name", "other").code == 0
    assert "name: other" in Path("job.yaml").read_text()


def test_init_refers_to_a_schema_only_if_asked(windlass: Call) -> None:
    Path("train.py").write_text(TRAIN)
    windlass("init")
    assert "$schema" not in Path("job.yaml").read_text()
    assert windlass("init", "--schema", "--force").code == 0
    text = Path("job.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=job.schema.json\n")
    assert "http" not in text
    jsonschema.validate(YAML(typ="safe").load(text), json.loads(Path("job.schema.json").read_text()))


def test_init_without_a_script_asks_for_one(windlass: Call) -> None:
    result = windlass("init")
    assert result.code == 2
    assert "windlass init src/train.py" in result.err
    assert not Path("job.yaml").exists()


def test_check_reports_all_problems_at_once(windlass: Call) -> None:
    Path("job.yaml").write_text("name: Bad Name\nrun: train.py\nnode: 2\ngrace: soon\n")
    result = windlass("check")
    assert result.code == 2
    assert [line.split()[0] for line in re.findall(r"job\.yaml:\d+:.*", result.err)] == [
        "job.yaml:1:",
        "job.yaml:3:",
        "job.yaml:4:",
    ]
    assert "did you mean nodes?" in result.err


def test_check_reports_problems_of_the_target(windlass: Call) -> None:
    Path("job.yaml").write_text("name: job\nrun: gone.py\n")
    result = windlass("check")
    assert result.code == 2
    assert "cannot run" in result.out
    assert "gone.py is not in" in result.out


def test_the_templates_of_the_command_are_those_of_the_action() -> None:
    from windlass.actions import init as action
    from windlass.cli import init as command

    assert command.TEMPLATES == action.TEMPLATES


# -- schema -----------------------------------------------------------------------------------------------------------


def test_schema_accepts_a_good_job_and_refuses_a_bad_one(windlass: Call) -> None:
    schema = windlass("schema").json
    jsonschema.validate({"name": "a", "run": "train.py"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "a", "run": "train.py", "node": 2}, schema)


def test_schema_of_targets_is_printed(windlass: Call) -> None:
    schema = windlass("schema", "--targets").json
    jsonschema.validate({"lab": {"kind": "kubernetes", "context": "lab"}}, schema)


# -- doctor -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_doctor_has_a_line_per_check_and_succeeds_here(windlass: Call) -> None:
    result = windlass("doctor")
    assert result.code == 0
    for name in ("python", "home", "record", "cores", "memory", "shared memory", "open files", "loopback", "gpus",
                 "script's python", "mpirun", "git"):  # fmt: skip
        assert re.search(rf"^(ok  |warn)  {re.escape(name)} ", result.out, re.MULTILINE), name


def test_doctor_exits_with_1_if_no_run_could_be_recorded(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("WINDLASS_HOME", "file/home")
    monkeypatch.setenv("VIRTUAL_ENV", "/no/such/environment")
    result = windlass("doctor", "-o", "json")
    assert result.code == 1
    assert result.json["ok"] is False
    failed = {check["name"]: check for check in result.json["checks"] if check["level"] == "fail"}
    assert set(failed) == {"home", "script's python"}
    assert all(check["fix"] for check in failed.values())


@pytest.mark.slow
def test_doctor_refuses_a_record_of_another_version(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("old").mkdir()
    monkeypatch.setenv("WINDLASS_HOME", "old")
    assert windlass("ps").code == 0
    with closing(sqlite3.connect("old/record.db")) as database:
        database.execute("PRAGMA user_version = 1")
    [record] = [check for check in windlass("doctor", "-o", "json").json["checks"] if check["name"] == "record"]
    assert (record["level"], "has tables of version 1" in record["found"]) == ("fail", True)


# -- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_the_only_output(shell: str, windlass: Call) -> None:
    result = windlass("completion", shell)
    assert result.code == 0
    assert "_WINDLASS_COMPLETE" in result.out
    assert result.err == ""


def test_bash_accepts_the_script(windlass: Call) -> None:
    script = windlass("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


@pytest.mark.slow
def test_bash_completes_words_with_the_script(
    windlass: Call, environ: Mapping[str, str], tmp_path: Path, recorded: Callable[..., str]
) -> None:
    run = recorded(Job(name="words", command=["true"]), 0)
    Path("folder").mkdir()
    Path("my job.yaml").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "windlass"
    command.write_text(f"#!{sys.executable}\nfrom windlass.cli.main import main\nmain()\n")
    command.chmod(0o755)
    (tmp_path / "complete.bash").write_text(windlass("completion", "bash").out)
    Path("job.yaml").write_text("")
    env = {
        **environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PS1": "ready> ",
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
    }
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], env=env, encoding="utf-8", timeout=100, dimensions=(30, 100)
    )
    shell.expect("ready> ")
    shell.sendline(f"source {tmp_path}/complete.bash")
    shell.expect("ready> ")
    for typed, completed in (("windlass stat", "us "), ("windlass run --det", "ach "), ("windlass ps -o js", "on ")):
        shell.send(f"{typed}\t")
        shell.expect(re.escape(typed + completed))
        shell.sendcontrol("u")
    for typed, completed in (
        ("windlass run jo", "b.yaml "),
        ("windlass run my\\ jo", "b.yaml "),
        ("windlass ps --on=lo", "cal "),
        ("windlass run --set sta", "rt="),
        ("windlass run --set start=c", "old "),
        ("windlass cp my", "\\ job.yaml "),
        ("windlass cp word", f"{run.removeprefix('word')}:"),
        (f"windlass cp {run}:o", "utput/"),
        (f"windlass cp {run}:output/ fol", "der/"),
    ):
        shell.send(f"{typed}\t|")  # the bar shows whether there is a space
        shell.expect(re.escape(f"{typed}{completed}|"))
        shell.sendcontrol("u")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()


# -- the picture ------------------------------------------------------------------------------------------------------


def test_picture_contains_no_font_file_address_or_host_name() -> None:
    import xml.etree.ElementTree as ElementTree

    path = Path(__file__).resolve().parents[2] / "docs" / "images" / "live.svg"
    text = path.read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "font-face" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"/(?:tmp|home|root|Users|work)/", text)
    assert len(text) < 100_000


def test_removed_working_folder_is_named_in_the_error(windlass: Call, environ: Mapping[str, str]) -> None:
    command = 'mkdir gone && cd gone && rmdir ../gone && exec "$@" check'
    done = subprocess.run(["bash", "-c", command, "bash", *WINDLASS], env=environ, capture_output=True, text=True)
    assert (done.returncode, "gone no longer exists" in done.stderr) == (2, True), done.stderr
