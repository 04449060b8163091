"""Comparison of runs: what differs is listed, what is unknown is a value of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windlass.code.revision import Revision
from windlass.plan.plan import NO_PLAN
from windlass.plan.steps import StageStep
from windlass.runs.events import DataStaged
from windlass.runs.phase import Phase
from windlass.runs.record import Files, Status, Times
from windlass.views.comparison import Difference, RunFacts, arguments_of, compare_runs


def facts(run_id: str, *, code: str | None = "c1", data: str | None = None, **plan: Any) -> RunFacts:
    staged = (DataStaged("digits", "s3://b/d", data),) if data else ()
    status = Status(run_id, "job", "local", Phase.TRAINING, Times(100.0, 100.0), "/out", files=Files(data=staged))
    return RunFacts(status, replace(NO_PLAN, target="local", **plan), (), code)


def differences(*runs: RunFacts) -> dict[str, Difference]:
    return {f"{one.kind} {one.name}": one for one in compare_runs(runs, 160.0).differences}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("train.py --lr 0.1 --amp", {"script": "train.py", "--lr": "0.1", "--amp": "yes"}),
        ("train.py --lr=-1e-3 -b 8", {"script": "train.py", "--lr": "-1e-3", "-b": "8"}),
        ("train.py --shift -1.5 --sizes 1 2 3", {"script": "train.py", "--shift": "-1.5", "--sizes": "1 2 3"}),
        ("train.py optimizer.lr=0.1 +data=x", {"script": "train.py", "optimizer.lr": "0.1", "+data": "x"}),
        ("-m pkg.train --lr $LR", {"script": "pkg.train", "--lr": "7"}),
        ("train.py --tag a --tag b", {"script": "train.py", "--tag": "a b"}),
        ("train.py -- more", {"script": "train.py", "--": "more"}),
    ],
)
def test_arguments_are_named_by_their_option(run: str, expected: dict[str, str]) -> None:
    assert arguments_of({"run": run, "env": {"LR": "7"}}) == expected


def test_only_properties_that_differ_are_listed() -> None:
    job = {"run": "train.py --lr 1", "restarts": {"max": 1, "on": ["failure"]}, "env": {"A": "1"}}
    found = differences(
        facts("a", job=job), facts("b", job={**job, "restarts": {"max": 2, "on": ["failure"]}, "env": {}}, code="c2")
    )
    assert {name: one.values for name, one in found.items()} == {
        "env A": ("1", None),
        "setting restarts.max": (1, 2),
        "code digest": ("c1", "c2"),
    }


def test_unknown_values_are_not_equal_to_known_ones() -> None:
    unknown_code, no_plan = facts("b", code=None), replace(facts("c"), plan=None)
    found = differences(facts("a", revision=Revision("abc", "main", 0)), unknown_code, no_plan)
    assert found["code digest"] == Difference("code", "digest", ("c1", None, None), (1, 2))
    assert found["code commit"].unknown == (1, 2)
    assert found["environment target"] == Difference("environment", "target", ("local", "local", None), (2,))
    assert not differences(no_plan, no_plan)


def test_data_sets_are_compared_by_digest() -> None:
    step = StageStep("stage digits", "digits", "s3://b/d", "/data/digits")
    plan: dict[str, Any] = {"steps": (step,)}
    assert not differences(facts("a", data="d1", **plan), facts("b", data="d1", **plan))
    found = differences(facts("a", data="d1", **plan), facts("b", data="d2", **plan), facts("c", **plan), facts("d"))
    assert found["data digits"] == Difference("data", "digits", ("d1", "d2", None, None), (2,))


def test_the_time_of_an_active_run_ends_now() -> None:
    assert compare_runs([facts("a")], 160.0).runs[0].seconds == 60.0
