"""Invalid jobs are refused before they run, whatever their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.actions.jobs import Parts, read_job
from windlass.errors import JobFileError
from windlass.runs.context import Context

TOKEN = "hf_neverinanyrecord0000000000000000000"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "train.py").touch()
    return Context({"WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("run", f"run: train.py --hub-token {TOKEN}"),
        ("run", "run: train.py --db=postgres://me:hunter2@db.example.org/runs"),
        ("command", f"command: [python, train.py, --token={TOKEN}]"),
        ("setup", f"run: train.py\nsetup: |\n  pip install x\n  huggingface-cli login --token {TOKEN}"),
        ("setup", 'run: train.py\nsetup: pip install --index-url "https://me:hunter2@pypi.example.org/simple" x'),
    ],
)
def test_a_job_file_with_a_secret_in_a_command_is_refused_without_it(context: Context, field: str, text: str) -> None:
    (context.cwd / "job.yaml").write_text(f"name: a\n{text}\n")
    with pytest.raises(JobFileError) as raised:
        read_job(None, (), {}, context)
    assert str(raised.value).startswith(f"job.yaml: {field}: holds what looks like a secret")
    assert TOKEN not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_all_fields_with_secrets_are_reported_together(context: Context) -> None:
    (context.cwd / "job.yaml").write_text(f"name: a\nrun: train.py {TOKEN}\nsetup: login {TOKEN}\n")
    with pytest.raises(JobFileError) as raised:
        read_job(None, (), {}, context)
    assert [problem.field for problem in raised.value.problems] == ["run", "setup"]


def test_secrets_in_arguments_after_the_dashes_are_refused(context: Context) -> None:
    (context.cwd / "job.yaml").write_text("name: a\nrun: train.py\n")
    for what, rest in (
        ("train.py", ["--key", TOKEN]),
        ("job.yaml", ["--key", TOKEN]),
        (None, ["python", "x.py", TOKEN]),
    ):
        with pytest.raises(JobFileError, match="holds what looks like a secret"):
            read_job(what, rest, {}, context, rest_given=True)


def test_variable_names_and_lookalikes_are_not_secrets(context: Context) -> None:
    run = "train.py --tokenizer meta-llama/Llama-3-8B --eos-token '</s>' --url http://host:8080/a@b --key '$HF_TOKEN'"
    run += " --name=disk-usage-of-a-long-experiment --model sk-learn-gradient-boosting-v2"
    setup = "pip install git+https://x:${GH_TOKEN}@github.com/me/private; huggingface-cli login --token $HF_TOKEN"
    (context.cwd / "job.yaml").write_text(f'name: a\nrun: "{run}"\nsetup: "{setup}"\nsecrets: [hf-token]\n')
    assert read_job(None, (), {}, context).job.setup == setup


def test_env_override_applies_to_job_arguments_and_not_to_those_after_the_dashes(
    context: Context,
) -> None:
    (context.cwd / "job.yaml").write_text("name: a\nrun: |\n  train.py --lr $LR\nenv: {LR: 0.1, KEPT: x}\n")
    job = read_job(None, ["--note", "$LR"], {"env": Parts(LR="0.5")}, context).job
    assert job.script_argv == ("train.py", "--lr", "0.5", "--note", "$LR")
    assert job.env == {"LR": "0.5", "KEPT": "x"}
