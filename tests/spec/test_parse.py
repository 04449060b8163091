from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.spec.strategies import mappings

from windlass.errors import JobFileError
from windlass.spec.dump import dump_job
from windlass.spec.job import Job
from windlass.spec.parse import job_from_mapping, parse_job, parse_targets
from windlass.spec.sections import NodeRange


def refusal(make: Callable[[], object]) -> JobFileError | None:
    try:
        make()
    except JobFileError as error:
        return error
    return None


WHOLE = """\
name: digits
run: train.py --epochs 5            # a script and its arguments, or `command: [...]`
launcher: torchrun
nodes: {min: 1, max: 4}
procs_per_node: auto
resources: {gpus: 1, gpu_type: T4, cpus: 4, memory: 16GiB, shm: 2GiB, instance: g4dn.xlarge}
labels: {team: vision}
code: .
image: pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
env: {NCCL_DEBUG: WARN}
secrets: [hf-token]
data:
  - {name: digits, source: s3://bucket/digits/, via: copy}   # copy | mount | stream
outputs: {to: s3://bucket/runs/, at: checkpoint, collect: ["out/**", "*.pt"]}
checkpoint: {every: 5min, keep: 3}
setup: pip install -r requirements.txt
notify: slack-url
restarts: {max: 3, on: [failure, preemption, node-loss]}
timeout: 2h
grace: 30s
hang: 5min
queue: team-a
priority: normal
python: .venv/bin/python
warm: [torch]
start: cold
volumes: [{claim: results, path: /results}]
progress: 'step (?P<step>\\d+)/(?P<total>\\d+)'
local: {netns: true, rate: 1gbit, port: 29500}
kubernetes: {via: auto, runtime: torch-distributed}
sagemaker: {warm_pool: 10min}
"""


def problems(text: str, parse: Callable[[str], Any] = parse_job) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        parse(text)
    return [str(problem) for problem in caught.value.problems]


def test_job_file_may_have_four_lines() -> None:
    job = parse_job("name: digits\nrun: train.py --epochs 5\nnodes: 2\nprocs_per_node: 2\n")
    assert job == Job(name="digits", run="train.py --epochs 5", nodes=2, procs_per_node=2)
    assert (job.launcher, job.script_argv, job.nodes) == (
        "torchrun",
        ("train.py", "--epochs", "5"),
        NodeRange(min=2, max=2),
    )


def test_every_field_is_read() -> None:
    job = parse_job(WHOLE)
    assert (job.timeout, job.resources.memory, job.checkpoint.every, job.resources.cpus) == (7200, 16 * 2**30, 300, 4)
    assert (job.data[0].env_name, job.restarts.on, job.local.port) == (
        "WINDLASS_DATA_DIGITS",
        ("failure", "preemption", "node-loss"),
        29500,
    )
    assert job.nodes.is_elastic


def test_outputs_as_a_text_set_the_location() -> None:
    job = parse_job("name: a\nrun: a.py\noutputs: s3://bucket/runs/\n")
    assert job == Job(name="a", run="a.py", outputs={"to": "s3://bucket/runs/"})
    assert (job.outputs.scheme, job.outputs.at, job.outputs.collect) == ("s3", "end", ())
    assert dump_job(job).splitlines()[-1] == "outputs: s3://bucket/runs/"
    assert Job(name="a", run="a.py", outputs=None).outputs.to is None


def test_all_problems_are_reported_at_once_in_file_order() -> None:
    text = """\
num_nodes: 2
name: Digits/1
run: train.py "open
nodes: 0
resources:
  gpus: -1
  memroy: 4GiB
data:
  - {name: a, source: b, via: cpy}
  - {name: A b, source: b}
  - {source: b}
timeout: soon
grace: -1
local: {rate: 1gbit}
env: {RANK: 1, DEBUG: yes, FLAG: true, A-B: x}
"""
    assert problems(text) == [
        "job.yaml:1: num_nodes: not a field (did you mean nodes?)",
        "job.yaml:2: name: 'Digits/1' is not a legal name: a name is at most 40 lower-case letters, digits and '-', "
        "and begins with a letter (try digits-1)",
        "job.yaml:3: run: cannot be split into words: no closing quotation (close the quote, or use command:)",
        "job.yaml:4: nodes: must be at least 1, found 0",
        "job.yaml:6: resources.gpus: must be at least 0, found -1",
        "job.yaml:7: resources.memroy: not a field (did you mean memory?)",
        "job.yaml:9: data[0].via: expected copy, mount or stream, found 'cpy' (did you mean copy?)",
        "job.yaml:10: data[1].name: 'A b' is not a legal name: it has lower-case letters, digits, '-' and '_', "
        "and begins with a letter (try a-b)",
        "job.yaml:11: data[2].name: required field missing",
        "job.yaml:12: timeout: expected a duration, found 'soon' "
        "(write for example 30s, 5min, 1h30m, or a number of seconds)",
        "job.yaml:13: grace: a duration cannot be negative, found -1 "
        "(write for example 30s, 5min, 1h30m, or a number of seconds)",
        "job.yaml:14: local.rate: is 1gbit, but the nodes share this machine's network (add netns: true)",
        "job.yaml:15: env.RANK: set by Windlass (leave it out)",
        "job.yaml:15: env.FLAG: expected text, found true or false (quote it)",
        "job.yaml:15: env.A-B: not a name for a variable (letters, digits and '_', and no digit in front)",
    ]


def test_a_source_that_cannot_be_streamed_is_refused() -> None:
    text = "name: a\nrun: b.py\ndata: [{name: d, source: 'hf://bucket/d', via: stream}]\n"
    assert problems(text) == [
        "job.yaml:3: data[0].via: is stream, but the source is in hf:// (streams are read from s3://, gs:// and az://, "
        "and from folders)"
    ]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://host/d.tar?X-Amz-Signature=5ec7e7", "has a query, such as that of a presigned URL"),
        ("https://me:5ec7e7@host/d.tar", "holds a password inside the address"),
        ("https://5ec7e7@host/d.tar", "has a user or a password"),
        ("https://host/d/", "names no file"),
        ("https://host:5ec7e7/d.tar", "is a URL that cannot be used: its port is not a number"),
    ],
)
def test_url_with_a_secret_is_refused_without_repeating_it(url: str, said: str) -> None:
    [problem] = problems(f"name: a\nrun: b.py\ndata: [{{name: d, source: '{url}'}}]\n")
    assert said in problem
    assert "5ec7e7" not in problem
    assert parse_job("name: a\nrun: b.py\ndata: [{name: d, source: https://host/d.tar}]\n").data[0].is_staged


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "\ufeff", "null", "~"])
def test_empty_file_is_reported_as_empty(text: str) -> None:
    hint = "four lines are enough: name, run, nodes and procs_per_node"
    assert problems(text) == [f"job.yaml:1: the file is empty ({hint})"]


@pytest.mark.parametrize(("text", "found"), [("- a\n", "a list"), ("just words\n", "one value"), ("\n\n[1]", "a list")])
def test_error_for_a_file_without_a_mapping_names_its_content(text: str, found: str) -> None:
    assert f"expected a mapping, found {found}" in problems(text)[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [a\n", "not YAML: expected ',' or ']'"),
        ("name: a\n\trun: b\n", "indent with spaces, not with a tab"),
        ("name: a\nrun: \tb\n\tx: 1\n", "indent with spaces, not with a tab"),
        ("name: a: b\n", "indent all fields alike, and put a value that holds ': ' in quotes"),
        ("name: 'a\n", "not YAML"),
        ("name: @a\n", "not YAML"),
        ("name: a\x00b\n", "job.yaml:1: holds the character U+0000"),
        ("name: a\nrun: \x1b[31m\n", "job.yaml:2: holds the character U+001B"),
        ("name: a\nrun: \ud800\n", "job.yaml:2: holds the character U+D800"),
        ("name: a\nrun: b\n---\nname: c\nrun: d\n", "job.yaml:3: a second document begins here"),
        ("name: !!python/object/apply:os.system ['true']\nrun: a\n", "is a tag, and only plain values are read"),
        ("name: !mine a\nrun: a\n", "!mine is a tag"),
        (f"name: a\nrun: !{'a' * 900_000}", "job.yaml:2: a very long tag begins here"),
        ("{a: b}: c\n", "a field name must be one word"),
        ("? [a]\n: c\n", "a field name must be one word"),
        ("%YAML 99999999999.1\n---\nname: a\n", "not YAML"),
        ('name: "\\UFFFFFFFF"\n', "not YAML"),
        ("[" * 100_000, "levels deep"),
        ("a: " + "{a: " * 100_000, "levels deep"),
        ("\n".join(f"{' ' * n}a:" for n in range(500)), "levels deep"),
        ("warm: [" + "a, " * 30_000 + "]", "more than 20000 values"),
    ],
)
def test_file_without_a_yaml_mapping_is_one_clear_problem(text: str, says: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert says in found[0]


def test_duplicate_field_error_names_both_lines() -> None:
    assert problems("name: a\nrun: a.py\nnodes: 1\nenv:\n  A: 1\n  A: 2\nnodes: 2\n") == [
        "job.yaml:6: env.A: given twice, first in line 5 (leave one out)",
        "job.yaml:7: nodes: given twice, first in line 3 (leave one out)",
    ]


def test_duplicates_and_wrong_values_are_reported_together() -> None:
    found = problems("name: a\nname: b\nnodes: two\nrun: a.py\nrun: b.py\n")
    assert [line.split(": ")[1] for line in found] == ["name", "nodes", "run"]


def test_an_alias_bomb_is_refused_and_not_expanded() -> None:
    bomb = "a: &a [x, x]\n"
    bomb += "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    found = problems(f"name: a\nrun: b.py\n{bomb}")
    assert "job.yaml:4: b[0]: *a is an alias, and only plain values are read (write the value out)" in found


def test_a_refused_value_is_not_also_reported_as_missing() -> None:
    assert problems("x: &n digits\nname: *n\nrun: !!str a.py\n") == [
        "job.yaml:1: x: not a field",
        "job.yaml:2: name: *n is an alias, and only plain values are read (write the value out)",
        "job.yaml:3: run: tag:yaml.org,2002:str is a tag, and only plain values are read "
        "(write the value without it, in quotes if it is text)",
    ]


def test_ten_megabytes_are_refused_before_parsing() -> None:
    text = "name: a\n" * (10 * 2**20 // 8)
    start = time.process_time()
    assert problems(text) == [
        "job.yaml: the file has 10485760 characters; 1048576 are read at most (is this the right file?)"
    ]
    assert time.process_time() - start < 5


def test_crlf_line_ends_and_a_byte_order_mark_are_accepted() -> None:
    assert parse_job("\ufeffname: a\r\nrun: a.py\r\nnodes: 2\r\n") == Job(name="a", run="a.py", nodes=2)
    assert problems("\ufeffname: a\r\nrun: a.py\r\nnodes: x\r\n")[0].startswith("job.yaml:3: nodes:")


def test_scalars_follow_yaml_1_2() -> None:
    job = parse_job(
        "name: a\nrun: a.py\nrestarts: {max: 1, on: [failure]}\nenv: {A: 1.10, B: 0644, C: no, D: 2024-01-01, E: '7'}"
    )
    assert job.env == {"A": "1.10", "B": "0644", "C": "no", "D": "2024-01-01", "E": "7"}
    assert parse_job("name: a\nrun: a.py\ntimeout:\n").timeout is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nodes: 2.0", "nodes: expected a whole number or {min: 1, max: 4}, found 2.0 (write 2)"),
        ('nodes: "2"', "found '2' (write 2 without quotes)"),
        ("nodes: true", "found true"),
        ("nodes: -1", "must be at least 1, found -1"),
        ("nodes: 100001", "must be at most 100000"),
        ("nodes: 1:4", "(write {min: 1, max: 4})"),
        ("nodes: {min: 4, max: 1}", "nodes.max: is below min, found 1 and min 4"),
        ("nodes: {min: 1}", "nodes.max: required field missing"),
        ("nodes: {min: 1.0, max: 2}", "nodes.min: expected a whole number, found 1.0 (write 1)"),
        ("nodes:", "found nothing"),
        ("procs_per_node: 0", "must be at least 1"),
        ("procs_per_node: Auto", "expected a whole number or auto, found 'Auto'"),
        ("procs_per_node: 1025", "must be at most 1024"),
        ("resources: [1]", "resources: expected a mapping, found a list (its fields are gpus, gpu_type"),
        ("resources: {cpus: true}", "resources.cpus: expected a number, found true"),
        ("resources: {cpus: .nan}", "resources.cpus: expected a finite number"),
        ("resources: {memory: 0}", "resources.memory: must be more than 0, found 0"),
        ("resources: {memory: 16}", "resources.memory: is 16 bytes (write 16GiB)"),
        ("resources: {shm: 8.0}", "resources.shm: is 8 bytes (write 8GiB)"),
        ("resources: {memory: 512KiB}", "resources.memory: is 524288 bytes (write at least 1MiB)"),
        ("resources: {gpu_type: T4}", "resources.gpu_type: is T4, but no GPU is requested (add gpus: 1)"),
        ("gpus: 4", "gpus: not a field (did you mean resources.gpus?)"),
        ("nproc-per-node: 4", "not a field (did you mean procs_per_node?)"),
        ("timeout_seconds: 4", "not a field (did you mean timeout?)"),
        ("entrypoint: 4", "not a field (did you mean run?)"),
        ("volumes: [{claim: a, name: a, path: /x}]", "volumes[0].name: not a field (did you mean claim?)"),
        ("volumes: [{path: /x}]", "volumes[0].claim: expected one of claim, config_map, secret and source, found none"),
        (
            "volumes: [{claim: a, secret: b, path: /x}]",
            "volumes[0].source: expected one of claim, config_map, secret and source",
        ),
        ("1: 2", "1: not a field"),
        ("<<: {a: 1}", "<<: not a field"),
        ('"\\e[31m": 2', r"'\x1b[31m': not a field"),
        ("launcher: torch", "expected torchrun, pytorch, tensorflow, jax, mpi or plain, found 'torch' (did you"),
        ("warm: torch", "warm: expected a list, found text (write [torch])"),
        ("data: {name: d}", "data: expected a list, found a mapping (a list is written in brackets: [ITEM, …])"),
        ("data: [{name: d, source: 'https://host/*.tar'}]", "data[0].source: has a pattern: an HTTP server does not"),
        ("warm: [torch, torch]", "warm[1]: torch is given twice"),
        ("warm: [a-b]", "is not the name of a Python module"),
        ("image: 5", 'image: expected text, found 5 (write "5")'),
        ("local: {netns: yes}", "local.netns: expected true or false, found 'yes' (write true)"),
        ("local: {port: 0}", "local.port: must be at least 1"),
        ("local: {netns: true, rate: fast}", "local.rate: expected a rate, found 'fast'"),
        ("timeout: 0", "timeout: must be more than 0, found 0"),
        ("timeout: .inf", "timeout: a duration must be a finite number, found inf"),
        (f"nodes: {'9' * 5000}", "nodes: expected a whole number"),
        (f"nodes: {'9' * 300}", "nodes: must be at most 100000, found a very large number"),
        ("restarts: -1", "restarts: must be at least 0, found -1"),
        ("restarts: {max: 1, on: [failure, failure]}", "names a cause twice"),
        ("restarts: {max: 1, on: [preempt]}", "(did you mean preemption?)"),
        ("progress: step", "progress: has no named group"),
        ("progress: (?P<stp>a)", "progress: has a group stp"),
        ("progress: (", "progress: is not a Python pattern"),
        ("outputs: https://me:pw@host/x", "outputs: holds a password inside the address"),
        ("outputs: s3://", "outputs: is s3://, which names no bucket (write s3://BUCKET/PREFIX)"),
        (
            "data: [{name: a, source: 'gs:///a'}]",
            "source: is gs:///a, which names no bucket (write gs://BUCKET/PREFIX)",
        ),
        ("outputs: {to: s3://}", "outputs.to: is s3://, which names no bucket (write s3://BUCKET/PREFIX)"),
        (
            "outputs: {at: checkpoint}",
            "outputs.at: is checkpoint, and to: names no store (write to: s3://BUCKET/PREFIX)",
        ),
        ("outputs: {collect: out/**}", "outputs.collect: expected a list"),
        (
            "outputs: {collect: [/tmp/x]}",
            "outputs.collect[0]: is /tmp/x, but files are collected only from the code folder",
        ),
        (
            "outputs: {collect: [a/../../x]}",
            "outputs.collect[0]: is a/../../x, but files are collected only from the code",
        ),
        (
            "outputs: {collect: ['~/x']}",
            "outputs.collect[0]: is ~/x, but files are collected only from the code folder",
        ),
        ("outputs_at: checkpoint", "outputs_at: not a field (did you mean outputs.at?)"),
        ("outputs: s3://b/../c", "outputs: is s3://b/../c, and a prefix has no . and no .."),
        ("volumes: [{claim: a, path: x}]", "volumes[0].path: expected a folder from the root"),
        ("command: [a]", "command: cannot be used with run"),
        ("code: ''", "code: is empty"),
        ("code: 'a '", "code: begins or ends with a space"),
        ('code: "a\\nb"', "code: holds a line break or a control character"),
        ('python: "\\0"', "python: holds a NUL character"),
        ('python: "\\ud800"', "python: holds characters that are not Unicode text"),
        ("data: [{name: a-b, source: x}, {name: a_b, source: x}]", "a_b and a-b would both be WINDLASS_DATA_A_B"),
    ],
)
def test_a_bad_value_is_one_problem_in_plain_words(line: str, says: str) -> None:
    found = problems(f"name: a\nrun: a.py\n{line}\n")
    assert len(found) == 1
    assert found[0].startswith("job.yaml:3: ")
    assert says in found[0]


@pytest.mark.parametrize(
    "name", ["a/b", "../x", "A", "1a", "-a", "a-", "a" * 41, "a b", '"a\\nb"', '"\\e[1m"', "é", "''"]
)
def test_invalid_names_are_refused_with_a_valid_suggestion(name: str) -> None:
    (found,) = problems(f"name: {name}\nrun: a.py\n")
    suggested = found.rpartition("(try ")[2].rstrip(")")
    assert found.isprintable()
    assert parse_job(f"name: {suggested}\nrun: a.py\n").name == suggested


@pytest.mark.parametrize(
    "line",
    [
        "env: {HF_TOKEN: hunter2hunter2}",
        "env: {DB_PASSWORD: hunter2}",
        "env: {AWS_SECRET_ACCESS_KEY: hunter2}",
        "env: {ANYTHING: hf_hunter2hunter2hunter2hunter2hunter2}",
        "env: {HUB: https://me:hunter2@host/}",
        "secrets: [hf-token=hunter2]",
        "secrets: {hf-token: hunter2}",
        "token: hunter2",
        "data: [{name: a, source: s3://key:hunter2@bucket/}]",
    ],
)
def test_a_secret_is_refused_and_never_repeated(line: str) -> None:
    (found,) = problems(f"name: a\nrun: a.py\n{line}\n")
    assert "hunter2" not in found


def test_variables_named_like_tokens_without_secrets_are_accepted() -> None:
    job = parse_job(
        "name: a\nrun: a.py\nenv: {TOKENIZERS_PARALLELISM: 'false', EOS_TOKEN: 2, MY_SECRET: /run/secrets/x}\n"
    )
    assert job.env["EOS_TOKEN"] == "2"


def test_mapping_is_validated_like_a_file() -> None:
    mapping: dict[Any, Any] = {"nodes": 0, "num_nodes": 1, 5: 1, "name": "a"}
    with pytest.raises(JobFileError) as caught:
        job_from_mapping(mapping, where="sweep 3")
    assert [str(problem) for problem in caught.value.problems] == [
        "sweep 3: run: required field missing (write for example run: train.py --epochs 5)",
        "sweep 3: nodes: must be at least 1, found 0",
        "sweep 3: num_nodes: not a field (did you mean nodes?)",
        "sweep 3: 5: not a field",
    ]


def test_misspelled_field_is_not_also_reported_missing() -> None:
    assert problems("nmae: a\nscript: a.py\n") == [
        "job.yaml:1: nmae: not a field (did you mean name?)",
        "job.yaml:2: script: not a field (did you mean run?)",
    ]


@given(st.text())
@settings(max_examples=150, deadline=None)
@example("name: &a *a")
@example("%TAG ! tag:x,2000:\n---\n!a b: c")
def test_any_text_is_a_job_or_a_job_file_error(text: str) -> None:
    _parse_or_refuse(text)


@pytest.mark.slow
@given(mappings, st.data())
@settings(max_examples=100, deadline=None)
def test_any_damaged_job_file_is_a_job_or_a_job_file_error(mapping: dict[str, Any], data: st.DataObject) -> None:
    try:
        text = dump_job(job_from_mapping(mapping))
    except JobFileError:
        text = WHOLE
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 6))
    put = data.draw(st.text("{}[]:-,'\"&*!|>%@`#?\n\t 0aé\x00~<=\\", max_size=6))
    _parse_or_refuse(text[:at] + put + text[at + cut :])


_anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@pytest.mark.slow
@given(mappings, st.dictionaries(st.sampled_from(sorted(Job.model_fields)), _anything, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_value_in_any_field_is_a_job_or_a_job_file_error(mapping: dict[str, Any], wrong: dict[str, Any]) -> None:
    error = refusal(lambda: job_from_mapping({**mapping, **wrong}))
    assert error is None or (error.problems and str(error).replace("\n", "").isprintable())


def _parse_or_refuse(text: str) -> None:
    for error, where in (
        (refusal(lambda: parse_job(text)), "job.yaml"),
        (refusal(lambda: parse_targets(text)), "targets.yaml"),
    ):
        assert error is None or error.problems
        assert all(problem.message and problem.where.startswith(where) for problem in (error.problems if error else ()))
