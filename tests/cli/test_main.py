"""The `windlass` command: help, suggestions, uniform errors, exit codes, and lazy imports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from tests.cli.conftest import WINDLASS, Call, loaded_by

from windlass.cli.main import COMMANDS, _of_file, cli


def rooms(loaded: set[str], *names: str) -> set[str]:
    return {module for module in loaded if module.split(".")[0] in names}


# -- start-up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("no-such-command",)])
def test_help_loads_no_command_and_no_library_but_click(words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    loaded = loaded_by(*words, environ=environ)
    assert not rooms(loaded, "pydantic", "pydantic_core", "ruamel", "rich", "sqlite3", "asyncio")
    own = {module for module in loaded if module.startswith("windlass.")}
    assert own <= {"windlass.cli", "windlass.cli.main", "windlass.cli.style", "windlass.errors"}


@pytest.mark.parametrize(
    "words", [("ps",), ("ps", "-o", "json"), ("status",), ("events",), ("logs",), ("status", "-v")]
)
def test_read_commands_load_neither_pydantic_nor_yaml_nor_rich(
    words: tuple[str, ...], environ: Mapping[str, str], windlass: Call
) -> None:
    assert windlass("run", "-q", "--", "true").code == 0
    loaded = loaded_by(*words, environ=environ)
    assert not rooms(loaded, "pydantic", "pydantic_core", "ruamel", "rich")


def test_completing_a_command_name_loads_no_command(environ: Mapping[str, str]) -> None:
    shell = {"_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": "windlass st", "COMP_CWORD": "1"}
    loaded = loaded_by(environ={**environ, **shell})
    assert not rooms(loaded, "pydantic", "ruamel", "rich")
    assert "windlass.cli.inspect" not in loaded


def test_completion_after_an_unknown_command_prints_no_error(environ: Mapping[str, str]) -> None:
    shell = {"_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": "windlass nope ", "COMP_CWORD": "2"}
    done = subprocess.run([*WINDLASS], env={**environ, **shell}, capture_output=True, text=True)
    assert done.stderr == ""


# -- help -------------------------------------------------------------------------------------------------------------


def test_help_lists_every_command(windlass: Call) -> None:
    said = windlass("--help")
    assert said.code == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help[:20])}", said.out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_a_valid_example(name: str, windlass: Call) -> None:
    said = windlass(name, "-h")
    assert said.code == 0
    assert "Example:" in said.out
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Group) or "--debug" in said.out
    for line in said.out[said.out.index("Example:") :].splitlines():
        found = re.match(r" +(?:source <\()?windlass ([a-z-]+)(.*)", line)
        if found is None:
            continue
        words = re.split(r"   +|[>)|]", re.sub(r"\$\(.*\)", "RUN", found[2]))[0].split()
        command = cli.get_command(click.Context(cli), found[1])
        assert command is not None
        command.make_context(found[1], words)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal_of_80_columns(name: str, windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = cli.get_command(click.Context(cli), name)
    parts = list(command.commands) if isinstance(command, click.Group) else []
    for words in ([], [name], *([name, part] for part in parts)):
        shown = windlass(*words, "-h").out
        assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_version_is_one_line(windlass: Call) -> None:
    assert re.fullmatch(r"windlass, version \d+\.\d+\.\d+\n", windlass("--version").out)


PATHS = (
    ["-c", "from windlass.cli.entry import main; main()"],
    ["-m", "windlass"],
)


@pytest.mark.parametrize("words", [[], ["--"]])
@pytest.mark.parametrize("path", PATHS, ids=["main", "module"])
def test_a_command_line_without_a_command_prints_the_help_with_clicks_code(
    path: list[str], words: list[str], environ: Mapping[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, *path, *words], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: windlass [OPTIONS] COMMAND [ARGS]...\n")
    assert "  status  " in done.stderr
    assert "error:" not in done.stderr


@pytest.mark.parametrize("name", ["warm", "data", "cluster", "target", "prices"])
def test_a_group_without_a_command_prints_its_help(name: str, windlass: Call) -> None:
    shown = windlass(name)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(f"Usage: windlass {name} [OPTIONS] COMMAND")


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed_by_the_caller(closed: str, environ: Mapping[str, str]) -> None:
    command = ["bash", "-c", f'"$@" {closed}', "bash", *WINDLASS, "targets"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["targets"], 1, "error: cannot write: No space left on device\n"),
        (["run", "--", "echo", "hi"], 101, ": standard output: No space left on device\n"),
    ],
)
def test_output_to_a_full_disk_is_an_error_that_is_named(
    words: list[str], code: int, said: str, environ: Mapping[str, str], home: Path
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*WINDLASS, *words], env=environ, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "internal error" not in done.stderr


WHILE_A_CLASS_IS_MADE = (
    "class Field:\n"
    "    def __set_name__(self, owner, name):\n"
    "        raise KeyboardInterrupt\n"
    "class Holder:\n"
    "    field = Field()\n"
)


@pytest.mark.parametrize("source", ["raise KeyboardInterrupt\n", WHILE_A_CLASS_IS_MADE], ids=["module", "class"])
@pytest.mark.parametrize("imported", ["typing", "click", "sqlite3"])  # the first import, and imports of the command
def test_ctrl_c_while_the_command_is_imported_is_no_traceback(
    imported: str, source: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / f"{imported}.py").write_text(source)
    begun = {**environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*WINDLASS, "ps"], env=begun, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize("handled", ["tidy()", "Interrupts(can_ask=False)"])
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGTERM"])
def test_signal_ignored_by_the_caller_stays_ignored(handled: str, name: str) -> None:
    code = (
        "import signal\n"
        "from windlass.cli.interrupts import Choice, Interrupts, tidy\n"
        f"signal.signal(signal.{name}, signal.SIG_IGN)\n"  # as under nohup, or in the background of a script
        f"with {handled} as interrupts:\n"
        f"    signal.raise_signal(signal.{name})\n"
        "    assert interrupts is None or not interrupts.listen(0.0)\n"
        "print('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("statu",), "'statu' is not a command (did you mean status?)"),
        (("rum",), "'rum' is not a command (did you mean run?)"),
        (("rmm",), "'rmm' is not a command (did you mean rm?)"),
        (("data", "fetch", "cifar10"), "'fetch' is not a command (that is windlass data copy)"),
        (("data", "frobnicate"), "No such command 'frobnicate'"),
        (("frobnicate",), "'frobnicate' is not a command\n"),
        (("lgos",), "'lgos' is not a command (did you mean logs?)"),
        (("artefacts",), "'artefacts' is not a command (did you mean artifacts?)"),
        (("drop",), "'drop' is not a command\n"),
        (("pods",), "'pods' is not a command\n"),
        (("top",), "'top' is not a command (that is windlass ps --watch)"),
        (("pause",), "'pause' is not a command (that is windlass stop)"),
        (("progress",), "'progress' is not a command (that is windlass status)"),
        (("train.py",), "'train.py' is not a command (that is windlass run train.py)"),
        (("attach", "digits-7"), "'attach' is not a command (that is windlass logs -f)"),
        (("list",), "'list' is not a command (that is windlass ps)"),
        (("cancel", "digits-7"), "'cancel' is not a command (that is windlass stop)"),
        (("delete", "digits-7"), "'delete' is not a command (that is windlass rm)"),
        (("submit", "job.yaml"), "'submit' is not a command (that is windlass run)"),
        (("ps", "--al"), "--al"),
        (("run", "--node", "2"), "--nodes"),
        (("schema", "--targets", "--printed-by", "ps"), "ask for one"),
        (("ps", "-n", "0"), "-n"),
        (("rm",), "RUN"),
    ],
)
def test_usage_error_is_one_message_with_code_2(words: tuple[str, ...], said: str, windlass: Call) -> None:
    result = windlass(*words)
    assert result.code == 2
    assert result.out == ""
    assert said in result.err
    assert "see: windlass" in result.err
    assert "Traceback" not in result.err


def test_help_and_version_work_as_commands(windlass: Call) -> None:
    assert windlass("help") == windlass("--help")
    assert windlass("help", "cluster", "up") == windlass("cluster", "up", "--help")
    assert windlass("version") == windlass("--version")


def test_fields_that_are_often_changed_are_options(
    windlass: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("run.env").write_text("# of the cluster\n\nNCCL_DEBUG=WARN\nexport LR='0.5'\nA=1\n")
    words = ("--restarts", "2", "--gpus", "3", "--env-file", "run.env", "-e", "A=2", "--queue", "q", "-o", "json")
    job = json.loads(windlass("plan", "train.py", *words).out)["job"]
    assert (job["restarts"]["max"], job["resources"]["gpus"], job["procs_per_node"], job["queue"]) == (2, 3, 3, "q")
    assert job["env"] == {"NCCL_DEBUG": "WARN", "LR": "0.5", "A": "2"}
    fewer = json.loads(windlass("plan", "train.py", "--gpus", "2", "--procs-per-node", "1", "-o", "json").out)["job"]
    assert (fewer["resources"]["gpus"], fewer.get("procs_per_node", 1)) == (2, 1)


@pytest.mark.parametrize(
    ("line", "found", "hint"),
    [
        (
            "run train.py --epochs 5",
            "--epochs",
            "arguments of the script go after --: windlass run train.py -- --epochs 5",
        ),
        ("run train.py --nodes 2 --lr=1 -d x", "--lr=1", "windlass run train.py --nodes 2 -d -- --lr=1 x"),
        ("plan train.py 5", "5", "windlass plan train.py -- 5"),
        (
            "exec digits-7 -r 1 nvidia-smi -L",
            "nvidia-smi",
            "the command goes after --: windlass exec digits-7 -r 1 -- nvidia",
        ),
    ],
)
def test_script_arguments_without_dashes_are_suggested_after_dashes(
    line: str, found: str, hint: str, windlass: Call
) -> None:
    result = windlass(*line.split())
    assert (result.code, result.out) == (2, "")
    assert f"windlass {line.split()[0]} does not take {found}\n" in result.err
    assert hint in result.err


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("run sh -c pwd", "sh is neither a job file nor a script",
         "a command line goes after --: windlass run -- sh -c pwd"),
        ("plan --nodes 2 sh --nproc-per-node 2 train.py", "sh is neither a job file nor a script",
         "windlass plan --nodes 2 -- sh --nproc-per-node 2 train.py"),
        ("run train.py --json", "windlass run has no --json\n", "write -o json"),
        ("rerun digits-7 --retry 3", "windlass rerun has no --retry\n", "write --restarts N"),
        ("run train.py --data s3://b/set/", "windlass run has no --data\n",
         "data is a field of the job: write data: in the job file\n"),
        ("run train.py --resources gpus=2", "windlass run has no --resources\n", "--set resources.gpus=…"),
        ("run train.py --grace=1min", "windlass run has no --grace\n", "--set grace=…"),
        ("run data.py --data s3://b/set/", "windlass run does not take --data\n",
         "windlass run data.py -- --data s3://b/set/"),
        ("plan --env-file none train.py", "--env-file none: No such file", "NAME=VALUE"),
        ("plan --env-file data.py train.py", "--env-file data.py:1: not NAME=VALUE", "NAME=VALUE"),
        ("plan --gpus -1 train.py", "'--gpus': expected a whole number from 0, found '-1'", "see: windlass plan"),
        ("run -n 2 train.py", "windlass run has no -n\n", "--nodes N"),
        ("plan --target=aws train.py", "windlass plan has no --target\n", "--on TARGET"),
        ("run --dry-run train.py", "windlass run has no --dry-run\n", "windlass plan shows every step"),
        ("run train.py --dry-run", "windlass run has no --dry-run\n", "windlass plan shows every step"),
        ("run --epochs 5 train.py", "windlass run does not take --epochs\n", "after --: windlass run … -- --epochs …"),
        ("run --seq 5 train.py", "windlass run does not take --seq\n", "after --: windlass run … -- --seq …"),
        ("run --nodez 2 train.py", "No such option '--nodez'", "see: windlass run --help"),
        ("rerun --lr 3", "windlass rerun does not take --lr\n", "after --: windlass rerun … -- --lr …"),
        ("run trian.py", "trian.py does not exist", "did you mean train.py?"),
        ("run train.py --nproc-per-node 2", "windlass run has no --nproc-per-node\n", "write --procs-per-node N"),
        ("run --nproc_per_node 2 train.py", "windlass run has no --nproc_per_node\n", "write --procs-per-node N"),
        ("stop --all", "No such option '--all'.\n", "see: windlass stop --help"),
        ("run train.py --nodes", "'--nodes' requires an argument", "see: windlass run --help"),
    ],
)  # fmt: skip
def test_misspelled_command_gets_a_suggestion(
    line: str, said: str, hint: str, windlass: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "data.py").write_text("parser.add_argument('--data')\n")
    monkeypatch.chdir(tmp_path)
    result = windlass(*line.split())
    assert result.code == 2
    assert said in result.err
    assert hint in result.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nodes x", "--nodes: expected a whole number or {min: 1, max: 4}, found 'x'"),
        ("--timeout soon", "--timeout: expected a duration, found 'soon'"),
        ("--set grace=never", "--set grace: expected a duration, found 'never'"),
        ("--set resources.gpus=x", "--set resources.gpus: expected a whole number, found 'x'"),
        ("--env 1=2", "--env 1: not a name for a variable"),
    ],
)
def test_invalid_option_value_is_reported_for_the_option(
    line: str, said: str, windlass: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    result = windlass("plan", "train.py", *line.split())
    assert result.code == 2
    assert f"error: {said}" in result.err
    assert "train.py:" not in result.err


@pytest.mark.parametrize("words", [("status",), ("logs",), ("events",), ("stop",)])
def test_no_run_yet_is_code_102(words: tuple[str, ...], windlass: Call) -> None:
    result = windlass(*words)
    assert (result.code, result.out) == (102, "")
    assert "there is no run yet" in result.err


@pytest.mark.parametrize("words", [("status", "nope"), ("logs", "nope"), ("stop", "nope"), ("rm", "nope")])
def test_an_unknown_run_is_code_102(words: tuple[str, ...], windlass: Call) -> None:
    result = windlass(*words)
    assert result.code == 102
    assert "no run has the id 'nope'" in result.err


def test_errors_have_one_shape_as_json(windlass: Call) -> None:
    result = windlass("status", "nope", "-o", "json")
    error = json.loads(result.err)["error"]
    assert (error["code"], result.code) == (102, 102)
    assert "nope" in error["message"]
    assert "windlass ps" in error["hint"]


def test_usage_errors_have_the_same_json_shape(windlass: Call) -> None:
    error = json.loads(windlass("ps", "-o", "json", "--no-such").err)["error"]
    assert (error["code"], error["hint"]) == (2, "see: windlass ps --help")


def test_json_error_lists_all_problems_of_a_job_file(windlass: Call) -> None:
    Path("job.yaml").write_text("name: Wrong Name\nrun: train.py\nnode: 2\n")
    problems = json.loads(windlass("plan", "-o", "json").err)["error"]["problems"]
    assert [problem["where"] for problem in problems] == ["job.yaml:1", "job.yaml:3"]
    assert "did you mean nodes?" in problems[1]["hint"]


def test_debug_shows_the_traceback_of_an_error(windlass: Call) -> None:
    assert "Traceback" in windlass("status", "nope", "--debug").err


def test_internal_error_is_one_message_with_a_traceback_on_demand(
    windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of rope")

    monkeypatch.setattr("windlass.actions.runs.statuses", broken)
    said, traced = windlass("ps"), windlass("ps", "--debug")
    assert (said.code, traced.code) == (1, 1)
    assert "RuntimeError: out of rope" in said.err
    assert "Traceback" not in said.err
    assert "in broken" in traced.err


def test_options_of_the_script_are_not_parsed(windlass: Call) -> None:
    result = windlass("run", "--", "no-such-program", "--debug", "-o", "json")
    assert result.code == 2
    assert result.err.startswith("error:")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["schema"], 0, ""),
        (["data", "ls"], 0, ""),
        (["init", "train.py"], 1, "error: the output, or a connection, was closed"),
        (["--", "init", "train.py"], 1, "error: the output, or a connection, was closed"),
    ],
)
def test_closed_pipe_ends_a_reading_command_quietly(
    words: list[str], code: int, said: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    read, write = os.pipe()
    os.close(read)
    command = [*WINDLASS, *words]
    done = subprocess.run(command, env=environ, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr.partition(" by its other end")[0]) == (code, said)


def test_an_error_message_cannot_move_the_cursor(windlass: Call) -> None:
    done = windlass("status", "digits\x1b[2J\x1b[1;1H")
    assert done.code != 0
    assert "digits�[2J" in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize("words", [("cluster", "ls"), ("data", "ls"), ("ps",)])
def test_unusable_home_is_named_in_the_error(words: tuple[str, ...], windlass: Call, home: Path) -> None:
    home.write_text("a file")
    said = windlass(*words)
    assert said.code == 1
    assert str(home) in said.err
    assert "WINDLASS_HOME" in said.err
    assert "internal error" not in said.err
    home.unlink()


def test_folder_that_cannot_be_copied_is_reported_with_its_first_file() -> None:
    error = _of_file(shutil.Error([("a/b", "c/b", "[Errno 28] No space left on device"), ("a/d", "c/d", "the same")]))
    assert error is not None
    assert error.message == "a/b cannot be copied: [Errno 28] No space left on device"
