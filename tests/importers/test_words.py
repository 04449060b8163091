"""Commands of containers become fields of a job, parsed by the code for command lines."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.importers.container_command import assumed_torchrun, start_of
from windlass.importers.shell import read_line, script_of


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["torchrun", "--nproc-per-node=2", "/a/t.py"], {"run": "/a/t.py", "procs_per_node": 2}),
        (["torchrun", "--nnodes=$PET_NNODES", "--nproc_per_node", "4", "/a/t.py", "-x"],
         {"run": "/a/t.py -x", "procs_per_node": 4}),
        (["torchrun", "--standalone", "--brand-new", "7", "/a/t.py"], {"run": "/a/t.py"}),
        (["python", "-u", "/a/t.py"], {"run": "/a/t.py", "env": {"PYTHONUNBUFFERED": "1"}}),
        (["/opt/conda/bin/python", "/a/t.py"], {"run": "/a/t.py", "python": "/opt/conda/bin/python"}),
        (["python3", "-m", "torch.distributed.run", "--nproc-per-node", "gpu", "-m", "p.t"],
         {"run": "-m p.t", "procs_per_node": "auto"}),
        (["sh", "-c", "cd /a && exec torchrun t.py"], {"run": "/a/t.py"}),
        (["bash", "-lc", "set -e\nexport A=1 B=two\nA=3 python /a/t.py --x \"y z\"\n"],
         {"run": "/a/t.py --x 'y z'", "env": {"A": "3", "B": "two"}}),
        (["sh", "-c", "M=$(hostname -i)\ntorchrun --master_addr=$M --nnodes 2 /a/t.py"],
         {"run": "/a/t.py", "nodes": 2}),
        (["tini", "-s", "--", "torchrun", "/a/t.py"], {"run": "/a/t.py"}),
        (["mpirun", "-np", "4", "--hostfile", "/etc/mpi/hostfile", "python", "/a/t.py"],
         {"run": "/a/t.py", "launcher": "mpi"}),
        (["mpirun", "-x", "PATH", "-x", "A=1", "/a/prog"], {"run": "/a/prog", "launcher": "mpi", "env": {"A": "1"}}),
        (["bash", "run.sh"], {"command": ["bash", "run.sh"], "launcher": "plain"}),
        (["python", "-c", "print(1)"], {"command": ["python", "-c", "print(1)"], "launcher": "plain"}),
        (["python", "-m", "torch.distributed.launch", "/a/t.py"],
         {"run": "/a/t.py '--local-rank=$WINDLASS_LOCAL_RANK'"}),
        (["torchrun"], {"command": ["torchrun"], "launcher": "plain"}),
    ],
)  # fmt: skip
def test_container_commands_become_job_fields(words: list[str], fields: dict[str, Any]) -> None:
    found = dict(start_of(words, {}).fields)
    if found.get("launcher") == "torchrun":
        del found["launcher"]
    assert found == fields


@pytest.mark.parametrize(
    "line",
    [
        "python a.py; python b.py",
        "python a.py | tee log",
        "python a.py $RANK",
        "python a.py '$A' # x",
        "python /a/*.py",
    ],
)
def test_shell_only_lines_stay_shell_commands(line: str) -> None:
    assert start_of(["sh", "-c", line], {}).fields == {"command": ["sh", "-c", line], "launcher": "plain"}


def test_relative_script_is_resolved_in_the_working_directory() -> None:
    assert start_of(["python", "t.py"], {}, "/app").fields["run"] == "/app/t.py"
    assert start_of(["sh", "-c", "cd src; python ./t.py"], {}, "/app").fields["run"] == "/app/src/t.py"
    assert start_of(["./prog"], {}, "/app").fields["command"] == ["sh", "-c", 'cd /app && exec "$0" "$@"', "./prog"]


def test_cluster_variables_are_expanded_and_others_become_shell_variables() -> None:
    assert start_of(["python", "/a/t.py", "$(A)", "$$(A)"], {"A": "x"}).fields["run"] == """/a/t.py "${A}" '$(A)'"""
    kept = start_of(["sh", "-c", "login $(TOKEN) && python /a/t.py"], {}, unknown={"TOKEN"})
    assert kept.fields["command"][2] == "login ${TOKEN} && python /a/t.py"
    assert any("$(B)" in meaning for meaning, _, _ in start_of(["python", "/a/t.py", "$(B)"], {}).hints)
    assert start_of(["sh", "-c", "N=$(nproc) /bin/x $N"], {}).hints == []


def test_unsupported_options_are_reported_by_name() -> None:
    left = start_of(["torchrun", "--tee", "3", "--log-dir", "/logs", "/a/t.py"], {}).hints
    assert [meaning.split()[0] for meaning, _, is_handled in left if is_handled] == ["--tee", "--log-dir"]


def test_script_lines_that_ranks_do_not_need_are_reported() -> None:
    script = "set -e\nHEAD=$(hostname -i)\necho 'to start'\nsleep 30\npython /a/t.py\necho done\n"
    listed = "`HEAD=$(hostname -i)`, `set -e`, `echo 'to start'`, `sleep 30`, `echo done` in the same script"
    assert start_of(["sh", "-c", script], {}).hints == [(listed, "dropped: the ranks do not need it", True)]


def test_env_before_the_training_program_is_kept() -> None:
    made = start_of(["sh", "-c", "pip install x && env A=1 torchrun /a/t.py"], {})
    assert (made.fields["run"], made.fields["env"]) == ("/a/t.py", {"A": "1"})
    assert made.fields["setup"] == "(pip install x) || exit\n"
    assert start_of(["sh", "-c", "env && python /a/t.py"], {}).fields["run"] == "/a/t.py"


def test_torchrun_options_without_a_command_are_recognised() -> None:
    assert assumed_torchrun(["--nnodes=2", "/a/t.py"])
    assert not assumed_torchrun(["train", "--nnodes=2"])
    assert not assumed_torchrun(["--epochs", "3"])


def test_shell_script_is_parsed_only_if_it_needs_no_shell() -> None:
    assert script_of(["bash", "-euxc", "a"]) == "a"
    assert script_of(["bash", "-c", "a", "name", "x"]) is None
    assert script_of(["bash", "script.sh"]) is None
    for script in (
        "a || b",
        "a &",
        "a > f",
        "if a; then b; fi",
        "a; b",
        "x=`a`; b $x | c",
        'echo ";" ; a \\; b',
        "a <<E\nE",
    ):
        assert read_line(script, lambda words: False) is None, script
    line = read_line("cd /x\ncd y\nA=1\nexport B=2\necho go\nrun --it\n", lambda words: False)
    assert line is not None
    assert (line.words, line.env, line.folder, line.before) == (["run", "--it"], {"A": "1", "B": "2"}, "/x/y", [])


@pytest.mark.parametrize(
    ("line", "args", "run"),
    [
        ("python /a/t.py $ARGS", "--lr 0.1 -v", "/a/t.py --lr 0.1 -v"),
        ("python /a/t.py ${ARGS} --x", "", "/a/t.py --x"),
        ('python /a/t.py "$ARGS"', "two words", '/a/t.py "$ARGS"'),
        ('python /a/t.py "$ARGS"', "it's *", '/a/t.py "$ARGS"'),
        ("torchrun --nproc-per-node=2 /a/t.py $ARGS", "--lr 0.1", "/a/t.py --lr 0.1"),
        ("python /a/t.py $ARGS", "one", '/a/t.py "$ARGS"'),
    ],
)
def test_variable_becomes_as_many_words_as_in_a_shell(line: str, args: str, run: str) -> None:
    assert start_of(["sh", "-c", line], {"ARGS": args}).fields["run"] == run
    if '"' not in args + run:
        assert start_of(["sh", "-c", f'export ARGS="{args}"; {line}'], {}).fields["run"] == run


@pytest.mark.parametrize("args", ["*.txt", "--note 'a b'", "a\nb"])
def test_variable_that_only_a_shell_can_split_is_left_to_the_shell(args: str) -> None:
    line = ["sh", "-c", "python /a/t.py $ARGS"]
    assert start_of(line, {"ARGS": args}).fields == {"command": line, "launcher": "plain"}


@pytest.mark.parametrize(
    ("line", "env"),
    [
        ("export LIBS=$HOME_OF_CUDA/lib64; torchrun /a/t.py", {"LIBS": "/cuda/lib64"}),
        ("A=1; A=$A:2 B=$A torchrun /a/t.py", {"A": "1:2", "B": "1:2"}),
        ("export A=1; export A=2 B=${A}; torchrun /a/t.py", {"A": "2", "B": "1"}),
        ("A=1; env A=2 B=$A torchrun /a/t.py", {"A": "2", "B": "1"}),
        ('export ARGS="$ARGS -v"; torchrun /a/t.py $ARGS', {"ARGS": "--lr 1 -v"}),
    ],
)
def test_assignments_of_a_script_are_expanded_as_in_a_shell(line: str, env: dict[str, str]) -> None:
    assert start_of(["bash", "-c", line], {"HOME_OF_CUDA": "/cuda", "ARGS": "--lr 1"}).fields["env"] == env


@pytest.mark.parametrize(
    "line",
    [
        "export LD_LIBRARY_PATH=/cuda/lib64:$LD_LIBRARY_PATH; torchrun /a/t.py",
        "PYTHONPATH=/w:$PYTHONPATH torchrun /a/t.py",
        "A=$EMPTY/data torchrun /a/t.py",
        "cd $FOLDER && torchrun t.py",
    ],
)
def test_assignment_from_a_variable_of_the_image_or_the_user_is_left_to_the_shell(line: str) -> None:
    made = start_of(["bash", "-c", line], {"EMPTY": ""}, unset=["EMPTY"])
    assert made.fields == {"command": ["bash", "-c", line], "launcher": "plain"}


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("${LR:-0.1}", "0.5"),
        ("${NONE:-0.1}", "0.1"),
        ("${NONE-0.1}x", "x"),
        ("${LR-0.1}", "0.5"),
    ],
)
def test_default_of_a_variable_is_used_as_in_a_shell(word: str, run: str) -> None:
    made = start_of(["sh", "-c", f'python /a/t.py "{word}"'], {"LR": "0.5", "NONE": ""})
    assert made.fields["run"] == f"/a/t.py {run}"


@pytest.mark.parametrize(
    "word",
    ["${M%.pt}", "${M:+--debug}", "${M:0:2}", "${M/a/b}", "${#M}", "${M:=x}", "${M:-$B}", "${UNKNOWN:-1}", "${!M}"],
)
def test_other_expansions_are_left_to_the_shell(word: str) -> None:
    for line in (f'torchrun /a/t.py "{word}"', f'A="{word}" torchrun /a/t.py', f"torchrun /a/t.py {word}"):
        made = start_of(["bash", "-c", line], {"M": "a.pt"})
        assert made.fields == {"command": ["bash", "-c", line], "launcher": "plain"}, line


def test_number_of_ranks_that_a_shell_computes_is_left_to_the_shell() -> None:
    line = ["bash", "-c", "torchrun --nproc-per-node=${N%x} /a/t.py"]
    assert start_of(line, {"N": "8x"}).fields == {"command": line, "launcher": "plain"}


@pytest.mark.parametrize("word", ["{1,2}.txt", "{1..4}", "data/[ab].txt", "$'\\n'", "$1", "$@"])
def test_words_that_a_shell_replaces_are_left_to_the_shell(word: str) -> None:
    line = ["bash", "-c", f"python /a/t.py {word}"]
    assert start_of(line, {}).fields == {"command": line, "launcher": "plain"}


@pytest.mark.parametrize("word", ["'{\"a\": [1, 2]}'", '"[1,2]"', "lr={0}", "x=[]", '"{1,2}"'])
def test_quoted_brackets_are_arguments(word: str) -> None:
    assert "run" in start_of(["bash", "-c", f"python /a/t.py {word}"], {}).fields


@pytest.mark.parametrize(
    "login",
    ["wandb login neverinanyjobfile00000", "wandb login --relogin neverinanyjobfile00000", "hf auth login --token x1"],
)
def test_login_before_mpirun_is_reported_without_its_key(login: str) -> None:
    hints = start_of(["sh", "-c", f"pip install x && {login} && mpirun -np 2 python /a/t.py"], {}).hints
    assert "neverinanyjobfile" not in str(hints)
    assert "x1" not in str(hints)
    [found] = [hint for hint in hints if "which a job file does not hold" in hint.meaning]
    assert found.meaning.startswith(f"`{login.split()[0]} ")
    assert "kubectl create secret" in found.instead
    assert any("pip install x" in hint.meaning for hint in hints)
