"""The command that makes a plan sends the code that was packed for it; a command that reads the plan packs it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.sagemaker.planning import plan_here

from windlass.engines.travel import planned_code
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.views.schema import schema_of
from windlass.views.serialise import to_json


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    path.write_text("print(1)\n")
    return path


@pytest.fixture
def plan(script: Path, tmp_path: Path) -> Plan:
    return plan_here(Job(name="digits", run="train.py"), script.parent, tmp_path / "home", "digits-7f3k2")


def test_plan_contains_code_packed_while_planning(plan: Plan, script: Path) -> None:
    script.write_text("print(2)\n")
    assert planned_code(plan) is plan.archive


def test_code_of_recorded_plan_is_packed_again(plan: Plan, script: Path) -> None:
    recorded = Plan.from_json(plan.to_json())
    assert recorded.archive is None
    assert planned_code(recorded) == plan.archive
    script.write_text("print(2)\n")
    with pytest.raises(EngineError, match="has changed since the plan was made"):
        planned_code(recorded)


def test_json_of_plan_does_not_contain_archive(plan: Plan) -> None:
    assert plan.archive is not None
    assert "archive" not in plan.to_json()
    assert "archive" not in to_json(plan)
    assert "archive" not in str(schema_of("plan")["properties"])
    assert "archive" not in repr(plan)
    assert Plan.from_json(plan.to_json()) == plan
