from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import JobFileError
from windlass.spec.dump import dump_job
from windlass.spec.job import Job
from windlass.spec.parse import parse_job
from windlass.spec.runline import join_run, split_run, with_arguments

ENV = {"LR": "0.5", "NOTE": "two words", "NONE": "", "SCRIPT": "train.py"}


def _job(run: str, **fields: Any) -> Job:
    return Job(name="a", run=run, env=ENV, **fields)


@pytest.mark.parametrize(
    ("run", "arguments"),
    [
        ("--lr $LR --lr=${LR}e-3", ["--lr", "0.5", "--lr=0.5e-3"]),
        ('--note $NOTE "$NOTE!"', ["--note", "two words", "two words!"]),
        ("--none $NONE --end 5", ["--none", "", "--end", "5"]),
        ("'$LR' \\$LR \"\\$LR\" 'a$LR'", ["$LR", "$LR", "$LR", "a$LR"]),
        (
            "'$HOME' '~/x' \"~\" '&&' '`x`' '$(x)' \"two\nlines\"",
            ["$HOME", "~/x", "~", "&&", "`x`", "$(x)", "two\nlines"],
        ),
        ("^a$ $5 $ x~ a@b", ["^a$", "$5", "$", "x~", "a@b"]),
        ("$WINDLASS_RANK '$WINDLASS_RANK'", ["$WINDLASS_RANK", "$WINDLASS_RANK"]),
        ("'a&b' x\"<y>\" a\\|b '>'log", ["a&b", "x<y>", "a|b", ">log"]),
        ("-exec rm {} \\;", ["-exec", "rm", "{}", ";"]),
    ],
)
def test_env_variables_expand_to_one_argument_and_quotes_prevent_expansion(run: str, arguments: list[str]) -> None:
    assert list(_job(f"train.py {run}").script_argv) == ["train.py", *arguments]


def test_script_may_be_a_variable_and_determines_the_launcher() -> None:
    assert _job("$SCRIPT", nodes=2).launcher == "torchrun"


@pytest.mark.parametrize(
    ("run", "message", "hint"),
    [
        ("train.py --lr $RATE", "names $RATE, which env: does not have", "add RATE to env:"),
        ("train.py $HOME/x", "names $HOME", "command: [bash, -c, …] with launcher: pytorch"),
        ("./solve $HOME/x", "names $HOME", "command: [bash, -c, …]"),
        ("train.py --rank=$RANK", "names $RANK", "write $WINDLASS_RANK,"),
        ("train.py ${GROUP_WORLD_SIZE}", "names $GROUP_WORLD_SIZE", "write $WINDLASS_NUM_NODES,"),
        ("train.py $MASTER_ADDR", "names $MASTER_ADDR", "let the script read it"),
        ("train.py --key $HF_TOKEN", "names $HF_TOKEN", "its name in secrets:"),
        ("train.py ${RATE:-0.1}", "holds ${RATE:-0.1}, and no shell", "command: [bash, -c, …]"),
        ("train.py $(date +%s) x", "holds $(date, and no shell", "command: [bash, -c, …]"),
        ('train.py "`hostname`"', "holds `hostname`, and no shell", "command: [bash, -c, …]"),
        ("train.py ~/data", "holds ~/data", "write the whole path"),
        ("pip install x && train.py | tee log", "holds && |, and no shell", "command: [bash, -c, …]"),
        ("train.py 2>&1", "holds 2>&1, and no shell", "command: [bash, -c, …]"),
        ("train.py >log 2>err.log", "holds >log 2>err.log, and no shell", "an argument is written in quotes"),
        ("train.py 1|tee b&&echo", "holds 1|tee b&&echo, and no shell", "command: [bash, -c, …]"),
        ("train.py&", "holds train.py&, and no shell", "command: [bash, -c, …]"),
        ("train.py --x=<lr> 'a'>b", "holds --x=<lr> a>b, and no shell", "an argument is written in quotes"),
        ("pip install x\npython train.py\n", "has several lines, and is one command", "into setup:"),
        ("$NONE x", "begins with a variable that is empty", "give it a value"),
    ],
)
def test_shell_syntax_in_run_is_refused_with_an_alternative(run: str, message: str, hint: str) -> None:
    with pytest.raises(JobFileError) as caught:
        _job(run)
    (problem,) = caught.value.problems
    assert problem.field == "run"
    assert message in problem.message
    assert hint in problem.hint


def test_error_has_the_line_of_run_in_the_file() -> None:
    with pytest.raises(JobFileError, match=r"job.yaml:3: run: names \$B, which"):
        parse_job("name: a\nenv: {A: 1}\nrun: train.py $A $B\n", "job.yaml")


@given(st.lists(st.text(st.sampled_from("a$L{}R\\\"'`~ \n&;"), min_size=1), min_size=1))
def test_joined_words_split_back_and_named_variables_are_expanded(words: list[str]) -> None:
    words = ["./prog", *words]
    assert list(split_run(join_run(words), {"LR": "no"})) == words
    filled = [word.replace("${LR}", "0.5") for word in words]
    if not any("$LR" in word for word in words):
        assert list(split_run(join_run(words, ["LR"]), {"LR": "0.5"})) == filled
    assert Job(name="a", run=join_run(words)).script_argv == tuple(words)


def test_arguments_are_added_to_a_block_of_one_line() -> None:
    assert split_run(with_arguments("train.py \\\n  --a 1\n", ["$LR", "b c"]), ENV) == (
        "train.py",
        "--a",
        "1",
        "$LR",
        "b c",
    )


def test_job_with_a_variable_in_run_round_trips() -> None:
    job = _job("$SCRIPT --lr $LR", nodes=2)
    assert parse_job(dump_job(job), "job.yaml") == job
