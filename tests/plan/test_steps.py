"""Steps of a plan survive a round trip through JSON, and unknown steps and fields are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from windlass.errors import StoreError, UnsupportedVersion
from windlass.plan.plan import FORMAT, NO_PLAN, Plan, Policy
from windlass.plan.price import Price
from windlass.plan.steps import (
    KINDS,
    AfterStep,
    AttemptStep,
    CodeStep,
    ManifestStep,
    NodeStep,
    SentFile,
    Step,
    TrainingJobStep,
)
from windlass.worker.protocol import NodeSpec, RankSpec
from windlass.worker.values import REQUIRED, ShapeError

VALUES: dict[str, Any] = {"str": "x", "int": 3, "float": 2.5, "bool": True}


def examples() -> Iterator[Step]:
    """Yields a step of each kind, with a value for each field without a default."""
    spec = NodeSpec(0, "t.py", "python", "/code", {"A": "1"}, (RankSpec(0, 0, ("t.py",), {}),), 1.0)
    for kind in KINDS.values():
        if kind is NodeStep:
            yield NodeStep("start node 0", spec)
        elif issubclass(kind, ManifestStep | TrainingJobStep):
            yield kind("make it", {"kind": "ConfigMap"})
        else:
            given = {
                name: example(kind.__annotations__[name]) for name in kind.__annotations__ if is_required(kind, name)
            }
            yield kind(summary="do it", **given)


def is_required(kind: type[Step], name: str) -> bool:
    return name in kind.fields() and kind.fields()[name] is REQUIRED


def example(hint: str) -> Any:
    if hint.startswith("tuple"):
        return ()
    if hint.startswith("Literal"):
        return "sagemaker"
    return VALUES[hint.partition(" |")[0]]


def test_a_plan_is_read_back_as_it_was() -> None:
    plan = replace(
        NO_PLAN,
        policy=Policy(60.0, 10.0, None, 2, ("failure", "hang"), 1, notify="slack-url"),
        steps=tuple(examples()),
        price=Price(4.0, 2.0, "USD", "a test"),
        num_spares=1,
    )
    again = Plan.from_json(json.loads(plan.to_text()))
    assert again == plan
    assert again.to_text() == plan.to_text()


def test_steps_are_found_by_their_class() -> None:
    code = CodeStep("send the code", "d", files=(SentFile("train.py", 7),))
    attempt = AttemptStep("make Job a-1", {"kind": "Job"})
    plan = replace(NO_PLAN, steps=(code, attempt))
    assert (plan.only(CodeStep), plan.first(AfterStep), plan.every(AttemptStep)) == (code, None, [attempt])
    assert plan.manifests(AttemptStep) == [{"kind": "Job"}]
    with pytest.raises(StoreError, match="has 0 steps of kind after, and needs one"):
        plan.only(AfterStep)


@pytest.mark.parametrize("step", list(examples()), ids=lambda step: str(step.kind))
def test_an_unknown_field_of_a_step_is_refused(step: Step) -> None:
    data = step.to_json()
    with pytest.raises(ShapeError, match="and no others"):
        Step.from_json({**data, "hook": "/home/ann/evil"})
    if not isinstance(step, ManifestStep | TrainingJobStep):
        with pytest.raises(ShapeError, match="unknown field: hook"):
            Step.from_json({**data, "request": {**data["request"], "hook": "/home/ann/evil"}})


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [{"kind": "unknown", "summary": "", "request": {}}]},
        {"steps": [{"kind": ["object"], "summary": "", "request": {}}]},
        {"steps": [{"kind": "object", "summary": 7, "request": {}}]},
        {"steps": [{"kind": "after", "summary": "", "request": {"run": 7}}]},
        {"steps": [{"kind": "after", "summary": "", "request": {"run": "a-1", "summary": "x"}}]},
        {"policy": {**NO_PLAN.policy.to_json(), "hook": "x"}},
        {"policy": {}},
        {"price": {"per_hour": 1.0}},
        {"nodes": {**NO_PLAN.nodes.to_json(), "hook": "x"}},
        {"more": 1},
    ],
)
def test_a_plan_with_what_is_unknown_or_missing_cannot_be_read(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        Plan.from_json({**NO_PLAN.to_json(), **change})


def test_a_plan_of_another_format_is_of_another_version() -> None:
    with pytest.raises(UnsupportedVersion, match=f"reads format {FORMAT}"):
        Plan.from_json({**NO_PLAN.to_json(), "format": FORMAT + 1})


def test_an_engine_of_another_package_has_steps_of_its_own() -> None:
    class ToyStep(Step):
        kind = "toy-step"
        size: int

    try:
        step = ToyStep("make a toy", 3)
        assert step.to_json() == {"kind": "toy-step", "summary": "make a toy", "request": {"size": 3}}
        assert Step.from_json(step.to_json()) == step
        assert step.shared is None, "no machine takes it over from a cluster"
    finally:
        del KINDS["toy-step"]


def test_a_field_that_is_not_shared_has_its_default_on_another_machine() -> None:
    code = CodeStep("send the code", "d", folder="/home/ann/code", bytes=7, files=(SentFile("secret.txt", 1),))
    assert code.as_shared() == CodeStep("send the code", "d", bytes=7)
