"""Plans jobs for the local engine, and reads how their nodes were started."""

from __future__ import annotations

import os
from pathlib import Path

from tests.engines.harness import Harness

from windlass.engines.local.facts import read_facts
from windlass.engines.local.plan import plan
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.spec.targets import LocalTarget


def plan_local(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    # Without an active environment, the script's interpreter is the one that runs the tests.
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return plan(job, LocalTarget(name="local"), read_facts(job, base=base, home=home, environ=environ), run_id)


def starts(harness: Harness) -> set[str]:
    """Returns how the nodes of a run were started."""
    return {event.data["start"] for event in harness.finish("environment", nodes=2).events if event.kind == "node"}
