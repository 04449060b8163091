from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.spec.strategies import jobs

from windlass.spec.dump import dump_job
from windlass.spec.job import Job
from windlass.spec.parse import parse_job


@pytest.mark.slow
@given(jobs)
@settings(max_examples=100, deadline=None)
def test_dumped_job_parses_to_an_equal_job(job: Job) -> None:
    assert parse_job(dump_job(job)) == job


@given(jobs)
@settings(max_examples=50, deadline=None)
def test_job_round_trips_through_json(job: Job) -> None:
    assert Job.model_validate(job.model_dump(mode="json")) == job
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_only_what_differs_from_the_defaults_is_written() -> None:
    job = Job(name="digits", run="train.py --epochs 5", nodes=2, grace=30, restarts=0)
    assert dump_job(job) == "name: digits\nrun: train.py --epochs 5\nnodes: 2\n"


def test_short_forms_are_written() -> None:
    job = Job(
        name="digits",
        run="train.py",
        nodes={"min": 1, "max": 4},
        resources={"gpus": 1, "cpus": 4, "memory": "16GiB"},
        checkpoint={"every": 300},
        restarts=3,
        timeout="1h30m",
        data=[{"name": "digits", "source": "s3://bucket/digits/"}],
    )
    assert dump_job(job).splitlines()[2:] == [
        "nodes: {min: 1, max: 4}",
        "resources: {gpus: 1, cpus: 4, memory: 16GiB}",
        "data: [{name: digits, source: s3://bucket/digits/}]",
        "checkpoint: {every: 5min}",
        "restarts: 3",
        "timeout: 1h30min",
    ]


def test_text_that_yaml_would_read_as_something_else_is_quoted() -> None:
    words = [
        "no",
        "1.10",
        "0644",
        "null",
        "~",
        "",
        " x ",
        "a: b",
        "# no comment",
        "*a",
        "2024-01-01",
        "1e3",
        "\x85\u2028😀",
    ]
    job = Job(name="a", command=["prog", *words], env={f"V{at}": word for at, word in enumerate(words)})
    assert parse_job(dump_job(job)) == job
    assert '"no"' in dump_job(job)


def test_multi_line_scripts_are_written_as_blocks_and_round_trip() -> None:
    command = ("bash", "-c", 'cd app\n\n  echo "a: b" # c\npython train.py')
    job = Job(name="a", command=command, setup="pip install x\npip install y\n")
    text = dump_job(job)
    assert '  - |-\n    cd app\n\n      echo "a: b" # c\n    python train.py\n' in text
    assert "setup: |\n  pip install x\n  pip install y\n" in text
    assert parse_job(text) == job


@pytest.mark.parametrize(
    "script", ["\na\nb", " a\nb", "a\tb\nc", "a\nb\n\n", "é\nb", "a\n\n", "a\n \nb ", "- a\n- b", "a\r\nb"]
)
def test_scripts_that_a_block_would_change_are_quoted_or_round_trip(script: str) -> None:
    job = Job(name="a", command=("sh", "-c", script), setup=script)
    assert parse_job(dump_job(job)) == job
