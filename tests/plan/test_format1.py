"""Plans of format 1, in the records of the previous version: their runs start the same nodes again."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import StoreError, StoreTooNew
from windlass.plan.compose import compose
from windlass.plan.environment import of_group, of_rank
from windlass.plan.plan import Plan
from windlass.worker.protocol import NodeSpec

ARCHIVE = Path(__file__).parents[1] / "cli" / "previous_version" / "home.tar.xz"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("home")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    database = sqlite3.connect(":memory:")
    database.executescript((folder / "record.sql").read_text())
    found = [json.loads(plan) for (plan,) in database.execute("SELECT plan FROM runs")]
    database.close()
    return found


def test_the_nodes_of_a_recorded_plan_are_composed_as_they_were_planned(plans: list[dict[str, Any]]) -> None:
    assert {plan["engine"] for plan in plans} == {"local", "kubernetes"}
    for data in plans:
        planned = [NodeSpec.from_json(step["request"]) for step in data["steps"] if step["kind"] == "node"]
        plan = Plan.from_json(data)
        size = plan.world_size
        assert [_of_format1(spec) for spec in compose(plan.nodes)] == [
            _without_agent(spec.replace(notices=None, world_size=size)) for spec in planned
        ]
        assert Plan.from_json(plan.to_json()) == plan


def _of_format1(spec: NodeSpec) -> NodeSpec:
    """The spec without the variables that ranks did not have yet."""
    names = [*of_group("plain", 1, 1), *of_rank("plain", 0, 0, 0)]
    ranks = [rank.replace(env={n: v for n, v in rank.env.items() if n not in names}) for rank in spec.ranks]
    return spec.replace(notices=None, env={n: v for n, v in spec.env.items() if n not in names}, ranks=tuple(ranks))


def _without_agent(spec: NodeSpec) -> NodeSpec:
    """The spec without the agent of torchrun that started its ranks then."""
    return spec.replace(launch=None) if spec.launch is not None and spec.launch.name == "torchrun" else spec


def test_a_plan_that_cannot_be_read_is_refused_with_what_to_do(plans: list[dict[str, Any]]) -> None:
    with pytest.raises(StoreTooNew, match="the plan is of format 3"):
        Plan.from_json({**plans[0], "format": 3})
    made = Plan.from_json(plans[0])
    broken = [step if step["kind"] != "node" else {**step, "request": {}} for step in plans[0]["steps"]]
    with pytest.raises(StoreError, match="cannot be read") as refused:
        Plan.from_json({**plans[0], "steps": broken})
    assert "start a new run" in refused.value.hint
    for name in ("steps", "nodes", "policy"):
        with pytest.raises(StoreError, match=f"the recorded plan of .* cannot be read: .*{name}"):
            Plan.from_json({key: value for key, value in made.to_json().items() if key != name})
    with pytest.raises(StoreError, match="the plan is a list, and no mapping"):
        Plan.from_json([])  # type: ignore[arg-type]
