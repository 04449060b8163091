"""An engine of another package is found by its entry point, and passes the contract."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engines.contract import Contract
from tests.engines.harness import Aspect, Can, Way

from windlass.actions import runs
from windlass.actions.jobs import ReadyJob
from windlass.actions.targets import find_target
from windlass.engines import engine_class
from windlass.errors import JobFileError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.context import Context
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.job import Job

SITE = Path(__file__).with_name("site")
"""Folder as a package manager installs it: the module, and metadata with the entry point."""
SOURCE = SITE / "windlass_toy.py"
sys.path.append(str(SITE))
CAN = frozenset(Can) - {Can.INTERPRETERS, Can.QUICK_START, Can.TORCH}
"""Collectives are tested with the local engine, which finds root causes with the same code: importing torch
takes long."""
DIFFERS = frozenset({Aspect.START, Aspect.ENDS, Aspect.SIGNALS, Aspect.OUTPUT})
"""Aspects that the engine's code affects; supervisor and record are shared by all engines."""


def plan_toy(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    toy = engine_class("toy")
    context = Context({"WINDLASS_HOME": str(home)}, base)
    return toy.make_plan(job, toy.target_model(name="toybox"), run_id, base, context)


def connect(store: Store) -> Any:
    return engine_class("toy").connect(store)


@pytest.mark.slow
class TestToy(Contract):
    way = Way("toy", connect, plan_toy, CAN, differs_in=DIFFERS)


def test_toy_engine_has_fewer_than_150_lines_of_code() -> None:
    """Blank lines and docstrings do not count."""
    code = [line.strip() for line in SOURCE.read_text().splitlines() if line.strip()]
    assert len([line for line in code if not line.startswith('"""')]) < 150


def test_guide_contains_whole_toy_engine() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "add-an-engine.md").read_text()
    assert SOURCE.read_text() in guide, "copy site/windlass_toy.py into the guide"


def test_targets_of_added_kind_are_read_and_run(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("toybox: {kind: toy}\n")
    context = Context({"WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}, tmp_path)
    made = runs.make_plan(ReadyJob(Job(name="hi", command=["true"]), tmp_path, "job"), "toybox", context)
    with context.store() as store:
        engine = engine_class(made.engine).connect(store)
        engine.submit(made)
        assert runs.find(made.run_id, store)[0].wait(made.run_id, 60).phase is Phase.SUCCEEDED
        with pytest.raises(UsageError, match=r"^cp is not supported by engine toy$"):
            engine.fetch(made.run_id, 0, "output", tmp_path, lambda _: None)


def test_error_for_unknown_kind_lists_added_kind(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("toybox: {kind: toyy}\n")
    context = Context({"WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}, tmp_path)
    with pytest.raises(JobFileError, match=r"sagemaker-local or toy, found 'toyy' \(did you mean toy\?\)"):
        find_target("toybox", context)


def test_missing_kind_is_named_in_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no engine for targets of kind 'nomad' is installed"):
        engine_class("nomad")
