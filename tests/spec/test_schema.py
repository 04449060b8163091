from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator
from tests.spec.strategies import mappings
from tests.spec.test_parse import WHOLE, refusal

from windlass.spec.job import Job
from windlass.spec.parse import job_from_mapping
from windlass.spec.schema import job_schema, targets_schema
from windlass.spec.yamltext import read_yaml

JOBS = Draft202012Validator(job_schema())
TARGETS = Draft202012Validator(targets_schema())


def test_both_schemas_are_valid_json_schema() -> None:
    for schema in (job_schema(), targets_schema()):
        Draft202012Validator.check_schema(schema)
        assert json.loads(json.dumps(schema)) == schema


def test_schema_accepts_the_job_that_uses_every_field() -> None:
    mapping, _ = read_yaml(WHOLE, "job.yaml", "")
    assert set(mapping) == set(Job.model_fields) - {"command"}
    JOBS.validate(mapping)


@given(mappings)
@settings(max_examples=70, deadline=None)
def test_schema_accepts_every_job_that_the_parser_accepts(mapping: dict[str, Any]) -> None:
    if refusal(lambda: job_from_mapping(mapping)) is None:
        JOBS.validate(mapping)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_nodes": 2},
        {"nodes": 0},
        {"nodes": "2"},
        {"nodes": {"min": 1}},
        {"nodes": {"min": 1, "max": 2, "by": 1}},
        {"procs_per_node": "all"},
        {"timeout": True},
        {"timeout": "soon"},
        {"resources": {"gpu": 1}},
        {"resources": {"memory": "much"}},
        {"env": {"RANK": "1"}},
        {"env": {"WINDLASS_X": "1"}},
        {"env": {"A": True}},
        {"data": [{"name": "a"}]},
        {"data": [{"name": "a", "source": "b", "via": "cpy"}]},
        {"restarts": {"on": ["preempt"]}},
        {"launcher": "torch"},
        {"local": {"netns": 1}},
        {"local": {"netns": True, "rate": "fast"}},
        {"command": ["a"]},
        {"name": "A"},
        {"warm": "torch"},
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(wrong: dict[str, Any]) -> None:
    mapping = {"name": "a", "run": "a.py", **wrong}
    assert refusal(lambda: job_from_mapping(mapping))
    assert not JOBS.is_valid(mapping)


def test_a_job_needs_run_or_command_in_the_schema_too() -> None:
    assert not JOBS.is_valid({"name": "a"})
    assert not JOBS.is_valid({"name": "a", "command": []})
    assert JOBS.is_valid({"name": "a", "command": ["a"]})


def test_every_field_of_the_schemas_is_described() -> None:
    for schema in (job_schema(), targets_schema()):
        for name, model in {"": schema, **schema["$defs"]}.items():
            bare = [field for field, part in model.get("properties", {}).items() if name and "description" not in part]
            assert not bare, (name, bare)


@pytest.mark.parametrize(
    ("mapping", "is_good"),
    [
        ({}, True),
        ({"lab": {"kind": "kubernetes", "context": "lab"}}, True),
        ({"aws": {"kind": "sagemaker", "region": "us-east-1", "role": "r", "storage": "s3://b/w"}}, True),
        ({"aws": {"kind": "sagemaker", "region": "us-east-1", "role": "r"}}, False),
        ({"here": {"kind": "sagemaker-local"}}, True),
        ({"local": {"kind": "local", "env": {"A": 1}}}, True),
        ({"local": {"kind": "kubernetes", "context": "lab"}}, False),
        ({"lab": {"kind": "kubernetes"}}, False),
        ({"lab": {"context": "lab"}}, False),
        ({"Lab": {"kind": "local"}}, False),
        ({"lab": {"kind": "local", "name": "lab"}}, False),
    ],
)
def test_the_schema_of_targets_agrees_with_the_parser(mapping: dict[str, Any], is_good: bool) -> None:
    assert TARGETS.is_valid(mapping) is is_good
