"""The contract, on this machine. A way is a class."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.contract import Contract
from tests.engines.lab import Can, Lab, Way

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.facts import read_facts
from windlass.engines.local.plan import plan
from windlass.engines.local.warm import WarmPool
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget


def plan_local(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    # Without the names of an active environment, the script's interpreter is the one that runs the tests.
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return plan(job, LocalTarget(name="local"), read_facts(job, base=base, home=home, environ=environ), run_id)


@pytest.mark.slow
class TestCold(Contract):
    way = Way("local cold", LocalEngine, plan_local, frozenset(Can), {"local": {"start": "cold"}}, is_variant=True)

    def test_ranks_were_started_cold(self, lab: Lab) -> None:
        assert starts(lab) == {"cold"}


class TestWarm(Contract):
    way = Way(
        "local warm",
        LocalEngine,
        plan_local,
        frozenset(Can),
        {"warm": ["torch"]},
        adds=("TORCHINDUCTOR_CACHE_DIR",),  # torch sets it where it is imported
        clean_up=lambda home: WarmPool(home).stop(),
    )

    def test_ranks_were_forked(self, lab: Lab) -> None:
        assert starts(lab) == {"warm"}


def starts(lab: Lab) -> set[str]:
    """How the nodes of a run were started."""
    return {event.data["start"] for event in lab.finish("environment", nodes=2).events if event.kind == "node"}
